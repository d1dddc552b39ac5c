"""What a compiled kernel takes as arguments, and processes that have no numba."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shared import kernels
from shared.kernels import object_code, types
from shared.promql.engine.kernels.windows import longest_series

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0


class Pair(NamedTuple):
    a: Any
    b: Any


class Other(NamedTuple):
    a: Any
    b: Any


INTS = types.int64[::1]
READ = types.Array(types.int64, 1, "C", readonly=True)
PAIR = types.NamedTuple((READ, types.float64), Pair)
NOT_ALIGNED = np.frombuffer(b"\0" + np.array([0, 2, 7, 8]).tobytes(), np.uint8)[1:].view(np.int64)
FROZEN = np.arange(6)
FROZEN.flags.writeable = False


@pytest.mark.parametrize(
    ("value", "wanted", "is_taken"),
    [
        (np.arange(6), INTS, True),
        (np.arange(6), READ, True),
        (FROZEN, READ, True),
        (FROZEN, INTS, False),
        (np.arange(6)[::2], READ, False),
        (np.arange(6)[::2], types.int64[:], True),
        (np.zeros(6), READ, False),
        (np.zeros(6, np.int64).astype(">i8"), READ, False),
        (NOT_ALIGNED, READ, True),
        (np.zeros((2, 3), np.int64), READ, False),
        (np.zeros((2, 3)), types.float64[:, ::1], True),
        (np.zeros((2, 3)).T, types.float64[:, ::1], False),
        (np.zeros((2, 3)).T, types.float64[::1, :], True),
        (np.zeros(2, [("x", "i8")]), types.Array(types.Record(np.dtype([("x", "i8")])), 1, "C"), True),
        (np.zeros(2, [("x", "i8")]), types.Array(types.Record(np.dtype([("y", "i8")])), 1, "C"), False),
        (3, types.float64, True),
        (True, types.int64, True),
        (np.uint64(3), types.int64, True),
        ("3", types.int64, False),
        (None, types.int64, False),
        (FROZEN, types.int64, False),
        (3, READ, False),
        (Pair(np.arange(3), 1), PAIR, True),
        (Other(np.arange(3), 1), PAIR, False),
        ((np.arange(3), 1), PAIR, False),
        ((1, 2.0), types.Tuple((types.int64, types.float64)), True),
        ((1, 2.0, 3), types.Tuple((types.int64, types.float64)), False),
    ],
)
def test_arguments_are_taken_if_the_code_can_rely_on_what_their_type_says(
    value: object, wanted: types.Type, is_taken: bool
) -> None:
    assert types.is_convertible(types.of_value(value), wanted) == is_taken


def test_arrays_of_any_address_are_taken_as_messages_have_them() -> None:
    assert NOT_ALIGNED.flags.aligned is False and longest_series(NOT_ALIGNED) == 5


def test_a_refusal_names_the_kernel_what_it_takes_and_what_it_was_given() -> None:
    with pytest.raises(TypeError, match=r"longest_series takes .*array\(int64, 1d, C, readonly\)\): \(array\(float64"):
        longest_series(np.zeros(3))


def test_a_signature_that_is_not_of_these_types_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match=r"use shared\.kernels\.types"):
        kernels.kernel("int64(int64)")(lambda x: x)


def printed(*arguments: str, **variables: str) -> str:
    """What a Python process of these arguments prints, in which such variables are set."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    return done.stdout


SERVING = """
import sys
import coordinator.__main__, worker.__main__
from coordinator.app import serve
from worker import warm
from shared.kernels import load_all
assert load_all() == 0 and warm.prepare()
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("numba", "llvmlite")))
"""


def test_a_process_that_serves_has_neither_numba_nor_llvm() -> None:
    kernels.compile_all()
    told = printed("-c", SERVING)
    assert "'numba'" not in told and "llvmlite" not in told, told


CALLING = """
import sys
import numpy as np
from shared.histograms import packed
print(packed._checked(np.zeros(3, np.int64)))
print("numba" in sys.modules)
"""


def test_a_named_tuple_from_a_kernel_comes_without_numba() -> None:
    kernels.compile_all()
    told = printed("-c", CALLING)
    found, has_numba = told.splitlines()
    assert found.startswith("Sections(rows=-1, ") and has_numba == "False"


BY_LLVM = """
import sys
import numpy as np
from shared.kernels import types
from shared import kernels
from shared.kernels import machine_code, object_code
from shared.kernels import kernel

def refuse(*_):
    raise object_code.UnknownObjectCode("another processor")

object_code.laid_out = refuse

@kernel(types.int64(types.Array(types.int64, 1, "C", readonly=True)))
def total(numbers):
    return numbers.sum()

print(total.load(), total(np.arange(4)), type(kernels._stored(total.name())).__name__)
"""


def test_object_code_for_another_processor_is_kept_as_it_is_and_linked_by_llvm(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BY_LLVM)
    for expected in ("False 6 ObjectCode\n", "True 6 ObjectCode\n"):
        told = printed(str(tmp_path / "program.py"), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert told == expected


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF\x01" + bytes(60), b"\x7fELF\x02" + bytes(13) + b"\xb7\0" + bytes(60)]
)
def test_what_is_not_for_this_kind_of_processor_is_not_understood(content: bytes) -> None:
    with pytest.raises(object_code.UnknownObjectCode):
        object_code.laid_out(content, "f", [])

"""Kernels: one declared signature each, compiled when asked, called from Python and from each other by many threads."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import coordinator.app  # for the kernels that it declares
import worker.methods.table
from shared import kernels
from shared.kernel_cache import PACKAGES, VARIABLE, _sources

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 120.0
COMPILERS = {"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil", "generated_jit"}

assert coordinator.app and worker.methods.table

CHAIN = """
import sys
from threading import Barrier, Thread
import numpy as np
from numba import types
from shared import kernels
from shared.kernels import inlined, kernel

INTS = types.Array(types.int64, 1, "C", readonly=True)

@inlined
def twice(x):
    return 2 * x

@kernel(types.int64(types.int64))
def one(x):
    return twice(x) + 1

@kernel(types.int64(types.int64))
def two(x):
    return one(x) + one(x + 1)

@kernel(types.int64(INTS), first=True)
def three(values):
    total = 0
    for value in values:
        total += two(value) + one(value)
    return total

CALLS = {
    "one": (lambda: one(1), 3), "two": (lambda: two(1), 8), "three": (lambda: three(np.arange(3)), 33),
    "compile": (lambda: kernels.compile_all(), 3),
}
"""
THREADS = """
orders = [order.split() for order in sys.argv[1:]]
barrier, answers = Barrier(len(orders)), []

def run(order):
    barrier.wait()
    answers.extend(CALLS[name][0]() == CALLS[name][1] for name in order)

threads = [Thread(target=run, args=(order,)) for order in orders]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(answers), all(answers), [len(called.dispatcher.nopython_signatures) for called in (one, two, three)])
"""


def run(directory: Path, program: str, *arguments: str) -> str:
    """What a program prints that compiles its kernels into an empty cache."""
    path = directory / "program.py"
    path.write_text(program)
    env = os.environ | {"PYTHONPATH": str(ROOT), VARIABLE: str(directory / "cache"), "NUMBA_DISABLE_JIT": "0"}
    return subprocess.run(
        [sys.executable, str(path), *arguments], env=env, capture_output=True, text=True, check=True, timeout=WITHIN_S
    ).stdout


def test_every_kernel_is_compiled_for_its_declared_signature_and_no_other() -> None:
    count = kernels.compile_all()
    assert count == len(kernels._registry) > 0
    for declared in kernels._registry:
        assert declared.signature is not None
        (compiled,) = declared.dispatcher.nopython_signatures
        assert compiled.args == declared.signature.args


def test_the_registry_has_the_kernels_of_all_modules() -> None:
    declaring = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "\n@kernel(" in path.read_text()
    }
    assert {declared.__module__ for declared in kernels._registry} == declaring


def test_the_cache_on_disk_is_named_by_all_modules_with_kernels() -> None:
    sources = _sources(ROOT)
    for declared in kernels._registry:
        assert declared.__module__.replace(".", "/") + ".py" in sources


@pytest.mark.parametrize("package", PACKAGES)
def test_only_one_module_makes_dispatchers(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)]
        assert not any(alias.name.partition(".")[0] == "numba" for node in imports for alias in node.names), path
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numba"
            for alias in node.names
        }
        assert not names & COMPILERS or path == ROOT / "shared" / "kernels.py", path


def test_a_kernel_is_compiled_by_its_first_call_whichever_of_two_threads_makes_it(tmp_path: Path) -> None:
    assert run(tmp_path, CHAIN + THREADS, "one", "one") == "2 True [1, 0, 0]\n"


def test_threads_compile_kernels_that_call_each_other_in_any_order(tmp_path: Path) -> None:
    orders = ("one two three", "three two one", "two one three", "compile", "three", "compile three")
    assert run(tmp_path, CHAIN + THREADS, *orders) == "13 True [1, 1, 1]\n"
    # And again with what is in the cache on disk.
    assert run(tmp_path, CHAIN + THREADS, *orders) == "13 True [1, 1, 1]\n"


def test_what_is_needed_first_is_compiled_with_all_that_it_calls_and_nothing_else(tmp_path: Path) -> None:
    program = CHAIN + (
        "unused = kernel(types.int64(types.int64))(lambda x: x)\n"
        "print(kernels.compile_first(), [len(k.dispatcher.nopython_signatures) for k in kernels._registry])\n"
    )
    assert run(tmp_path, program) == "1 [1, 1, 1, 0]\n"


def test_arguments_of_another_type_are_refused_and_not_compiled_for(tmp_path: Path) -> None:
    program = CHAIN + (
        "try:\n    three(np.zeros(2))\nexcept TypeError as error:\n    print(type(error).__name__)\n"
        "writable = np.arange(3)\nwritable.setflags(write=False)\nprint(three(writable), three(np.arange(3)))\n"
        "print(len(three.dispatcher.nopython_signatures))\n"
    )
    assert run(tmp_path, program) == "TypeError\n33 33\n1\n"

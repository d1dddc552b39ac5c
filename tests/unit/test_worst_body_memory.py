"""The worst bodies of remote write are decoded in bounded memory. Each has a new process, where no memory that earlier
ones have left is used again: they take more than others, as they are 64 MB when decompressed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.harness.worst_bodies import SNAPPY_RATIO, WORST, WRITE
from tests.forked_programs import Programs, prepared

SIZE_BYTES = 16 << 20
WITHIN_S = 100.0
WRITES = [name for name, (path, _, _) in WORST.items() if path == WRITE]
PREPARATION = """
import loadtest.bench.decoders
from shared.kernels import compile_all

compile_all()
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with prepared(PREPARATION) as programs:
        yield programs


@pytest.mark.parametrize("name", WRITES)
def test_a_worst_body_of_a_write_takes_bounded_memory(programs: Programs, tmp_path: Path, name: str) -> None:
    options = ("--one", name, "--bytes", str(SIZE_BYTES // SNAPPY_RATIO))
    printed = programs.run(tmp_path, "-m", "loadtest.bench.decoders", *options, within_s=WITHIN_S)
    measured = json.loads(printed.splitlines()[-1])
    assert measured["status"] in (204, 400, 413, 503), measured["text"]
    assert measured["peak_mb"] < 6 * SIZE_BYTES / 1e6, f"{measured['peak_mb']} MB more at the peak"

"""The worst bodies of remote write are decoded in bounded memory. Each has a new process, where no memory that earlier
ones have left is used again: they take more than others, as they are 64 MB when decompressed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.harness.worst_bodies import SNAPPY_RATIO, WORST, WRITE

SIZE_BYTES = 16 << 20
WITHIN_S = 100.0
WRITES = [name for name, (path, _, _) in WORST.items() if path == WRITE]


@pytest.mark.parametrize("name", WRITES)
def test_a_worst_body_of_a_write_takes_bounded_memory(name: str) -> None:
    command = [sys.executable, "-m", "loadtest.bench.decoders", "--one", name]
    command += ["--bytes", str(SIZE_BYTES // SNAPPY_RATIO)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    measured = json.loads(ended.stdout.splitlines()[-1])
    assert measured["status"] in (204, 400, 413, 503), measured["text"]
    assert measured["peak_mb"] < 6 * SIZE_BYTES / 1e6, f"{measured['peak_mb']} MB more at the peak"

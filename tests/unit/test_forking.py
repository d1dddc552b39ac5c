"""How much of its memory a forked worker shares with the process that forked it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 100.0
COPIED_MB_MAX = 4.0
"""When numba itself looked at the types of arguments, this was 9 MB."""

PROGRAM = """
import os
import sys
import worker.process
from shared.process import interpreter
from worker.series.index.texts import TextTable
from shared.kernels import compile_first

def private_mb():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty:")) / 1024

compile_first()
interpreter.collect_seldom()
if os.fork() == 0:
    before = private_mb()
    TextTable().codes(["a text"])
    print(private_mb() - before, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel does not say what is shared")
def test_the_first_call_of_a_kernel_in_a_forked_process_copies_few_pages() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    assert float(done.stdout) < COPIED_MB_MAX

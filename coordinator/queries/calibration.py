"""How fast this machine is, measured once at a start. What a light query may take is chosen for a usual machine; where
the same work takes longer, light queries would count as heavy, although they do no more.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types

STEPS, TABLE_WORDS = 500_000, 1 << 15
"""The table has 256 KiB, about as much as the part of a query's samples that a kernel works on."""
USUAL_S = 0.0034
"""Processor time of the steps on the machine on which the bound of a light query was chosen: a Xeon of 2.5 GHz, the
fastest of 40 runs."""
FACTOR_MAX = 4.0
"""A machine that seems slower than this is busy rather than slow."""
RUNS = 7
"""Of which the fastest counts: others were disturbed."""


@kernel(types.int64(types.Array(types.int64, 1, "C"), types.int64), first=True, allocates=False)
def _walk(table: np.ndarray, steps: int) -> int:
    """Walk through a table, each step to a place that depends on all before it: arithmetic, and loads from a cache."""
    at = 1
    for _ in range(steps):
        at ^= at << 13 & 0x7FFFFFFFFFFFFFFF
        at ^= at >> 7
        at ^= at << 17 & 0x7FFFFFFFFFFFFFFF
        at ^= table[at & (TABLE_WORDS - 1)]
    return at


def slowness(clock: Callable[[], float] = time.thread_time, walk: Callable[[], object] | None = None) -> float:
    """How many times as long as on a usual machine the same work takes, from 1 to FACTOR_MAX. It takes some 30 ms of
    processor time; `clock` tells that of this thread, in seconds."""
    table: NDArray[np.int64] = np.arange(TABLE_WORDS)
    run = walk or (lambda: _walk(table, STEPS))
    run()  # compiles it, or loads the table into the cache
    fastest_s = min(_seconds(clock, run) for _ in range(RUNS))
    return min(max(fastest_s / USUAL_S, 1.0), FACTOR_MAX)


def _seconds(clock: Callable[[], float], run: Callable[[], object]) -> float:
    begin = clock()
    run()
    return clock() - begin

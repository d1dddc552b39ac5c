"""How memory is given back: that of large arrays by the C library, that of objects by the cycle collector."""

from __future__ import annotations

import ctypes
import gc

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
MMAP_THRESHOLD_BYTES = 32 << 20
"""Arrays below this come from the heap (the most glibc allows), larger ones from the kernel and go back to it."""
TRIM_THRESHOLD_BYTES = 128 << 20
"""Free memory that may lie at the end of a heap before it goes back to the kernel."""

COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""Objects made and not freed before the collector looks at the young ones; Python's own 700 is a few requests."""


def keep_pages() -> None:
    """Let freed arrays be used again instead of giving their pages back to the kernel, which zeroes them anew each
    time: that took five sixths of the time of reading a query's samples. A C library without `mallopt` stays as it
    is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def collect_seldom() -> None:
    """Leave what is there now (imported modules) out of every later collection, and have those come seldom: requests
    leave hardly a cycle, and looking for them took a twentieth of the time. Call when everything is imported; forked
    processes share those pages, as nothing writes to them any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)

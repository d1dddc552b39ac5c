"""How the C library's allocator treats the memory of large arrays."""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
MMAP_THRESHOLD_BYTES = 32 << 20
"""Arrays below this come from the heap (the most glibc allows), larger ones from the kernel and go back to it."""
TRIM_THRESHOLD_BYTES = 128 << 20
"""Free memory that may lie at the end of a heap before it goes back to the kernel."""


def keep_pages() -> None:
    """Let freed arrays be used again instead of giving their pages back to the kernel, which zeroes them anew each
    time: that took five sixths of the time of reading a query's samples. A C library without `mallopt` stays as it
    is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)

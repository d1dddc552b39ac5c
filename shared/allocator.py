"""Settings of the C library's allocator for the memory of large arrays."""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
MMAP_THRESHOLD_BYTES = 32 << 20
"""Arrays below this size come from the heap (glibc allows no more); larger ones come from the kernel and go back to
it."""
TRIM_THRESHOLD_BYTES = 128 << 20
"""Free memory that may remain at the end of a heap before it goes back to the kernel."""


def keep_pages() -> None:
    """Reuse the memory of freed arrays instead of giving its pages back to the kernel, which would zero them each time:
    that took five sixths of the time of reading a query's samples. Does nothing if the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)

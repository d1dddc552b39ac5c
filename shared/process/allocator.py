"""Settings of the C library's allocator for the memory of large arrays."""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from typing import Any

import numpy as np
import psutil
from numpy.typing import DTypeLike, NDArray

MMAP_THRESHOLD, TRIM_THRESHOLD, ARENA_MAX = -3, -1, -8
MMAP_THRESHOLD_BYTES = 32 << 20
"""Arrays below this size come from the heap (glibc allows no more); larger ones come from the kernel and go back to
it."""
TRIM_THRESHOLD_BYTES = 128 << 20
"""Free memory that may remain at the end of a heap before it goes back to the kernel."""

ARENAS = 1
"""Heaps of a process. By itself, glibc makes up to eight for each processor, and `trim` returns nothing of the free
memory at the end of any but the first."""

SCRATCH_BYTES_MIN = 4 << 20
"""Pages from the kernel have to be zeroed, which is worth it for large arrays only."""
HUGE_BYTES_MIN = 16 << 20
"""From this size on, arrays from the kernel are in huge pages, of which the last one in use is half empty on average: a
worker has some that grow to a few megabytes in each shard. (numpy asks for them from 4 MB on.)"""

TRIM_INTERVAL_S = 10.0
"""Time between two looks at how much memory a process has."""
TRIM_BYTES_MIN, TRIM_BYTES_MIN_SMALL, TRIM_BYTES_MIN_QUIET = 64 << 20, 8 << 20, 4 << 20
TRIM_SHARE_MIN, TRIM_SHARE_MIN_SELDOM = 1 / 12, 1 / 48
TRIM_SELDOM_S = 30.0
"""Growth since the last trim, of the process or of its free memory, that makes another one worthwhile: in a busy
process that share of it, since a trim takes time in proportion to its size, but from the second of these bytes to the
first. The third is for a quiet process: no request waits for its time then, and nothing needs the memory again soon. It
is also the least for a busy one that was not trimmed for TRIM_SELDOM_S: then the smaller share is enough."""
QUIET_SHARE = 0.1
"""A process is quiet if it took no more of a processor since the last look."""


def keep_pages() -> None:
    """Reuse the memory of freed arrays instead of giving its pages back to the kernel, which would zero them each time:
    that took five sixths of the time of reading a query's samples. Does nothing if the C library has no `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(ARENA_MAX, ARENAS)


def scratch(shape: tuple[int, ...], dtype: DTypeLike, bytes_min: int = SCRATCH_BYTES_MIN) -> NDArray[Any]:
    """An array of zeros, for what is freed before others are made that find no room in its place. A large one, from
    `bytes_min` on, comes from the kernel and goes back to it, instead of leaving a hole in the heap. Raises
    MemoryError."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < bytes_min:
        return np.zeros(shape, dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the kernel gives no {size} bytes for an array: {error}") from error
    if size >= HUGE_BYTES_MIN and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


def trim() -> None:
    """Have the C library return free memory to the kernel. It keeps arrays of up to 32 MB for reuse, and after a start
    or a sealing that is most of what was in use: half of a worker's memory at a million series. Without glibc nothing
    is done."""
    trimmed = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trimmed is not None:
        trimmed(0)


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, whose last but one member is the number of free bytes in all heaps."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "o", "s", "h", "hd", "us", "fs", "used", "free", "keep")]


def free_bytes() -> int:
    """Freed memory that the C library keeps for reuse, returned to the kernel or not; 0 without glibc."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    return int(mallinfo().free)


class Trimmer:
    """Returns the memory of large work when the process has grown by it, or when it has been freed since the last time.
    One for a process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._next_at = time.monotonic() + TRIM_INTERVAL_S
        self._resident_bytes = 0
        """After the last time; 0: not known yet."""
        self._free_bytes = 0
        self._trimmed_at = self._looked_at = time.monotonic()
        self._busy_s = time.process_time()

    def due(self) -> bool:
        """Whether `run` is worth its time now: it takes some 10 ms for each 100 MB."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + TRIM_INTERVAL_S
        busy_s = time.process_time()
        is_quiet = busy_s - self._busy_s <= QUIET_SHARE * (now - self._looked_at)
        self._looked_at, self._busy_s = now, busy_s
        grown_bytes_min = TRIM_BYTES_MIN_QUIET if is_quiet else self._busy_bytes_min(now - self._trimmed_at)
        has_grown = self._resident_now() > self._resident_bytes + grown_bytes_min
        return has_grown or free_bytes() > self._free_bytes + grown_bytes_min

    def _busy_bytes_min(self, since_s: float) -> int:
        """Growth that makes a trim worthwhile, so long after the last one."""
        if since_s < TRIM_SELDOM_S:
            share, least = TRIM_SHARE_MIN, TRIM_BYTES_MIN_SMALL
        else:
            share, least = TRIM_SHARE_MIN_SELDOM, TRIM_BYTES_MIN_QUIET
        return min(max(int(share * self._resident_bytes), least), TRIM_BYTES_MIN)

    def run(self) -> None:
        trim()
        self._trimmed_at = time.monotonic()
        self._resident_bytes = self._resident_now()
        self._free_bytes = free_bytes()

    def _resident_now(self) -> int:
        """As it was the last time while the kernel does not tell, such as when no more files can be opened."""
        try:
            return int(self._process.memory_info().rss)
        except OSError:
            return self._resident_bytes

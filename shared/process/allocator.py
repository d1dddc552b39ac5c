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
"""The number of heaps of a process. By default, glibc creates up to eight for each CPU, and `trim` does not
return the free memory at the end of any but the first."""

SCRATCH_BYTES_MIN = 4 << 20
"""The kernel must zero the pages of new mappings, which pays off only for large arrays."""
HUGE_BYTES_MIN = 16 << 20
"""Arrays of this size or more are in huge pages. The last page in use is half empty on average, and a worker has some
arrays that grow to a few megabytes in each shard. (numpy requests huge pages from 4 MB.)"""

TRIM_INTERVAL_S = 10.0
"""Time between two checks of a process's memory."""
TRIM_PAUSE_S = 5.0
"""The least time between two trims after work that frees much memory: work that goes on needs it again."""
TRIM_BYTES_MIN, TRIM_BYTES_MIN_SMALL, TRIM_BYTES_MIN_QUIET = 64 << 20, 8 << 20, 4 << 20
TRIM_SHARE_MIN, TRIM_SHARE_MIN_SELDOM = 1 / 12, 1 / 48
TRIM_SELDOM_S = 30.0
"""The growth since the last trim, of the process or of its free memory, that makes another trim worthwhile. In a busy
process it is a share of the process's memory, since a trim takes time in proportion to it: TRIM_SHARE_MIN, between
TRIM_BYTES_MIN_SMALL and TRIM_BYTES_MIN. If the last trim was TRIM_SELDOM_S ago or earlier, it is TRIM_SHARE_MIN_SELDOM,
but at least TRIM_BYTES_MIN_QUIET. In a quiet process it is TRIM_BYTES_MIN_QUIET: no request waits for the trim, and
nothing soon needs the memory again."""
QUIET_SHARE = 0.1
"""A process is quiet if it has used at most this share of a CPU since the last check."""


def keep_pages() -> None:
    """Reuse the memory of freed arrays instead of giving its pages back to the kernel, which would zero them each time:
    zeroing took five sixths of the time of reading a query's samples. Does nothing without `mallopt`."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(ARENA_MAX, ARENAS)


def scratch(shape: tuple[int, ...], dtype: DTypeLike, bytes_min: int = SCRATCH_BYTES_MIN) -> NDArray[Any]:
    """An array of zeros for temporary data, whose memory arrays allocated later could not reuse. Arrays of `bytes_min`
    or more come from the kernel and are returned to it, so that they leave no hole in the heap. Raises MemoryError."""
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


class _Trims:
    """When this process trimmed last (monotonic time), and whether a trim has been put off since."""

    last_at = -math.inf
    is_owed = False


def trim(pause_s: float = 0.0) -> None:
    """Make the C library return free memory to the kernel. If it has done so within `pause_s`, it is put off until the
    next check of `Trimmer`. The library keeps the memory of arrays of up to 32 MB for reuse. After a start or a
    sealing, that is half of a worker's memory at a million series. Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    _Trims.is_owed = time.monotonic() < _Trims.last_at + pause_s
    if malloc_trim is not None and not _Trims.is_owed:
        _Trims.last_at = time.monotonic()
        malloc_trim(0)


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`. Its second-last member is the number of free bytes in all heaps."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "o", "s", "h", "hd", "us", "fs", "used", "free", "keep")]


def free_bytes() -> int:
    """Freed memory in the C library's heaps, including what was returned to the kernel; 0 without glibc."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    return int(mallinfo().free)


class Trimmer:
    """Returns free memory to the kernel after the process has grown, or after much memory has been freed. One per
    process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._next_at = time.monotonic() + TRIM_INTERVAL_S
        self._resident_bytes = 0
        """After the last trim; 0: unknown."""
        self._free_bytes = 0
        self._trimmed_at = self._checked_at = time.monotonic()
        self._busy_s = time.process_time()

    def due(self) -> bool:
        """Whether `run` is worth its time now: it takes some 10 ms for each 100 MB."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + TRIM_INTERVAL_S
        busy_s = time.process_time()
        is_quiet = busy_s - self._busy_s <= QUIET_SHARE * (now - self._checked_at)
        self._checked_at, self._busy_s = now, busy_s
        grown_bytes_min = TRIM_BYTES_MIN_QUIET if is_quiet else self._busy_bytes_min(now - self._trimmed_at)
        has_grown = self._resident_now() > self._resident_bytes + grown_bytes_min
        return _Trims.is_owed or has_grown or free_bytes() > self._free_bytes + grown_bytes_min

    def _busy_bytes_min(self, since_s: float) -> int:
        """The growth that makes a trim worthwhile in a busy process, `since_s` after the last one."""
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
        """The current resident bytes, or the last known number if it cannot be read, for example without free file
        descriptors."""
        try:
            return int(self._process.memory_info().rss)
        except OSError:
            return self._resident_bytes

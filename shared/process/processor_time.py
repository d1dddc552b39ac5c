"""A bound on the CPU time of a thread's work."""

from __future__ import annotations

import time


class ProcessorTime:
    """A bound on the CPU time of the thread that creates this object; 0 seconds: no bound.

    Reading a thread's CPU time is a system call, too slow for each check of a small query on a busy machine. So it is
    not read before `seconds` have elapsed, and CPU time counts from then on. The bound is exceeded by at most a factor
    of two.
    """

    __slots__ = ("_end", "_read_from", "_seconds", "is_bounded")

    def __init__(self, seconds: float = 0.0) -> None:
        self.is_bounded = seconds > 0
        self._seconds = seconds
        self._read_from = time.monotonic() + seconds if seconds else float("inf")
        self._end = 0.0

    def is_over(self) -> bool:
        """Whether the thread has used up its time."""
        if time.monotonic() < self._read_from:
            return False
        used = time.thread_time()
        if not self._end:
            self._end = used + self._seconds
        return used > self._end


UNBOUNDED = ProcessorTime()

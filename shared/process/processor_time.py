"""A bound on the processor time of one thread's work."""

from __future__ import annotations

import time


class ProcessorTime:
    """Processor time of the thread that makes this object; 0 seconds are no bound.

    To ask for a thread's processor time is a call of the kernel, which is too slow for each check of a small query on a
    busy machine. So the kernel is not asked before `seconds` have elapsed, and counts from then on. The work ends after
    twice the time at most.
    """

    __slots__ = ("_asked_from", "_end", "_seconds", "is_bounded")

    def __init__(self, seconds: float = 0.0) -> None:
        self.is_bounded = seconds > 0
        self._seconds = seconds
        self._asked_from = time.monotonic() + seconds if seconds else float("inf")
        self._end = 0.0

    def is_over(self) -> bool:
        """Whether the thread has had its time."""
        if time.monotonic() < self._asked_from:
            return False
        used = time.thread_time()
        if not self._end:
            self._end = used + self._seconds
        return used > self._end


UNBOUNDED = ProcessorTime()

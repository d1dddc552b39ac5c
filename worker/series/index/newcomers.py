"""When the newest series of an index were added, to the minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

RESOLUTION_S = 60.0
KEPT_S = 3600.0


class Newcomers:
    """The series of the last hour. Ids of series ascend in the order in which they are added, so one id a minute is
    enough. Not safe for concurrent use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._minutes: deque[tuple[float, int]] = deque()  # (when it began, the first id added in it)

    def came(self, first: int) -> None:
        """Note that the series with ids from `first` on are added now."""
        now = self._clock()
        if self._minutes and now - self._minutes[-1][0] < RESOLUTION_S:
            return
        self._minutes.append((now, first))
        while self._minutes[0][0] < now - KEPT_S - RESOLUTION_S:
            self._minutes.popleft()

    def first(self, age_s: float, size: int) -> int:
        """The lowest id that was added within `age_s` (KEPT_S at most), or `size`, the next id, if there is none. Ids
        of the minute in which this period begins may be left out."""
        begin = self._clock() - age_s
        return next((first for at, first in self._minutes if at >= begin), size)

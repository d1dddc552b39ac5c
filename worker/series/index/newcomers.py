"""When the last series of an index came, to the minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

RESOLUTION_S = 60.0
KEPT_S = 3600.0


class Newcomers:
    """The series of the last hour. Ids of series ascend in the order in which they come, so one number a minute tells
    them. Not safe for concurrent use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._minutes: deque[tuple[float, int]] = deque()  # when each began, and the first id that came in it

    def came(self, first: int) -> None:
        """The series with ids from `first` on have come now."""
        now = self._clock()
        if self._minutes and now - self._minutes[-1][0] < RESOLUTION_S:
            return
        self._minutes.append((now, first))
        while self._minutes[0][0] < now - KEPT_S - RESOLUTION_S:
            self._minutes.popleft()

    def first(self, age_s: float, size: int) -> int:
        """The lowest id that came within `age_s` (KEPT_S at most); `size`, the next id, if there is none. Those of the
        minute in which this time begins may be left out."""
        begin = self._clock() - age_s
        return next((first for at, first in self._minutes if at >= begin), size)

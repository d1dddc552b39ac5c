"""How fast a long task on a collection works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

REST_S_MAX = 0.1
"""The longest rest, in seconds."""


def _never() -> bool:
    return False


class Pace:
    """A task works in large slices while nothing is searched. Beside searches its slices are small, and it rests after
    each for as long as the slice took: a thread that never sleeps keeps its processor for some milliseconds after
    another one has been woken, whatever their priorities are."""

    def __init__(self, is_searched: Callable[[], bool] = _never) -> None:
        """`is_searched`: whether there was a search a moment ago."""
        self._is_searched = is_searched
        self._resumed_at = time.perf_counter()

    def size(self, alone: int, beside_searches: int) -> int:
        """The size of the next slice, at least 1."""
        return max(1, min(alone, beside_searches) if self._is_searched() else alone)

    def slices(self, count: int, alone: int, beside_searches: int) -> Iterator[slice]:
        """The numbers from 0 to `count` in slices, each of the size that is right when it begins."""
        start = 0
        while start < count:
            end = min(count, start + self.size(alone, beside_searches))
            yield slice(start, end)
            start = end

    def resume(self) -> None:
        """The task goes on after a wait for something else."""
        self._resumed_at = time.perf_counter()

    def rest(self) -> None:
        """A slice has ended."""
        if self._is_searched():
            time.sleep(min(REST_S_MAX, time.perf_counter() - self._resumed_at))
        self.resume()

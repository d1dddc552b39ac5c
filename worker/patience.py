"""How long background work waits for a rest: longer after each time that it did not wait long enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MEMORY_S = 7200.0
"""How long it is remembered that the work was done."""


class Patience:
    """Work that is done in a rest is wasted in part if the rest ends at once. Each time the work is done, the next rest
    has to last `first_s` longer, for MEMORY_S. So a sender that comes every minute meets the work a few times and not
    every minute: at most 22 times in two hours for 30 s. For one thread."""

    def __init__(self, first_s: float, clock: Callable[[], float]) -> None:
        self._first_s = first_s
        self._clock = clock
        self._done_at: deque[float] = deque()

    @property
    def wait_s(self) -> float:
        """How long the next rest has to last before the work is done."""
        while self._done_at and self._done_at[0] < self._clock() - MEMORY_S:
            self._done_at.popleft()
        return self._first_s * (1 + len(self._done_at))

    def done(self) -> None:
        """Note that the work was done now."""
        self._done_at.append(self._clock())

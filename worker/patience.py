"""How long background work waits for an idle period: the wait grows each time the work is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

MEMORY_S = 7200.0
"""How long a run of the work counts."""


class Patience:
    """Work that is done in an idle period is partly wasted if the period ends soon afterwards. Each time the work is
    done, the required idle time grows by `first_s`, for MEMORY_S. A sender that sends every minute therefore triggers
    the work only a few times: with 30 s, at most 22 times in two hours. For one thread."""

    def __init__(self, first_s: float, clock: Callable[[], float]) -> None:
        self._first_s = first_s
        self._clock = clock
        self._done_at: deque[float] = deque()

    @property
    def wait_s(self) -> float:
        """How long the next idle period must last before the work is done."""
        while self._done_at and self._done_at[0] < self._clock() - MEMORY_S:
            self._done_at.popleft()
        return self._first_s * (1 + len(self._done_at))

    def done(self) -> None:
        """Note that the work was done now."""
        self._done_at.append(self._clock())

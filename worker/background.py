"""Background work that can wait while the service is overloaded: merging blocks, rebuilding and measuring indexes.

What ends a shortage is not background work in this sense: sealing samples, gathering the log, indexing new vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 3.0
"""How long a pause lasts. The coordinator asks again every second while it is overloaded; if it dies, work goes on."""
PAUSES_MAX_S = 600.0
"""How long work may be put off by pauses that follow each other: it gets more, and searches and queries get slower."""


class Background:
    """One for a worker process. `pause` is for one thread, `is_paused` for any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = self._until = float("-inf")

    def pause(self) -> None:
        """Put off work that has not begun."""
        now = self._clock()
        if now > self._until:
            self._since = now
        self._until = now + PAUSE_S

    def is_paused(self) -> bool:
        now = self._clock()
        return now < self._until and now - self._since < PAUSES_MAX_S

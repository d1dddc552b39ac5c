"""Background work that can wait while the service is overloaded: merging blocks, rebuilding and measuring indexes.

Work that relieves an overload does not count: sealing samples, gathering the log, indexing new vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 3.0
"""How long a pause lasts. The coordinator renews it every second while it is overloaded; if it dies, work resumes."""
PAUSES_MAX_S = 600.0
"""How long consecutive pauses may delay work: meanwhile the work grows, and searches and queries get slower."""


class Background:
    """One per worker process. `pause` is for one thread, `is_paused` for any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = self._until = float("-inf")

    def pause(self) -> None:
        """Delay work that has not begun."""
        now = self._clock()
        if now > self._until:
            self._since = now
        self._until = now + PAUSE_S

    def is_paused(self) -> bool:
        now = self._clock()
        return now < self._until and now - self._since < PAUSES_MAX_S

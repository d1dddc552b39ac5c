"""Detects that a write-ahead log is idle, so that the space kept ready for records can be given back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from worker.patience import Patience

LOOK_EVERY_S = 1.0
PAUSE_S = 15.0
"""How long a pause must last before the log counts as resting, the first time (see `Patience`)."""
TRICKLE_BYTES = 64 << 10
"""Bytes of records that do not end a pause. The cluster's own metrics are some 10 kB every 15 s; a sender of 2,000
series every 15 s writes 40 kB."""


class Pauses:
    """For one thread, which calls `begins_rest` about every LOOK_EVERY_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._patience = Patience(PAUSE_S, clock)
        self._written: deque[tuple[float, int]] = deque()
        self.is_resting = False

    def begins_rest(self, written_bytes: int) -> bool:
        """Note how many bytes have been written in total, and update `is_resting`. Returns whether a rest begins
        now."""
        now = self._clock()
        wait_s = PAUSE_S if self.is_resting else self._patience.wait_s
        self._written.append((now, written_bytes))
        while len(self._written) > 1 and self._written[1][0] <= now - wait_s:
            self._written.popleft()
        since, before_bytes = self._written[0]
        if written_bytes - before_bytes > TRICKLE_BYTES:
            self.is_resting = False
            return False
        if self.is_resting or now - since < wait_s:
            return False
        self.is_resting = True
        self._patience.done()
        return True

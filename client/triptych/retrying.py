"""When a request is sent again, and after what pause."""

from __future__ import annotations

import math
import random
import time
from typing import Any, Callable

from triptych.calls import Call
from triptych.errors import (
    ConnectionFailed,
    NotConnected,
    NotTrusted,
    OutOfTime,
    Throttled,
    TimedOut,
    TriptychError,
    Unavailable,
)

PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
ENDLESS_ATTEMPT_S = 30.0
"""How long one attempt of an endless call may take, beside the time that the server may wait."""


class Attempts:
    """The attempts of one call, which together take no longer than `timeout_s` and the time that the call may wait.

    A request that was not sent, or was refused with 429, is repeated. After other errors that may pass, it is repeated
    only if the call is repeatable. A read that ran out of time is not repeated, because it would do so again. Nor is a
    call to a server that is not trusted.
    """

    def __init__(self, call: Call[Any], timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._clock = clock
        self._timeout_s = timeout_s
        self._give_up = math.inf if call.endless else clock() + timeout_s + call.wait_s
        self._pause_s = PAUSE_S

    def left_s(self) -> float:
        """How long the next attempt may take. Raises TimedOut when the time is over."""
        if self._call.endless:
            return self._call.wait_s + ENDLESS_ATTEMPT_S
        left_s = self._give_up - self._clock()
        if left_s <= 0:
            raise TimedOut(f"{self._call.method} {self._call.target} has taken {self._timeout_s:g} s")
        return left_s

    def pause_s(self, error: TriptychError) -> float:
        """How long to wait before the next attempt, after this error. Raises the error if there is none."""
        if not self._is_worthwhile(error):
            raise error
        # Clients that were refused together shall not come back together.
        pause_s = self._pause_s * (0.5 + random.random() / 2)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        if error.retry_after_s is not None:
            pause_s += error.retry_after_s
        if self._clock() + pause_s >= self._give_up:
            raise error
        return pause_s

    def _is_worthwhile(self, error: TriptychError) -> bool:
        if isinstance(error, NotTrusted):
            return False
        if isinstance(error, (NotConnected, Throttled)):
            return True
        if isinstance(error, OutOfTime) and not (self._call.changes or self._call.endless):
            return False
        return self._call.repeatable and isinstance(error, (ConnectionFailed, Unavailable))

"""Every decision of a history, taken from a string of bytes: the same bytes are the same history.

Zero is always the calm choice (no delay, no fault, the end of a list), and bytes that are used up are zeros, so that
cutting bytes off and replacing them by zeros makes a history simpler.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

TICK_S = 1 / 4096
"""Times are whole ticks, which floats hold exactly: things happen at the same moment often, as they do in a loop that
polls a socket."""
BYTES_MAX = 3072
"""Of one history; a hypothesis example has fewer."""


def _delays() -> list[float]:
    """256 delays in seconds, most of them short, some longer than any deadline of the log."""
    ticks = [1] * 128 + [2] * 32 + [3, 4, 6, 8] * 10 + [16, 24, 32, 48] * 6 + [100, 160, 240, 400] * 6 + [1200] * 6
    return [count * TICK_S for count in [*ticks, 9000, 12000]]


DELAYS_S = _delays()
assert len(DELAYS_S) == 256


class Choices:
    """Decisions in the order they are asked for."""

    __slots__ = ("_at", "_bytes", "calm")

    def __init__(self, octets: bytes) -> None:
        self._bytes = octets
        self._at = 0
        self.calm = False
        """While it is set, every choice is the calm one and uses up nothing."""

    def byte(self) -> int:
        if self.calm:
            return 0
        at = self._at
        self._at = at + 1
        return self._bytes[at] if at < len(self._bytes) else 0

    @property
    def used(self) -> int:
        """Bytes that were asked for."""
        return self._at

    def below(self, count: int) -> int:
        return self.byte() * count >> 8

    def chance(self, of_256: int) -> bool:
        return self.byte() >= 256 - of_256

    def pick(self, options: Sequence[T]) -> T:
        return options[self.byte() * len(options) >> 8]

    def delay_s(self) -> float:
        return DELAYS_S[self.byte()]


def octets_of(seed: int) -> bytes:
    """The decisions of the history of a seed."""
    return random.Random(seed).randbytes(BYTES_MAX)

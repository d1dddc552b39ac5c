"""Decides whether the wall clock can be trusted. Data that is dropped because of its age is gone, even if the clock was
wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shared.telemetry import event

SETTLE_MS = 600_000
"""How long the wall clock must have agreed with the monotonic clock before anything is dropped by age."""
DRIFT_MS = 5_000
DRIFT_SHARE = 100
"""The two clocks may differ by DRIFT_MS and a hundredth of the time that has passed. A clock that is being slewed stays
within that, a clock that is set does not."""


class WallClock:
    """The wall clock. It is trusted only while it advances like the monotonic clock, so that a jump does not drop
    data."""

    def __init__(self) -> None:
        self._reference: tuple[int, int] | None = None
        self._since_ms = 0

    def believed(self, wall_ms: int, monotonic_ms: int, settle_ms: int = SETTLE_MS) -> bool:
        """Whether two readings at least `settle_ms` apart agree on how much time has passed, and no reading since then
        disagrees."""
        if self._reference is None:
            self._reference, self._since_ms = (wall_ms, monotonic_ms), monotonic_ms
        passed_ms = monotonic_ms - self._reference[1]
        drift_ms = wall_ms - self._reference[0] - passed_ms
        if abs(drift_ms) > DRIFT_MS + passed_ms // DRIFT_SHARE:
            event(logging.WARNING, "the clock jumped, nothing is dropped by age for a while", by_ms=drift_ms)
            self._reference, self._since_ms = (wall_ms, monotonic_ms), monotonic_ms
        elif passed_ms >= SETTLE_MS:
            self._reference = wall_ms, monotonic_ms
        return monotonic_ms - self._since_ms >= settle_ms


class Ages:
    """Converts ages to times, by a clock that is trusted once it has been steady for SETTLE_MS, or for the age if that
    is shorter. Call `before_ms` at least every few minutes, since the clocks are only compared then."""

    def __init__(
        self,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._clock = WallClock()

    def before_ms(self, age_ms: int) -> int | None:
        """The time (Unix ms) before which things are older than `age_ms`; None while the clock is not trusted."""
        now_ms = self._wall_ms()
        is_believed = self._clock.believed(now_ms, self._monotonic_ms(), min(SETTLE_MS, age_ms))
        return now_ms - age_ms if is_believed else None

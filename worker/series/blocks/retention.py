"""Which blocks are past their time, or past the space there is for them, and when the clock is believed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shared.telemetry import event
from worker.series.blocks.block import Block

SETTLE_MS = 600_000
"""How long the wall clock must have gone as the monotonic one before anything is dropped by it."""
DRIFT_MS = 5_000
DRIFT_SHARE = 100
"""What the two may differ by: this, and a hundredth of the time that passed. A clock that is being slewed stays within
it, one that is set does not."""


class WallClock:
    """The wall clock, believed only while it goes as the monotonic one does, so that one that jumps drops nothing."""

    def __init__(self) -> None:
        self._reference: tuple[int, int] | None = None
        self._settled = False

    def believed(self, wall_ms: int, monotonic_ms: int) -> bool:
        """Whether two readings at least SETTLE_MS apart agree on how much time passed, and none since disagreed."""
        if self._reference is None:
            self._reference = wall_ms, monotonic_ms
            return False
        passed_ms = monotonic_ms - self._reference[1]
        drift_ms = wall_ms - self._reference[0] - passed_ms
        if abs(drift_ms) > DRIFT_MS + passed_ms // DRIFT_SHARE:
            event(logging.WARNING, "the clock jumped, nothing is dropped by age for a while", by_ms=drift_ms)
            self._reference, self._settled = (wall_ms, monotonic_ms), False
        elif passed_ms >= SETTLE_MS:
            self._reference, self._settled = (wall_ms, monotonic_ms), True
        return self._settled


def expired(blocks: Sequence[Block], before_ms: int, window_ms: int) -> list[Block]:
    """Of the blocks whose newest sample is older than `before_ms` those that end in the same window as the oldest: what
    is dropped at a time."""
    old = sorted((b for b in blocks if b.row.latest_ms < before_ms), key=lambda block: block.row.latest_ms)
    if not old:
        return []
    window = old[0].row.latest_ms // window_ms
    return [block for block in old if block.row.latest_ms // window_ms == window]


def surplus(blocks: Sequence[Block], bytes_max: int) -> list[Block]:
    """The oldest blocks, while all are larger than `bytes_max` together; 0 sets no bound."""
    dropped = []
    left = sum(block.row.size_bytes for block in blocks)
    for block in sorted(blocks, key=lambda block: block.row.latest_ms):
        if not bytes_max or left <= bytes_max:
            break
        dropped.append(block)
        left -= block.row.size_bytes
    return dropped

"""Chooses the blocks to drop, by age or by size, and decides whether the wall clock can be trusted for that."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shared.telemetry import event
from worker.series.blocks.block import Block

SETTLE_MS = 600_000
"""How long the wall clock must have agreed with the monotonic clock before blocks are dropped by age."""
DRIFT_MS = 5_000
DRIFT_SHARE = 100
"""The two clocks may differ by DRIFT_MS and a hundredth of the time that has passed. A clock that is being slewed stays
within that, a clock that is set does not."""


class WallClock:
    """The wall clock, trusted only while it advances as the monotonic clock does, so that a jump of it drops
    nothing."""

    def __init__(self) -> None:
        self._reference: tuple[int, int] | None = None
        self._settled = False

    def believed(self, wall_ms: int, monotonic_ms: int) -> bool:
        """Whether two readings at least SETTLE_MS apart agree on how much time has passed, and no reading since then
        disagrees."""
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
    """The blocks to drop next because of their age: of those whose newest sample is older than `before_ms`, the blocks
    that end in the same window as the oldest of them."""
    old = sorted((b for b in blocks if b.row.latest_ms < before_ms), key=lambda block: block.row.latest_ms)
    if not old:
        return []
    window = old[0].row.latest_ms // window_ms
    return [block for block in old if block.row.latest_ms // window_ms == window]


def surplus(blocks: Sequence[Block], bytes_max: int) -> list[Block]:
    """The oldest blocks, as many as must be dropped for the others to take at most `bytes_max` together; 0 sets no
    bound."""
    dropped = []
    size_bytes = sum(block.row.size_bytes for block in blocks)
    for block in sorted(blocks, key=lambda block: block.row.latest_ms):
        if not bytes_max or size_bytes <= bytes_max:
            break
        dropped.append(block)
        size_bytes -= block.row.size_bytes
    return dropped

"""Chooses the blocks to drop, by age or by size."""

from __future__ import annotations

from collections.abc import Sequence

from worker.series.blocks.block import Block


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

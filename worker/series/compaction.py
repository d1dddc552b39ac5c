"""Which blocks to merge into one: those that share times, those of small windows, those that lost samples."""

from __future__ import annotations

from collections.abc import Sequence

from worker.series.blocks import Block
from worker.series.layers import Layers, closure

BLOCKS_MERGED_MIN = 4
"""Blocks of one window that are merged at once; with fewer, a sample would be written more often than it saves."""
WIDER = 4
LEVELS = 4
"""Windows of 1, 4, 16 and 64 times the first: with 2 h, a block is 5 days at last, and a year is some 70 blocks."""


def choose(layers: Layers, window_ms: int, now_ms: int) -> list[Block]:
    """Blocks to write anew as one block, in reading order, or none: those a tombstone may apply to first.

    Blocks of one window are merged when there are BLOCKS_MERGED_MIN, and two that share times at the latest when
    nothing was added to the window for the length of one. What shares times with a block that is set aside stays as it
    is, in case that one comes back.
    """
    blocks = layers.blocks
    for block in blocks:
        row = block.row
        if any(stone.applies(row.generation, row.earliest_ms, row.latest_ms) for stone in layers.tombstones):
            chosen = closure([block], blocks)
            if _may_merge(chosen, layers):
                return chosen
    for level in range(LEVELS):
        width = window_ms * WIDER**level
        windows: dict[int, list[Block]] = {}
        for block in blocks:
            window = block.row.earliest_ms // width
            if window == block.row.latest_ms // width and (window + 1) * width <= now_ms:
                windows.setdefault(window, []).append(block)
        for inside in windows.values():
            idle = now_ms - max(block.row.created_ms for block in inside) > window_ms
            if len(inside) >= BLOCKS_MERGED_MIN or (level == 0 and idle and len(inside) > 1):
                chosen = closure(inside, blocks)
                if _may_merge(chosen, layers):
                    return chosen
    return []


def _may_merge(chosen: Sequence[Block], layers: Layers) -> bool:
    start_ms, end_ms = min(b.row.earliest_ms for b in chosen), max(b.row.latest_ms for b in chosen)
    return not any(broken.overlaps(start_ms, end_ms) for broken, _ in layers.broken)

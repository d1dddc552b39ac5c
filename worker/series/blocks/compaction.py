"""Which blocks to merge into one: those that share times, those of small windows, those that lost samples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain

from worker.series.blocks.block import Block
from worker.series.blocks.layers import Layers, closure

BLOCKS_MERGED_MIN = 4
"""Blocks of one window that are merged at once; with fewer, a sample would be written more often than it saves."""
WIDER = 4
LEVELS = 4
"""Windows of 1, 4, 16 and 64 times the first: with 2 h, a block is 5 days at last, and a year is some 70 blocks."""
LEVELS_MAX = 26
"""Windows for blocks wider than that, of samples scattered over years: 4^25 ms is more than all time there is."""
WIDE_BLOCKS_MAX = 16
"""Wide blocks of one window that are merged even if narrower ones must be merged with them."""


def choose(layers: Layers, window_ms: int, now_ms: int) -> list[Block]:
    """Blocks to rewrite as one block of the highest generation among them, in reading order, or none.

    Blocks of one window are merged when there are BLOCKS_MERGED_MIN, and two that share the narrowest at the latest
    when nothing was added to it for the length of one. Then a block that a tombstone may apply to, alone. What shares
    times with a block that is set aside stays as it is, in case that one comes back.

    This comes to an end: merging makes fewer blocks of more, and the last choice leaves nothing that the tombstone
    applies to.
    """
    blocks = layers.blocks
    for chosen in chain(_in_windows(blocks, window_ms, now_ms), _wide(blocks, window_ms)):
        if _may_merge(chosen, layers):
            return chosen
    for block in blocks:
        row = block.row
        stones = [
            stone for stone in layers.tombstones if stone.applies(row.deletions_from, row.earliest_ms, row.latest_ms)
        ]
        if stones and _may_merge([block], layers):
            return [block]
    return []


def _in_windows(blocks: Sequence[Block], window_ms: int, now_ms: int) -> Iterator[list[Block]]:
    for level in range(LEVELS):
        width = window_ms * WIDER**level
        windows: dict[int, list[Block]] = {}
        for block in blocks:
            window = block.row.earliest_ms // width
            if window == block.row.latest_ms // width and (window + 1) * width <= now_ms:
                windows.setdefault(window, []).append(block)
        for inside in windows.values():
            idle = now_ms - max(block.row.created_ms for block in inside) > window_ms
            for run in _runs(inside, blocks):
                if len(run) >= BLOCKS_MERGED_MIN or (level == 0 and idle and len(run) > 1):
                    yield run


def _wide(blocks: Sequence[Block], window_ms: int) -> Iterator[list[Block]]:
    """Blocks that no window of the levels holds, of the same narrowest window that does hold them."""
    windows: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        level, width = LEVELS, window_ms * WIDER ** (LEVELS - 1)
        if block.row.earliest_ms // width == block.row.latest_ms // width:
            continue
        while level < LEVELS_MAX:
            width = window_ms * WIDER**level
            if block.row.earliest_ms // width == block.row.latest_ms // width:
                break
            level += 1
        windows.setdefault((level, block.row.earliest_ms // width), []).append(block)
    for inside in windows.values():
        yield from (run for run in _runs(inside, blocks) if len(run) >= BLOCKS_MERGED_MIN)
        if len(inside) >= WIDE_BLOCKS_MAX:
            yield closure(inside, blocks)


def _runs(inside: Sequence[Block], blocks: Sequence[Block]) -> list[list[Block]]:
    """The blocks cut by generation, so that each part is its own closure: where the generation of another block that
    shares times with them lies between theirs, or is one of theirs, there is a cut."""
    if len(inside) < 2:
        return []
    start_ms, end_ms = min(b.row.earliest_ms for b in inside), max(b.row.latest_ms for b in inside)
    chosen = set(inside)
    others = sorted(b.row.generation for b in blocks if b not in chosen and b.overlaps(start_ms, end_ms))
    runs: dict[tuple[int, bool], list[Block]] = {}
    for block in inside:
        at = bisect_left(others, block.row.generation)
        shared = at < len(others) and others[at] == block.row.generation
        runs.setdefault((at, shared), []).append(block)
    return list(runs.values())


def _may_merge(chosen: Sequence[Block], layers: Layers) -> bool:
    start_ms, end_ms = min(b.row.earliest_ms for b in chosen), max(b.row.latest_ms for b in chosen)
    return not any(broken.overlaps(start_ms, end_ms) for broken, _ in layers.broken)

"""Chooses the blocks to drop, by age or by size.

A sample of a block of higher generation replaces one with the same time in a block of lower generation. If the higher
block were dropped first, the replaced value would reappear. So a block counts as ending no earlier than the blocks of
lower generation whose times overlap its own. Scattered times, such as those of a broken clock, share blocks that may be
centuries wide: blocks that hold others back for too long are therefore split.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worker.series.blocks import compaction
from worker.series.blocks.block import Block

HELD_WINDOWS_MAX = compaction.WIDER ** (compaction.LEVELS - 1)
"""How many windows long a block may be held back: the width of the widest block that compaction makes of regular
samples. A wide block is split for as many windows at once, so that it is not rewritten for each of them."""


def expired(blocks: Sequence[Block], before_ms: int, window_ms: int) -> list[Block]:
    """The blocks to drop next because of their age: of those that end before `before_ms`, the blocks that end in the
    same window as the one that ends first. `blocks` must be all blocks of the shard."""
    ended = sorted((end for end in _ends(blocks) if end[0] < before_ms), key=lambda end: end[:2])
    if not ended:
        return []
    window = ended[0][0] // window_ms
    return [block for end_ms, _, block in ended if end_ms // window_ms == window]


def to_split(blocks: Sequence[Block], before_ms: int, window_ms: int) -> tuple[list[Block], int]:
    """(the blocks to split, the time in Unix ms at which the later part of each begins), so that the oldest block that
    has been held back for too long can be `expired` afterwards; ([], `before_ms`) if there is no such block. `blocks`
    must be all blocks of the shard, none of them `expired`."""
    held_ms = HELD_WINDOWS_MAX * window_ms
    held_back = [block for block in blocks if block.row.latest_ms < before_ms - held_ms]
    if not held_back:
        return [], before_ms
    oldest = min(held_back, key=lambda block: block.row.latest_ms).row
    from_ms = oldest.latest_ms + held_ms
    lower_blocks = [block for block in blocks if block.row.generation < oldest.generation]
    # A chain of overlapping blocks holds it back. Once none of them has times on both sides of `from_ms`, this chain
    # ends before `from_ms`.
    return [block for block in lower_blocks if block.row.earliest_ms < from_ms <= block.row.latest_ms], from_ms


def surplus(blocks: Sequence[Block], bytes_max: int) -> list[Block]:
    """The blocks that end first, as many as must be dropped for the others to take at most `bytes_max` together; 0 sets
    no bound. `blocks` must be all blocks of the shard."""
    dropped: list[Block] = []
    size_bytes = sum(block.row.size_bytes for block in blocks)
    if not bytes_max or size_bytes <= bytes_max:
        return dropped
    for _, _, block in sorted(_ends(blocks), key=lambda end: end[:2]):
        if size_bytes <= bytes_max:
            break
        dropped.append(block)
        size_bytes -= block.row.size_bytes
    return dropped


def _ends(blocks: Sequence[Block]) -> list[tuple[int, int, Block]]:
    """(end in Unix ms, generation, block) of each block. A block ends no earlier than each block of lower generation
    whose times overlap its own."""
    ascending = sorted(blocks, key=lambda block: block.row.generation)
    earliest_ms = _column([block.row.earliest_ms for block in ascending])
    latest_ms = _column([block.row.latest_ms for block in ascending])
    generations = _column([block.row.generation for block in ascending])
    lower_counts = np.searchsorted(generations, generations)  # how many blocks have a lower generation
    ends_ms = latest_ms.copy()
    for i, lower_count in enumerate(lower_counts.tolist()):
        overlaps = (earliest_ms[:lower_count] <= latest_ms[i]) & (latest_ms[:lower_count] >= earliest_ms[i])
        ends_ms[i] = ends_ms[:lower_count].max(where=overlaps, initial=latest_ms[i])
    return list(zip(ends_ms.tolist(), generations.tolist(), ascending, strict=True))


def _column(numbers: list[int]) -> NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)

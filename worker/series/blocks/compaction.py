"""Chooses the blocks to merge into one: blocks with overlapping times, blocks of small windows, and blocks with deleted
samples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain

from worker.series.blocks.archive import Archive
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.layers import Layers, closure

CACHE_BYTES = 32 << 20
"""Size of the cache for the chunks of the blocks that are merged."""
DIRECTORIES_BYTES_MAX = 512 << 20
"""A merge keeps the directories of its blocks up to this size, some 12 million runs, because each slice of the series
needs all of them. Larger ones are decoded repeatedly."""
BLOCKS_MERGED_MIN = 4
"""The minimum number of blocks of one window that are merged. Merging fewer would rewrite each sample more often than
it is worth."""
LARGER = 4
"""An older block that is this many times as large as all newer ones together is not rewritten for so few samples. Each
time a sample is rewritten, its block therefore grows by at least a quarter."""
SMALL_BYTES = 1 << 20
"""Blocks up to this size are merged even before the end of their window."""
WIDER = 4
LEVELS = 4
"""There are windows of 1, 4, 16 and 64 times the length of the narrowest. If that is 2 h, the widest block covers 5
days, and a year takes about 70 blocks."""
LEVELS_MAX = 26
"""The levels of windows for even wider blocks, of samples scattered over years: 4^25 ms is longer than the range of all
times."""
WIDE_BLOCKS_MAX = 16
"""From this number on, the wide blocks of one window are merged even if narrower blocks must be merged with them."""


def choose(layers: Layers, window_ms: int, now_ms: int) -> list[Block]:
    """Choose blocks to rewrite as one block, which gets the highest generation among them. Returns them in reading
    order, or [].

    Blocks of one window are merged when there are BLOCKS_MERGED_MIN of them, without a much larger older one; before
    the end of the window, only small blocks are merged. Two blocks of the narrowest window are merged as well, of any
    size, when no block has been added to the window for as long as the window itself. If there are no such blocks, a
    single block that a tombstone may apply to is chosen. Blocks whose times overlap those of a block that is set aside
    stay as they are, in case that block is restored.

    Repeated calls terminate: a merge leaves fewer blocks, and rewriting a single block leaves nothing that the
    tombstone applies to.
    """
    blocks = layers.blocks
    for chosen in chain(_in_windows(blocks, window_ms, now_ms), _wide(blocks, window_ms)):
        if _may_merge(chosen, layers):
            return chosen
    for block in blocks:
        row = block.row
        is_due = any(
            stone.applies(row.deletions_from, row.earliest_ms, row.latest_ms) for stone in reversed(layers.tombstones)
        )
        if is_due and _may_merge([block], layers):
            return [block]
    return []


def sources(chosen: Sequence[Block], archive: Archive) -> tuple[Block, ...]:
    """The chosen blocks with a separate cache, which has room for their directories. Raises CorruptBlock,
    Unavailable."""
    cache = DecodedCache(CACHE_BYTES + DIRECTORIES_BYTES_MAX)
    blocks = tuple(archive.block(block.row, cache) for block in chosen)
    directory_bytes = sum(block.directory().size_bytes for block in blocks)
    cache.shrink(CACHE_BYTES + min(directory_bytes, DIRECTORIES_BYTES_MAX))
    return blocks


def _in_windows(blocks: Sequence[Block], window_ms: int, now_ms: int) -> Iterator[list[Block]]:
    """Blocks that lie in the same window and that may be merged; narrow windows first. Of a window that has not ended,
    only small blocks of the narrowest width."""
    for level in range(LEVELS):
        width = window_ms * WIDER**level
        windows: dict[int, list[Block]] = {}
        for block in blocks:
            window = block.row.earliest_ms // width
            has_ended = (window + 1) * width <= now_ms
            may_merge = has_ended or (level == 0 and block.row.size_bytes <= SMALL_BYTES)
            if window == block.row.latest_ms // width and may_merge:
                windows.setdefault(window, []).append(block)
        for window, window_blocks in windows.items():
            idle_ms = now_ms - max(block.row.created_ms for block in window_blocks)
            is_idle = level == 0 and idle_ms > window_ms and (window + 1) * width <= now_ms
            for run in _runs(window_blocks, blocks):
                chosen = run if is_idle else _without_much_larger(run)
                if len(chosen) >= (2 if is_idle else BLOCKS_MERGED_MIN):
                    yield chosen


def _without_much_larger(run: Sequence[Block]) -> list[Block]:
    """The blocks without the oldest ones that are more than LARGER times as large as all newer ones together. Blocks of
    one generation stay together, so the result is its own `closure` if the run is."""
    newer_bytes, highest_omitted = sum(block.row.size_bytes for block in run), -1
    for block in sorted(run, key=lambda block: block.row.generation):
        newer_bytes -= block.row.size_bytes
        if block.row.size_bytes <= LARGER * newer_bytes:
            break
        highest_omitted = block.row.generation
    return [block for block in run if block.row.generation > highest_omitted]


def _wide(blocks: Sequence[Block], window_ms: int) -> Iterator[list[Block]]:
    """Blocks that are too wide for every window of LEVELS and have the same narrowest window that contains them."""
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
    for window_blocks in windows.values():
        yield from (run for run in _runs(window_blocks, blocks) if len(run) >= BLOCKS_MERGED_MIN)
        if len(window_blocks) >= WIDE_BLOCKS_MAX:
            yield closure(window_blocks, blocks)


def _runs(window_blocks: Sequence[Block], blocks: Sequence[Block]) -> list[list[Block]]:
    """The blocks, split by generation so that each part is its own `closure`. They are split where another block's
    generation lies between theirs, or is one of theirs, and its times overlap theirs."""
    if len(window_blocks) < 2:
        return []
    start_ms, end_ms = min(b.row.earliest_ms for b in window_blocks), max(b.row.latest_ms for b in window_blocks)
    chosen = set(window_blocks)
    others = sorted(b.row.generation for b in blocks if b not in chosen and b.overlaps(start_ms, end_ms))
    runs: dict[tuple[int, bool], list[Block]] = {}
    for block in window_blocks:
        at = bisect_left(others, block.row.generation)
        has_shared_generation = at < len(others) and others[at] == block.row.generation
        runs.setdefault((at, has_shared_generation), []).append(block)
    return list(runs.values())


def _may_merge(chosen: Sequence[Block], layers: Layers) -> bool:
    start_ms, end_ms = min(b.row.earliest_ms for b in chosen), max(b.row.latest_ms for b in chosen)
    return not any(broken.overlaps(start_ms, end_ms) for broken, _ in layers.broken)

"""Which blocks are chosen to be merged: by the blocks beside and between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from worker.series.blocks import compaction
from worker.series.blocks.block import Block
from worker.series.blocks.compaction import BLOCKS_MERGED_MIN, LARGER, LEVELS, SMALL_BYTES, WIDE_BLOCKS_MAX, WIDER
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.layers import Layers, closure, reading_order

WINDOW_MS = 1000
LATER_MS = 100 * WINDOW_MS


class Placed(SimpleNamespace):
    """Where a block lies in time and generation; its samples are not looked at."""

    __hash__ = object.__hash__

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        return bool(self.row.earliest_ms <= end_ms and self.row.latest_ms >= start_ms)


def block(earliest_ms: int, latest_ms: int, generation: int, size_bytes: int = SMALL_BYTES + 1) -> Block:
    row = SimpleNamespace(
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
        generation=generation,
        created_ms=0,
        deletions_from=0,
        size_bytes=size_bytes,
    )
    return cast(Block, Placed(row=row))


def chosen(*blocks: Block, broken: Block | None = None, stones: tuple[Tombstone, ...] = ()) -> list[Block]:
    set_aside = () if broken is None else ((broken, "its checksum is wrong"),)
    return compaction.choose(Layers(blocks=blocks, tombstones=stones, broken=set_aside), WINDOW_MS, LATER_MS)


NARROW = [block(10, 20, generation) for generation in (1, 2, 5, 6)]


def test_blocks_of_one_window_are_merged() -> None:
    assert chosen(*NARROW) == NARROW


@pytest.mark.parametrize("generation", [2, 3, 5])
def test_blocks_are_not_merged_past_a_wide_block_whose_generation_lies_between(generation: int) -> None:
    below = [b for b in NARROW if b.row.generation < generation]
    assert chosen(*NARROW, block(15, 50 * WINDOW_MS, generation)) in (below if len(below) > 1 else [], NARROW[2:])


@pytest.mark.parametrize("generation", [0, 7])
def test_a_wide_block_below_or_above_all_of_them_keeps_none_apart(generation: int) -> None:
    assert chosen(*NARROW, block(15, 50 * WINDOW_MS, generation)) == NARROW


def test_a_wide_block_that_shares_no_times_with_them_keeps_none_apart() -> None:
    assert chosen(*NARROW, block(21, 50 * WINDOW_MS, 3)) == NARROW


@pytest.mark.parametrize(("earliest_ms", "latest_ms"), [(0, 10), (20, 30), (15, 15), (0, 50)])
def test_nothing_is_merged_that_shares_times_with_a_block_set_aside(earliest_ms: int, latest_ms: int) -> None:
    stone = Tombstone(9, 0, 99, b"")
    assert chosen(*NARROW, broken=block(earliest_ms, latest_ms, 3)) == []
    assert chosen(NARROW[0], broken=block(earliest_ms, latest_ms, 3), stones=(stone,)) == []
    assert chosen(NARROW[0], stones=(stone,)) == NARROW[:1]


@pytest.mark.parametrize(("earliest_ms", "latest_ms"), [(0, 9), (21, 30)])
def test_a_block_set_aside_beside_them_holds_nothing_up(earliest_ms: int, latest_ms: int) -> None:
    assert chosen(*NARROW, broken=block(earliest_ms, latest_ms, 3)) == NARROW


def test_a_window_beside_a_block_set_aside_is_passed_over_for_the_next_one() -> None:
    next_window = [block(WINDOW_MS + 10, WINDOW_MS + 20, generation) for generation in range(BLOCKS_MERGED_MIN)]
    assert chosen(*NARROW, *next_window, broken=block(10, 10, 3)) == next_window


def test_one_block_is_no_merge() -> None:
    assert chosen(NARROW[0]) == []
    assert chosen() == []


@pytest.mark.parametrize(("generation", "is_within"), [(1, False), (2, True), (4, True), (6, True), (7, False)])
def test_a_block_is_merged_with_those_whose_generations_it_lies_between_or_has(
    generation: int, is_within: bool
) -> None:
    merged = [block(10, 20, 2), block(30, 40, 6)]
    beside = block(20, 25, generation)
    assert closure(merged, [*merged, beside]) == ([*merged, beside] if is_within else merged)
    assert closure(merged, [*merged, block(41, 50, generation)]) == merged


def test_blocks_of_one_generation_are_merged_without_the_others_of_it() -> None:
    merged = [block(10, 20, 2), block(30, 40, 2)]
    assert closure(merged, [*merged, block(15, 35, 2), block(15, 35, 3)]) == merged


def test_what_is_merged_with_them_draws_in_what_it_shares_times_with() -> None:
    first, second, third, fourth = block(10, 20, 2), block(18, 30, 6), block(30, 50, 4), block(50, 60, 3)
    assert closure([first, second], [first, second, third, fourth]) == [first, second, third, fourth]


# When and what, at the edges


@pytest.mark.parametrize(
    ("latest_ms", "count", "merged"),
    [(20, BLOCKS_MERGED_MIN, True), (20, BLOCKS_MERGED_MIN - 1, False), (999, 4, True)],
)
def test_so_many_blocks_of_a_window_are_merged_at_once(latest_ms: int, count: int, merged: bool) -> None:
    blocks = [block(10, latest_ms, generation) for generation in range(count)]
    for own in blocks:
        own.row.created_ms = LATER_MS
    assert chosen(*blocks) == (blocks if merged else [])


@pytest.mark.parametrize(("quiet_ms", "count", "merged"), [(1000, 2, False), (1001, 2, True), (5000, 1, False)])
def test_two_of_a_narrow_window_are_merged_when_nothing_was_added_for_its_length(
    quiet_ms: int, count: int, merged: bool
) -> None:
    blocks = [block(10, 20, generation) for generation in range(count)]
    blocks[-1].row.created_ms = LATER_MS - quiet_ms
    assert chosen(*blocks) == (blocks if merged else [])


@pytest.mark.parametrize(("now_ms", "merged"), [(999, False), (1000, True)])
def test_a_window_is_merged_when_it_has_ended(now_ms: int, merged: bool) -> None:
    blocks = [block(0, 999, generation) for generation in range(BLOCKS_MERGED_MIN)]
    assert compaction.choose(Layers(blocks=tuple(blocks)), WINDOW_MS, now_ms) == (blocks if merged else [])


@pytest.mark.parametrize("count", [BLOCKS_MERGED_MIN - 1, BLOCKS_MERGED_MIN])
def test_small_blocks_are_merged_before_the_end_of_their_window(count: int) -> None:
    small = [block(0, 999, generation, SMALL_BYTES) for generation in range(0, 2 * count, 2)]
    large = [block(0, 999, generation) for generation in range(20, 24)]
    merged = small if count == BLOCKS_MERGED_MIN else []
    assert compaction.choose(Layers(blocks=(*small, *large)), WINDOW_MS, 999) == merged
    wide = [block(0, 1001, generation, SMALL_BYTES) for generation in range(BLOCKS_MERGED_MIN)]
    assert compaction.choose(Layers(blocks=tuple(wide)), WINDOW_MS, 999) == []


def test_two_small_blocks_of_a_window_that_has_not_ended_stay_two() -> None:
    small = tuple(block(LATER_MS, LATER_MS + 9, generation, 1) for generation in (1, 2))
    assert compaction.choose(Layers(blocks=small), WINDOW_MS, LATER_MS + 10) == []


@pytest.mark.parametrize(("times", "is_within"), [(LARGER, True), (LARGER + 1, False)])
def test_a_much_larger_block_is_not_written_again_for_few_newer_samples(times: int, is_within: bool) -> None:
    newer = [block(10, 20, generation, 100) for generation in range(1, 1 + BLOCKS_MERGED_MIN)]
    oldest = block(10, 20, 0, times * 100 * BLOCKS_MERGED_MIN)
    for own in (oldest, *newer):
        own.row.created_ms = LATER_MS
    assert chosen(oldest, *newer) == ([oldest, *newer] if is_within else newer)
    assert chosen(oldest, *newer[1:]) == []
    newest = block(10, 20, 9, 10_000 * 100)
    newest.row.created_ms = LATER_MS
    assert chosen(*newer, newest) == [*newer, newest], "an older block is small: it is merged with a large newer one"


def test_a_much_larger_block_is_merged_when_its_window_is_idle() -> None:
    blocks = [block(10, 20, 0, 1 << 40), block(10, 20, 1, 1)]
    assert chosen(*blocks) == blocks


def test_blocks_of_one_generation_are_left_out_together() -> None:
    same = [block(10, 20, 1, 1 << 40), block(21, 30, 1, 1)]
    newer = [block(10, 20, generation, 1) for generation in range(2, 2 + BLOCKS_MERGED_MIN)]
    for own in (*same, *newer):
        own.row.created_ms = LATER_MS
    assert chosen(*same, *newer) == newer


@pytest.mark.parametrize(("level", "width"), [(level, WINDOW_MS * WIDER**level) for level in range(LEVELS)])
def test_blocks_of_a_wider_window_are_merged_when_there_are_so_many(level: int, width: int) -> None:
    later_ms = 3 * WINDOW_MS * WIDER**LEVELS
    for earliest, latest in ((width, 2 * width - 1), (0, width - 1)):
        blocks = [block(earliest, latest, generation) for generation in range(BLOCKS_MERGED_MIN)]
        assert compaction.choose(Layers(blocks=tuple(blocks)), WINDOW_MS, later_ms) == blocks
        few = Layers(blocks=tuple(blocks[1:]))
        assert compaction.choose(few, WINDOW_MS, later_ms) == (blocks[1:] if level == 0 else [])


def test_blocks_wider_than_every_window_are_merged_when_there_are_so_many() -> None:
    width = WINDOW_MS * WIDER ** (LEVELS - 1)
    wide = [block(width - 1, width, generation) for generation in range(BLOCKS_MERGED_MIN)]
    assert chosen(*wide) == wide
    assert chosen(*wide[1:]) == []
    within = [block(2 * width, 3 * width - 1, generation) for generation in (7, 8, 9)]
    assert chosen(*wide[1:], *within) == [], "these are of windows that have not ended"


def test_wide_blocks_are_merged_over_others_only_when_there_are_very_many() -> None:
    width = WINDOW_MS * WIDER ** (LEVELS - 1)
    wide = [block(width - 1, width, 2 * number) for number in range(WIDE_BLOCKS_MAX)]
    between = [block(width - 1, width - 1, 2 * number + 1) for number in range(WIDE_BLOCKS_MAX)]
    everything = sorted([*wide, *between], key=lambda own: own.row.generation)
    merged = chosen(*everything)
    assert merged == everything[:-1], "up to the highest generation of the wide ones"
    assert chosen(*(own for own in everything if own is not wide[0])) == []


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([(0, 9, 2), (10, 19, 1)], [0, 1]),
        ([(0, 9, 2), (9, 19, 1)], [1, 0]),
        ([(0, 9, 1), (9, 19, 2)], [0, 1]),
        ([(0, 9, 2), (5, 19, 2)], [0, 1]),
        ([(0, 30, 3), (5, 9, 4), (20, 25, 2)], [2, 0, 1]),
        ([(0, 5, 3), (4, 30, 4), (20, 25, 4)], [0, 1, 2]),
        ([(0, 5, 9), (4, 30, 9), (31, 35, 1)], [0, 1, 2]),
        ([(0, 5, 3), (6, 30, 1), (20, 25, 2)], [0, 1, 2]),
    ],
)
def test_blocks_are_read_by_time_unless_a_later_write_would_come_first(
    edges: list[tuple[int, int, int]], expected: list[int]
) -> None:
    blocks = [block(*own) for own in edges]
    for order in (blocks, blocks[::-1]):
        assert list(reading_order(order)) == [blocks[number] for number in expected]

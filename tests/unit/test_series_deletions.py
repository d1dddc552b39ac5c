"""What tombstones delete from layers, however many there are."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.promql.ast import Matcher
from tests.unit.series_shard import A, B, Quiet, m
from worker.series.blocks import deletions
from worker.series.blocks.deletions import Deletions, Tombstone

IDS = st.sets(st.integers(0, 9), max_size=5).map(lambda ids: np.array(sorted(ids), np.int64))
STONES = st.lists(st.tuples(IDS, st.integers(0, 5), st.integers(0, 20), st.integers(0, 20)), max_size=8)
OTHERS = 3_000


@pytest.mark.parametrize("pairs_max", [deletions.PAIRS_MAX, 3])
@given(STONES, st.permutations(range(10)), st.integers(0, 10), st.integers(0, 5), st.integers(0, 20))
def test_what_is_deleted_is_what_each_tombstone_deletes(
    pairs_max: int, stones: list, series: list[int], count: int, generation: int, start_ms: int
) -> None:
    tombstones = [Tombstone.of(sequence, ids, start, end) for ids, sequence, start, end in stones]
    permanent, end_ms = np.array(series[:count], np.int64), start_ms + 7
    with mock.patch.object(deletions, "PAIRS_MAX", pairs_max):
        deleted = [
            (is_affected.tolist(), first_ms, last_ms)
            for is_affected, first_ms, last_ms in Deletions(tombstones).of(permanent, generation, start_ms, end_ms)
        ]
    expected: dict[tuple[int, int], set[int]] = {}
    for stone in tombstones:
        if stone.applies(generation, start_ms, end_ms):
            affected = set(series[:count]) & set(stone.series.tolist())
            expected.setdefault((stone.start_ms, stone.end_ms), set()).update(affected)
    assert sorted(deleted) == sorted(
        ([own in affected for own in series[:count]], *times) for times, affected in expected.items() if affected
    )


def test_many_deletions_of_all_series_take_little_memory() -> None:
    series = np.arange(50_000)
    tombstones = [Tombstone.of(1, series, 10 * hour, 10 * hour + 9) for hour in range(40)]
    tracemalloc.start()
    try:
        found = Deletions(tombstones)
        kept, most = tracemalloc.get_traced_memory()
        assert kept < 20 << 20 and most < 60 << 20
        tracemalloc.reset_peak()
        assert [int(is_affected.sum()) for is_affected, *_ in found.of(series, 0, 0, 1000)] == [len(series)] * 40
        assert tracemalloc.get_traced_memory()[1] - kept < 10 << 20
    finally:
        tracemalloc.stop()


def test_the_deletions_of_other_series_cost_a_read_next_to_nothing(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    shard.seal_each((1, 1.0), (1500, 2.0), (2500, 3.0))
    contents = shard.part.contents
    sequence = shard.part.journal.next_sequence
    others = tuple(Tombstone.of(sequence, np.array([7 + i]), 0, i) for i in range(OTHERS))
    contents.layers = replace(contents.layers, tombstones=others)
    own = {A: [(1, 1.0), (1500, 2.0), (2500, 3.0)]}
    assert shard.samples() == own
    took_s = []
    for _ in range(3):
        began_s = time.thread_time()
        assert shard.samples() == own
        took_s.append(time.thread_time() - began_s)
    assert min(took_s) < 0.05, "looking through all of them takes several times as long"
    shard.close()


def test_tombstones_that_are_needed_no_more_are_removed_and_no_others(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    shard.seal_each((1, 1.0), (1500, 2.0))
    shard.write([(m(job="b"), [(1, 3.0)])])
    for at in (1, 1500):
        shard.part.delete([[Matcher("job", "=", "a")]], at, at, 5.0)
    first, second = shard.part.contents.layers.tombstones
    shard.part.contents.layers = replace(shard.part.contents.layers, blocks=shard.part.contents.layers.blocks[:1])
    shard.part._upkeep.blocks._bury()
    assert shard.part.contents.layers.tombstones == (first,)
    assert first.sequence != second.sequence
    shard.close()


def test_a_block_is_not_rewritten_for_deletions_of_series_or_times_that_it_does_not_have(tmp_path: Path) -> None:
    shard = Quiet(tmp_path)
    shard.write([(m(job="a"), [(1, 1.0), (9, 9.0)]), (m(job="b"), [(2, 2.0), (8, 8.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(1500, 3.0)])])
    shard.seal()
    names = [block.row.name for block in shard.part.contents.layers.blocks]
    shard.part.delete([[Matcher("job", "=", "b")]], 3, 2000, 5.0)  # reaches into the times of both blocks
    shard.part.delete([[Matcher("job", "=", "a")]], 10, 1499, 5.0)
    own = {A: [(1, 1.0), (9, 9.0), (1500, 3.0)], B: [(2, 2.0)]}
    assert shard.compact() == 2
    rewritten, kept = [block.row.name for block in shard.part.contents.layers.blocks]
    assert rewritten not in names and kept == names[1]
    assert shard.part.contents.layers.tombstones == ()
    for _ in range(2):
        assert shard.samples() == own
        assert shard.compact() == 0
        shard.reopen()
    shard.part.delete([[Matcher("job", "=", "a")]], 1500, 1500, 5.0)
    shard.reopen()
    assert shard.samples() == {A: own[A][:2], B: own[B]}
    shard.close()

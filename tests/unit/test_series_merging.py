"""Merging of blocks: which are merged into one, in which order they are read, and when there is nothing to merge."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.promql.ast import Matcher
from tests.unit.series_shard import FAR_MS, TIMEOUT_S, WINDOW_MS, A, Quiet, m
from worker.series.blocks import block, compaction, seal
from worker.series.blocks.directory import Directory
from worker.series.blocks.seal import WINDOWS_MAX


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path / "shard")
    yield opened
    opened.close()


def test_no_block_spans_more_than_its_window_and_full_windows_have_one_each(shard: Quiet) -> None:
    dense = [(window * WINDOW_MS + at, 1.0) for window in range(5000, 5005) for at in range(0, 1000, 10)]
    sparse = [(window * WINDOW_MS, 2.0) for window in range(0, 20_000, 2)]
    shard.write([(m(job="a"), dense), (m(job="b"), sparse)])
    started = time.monotonic()
    shard.seal()
    assert time.monotonic() - started < 5
    rows = [block.row for block in shard.part.contents.layers.blocks]
    assert len(rows) <= WINDOWS_MAX
    spans = {row.earliest_ms // WINDOW_MS for row in rows if row.latest_ms // WINDOW_MS == row.earliest_ms // WINDOW_MS}
    assert set(range(5000, 5005)) <= spans
    assert sum(len(points) for points in shard.samples().values()) == len(dense) + len(sparse)
    for start, end in ((5_000_000, 5_002_000), (123_000, 130_000)):
        expected = [(t, v) for t, v in sparse if start <= t <= end]
        assert dict(shard.samples(Matcher("job", "=", "b"), window=(start, end)).items()) == {
            (("__name__", "m"), ("job", "b")): expected
        }


def test_a_wide_block_is_not_written_again_whenever_a_window_within_it_is_merged(shard: Quiet) -> None:
    sparse = [(window * 7 * WINDOW_MS, 2.0) for window in range(2000)]
    shard.write([(m(job="b"), sparse)])
    shard.seal()
    blocks = shard.part.contents.layers.blocks
    wide = {block.row.name for block in blocks if block.row.latest_ms - block.row.earliest_ms > 64 * WINDOW_MS}
    assert wide
    for number in range(40):
        shard.write([(m(job="a"), [(5_000_000 + number * 500, 1.0)])])
        shard.seal()
        shard.compact()
    assert wide <= {block.row.name for block in shard.part.contents.layers.blocks}
    assert len(shard.part.contents.layers.blocks) < WINDOWS_MAX + 16


def test_what_is_merged_stays_below_a_wide_block_that_is_newer(shard: Quiet) -> None:
    shard.seal_each((5, 1.0), (6, 1.0))
    scattered = [(5, 2.0), *((window * WINDOW_MS, 2.0) for window in range(1, 2 * WINDOWS_MAX))]
    shard.write([(m(job="a"), scattered)])
    shard.seal()
    expected = {A: sorted([*scattered, (6, 1.0)])}
    assert shard.samples() == expected
    assert shard.part._upkeep.blocks._compact(FAR_MS)
    assert [b.row.samples for b in shard.part.contents.layers.blocks if b.row.latest_ms < WINDOW_MS] == [2]
    assert shard.samples() == expected
    shard.compact()
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


def test_a_shard_that_sealed_nothing_opens_again(shard: Quiet) -> None:
    shard.seal()
    shard.reopen()
    assert shard.samples() == {}


def test_merging_what_is_settled_does_nothing(shard: Quiet) -> None:
    generator = np.random.default_rng(3)
    for _ in range(12):
        times = np.unique(generator.integers(0, 400_000, 80))
        shard.write([(m(job="a"), [(int(t), 1.0) for t in times])])
        shard.seal()
        shard.compact()
    shard.part.delete([[Matcher("job", "=", "a")]], 1000, 2000, TIMEOUT_S)
    shard.compact()
    assert shard.part.contents.layers.tombstones == ()
    files = shard.files()
    assert shard.compact() == 0
    assert shard.files() == files
    assert len(files) < 200


def test_late_samples_over_all_windows_again_and_again_do_not_pile_up_blocks(shard: Quiet) -> None:
    expected = {}
    generator = np.random.default_rng(5)
    for turn in range(40):
        times = generator.integers(0, 3_000_000, 120).tolist()
        shard.write([(m(job="a"), [(int(t), float(turn)) for t in times])])
        expected.update({int(t): float(turn) for t in times})
        shard.seal()
        shard.compact()
    assert shard.samples() == {A: sorted(expected.items())}
    assert len(shard.part.contents.layers.blocks) < 300


def test_two_blocks_that_share_one_millisecond_give_the_later_written_value(shard: Quiet) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (500, 1.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(500, 2.0), (900, 2.0)])])
    shard.seal()
    shard.write([(m(job="a"), [(0, 3.0), (1, 3.0)])])
    shard.seal()
    expected = {A: [(0, 3.0), (1, 3.0), (500, 2.0), (900, 2.0)]}
    assert shard.samples() == expected
    assert shard.samples(window=(500, 500)) == {A: [(500, 2.0)]}
    assert shard.samples(window=(1, 1)) == {A: [(1, 3.0)]}
    shard.reopen()
    assert shard.samples() == expected
    assert shard.compact() == 1
    assert shard.samples() == expected


def test_a_merge_decodes_the_directories_of_its_blocks_once_and_not_for_each_slice(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(4):
        shard.write([(m(job=str(i)), [(at, float(i))]) for i in range(50)])
        shard.seal()
    decode, decoded = block.decode_directory, list[int]()

    def counted(data: bytes, samples: int, chunk_bytes: int) -> Directory:
        decoded.append(len(data))
        return decode(data, samples, chunk_bytes)

    blocks = shard.part.contents.layers.blocks
    chunk_bytes = sum(own.opened(own.directory(), 0).nbytes for own in blocks)
    monkeypatch.setattr(compaction, "CACHE_BYTES", chunk_bytes)
    monkeypatch.setattr(seal, "SLICE_CHUNKS", 1e-6)
    monkeypatch.setattr(block, "decode_directory", counted)
    assert shard.compact() == 1
    assert len(decoded) == 4
    assert all(len(points) == 4 for points in shard.samples().values())

"""Chunks and files of blocks: bit for bit, in parts, and what is wrong with a damaged one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.promql.model import STALE_NAN_BITS
from tests import chunks_v1 as old_chunks
from worker.series.blocks import chunks, chunks_v1
from worker.series.blocks.block import Block, BlockRow, CorruptBlock
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.directory import decode_directory, pack
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

bits = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([STALE_NAN_BITS, 0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000, 1, 0]),
    st.floats().map(lambda value: struct.unpack("<Q", struct.pack("<d", value))[0]),
    st.integers(-(1 << 54), 1 << 54).map(lambda value: struct.unpack("<Q", struct.pack("<d", float(value)))[0]),
)
instants = st.integers(TIME_MS_MIN, TIME_MS_MAX) | st.integers(0, 100)
runs = st.lists(
    st.lists(st.tuples(instants, bits), min_size=1, max_size=40, unique_by=lambda pair: pair[0]).map(sorted),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(runs, st.booleans())
def test_chunks_keep_times_and_values_bit_for_bit(runs: list[list[tuple[int, int]]], twice: bool) -> None:
    if twice:
        runs = [run for run in runs for _ in range(2)]
    counts = np.array([len(run) for run in runs])
    at = np.array([t for run in runs for t, _ in run], dtype=np.int64)
    values = np.array([b for run in runs for _, b in run], dtype=np.uint64).view(np.float64)
    firsts = np.array([run[0][0] for run in runs], dtype=np.int64)
    for written in (chunks.encode, old_chunks.encode):
        found = chunks.decode(written(counts, at, values), counts, firsts)
        assert (found[0] == at).all()
        assert (found[1].view(np.uint64) == values.view(np.uint64)).all()


def test_a_series_longer_than_a_chunk_is_cut_and_read_in_part(tmp_path: Path) -> None:
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    n = 3 * chunks.CHUNK_SAMPLES + 17
    for ids, start in ((np.array([3]), 0), (np.array([9]), 5)):
        at = np.arange(start, n + start) * 10
        writer.add(ids, np.array([n]), at, at * 0.5)
    row = writer.finish()
    assert (row.series, row.samples, row.earliest_ms, row.latest_ms) == (2, 2 * n, 0, (n + 4) * 10)
    cache = DecodedCache(1 << 30)
    block = Block(row, LocalObjects(tmp_path), cache)
    found = join(block.pieces(np.array([4, 9, 3]), 20 * chunks.CHUNK_SAMPLES, 20 * chunks.CHUNK_SAMPLES + 55), 3)
    assert np.diff(found.offsets).tolist() == [0, 6, 6]
    assert (found.values == found.timestamps_ms * 0.5).all()
    assert cache.size_bytes < 3 * 16 * chunks.CHUNK_SAMPLES


def test_a_part_of_a_long_series_is_found_without_the_rest(tmp_path: Path) -> None:
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    n = 5 * chunks.RUN_SAMPLES_MAX + 3
    for series in range(2):
        writer.add(np.array([series]), np.array([n]), np.arange(n) * 10, np.arange(n) / 7)
    block = Block(writer.finish(), LocalObjects(tmp_path), DecodedCache(1 << 30))
    directory = block.directory()
    assert directory.counts.max() == chunks.RUN_SAMPLES_MAX
    found = join(block.pieces(np.array([1, 0]), 20 * chunks.RUN_SAMPLES_MAX, 39 * chunks.RUN_SAMPLES_MAX), 2)
    times = found.timestamps_ms[: found.offsets[1]]
    assert times.tolist() == list(range(20 * chunks.RUN_SAMPLES_MAX, 39 * chunks.RUN_SAMPLES_MAX + 1, 10))
    assert found.values[: len(times)].tolist() == (times / 10 / 7).tolist()


@pytest.mark.parametrize("written", [chunks.encode, old_chunks.encode], ids=["this release", "an earlier one"])
def test_a_block_is_read_whichever_release_wrote_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(chunks, "encode", written)
    random = np.random.default_rng(1)
    values = np.cumsum(random.integers(0, 9, (5, 3000)), axis=1).astype(float)
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    writer.add(np.arange(5), np.full(5, 3000), np.tile(np.arange(3000) * 10, 5), values.ravel())
    block = Block(writer.finish(), LocalObjects(tmp_path), DecodedCache(1 << 30))
    for start, end in ((0, 1 << 40), (100, 20_000), (29_990, 29_990)):
        found = join(block.pieces(np.array([3, 1]), start, end), 2)
        inside = slice(max(start // 10, 0), min(end // 10, 2999) + 1)
        assert found.values.tolist() == [*values[3, inside], *values[1, inside]]


def test_a_block_says_what_is_wrong_with_its_file(tmp_path: Path) -> None:
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    writer.add(np.array([1]), np.array([2]), np.array([1, 2]), np.array([0.5, 1.5]))
    row = writer.finish()
    block = Block(row, LocalObjects(tmp_path), DecodedCache(0))
    whole = Path(block.location).read_bytes()
    for damaged in (whole[:-1], whole[:10] + b"?" + whole[11:], b""):
        Path(block.location).write_bytes(damaged)
        with pytest.raises(CorruptBlock, match=r"checksum|directory"):
            block.pieces(np.array([1]), 0, 9)


WHOLE = {
    "ids": np.array([1, 2], np.int32),
    "counts": np.array([2, 1], np.int32),
    "earliest": np.array([5, 5], np.int64),
    "latest": np.array([4, 0], np.int64),
    "chunk_runs": np.array([0, 1, 2], np.int64),
    "chunk_at": np.array([0, 40, 90], np.int64),
    "chunk_hashes": np.array([7, 8], np.uint64),
}
"""The columns of a directory as they are stored: `latest` as the difference from `earliest`."""


def test_a_directory_is_decoded_as_it_was_packed() -> None:
    decoded = decode_directory(pack(WHOLE), 3, 90)
    assert (decoded.latest.tolist(), decoded.before.tolist()) == ([9, 5], [0, 2, 3])


@pytest.mark.parametrize("seed", range(20))
def test_a_directory_finds_the_runs_of_series_that_a_range_of_time_needs(seed: int) -> None:
    random = np.random.default_rng(seed)
    ids = np.repeat(random.permutation(12)[:8] * 3, 3)
    earliest = np.concatenate([np.sort(random.choice(40, 3, replace=False)) for _ in range(8)])
    runs = len(ids)
    whole = {
        "ids": ids.astype(np.int32),
        "counts": np.ones(runs, np.int32),
        "earliest": earliest.astype(np.int64),
        "latest": random.integers(0, 4, runs),
        "chunk_runs": np.array([0, runs]),
        "chunk_at": np.array([0, 90]),
        "chunk_hashes": np.array([7], np.uint64),
    }
    directory = decode_directory(pack(whole), runs, 90)
    asked = random.permutation(40)
    for start, end in ((-(1 << 63), (1 << 63) - 1), (5, 20), (39, 39), (20, 5)):
        rows, found = directory.find(asked, start, end)
        expected = [
            (row, run)
            for row, id in enumerate(asked.tolist())
            for run in range(runs)
            if ids[run] == id and directory.earliest[run] <= end and directory.latest[run] >= start
        ]
        assert list(zip(rows.tolist(), found.tolist(), strict=True)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_an_extract_of_a_directory_has_the_chunks_of_some_series(seed: int) -> None:
    random = np.random.default_rng(seed)
    series, chunk_count = 30, 12
    runs = 2 * series
    chunk_runs = np.sort(np.concatenate(([0, runs], 1 + random.permutation(runs - 1)[: chunk_count - 1])))
    counts = random.integers(1, 9, runs)
    whole = {
        "ids": random.permutation(np.repeat(np.arange(series), 2)).astype(np.int32),
        "counts": counts.astype(np.int32),
        "earliest": np.arange(runs),
        "latest": random.integers(0, 4, runs),
        "chunk_runs": chunk_runs,
        "chunk_at": 10 * np.arange(chunk_count + 1),
        "chunk_hashes": np.arange(chunk_count, dtype=np.uint64),
    }
    directory = decode_directory(pack(whole), int(counts.sum()), 10 * chunk_count)
    asked = np.flatnonzero(random.random(series + 3) < 0.5)
    start, end = (0, runs) if seed % 2 else (runs // 4, runs // 2)
    sizes, covered_before = np.diff(chunk_runs), 0
    for runs_max in range(runs + 1):
        covered, kept, chunks = directory.first_chunks(asked, start, end, runs_max)
        extract = directory.extract(chunks)
        assert len(extract.ids) == kept <= runs_max
        assert covered_before <= covered <= len(asked)
        covered_before = covered
        if covered < len(asked):  # one more series would need too many runs
            needed = {chunk for chunk, *_ in directory.by_chunk(*directory.find(asked[: covered + 1], start, end))}
            assert sum(int(sizes[chunk]) for chunk in needed) > runs_max
        found, expected = (own.find(asked[:covered], start, end) for own in (extract, directory))
        assert found[0].tolist() == expected[0].tolist()
        for (chunk, rows, own), (number, *others) in zip(
            extract.by_chunk(*found), directory.by_chunk(*expected), strict=True
        ):
            assert chunk == number
            assert rows.tolist() == others[0].tolist()
            places, own_chunk = own - extract.chunk_runs[chunk], slice(*extract.chunk_runs[chunk : chunk + 2])
            assert places.tolist() == (others[1] - directory.chunk_runs[chunk]).tolist()
            in_file = slice(*directory.chunk_runs[chunk : chunk + 2])
            for name in ("ids", "counts", "earliest", "latest"):
                assert getattr(extract, name)[own_chunk].tolist() == getattr(directory, name)[in_file].tolist()
            assert np.diff(extract.before)[own_chunk].tolist() == counts[in_file].tolist()
    assert covered_before == len(asked)


@pytest.mark.parametrize(
    ("column", "numbers", "why"),
    [
        ("ids", np.zeros(1 << 22, np.int32), "pcodec"),
        ("ids", np.zeros(3, np.int64), "pcodec"),
        ("ids", np.array([-1, 2], np.int32), "of no series"),
        ("counts", np.array([2], np.int32), r"have \[2, 1, 2, 2, 3, 3, 2\] numbers"),
        ("counts", np.array([2, 2], np.int32), "it has 4 samples and its row 3"),
        ("counts", np.array([3, 0], np.int32), "without samples"),
        ("latest", np.array([4, -1], np.int64), "before it begins"),
        ("latest", np.array([4, (1 << 63) - 1], np.int64), "before it begins"),
        ("chunk_runs", np.array([0, 2, 2], np.int64), "do not share its 2 runs"),
        ("chunk_runs", np.array([-1, 1, 2], np.int64), "do not share its 2 runs"),
        ("chunk_at", np.array([0, 95, 90], np.int64), "do not share its 90 bytes"),
        ("chunk_at", np.array([0, 40, 1 << 60], np.int64), "do not share its 90 bytes"),
        ("chunk_hashes", np.zeros(0, np.uint64), "numbers, not"),
    ],
)
def test_a_directory_that_contradicts_itself_or_its_row_is_refused(column: str, numbers: NDArray, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_directory(pack({**WHOLE, column: numbers}), 3, 90)


def test_a_directory_with_a_chunk_that_is_too_long_is_refused() -> None:
    counts = np.array([chunks.CHUNK_SAMPLES + 1, 1], np.int32)
    with pytest.raises(ValueError, match="a chunk of 65537 samples; the limit is 65536"):
        decode_directory(pack({**WHOLE, "counts": counts}), chunks.CHUNK_SAMPLES + 2, 90)


@pytest.mark.parametrize(("like_before", "counts"), [(0b1000_0000, [2, 2]), (0b0100_0000, [2, 3])])
def test_a_run_with_the_times_of_no_run_or_a_shorter_one_is_refused(like_before: int, counts: list[int]) -> None:
    data = bytearray(old_chunks.encode(np.array([2, 2]), np.array([1, 2, 1, 2]), np.ones(4)))
    data[chunks_v1._HEADER.size] = like_before
    for read in (chunks.decode, lambda *chunk: chunks.between(*chunk, 1, 2)):
        with pytest.raises(ValueError, match="another number of samples"):
            read(bytes(data), np.array(counts), np.array([1, 1]))


@pytest.mark.parametrize(
    "changes", [{"name": "../x"}, {"samples": 0}, {"samples": 1 << 60}, {"directory_at": -1}, {"size_bytes": 1}]
)
def test_a_row_that_no_block_has_is_refused(tmp_path: Path, changes: dict) -> None:
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    writer.add(np.array([1]), np.array([2]), np.array([1, 2]), np.array([0.5, 1.5]))
    row = msgspec.to_builtins(writer.finish())
    with pytest.raises(msgspec.ValidationError, match="block"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({**row, **changes}), type=BlockRow)


def test_a_tombstone_with_part_of_an_id_is_refused() -> None:
    stone = msgspec.to_builtins(Tombstone.of(1, np.array([3]), 0, 9), builtin_types=(bytes,))
    with pytest.raises(msgspec.ValidationError, match="5 bytes"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({**stone, "ids": bytes(5)}), type=Tombstone)


@given(st.lists(st.integers(0, 11), max_size=20), st.booleans())
def test_runs_are_cut_by_chunk_in_the_order_of_the_file(wanted: list[int], is_sorted: bool) -> None:
    runs = np.array(sorted(wanted) if is_sorted else wanted, np.int64)
    chunk_runs = np.array([0, 1, 5, 6, 12])
    ones, hashes = np.ones(12), np.arange(4, dtype=np.uint64)
    columns = {"ids": np.arange(12), "counts": ones, "earliest": ones, "latest": ones, "chunk_runs": chunk_runs}
    columns |= {"chunk_at": np.arange(5), "chunk_hashes": hashes}
    packed = pack({name: column.astype(WHOLE[name].dtype) for name, column in columns.items()})
    cut = [
        (chunk, row, run)
        for chunk, rows, own in decode_directory(packed, 12, 4).by_chunk(np.arange(len(runs)), runs)
        for row, run in zip(rows.tolist(), own.tolist(), strict=True)
    ]
    expected = sorted(zip(runs.tolist(), range(len(runs)), strict=True))
    assert cut == [(int(np.searchsorted(chunk_runs, run, side="right")) - 1, row, run) for run, row in expected]


def test_the_cache_stays_within_its_bound_and_forgets_the_least_recently_used() -> None:
    cache = DecodedCache(100)
    for key in "abcd":
        cache.put(key, key, 30)
        cache.get("b")
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.get("d")) == (None, "b", "c", "d")
    cache.put("huge", 1, 101)
    assert cache.get("huge") is None and cache.size_bytes == 90

"""Chunks with start times and histograms: exact to the last bit, small, and refused where a part contradicts
another."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.histograms.batch import HistogramBatch, HistogramColumns, LayoutColumns, Layouts, sealed
from shared.histograms.references import is_reference, references, rows_of
from shared.promql.model import STALE_NAN_BITS
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import WHOLE, custom, exponential
from tests.oracle_native_histograms import NativeHistogram
from worker.series.blocks import chunks, histograms, sections
from worker.series.blocks import writer as writer_module
from worker.series.blocks.block import Block, CorruptBlock
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.histograms import CHUNK_NUMBERS
from worker.series.blocks.sections import Chunk
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

EXAMPLES = settings(max_examples=80, deadline=None)
STALE = float(np.array([STALE_NAN_BITS]).view(np.float64)[0])
STEP_MS = 15_000

kept = st.one_of(exponential(), exponential(WHOLE), custom(), custom(WHOLE))
# What comes from outside has no NaN with the bits of a reference.
floats = st.floats().filter(lambda value: not is_reference(np.array([value]))[0])
samples = st.one_of(st.just(STALE), floats, kept, kept, kept)
runs = st.lists(st.lists(samples, min_size=1, max_size=6), min_size=1, max_size=5)


def chunk_of(
    runs: list[list[float | NativeHistogram]], start_times: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], Chunk]:
    """(the lengths of the runs, their first times, the chunk). The batch has a row that nobody refers to, and its rows
    are in the opposite order of the samples."""
    flat = [sample for run in runs for sample in run]
    counts = np.array([len(run) for run in runs])
    times = np.concatenate([np.arange(count) * STEP_MS for count in counts])
    found = [sample for sample in flat if isinstance(sample, NativeHistogram)]
    numbers = iter(references(np.arange(len(found))[::-1]))
    values = np.array([next(numbers) if isinstance(s, NativeHistogram) else s for s in flat], float)
    batch = batch_of([*reversed(found), NativeHistogram(schema=0)]) if found else None
    return counts, np.zeros(len(counts), np.int64), Chunk(times, values, start_times, batch)


def contents(chunk: Chunk) -> list[str]:
    """A text for each sample, with all its bits."""
    is_histogram = is_reference(chunk.values)
    texts = [hex(bits) for bits in chunk.values.view(np.uint64).tolist()]
    if chunk.histograms is not None:
        batch = chunk.histograms.take(rows_of(chunk.values[is_histogram]))
        columns = batch.columns
        for at, h in enumerate(histograms_of(batch)):
            numbers = columns.counts[columns.start[at] : columns.start[at + 1]].tobytes()
            numbers += columns.observations[at].tobytes() + columns.sum[at].tobytes() + columns.flags[at].tobytes()
            texts[np.flatnonzero(is_histogram)[at]] = f"{h!r} {numbers.hex()}"
    starts = np.zeros(len(texts), np.int64) if chunk.start_timestamps_ms is None else chunk.start_timestamps_ms
    return [
        f"{time} {start} {text}"
        for time, start, text in zip(chunk.times_ms.tolist(), starts.tolist(), texts, strict=True)
    ]


@EXAMPLES
@given(runs, st.data())
def test_what_comes_back_is_what_was_put_in(runs: list[list[float | NativeHistogram]], data: st.DataObject) -> None:
    instants = st.sampled_from([0, 0, 7, STEP_MS, (1 << 63) - 1, -(1 << 63)])
    count = sum(map(len, runs))
    starts = data.draw(st.none() | st.lists(instants, min_size=count, max_size=count))
    counts, firsts, chunk = chunk_of(runs, None if starts is None else np.array(starts, np.int64))
    encoded = sections.encode(counts, chunk)
    found = sections.decode(encoded, counts, firsts)
    assert contents(found) == contents(chunk)
    assert sections.between(encoded, counts, firsts, 0, 0).all()
    if found.histograms is not None:
        assert rows_of(found.values[is_reference(found.values)]).tolist() == list(range(len(found.histograms)))


@EXAMPLES
@given(runs, st.data())
def test_joined_and_cut_chunks_have_the_same_samples(
    runs: list[list[float | NativeHistogram]], data: st.DataObject
) -> None:
    _, _, chunk = chunk_of(runs)
    cut = data.draw(st.integers(0, len(chunk.values)))
    parts = [chunk.samples(0, cut), chunk.samples(cut, len(chunk.values))]
    assert [text for part in parts for text in contents(part)] == contents(chunk)
    assert contents(sections.joined(parts)) == contents(chunk)


def test_samples_without_sections_are_written_as_before() -> None:
    counts, _, chunk = chunk_of([[1.0, 2.5, STALE], [3.0]], np.zeros(4, np.int64))
    assert sections.encode(counts, chunk) == chunks.encode(counts, chunk.times_ms, chunk.values)


def test_a_float_with_the_bits_of_a_reference_becomes_an_ordinary_nan() -> None:
    counts = np.array([2])
    data = chunks.encode(counts, np.array([0, 1]), np.array([1.0, references(np.array([7]))[0]]))
    found = sections.decode(data, counts, np.array([0])).values
    assert np.isnan(found[1])
    assert not is_reference(found).any()


def counters(series: int, steps: int, buckets: int = 40) -> tuple[NDArray[np.int64], Chunk]:
    """Histograms of one layout that count up, of sums with all digits."""
    random = np.random.default_rng(3)
    rate = random.lognormal(2, 1, (series, 1, 1)) * np.exp(-0.5 * ((np.arange(buckets) - buckets / 2) / 7) ** 2)
    counts = np.cumsum(random.poisson(rate, (series, steps, buckets)), axis=1)
    sums = np.cumsum(random.random((series, steps)), axis=1)
    table = batch_of([NativeHistogram(schema=3, positive=dict.fromkeys(range(1, buckets), 1.0))]).layouts
    rows = series * steps
    batch = HistogramBatch(
        table,
        sealed(
            HistogramColumns(
                np.zeros(rows, np.int32), np.zeros(rows, np.uint8), counts.sum(2).ravel().astype(float), sums.ravel(),
                np.arange(rows + 1) * buckets, counts.ravel().astype(float),
            )
        ),
    )  # fmt: skip
    times = np.tile(np.arange(steps) * STEP_MS, series)
    return np.full(series, steps), Chunk(times, references(np.arange(rows)), None, batch)


def test_a_histogram_of_forty_buckets_takes_less_than_thirty_bytes() -> None:
    counts, chunk = counters(20, 240)
    data = sections.encode(counts, chunk)
    assert len(data) < 30 * len(chunk.values)
    _, _, _, body, starts, _ = struct.unpack_from("<BBHIII", data)
    stretches = struct.unpack_from("<5I", data, 16 + body + starts)[3]
    assert stretches == 20, "histograms of different series are not subtracted"
    assert contents(sections.decode(data, counts, np.zeros(20, np.int64))) == contents(chunk)


@pytest.mark.parametrize("follows", [False, True])
def test_start_times_cost_nearly_nothing(follows: bool) -> None:
    """Those of counters that keep counting, and those of samples that count from the one before."""
    series, steps = 100, 240
    random = np.random.default_rng(1)
    times = np.cumsum(random.integers(1, 20_000, (series, steps)), axis=1)
    start_times = np.repeat(random.integers(1, 1 << 40, (series, 1)), steps, axis=1)
    if follows:
        start_times = np.concatenate((times[:, :1] - 15_000, times[:, :-1]), axis=1)
    counts = np.full(series, steps)
    chunk = Chunk(times.ravel(), np.ones(series * steps), start_times.ravel())
    without = sections.encode(counts, Chunk(chunk.times_ms, chunk.values))
    data = sections.encode(counts, chunk)
    assert len(data) - len(without) < 8 * series + 100
    assert sections.decode(data, counts, times[:, 0].copy()).start_timestamps_ms is not None


# Blocks


def written(directory: Path, counts: NDArray[np.int64], chunk: Chunk) -> Block:
    writer = BlockWriter(LocalObjects(directory), 1)
    ends = np.cumsum(counts)
    for number, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        own = chunk.samples(end - count, end)
        starts, batch = own.start_timestamps_ms, own.histograms
        writer.add(np.array([number]), np.array([count]), own.times_ms, own.values, starts, batch)
        assert writer._buffered_numbers < writer_module.CHUNK_NUMBERS, "what is not written yet is bounded"
    return Block(writer.finish(), LocalObjects(directory), DecodedCache(1 << 30))


def test_a_block_is_cut_by_the_numbers_of_its_histograms(tmp_path: Path) -> None:
    counts, chunk = counters(40, 240)
    block = written(tmp_path, counts, chunk)
    directory = block.directory()
    sizes = [block.chunk(directory, number).histograms for number in range(len(directory.chunk_hashes))]
    numbers = [len(batch.columns.counts) for batch in sizes if batch is not None]
    assert len(numbers) == -(-40 * 240 * 42 // CHUNK_NUMBERS)
    assert max(numbers) < CHUNK_NUMBERS
    found = join(block.pieces(np.arange(40), 0, 1 << 60), 40)
    again = Chunk(found.timestamps_ms, found.values, found.start_timestamps_ms, found.histograms)
    assert contents(again) == contents(chunk)


def test_chunks_of_histograms_with_as_many_boundaries_as_can_be_are_small(tmp_path: Path) -> None:
    """A histogram may have 10,000 boundaries and one bucket, and each its own: its layout counts too."""
    rows, bounds = 80, 10_000
    table = LayoutColumns(
        np.full(rows, -53, np.int8), np.zeros(rows), np.full(rows, -1, np.int32), np.arange(rows + 1),
        np.zeros(rows, np.int32), np.arange(rows + 1) * bounds,
        np.tile(np.arange(bounds, dtype=float), rows) + np.repeat(np.arange(rows) / 1000, bounds),
    )  # fmt: skip
    columns = HistogramColumns(
        np.arange(rows, dtype=np.int32), np.zeros(rows, np.uint8), np.ones(rows), np.ones(rows), np.arange(rows + 1),
        np.ones(rows),
    )  # fmt: skip
    batch = HistogramBatch(Layouts(sealed(table)), sealed(columns))
    block = written(tmp_path, np.array([rows]), Chunk(np.arange(rows), references(np.arange(rows)), None, batch))
    directory = block.directory()
    sizes = [block.chunk(directory, number).nbytes for number in range(len(directory.chunk_hashes))]
    assert len(sizes) == 3
    assert max(sizes) < 3 << 20
    found = join(block.pieces(np.array([0]), 0, 1 << 60), 1).histograms
    assert found is not None
    assert found.layouts.columns.bound.tobytes() == table.bound.tobytes()


@EXAMPLES
@given(runs=runs, lowered=st.sampled_from([1, 5, 30]))
def test_runs_are_cut_wherever_a_chunk_is_full(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[float | NativeHistogram]], lowered: int
) -> None:
    counts, _, chunk = chunk_of(runs, np.arange(sum(map(len, runs))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "CHUNK_NUMBERS", lowered)
        patch.setattr(writer_module, "CHUNK_SAMPLES", 4)
        block = written(tmp_path_factory.mktemp("cut"), counts, chunk)
        found = join(block.pieces(np.arange(len(runs)), 0, 1 << 60), len(runs))
    assert np.diff(found.offsets).tolist() == counts.tolist()
    again = Chunk(found.timestamps_ms, found.values, found.start_timestamps_ms, found.histograms)
    assert contents(again) == contents(chunk)


def test_the_cache_counts_the_histograms_of_a_chunk(tmp_path: Path) -> None:
    counts, chunk = counters(2, 100)
    block = written(tmp_path, counts, chunk)
    block.pieces(np.arange(2), 0, 1 << 60)
    assert block._cache.size_bytes > 200 * 40 * 8


# Damage

SMALL = chunk_of([[NativeHistogram(schema=0, positive={1: 2.0}, count=2.0)] * 3, [1.0]], np.array([1, 1, 2, 0]))


@pytest.mark.parametrize("cut", [1, 30, 90, 200])
def test_a_chunk_that_lacks_bytes_is_refused(cut: int) -> None:
    counts, firsts, chunk = SMALL
    with pytest.raises((ValueError, struct.error)):
        sections.decode(sections.encode(counts, chunk)[:-cut], counts, firsts)


def section(**changed: NDArray) -> bytes:
    """A section of two histograms of one layout, with some streams replaced."""
    streams = {
        "schema": np.array([0], np.int16), "threshold": np.zeros(1), "zero_at": np.zeros(1, np.int32),
        "sizes": np.array([2], np.int32), "indexes": np.array([0, 3], np.int32), "bound_sizes": np.zeros(1, np.int32),
        "bound": np.zeros(0), "layouts": np.zeros(1, np.int32), "lengths": np.array([2], np.int32),
        "flags": np.zeros(2, np.uint16), "kinds": np.zeros(4, np.uint16), "firsts": np.arange(4),
        "slopes": np.arange(4), "floats": np.zeros(0),
    }  # fmt: skip
    streams |= changed
    packed = [chunks.compressed(stream) for stream in streams.values()]
    header = struct.pack("<5I", len(streams["schema"]), len(streams["indexes"]), len(streams["bound"]),
                         len(streams["lengths"]), len(packed))  # fmt: skip
    return b"".join((header, np.array([len(part) for part in packed], "<u4").tobytes(), *packed))


def test_a_section_says_what_it_says() -> None:
    batch = histograms.decode(section(), 2)
    assert batch.columns.counts.tolist() == [0, 1, 0, 2]
    assert batch.columns.observations.tolist() == [2, 4]
    assert batch.columns.sum.tolist() == [3, 6]


@pytest.mark.parametrize(
    ("stream", "numbers", "why"),
    [
        ("schema", np.array([9], np.int16), "schemas 9 to 9"),
        ("schema", np.array([-53], np.int16), "zero bucket"),
        ("schema", np.zeros(3, np.int16), "2 histograms have 3 layouts"),
        ("zero_at", np.array([2], np.int32), "zero bucket"),
        ("zero_at", np.array([-1], np.int32), "zero bucket"),
        ("sizes", np.array([3], np.int32), "do not share their 2 buckets"),
        ("indexes", np.zeros(2 * CHUNK_NUMBERS + 1, np.int32), "layouts with 524289 buckets"),
        ("bound_sizes", np.array([-1], np.int32), "do not share"),
        ("bound_sizes", np.array([1], np.int32), "do not share their 0 boundaries"),
        ("layouts", np.array([1], np.int32), "a layout that is not there"),
        ("layouts", np.array([-1], np.int32), "a layout that is not there"),
        ("lengths", np.array([3], np.int32), "there are 2 histograms, and stretches of 3"),
        ("lengths", np.array([2, 0], np.int32), "numbers"),
        ("flags", np.zeros(3, np.uint16), "pcodec"),
        ("kinds", np.full(4, 66, np.uint16), "a column of kind 66"),
        ("kinds", np.array([1, 0, 0, 0], np.uint16), "0 of 1 numbers"),
        ("kinds", np.array([65, 0, 0, 0], np.uint16), "numbers"),
        ("firsts", np.arange(3), "3 of 4 numbers"),
        ("floats", np.zeros(1), "0 numbers"),
    ],
)
def test_a_section_that_contradicts_itself_is_refused(stream: str, numbers: NDArray, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        histograms.decode(section(**{stream: numbers}), 2)


def test_custom_buckets_without_boundaries_are_refused() -> None:
    damaged = section(
        schema=np.array([-53], np.int16), zero_at=np.array([-1], np.int32), bound_sizes=np.array([2], np.int32),
        bound=np.arange(2.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match="have no boundaries"):
        histograms.decode(damaged, 2)


def test_a_section_of_too_many_counts_takes_no_memory() -> None:
    rows = 65_536
    damaged = section(
        lengths=np.array([rows], np.int32), sizes=np.array([40], np.int32), indexes=np.zeros(40, np.int32)
    )
    with pytest.raises(ValueError, match="2621440 counts; the limit is 524288"):
        histograms.decode(damaged, rows)


@pytest.mark.parametrize("part", ["the values", "the start times", "the histograms"])
def test_damage_of_any_section_is_a_corrupt_block(tmp_path: Path, part: str) -> None:
    counts, _, chunk = SMALL
    data = sections.encode(counts, chunk)
    _, _, _, body, starts, _ = struct.unpack_from("<BBHIII", data)
    at = 16 + {"the values": 30, "the start times": body + 6, "the histograms": body + starts + 60}[part]
    block = written(tmp_path, counts, chunk)
    path = Path(block.location)
    whole = path.read_bytes()
    assert whole.startswith(data)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CorruptBlock, match="checksum"):
        block.pieces(np.array([0]), 0, 1 << 60)

"""Histograms and start timestamps in blocks: whatever happens, a shard has what was written to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms.batch import HistogramBatch
from shared.promql.ast import Matcher
from tests.oracle_native_histograms import NativeHistogram
from tests.unit.extended_samples import Value, any_values, frame, read, starts, text_of
from tests.unit.series_shard import FAR_MS, TIMEOUT_S, Quiet
from worker.series import sealing, writing
from worker.series.blocks import seal
from worker.series.blocks import writer as writer_module
from worker.series.growing_histograms import HistogramsSoFar
from worker.series.head import NEVER
from worker.series.writing import write_to

ONE = NativeHistogram(schema=1, count=3.0, sum=0.5, positive={0: 1.0, 1: 2.0})
times = st.integers(0, 20) | st.integers(0, 5000)
samples = st.tuples(st.sampled_from("abc"), times, any_values(), starts())
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(samples, min_size=1, max_size=12)),
        st.tuples(st.just("write"), st.lists(samples, min_size=1, max_size=12)),
        st.tuples(st.just("seal"), st.sampled_from([NEVER, 10, 1000, 2000])),
        st.tuples(st.just("delete"), st.tuples(st.sampled_from("abc"), times, times)),
        st.tuples(st.just("compact"), st.sampled_from([FAR_MS, 3000])),
        st.tuples(st.just("freeze"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=10,
)
Written = dict[str, dict[int, tuple[Value, int]]]


def texts(written: Written) -> dict[str, list[tuple[int, str, int]]]:
    return {
        job: [(time, text_of(value), start) for time, (value, start) in sorted(own.items())]
        for job, own in written.items()
        if own
    }


def write(shard: Quiet, written: Written, entries: list[tuple[str, int, Value, int]]) -> None:
    write_to(shard.part, [frame([(job, [(time, value, start)]) for job, time, value, start in entries])], TIMEOUT_S)
    for job, time, value, start in entries:
        written.setdefault(job, {})[time] = value, start


@settings(max_examples=40, deadline=None)
@given(steps=steps, chunk_numbers=st.sampled_from([20, 1 << 18]))
def test_whatever_happens_a_shard_has_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list, chunk_numbers: int
) -> None:
    written: Written = {}
    shard = Quiet(tmp_path_factory.mktemp("shard"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "CHUNK_NUMBERS", chunk_numbers)
        patch.setattr(seal, "CHUNK_BYTES", 8 * chunk_numbers)
        for step, argument in steps:
            if step == "write":
                write(shard, written, argument)
            elif step == "seal":
                shard.seal(argument)
            elif step == "delete":
                job, first, last = argument[0], *sorted(argument[1:])
                deleted = [time for time in written.get(job, {}) if first <= time <= last]
                shard.part.delete([[Matcher("job", "=", job)]], first, last, TIMEOUT_S)
                for time in deleted:
                    del written[job][time]
            elif step == "compact":
                shard.compact(argument)
            elif step == "freeze" and shard.part.contents.layers.frozen is None:
                shard.part.contents.freeze(shard.part.journal.next_sequence)
            elif step == "reopen":
                shard.reopen()
            assert {job: own for job, own in read(shard).items() if own} == texts(written)
    shard.close()


def test_a_seal_keeps_recent_histograms_in_memory_and_counts_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = NativeHistogram(schema=0, positive=dict.fromkeys(range(200), 1.0), count=200.0, sum=1.0)
    shard, written = Quiet(tmp_path), Written()
    write(shard, written, [("a", time, wide, 7) for time in range(0, 2000, 100)])
    kept = []
    slab_of = sealing.slab_of
    monkeypatch.setattr(sealing, "slab_of", lambda young, *more: (kept.extend(young), slab_of(young, *more))[1])
    shard.seal(1000)
    assert [len(samples.histograms) for _, samples in kept] == [10], "the others would stay in memory until the end"
    slab = shard.part.contents.layers.slab
    assert slab is not None
    assert slab.samples.histograms is not None
    assert len(slab.samples.histograms) == 10
    assert 10 * 200 * 8 < slab.size_bytes < 2 * 10 * 200 * 8
    assert shard.part.contents.head_times()[0] >= slab.size_bytes
    assert read(shard) == texts(written)
    shard.close()


def test_histograms_that_take_much_more_when_they_are_read_are_not_kept_in_memory_by_a_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head has a byte for each small count. What a seal would keep, with 8, would have writes refused."""
    monkeypatch.setattr(writing, "HOLD_UP_S", 0.0)
    monkeypatch.setitem(Quiet.options, "head_bytes", 1 << 16)
    wide = NativeHistogram(schema=0, positive=dict.fromkeys(range(200), 1.0), count=200.0, sum=1.0)
    shard, written = Quiet(tmp_path), Written()
    write(shard, written, [("a", time, 1.0, 0) for time in range(10)])
    for time in range(1000, 1180):
        write(shard, written, [("a", time, wide, 0)])
    assert shard.part.contents.unsealed_bytes() < 1 << 16
    shard.seal(1000)
    for time in range(1180, 1183):
        write(shard, written, [("a", time, wide, 0)])
    assert read(shard) == texts(written)
    shard.close()


def test_series_are_sealed_in_slices_that_are_bounded_in_samples_and_in_bytes() -> None:
    """2 MiB of histograms and 1 MiB of samples are a chunk's worth."""
    by_bytes = seal.slices(seal.even_shares(1000, 1000, 60 << 20))
    by_samples = seal.slices(seal.even_shares(1000, 20 << 16, 20 << 20))
    for parts in (by_bytes, by_samples):
        assert len(parts) in (10, 11)
        assert max(part.stop - part.start for part in parts) <= 100
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == 1000
    assert seal.slices(seal.even_shares(3, 1 << 30, 0)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert seal.slices(seal.even_shares(3, 0, 0)) == [slice(0, 3)]
    assert seal.slices(seal.even_shares(0, 0, 0)) == []


def test_a_merge_reads_histograms_in_slices_that_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few samples with many buckets: by their number they would all be read at once."""
    wide = NativeHistogram(schema=0, positive=dict.fromkeys(range(100), 1.0), count=100.0, sum=1.0)
    monkeypatch.setattr(writer_module, "CHUNK_NUMBERS", 1000)
    shard, written = Quiet(tmp_path), Written()
    for at in range(4):
        write(shard, written, [(f"{series:03}", at, wide, 0) for series in range(100)])
        shard.seal()
    sizes = []
    part_read = seal._Windows.add

    def add(self: object, part: slice, ids: object, samples: object) -> None:
        sizes.append(part.stop - part.start)
        part_read(self, part, ids, samples)  # type: ignore[arg-type]

    monkeypatch.setattr(seal._Windows, "add", add)
    assert shard.compact() == 1
    assert sum(sizes) == 100
    assert max(sizes) * 4 * 100 <= (seal.SLICE_CHUNKS + 1) * 1000
    assert read(shard) == texts(written)
    shard.close()


def test_a_seal_reads_histograms_in_slices_that_are_bounded_by_what_they_take_when_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the head, each of these counts takes one byte."""
    wide = NativeHistogram(schema=0, positive=dict.fromkeys(range(100), 1.0), count=100.0, sum=1.0)
    monkeypatch.setattr(seal, "CHUNK_BYTES", 8 * 1000)
    shard, written = Quiet(tmp_path), Written()
    write(shard, written, [(f"{series:03}", 0, wide, 0) for series in range(100)])
    sizes = []
    part_read = seal._Windows.add

    def add(self: object, part: slice, ids: object, samples: object) -> None:
        sizes.append(part.stop - part.start)
        part_read(self, part, ids, samples)  # type: ignore[arg-type]

    monkeypatch.setattr(seal._Windows, "add", add)
    shard.seal()
    assert sum(sizes) == 100
    assert max(sizes) * 100 <= (seal.SLICE_CHUNKS + 1) * 1000
    assert read(shard) == texts(written)
    shard.close()


def test_histograms_are_read_without_the_lock_that_writes_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, written = Quiet(tmp_path), Written()
    write(shard, written, [("a", 5, ONE, 0), ("b", 9, ONE, 1)])
    lock, take, was_locked = shard.part.contents.lock, HistogramsSoFar.take, []

    def watched(self: HistogramsSoFar, wanted: np.ndarray) -> HistogramBatch:
        was_locked.append(lock.locked())
        write(shard, written, [("a", 6, ONE, 0)])
        return take(self, wanted)

    monkeypatch.setattr(HistogramsSoFar, "take", watched)
    before = texts(written)
    assert read(shard) == before
    assert was_locked == [False]
    monkeypatch.undo()
    assert read(shard) == texts(written) != before
    shard.close()

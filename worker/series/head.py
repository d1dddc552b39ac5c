"""Recent samples in memory: each series has a chain of chunks in shared arenas, and each chunk is twice as long as the
one before it, up to CHUNK_SAMPLES_MAX.

A series that ends after three samples takes 130 bytes, a longer one wastes at most half of its last chunk, and a new
sample is written right after the last one. Each chunk has its earliest and latest time, so that a read of a time range
skips other chunks. Samples are stored in order of arrival. A series with a late sample is sorted when it is read; among
samples with equal times the last one written wins. A series with half of its samples late is rewritten in order with
each time once, so that writing the same times again and again does not slow down reading.

A sample that is a histogram is a reference to a row of the head's own histograms, to which rows are only appended.

A head is not safe for concurrent use: its owner holds one lock around every call, for about 15 ns per sample. Lock-free
readers would need copies on growth and published lengths and gain little, and a deletion would have to wait for them.
Only histograms, which take the most time to read and never change, are read without the lock (`Copied`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.frames.start_timestamps import StartTimestamps
from shared.histograms import references
from shared.histograms.packed import PackedHistograms
from shared.promql.model import Samples
from worker.series import arena
from worker.series.arena import (
    ARENA,
    BEFORE,
    CHUNK_LATEST,
    CHUNK_SAMPLES_MAX,
    CHUNKS,
    CROWDED,
    EARLIEST,
    LATE_CHECK,
    LATEST,
    NEVER,
    SIZE,
    STORED,
)
from worker.series.growing_array import GrowingArray
from worker.series.growing_histograms import GrowingHistograms, HistogramsSoFar
from worker.series.pieces import in_order

ARENA_ROOM_MIN = 4 * CHUNK_SAMPLES_MAX
CHUNK_ROOM_MIN = 64
CHUNK_BYTES = 36
"""Bytes of a chunk's rows in `shapes` and `places`."""
_NO_STARTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Copied:
    """Samples of a head at one moment. What is left to do for reading them needs no lock. `_late` bool[n]: which of
    their n series are not in order of time; None if all are."""

    _samples: Samples
    _late: NDArray[np.bool_] | None
    _histograms: HistogramsSoFar | None

    def samples(self) -> Samples:
        """What `Head.read` returns. Call this once."""
        samples = self._samples if self._late is None else in_order(self._samples, self._late)
        if samples.start_timestamps_ms is not None and not samples.start_timestamps_ms.any():
            samples.start_timestamps_ms = None  # the samples that had one were replaced by later ones
        if self._histograms is not None:
            histogram_samples = np.flatnonzero(references.is_reference(samples.values))
            if len(histogram_samples):
                samples.histograms = self._histograms.take(references.rows_of(samples.values[histogram_samples]))
                samples.values[histogram_samples] = references.references(np.arange(len(histogram_samples)))
        return samples


class Head:
    """The samples of series 0 ≤ id < `series`."""

    def __init__(self) -> None:
        self._links = GrowingArray(np.int32, (2,))
        self._ranges = GrowingArray(np.int64, (2,))
        self._late = GrowingArray(np.int32)  # late samples since the series was last in order
        self._shapes = GrowingArray(np.int32, (3,))
        self._places = GrowingArray(np.int64, (3,))
        self._times = GrowingArray(np.int64, is_refilled=True)
        self._values = GrowingArray(np.float64, is_refilled=True)
        self._starts = _NO_STARTS  # empty until a sample has a start timestamp, then as long as the arena
        self._histograms: GrowingHistograms | None = None
        self._tally = np.zeros(4, dtype=np.int64)

    @property
    def series(self) -> int:
        return self._links.size

    @property
    def samples(self) -> int:
        """Number of samples. A late sample with an existing time counts too until the series is rewritten or sealed; a
        repetition of the series' last time does not count."""
        return int(self._tally[STORED])

    @property
    def chunks(self) -> int:
        """Number of chunks, including those that rewritten series have left."""
        return int(self._tally[CHUNKS])

    @property
    def size_bytes(self) -> int:
        """Memory of the samples, their histograms and their chunks, without the fixed cost of each series. The
        histograms of samples that later ones have replaced or a deletion has removed are freed only with the head, and
        count until then."""
        return self._size_bytes(0 if self._histograms is None else self._histograms.nbytes)

    @property
    def read_bytes(self) -> int:
        """As `size_bytes`, but with the histograms as they are when they are read, with wider counts."""
        return self._size_bytes(0 if self._histograms is None else self._histograms.read_nbytes)

    def _size_bytes(self, histogram_bytes: int) -> int:
        sample_bytes = 24 if len(self._starts) else 16
        return sample_bytes * int(self._tally[ARENA]) + CHUNK_BYTES * int(self._tally[CHUNKS]) + histogram_bytes

    def times(self) -> tuple[int, int]:
        """(earliest, latest) of all samples, in Unix ms; (NEVER, BEFORE) if there are none."""
        ranges = self._ranges.rows()
        return int(ranges[:, EARLIEST].min(initial=NEVER)), int(ranges[:, LATEST].max(initial=BEFORE))

    def late_bytes(self, before_ms: int) -> int:
        """The approximate size of the chunks that have only samples with t < before_ms, including those that rewritten
        series have left."""
        is_late = self._places.rows()[:, CHUNK_LATEST] < before_ms
        late = int(self._shapes.rows()[is_late, SIZE].sum())
        return self.size_bytes * late // max(int(self._tally[ARENA]), 1)

    def extend(self, series: int) -> None:
        """Make room for ids below `series`."""
        new_series = series - self._links.size
        if new_series > 0:
            self._links.room(new_series)[:] = -1
            self._ranges.room(new_series)[:] = (NEVER, BEFORE)
            self._late.room(new_series)[:] = 0

    def append(
        self,
        series: NDArray[np.int64],
        times: NDArray[np.int64],
        values: NDArray[np.float64],
        starts: StartTimestamps = None,
        histograms: PackedHistograms | None = None,
    ) -> None:
        """Append samples: `series` int64[n] are their ids, `times` int64[n] is in Unix ms, `values` is float64[n] and
        refers to `histograms`, `starts` int64[n] are start timestamps. A sample replaces an earlier one with the same
        time."""
        if histograms is not None:
            if self._histograms is None:
                self._histograms = GrowingHistograms()
            values = references.shifted(values, self._histograms.append(histograms))
        self._append(series, times, values, starts)

    def _append(
        self,
        series: NDArray[np.int64],
        times: NDArray[np.int64],
        values: NDArray[np.float64],
        starts: StartTimestamps,
    ) -> None:
        """As `append`, but with values that refer to the head's own histograms."""
        if starts is not None and not len(self._starts):
            self._starts = np.zeros(len(self._times.data), dtype=np.int64)
        at = 0
        while True:
            at = arena.append(
                series,
                times,
                values,
                _NO_STARTS if starts is None else starts,
                at,
                self._links.data,
                self._ranges.data,
                self._late.data,
                self._shapes.data,
                self._places.data,
                self._times.data,
                self._values.data,
                self._starts,
                self._tally,
            )
            self._shapes.size = self._places.size = int(self._tally[CHUNKS])
            self._times.size = self._values.size = int(self._tally[ARENA])
            if at == len(series):
                break
            for column in (self._shapes, self._places):
                column.reserve(CHUNK_ROOM_MIN)
            for column in (self._times, self._values):
                column.reserve(ARENA_ROOM_MIN)
            if len(self._starts):
                grown = np.zeros(len(self._times.data), dtype=np.int64)  # does not touch the new memory
                grown[: len(self._starts)] = self._starts
                self._starts = grown
        if self._tally[CROWDED]:
            self._tally[CROWDED] = 0
            self._settle(np.unique(series))

    def _settle(self, ids: NDArray[np.int64]) -> None:
        """Rewrite the series among `ids` that have at least LATE_CHECK late samples and at least half of their samples
        late. At least half of the rewritten samples have then arrived since the last rewrite, which bounds the cost per
        sample."""
        ids = ids[self._late.data[ids] >= LATE_CHECK]
        stored = self._stored_each(ids)
        ids = ids[2 * self._late.data[ids] >= stored]
        if len(ids):
            self._rewrite(ids, self._read(ids, BEFORE, NEVER))

    def _rewrite(self, ids: NDArray[np.int64], samples: Samples) -> None:
        """Replace all samples of these series with `samples`, which refer to the head's own histograms. The memory of
        their old chunks is freed only with the head."""
        self._tally[STORED] -= self._stored(ids)
        self._links.data[ids] = -1
        self._ranges.data[ids] = (NEVER, BEFORE)
        self._late.data[ids] = 0
        series = np.repeat(ids, np.diff(samples.offsets))
        self._append(series, samples.timestamps_ms, samples.values, samples.start_timestamps_ms)

    def overlapping(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[n]: which series may have samples with start ≤ t ≤ end, because their earliest and latest times overlap
        that range."""
        ranges = self._ranges.data[ids]
        return (ranges[:, EARLIEST] <= end_ms) & (ranges[:, LATEST] >= start_ms)

    def all_overlap(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> bool:
        """Whether all series may have samples with start ≤ t ≤ end; see `overlapping`."""
        return bool(arena.all_overlap(ids, start_ms, end_ms, self._ranges.data))

    def having(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end."""
        ranges = self._ranges.data[ids]
        earliest, latest = ranges[:, EARLIEST], ranges[:, LATEST]
        has_samples = ((earliest >= start_ms) & (earliest <= end_ms)) | ((latest >= start_ms) & (latest <= end_ms))
        spanning = np.flatnonzero((earliest < start_ms) & (latest > end_ms))
        if len(spanning):
            has_inner_sample = np.zeros(len(spanning), dtype=np.bool_)
            arena.any_between(
                ids[spanning],
                start_ms,
                end_ms,
                self._links.data,
                self._shapes.data,
                self._places.data,
                self._times.data,
                has_inner_sample,
            )
            has_samples[spanning] = has_inner_sample
        return has_samples

    def read(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> Samples:
        """The samples of these series with start ≤ t ≤ end, ascending in time, each time once, and the histograms among
        them."""
        return self.copied(ids, start_ms, end_ms).samples()

    def copied(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> Copied:
        """A copy of what `read` needs, before the head is appended to again: only the samples, in order of arrival."""
        samples, late = self._copied(ids, start_ms, end_ms)
        return Copied(samples, late, None if self._histograms is None else self._histograms.so_far())

    def _read(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> Samples:
        """As `read`, but with values that refer to the head's own histograms."""
        samples, late = self._copied(ids, start_ms, end_ms)
        return samples if late is None else in_order(samples, late)

    def _copied(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> tuple[Samples, NDArray[np.bool_] | None]:
        """(the samples in order of arrival, with values that refer to the head's own histograms; which series have some
        that are late, None if no series has)."""
        links, shapes, places = self._links.data, self._shapes.data, self._places.data
        room = arena.bound(ids, start_ms, end_ms, links, shapes, places)
        offsets = np.empty(len(ids) + 1, dtype=np.int64)
        times, values = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float64)
        starts = np.empty(room, dtype=np.int64) if len(self._starts) else _NO_STARTS
        any_late = arena.read(
            ids,
            start_ms,
            end_ms,
            links,
            self._late.data,
            shapes,
            places,
            self._times.data,
            self._values.data,
            self._starts,
            offsets,
            times,
            values,
            starts,
        )
        size = offsets[-1]
        has_starts = len(starts) > 0 and starts[:size].any()
        samples = Samples(offsets, times[:size], values[:size], starts[:size] if has_starts else None)
        return samples, self._late.data[ids] > 0 if any_late else None

    def delete(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> int:
        """Remove the samples of these distinct series with start ≤ t ≤ end. Returns the number of removed samples."""
        ids = ids[self.having(ids, start_ms, end_ms)]
        stored = self._read(ids, BEFORE, NEVER)
        is_kept = (stored.timestamps_ms < start_ms) | (stored.timestamps_ms > end_ms)
        offsets = np.concatenate(([0], np.cumsum(is_kept)))[stored.offsets]
        starts = stored.start_timestamps_ms
        kept = Samples(
            offsets, stored.timestamps_ms[is_kept], stored.values[is_kept], None if starts is None else starts[is_kept]
        )
        self._rewrite(ids, kept)
        return len(is_kept) - len(kept.values)

    def _stored_each(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the number of stored samples of each series, where samples with equal times all count."""
        stored = np.zeros(len(ids), dtype=np.int64)
        arena.count_stored(ids, self._links.data, self._shapes.data, stored)
        return stored

    def _stored(self, ids: NDArray[np.int64]) -> int:
        return int(self._stored_each(ids).sum())

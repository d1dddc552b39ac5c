"""Samples as columns, which is their form in records of the journal and on their way into the head."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.frames import start_timestamps
from shared.frames.references import ReferenceColumns
from shared.frames.samples import SampleColumns
from shared.frames.start_timestamps import StartTimestamps
from shared.histograms import references
from shared.histograms.packed import PackedHistograms, aligned_words
from shared.histograms.packed import joined as joined_histograms
from shared.wire import Frame
from worker.series.arena import BEFORE

EXTENSION = struct.Struct("<QQ")
"""At the beginning of an extended record: the number of start timestamps and the size of the histograms in bytes."""


@dataclass(frozen=True, slots=True)
class Written:
    """Samples in order of arrival, as runs: run i is counts[i] samples of series[i]. `series` and `counts` int64[runs],
    `times_ms` int64[n], `values` float64[n], which may refer to rows of `histograms`. `start_timestamps_ms` int64[n]: 0
    stands for none."""

    series: NDArray[np.int64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    start_timestamps_ms: StartTimestamps = None
    histograms: PackedHistograms | None = None

    @classmethod
    def of_columns(cls, columns: SampleColumns | ReferenceColumns, series: NDArray[np.int64]) -> Written:
        """The samples of a frame. `series` int64[runs]: the ids."""
        starts, histograms = columns.start_timestamps_ms, columns.histograms
        return cls(series, columns.counts, columns.times_ms, columns.values, starts, histograms)

    @property
    def is_extended(self) -> bool:
        """Whether there are start timestamps or histograms."""
        return self.start_timestamps_ms is not None or self.histograms is not None

    def rows(self) -> NDArray[np.int64]:
        """int64[n]: the series of each sample."""
        if len(self.series) == len(self.times_ms):
            return self.series  # no run is empty, so each has one sample
        return np.repeat(self.series, self.counts)

    def of(self, series: NDArray[np.int64]) -> Written:
        """The same samples, with `series` (int64[runs]) as the ids of their series."""
        return Written(
            series, self.counts, self.times_ms, self.values, self.start_timestamps_ms, self.histograms
        )  # fmt: skip

    @property
    def latest_ms(self) -> int:
        return int(self.times_ms.max(initial=BEFORE))

    def since(self, start_ms: int) -> Written:
        """The samples with t ≥ start."""
        return self.only(self.times_ms >= start_ms)

    def only(self, is_wanted: NDArray[np.bool_]) -> Written:
        """The samples where `is_wanted` (bool[n])."""
        if is_wanted.all():
            return self
        series, starts = self.rows()[is_wanted], self.start_timestamps_ms
        values, histograms = self.values[is_wanted], self.histograms
        if histograms is not None:
            values, used_histograms = references.used_only(values, histograms.unpacked())
            histograms = None if used_histograms is None else PackedHistograms.of(used_histograms)
        starts = None if starts is None else starts[is_wanted]
        ones = np.ones(len(series), dtype=np.int64)
        return Written(series, ones, self.times_ms[is_wanted], values, starts, histograms)

    def frames(self) -> list[Frame]:
        """The record without its header; `decode` reads it."""
        runs = [self.series.astype(np.int32).data, self.counts.astype(np.int32).data]
        samples: list[Frame] = [self.times_ms.data, self.values.data]
        if not self.is_extended:
            return [*samples, *runs]
        starts = b"" if self.start_timestamps_ms is None else self.start_timestamps_ms.tobytes()
        histogram_bytes, histograms = 0, list[Frame]()
        if self.histograms is not None:  # in the encoding in which they arrived
            histogram_bytes, histograms = self.histograms.nbytes, self.histograms.bytes()
        return [EXTENSION.pack(len(starts) // 8, histogram_bytes), *samples, starts, *histograms, *runs]


def joined(parts: Sequence[Written]) -> Written:
    """The runs of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    values, rows = [], 0
    for part in parts:
        values.append(part.values if part.histograms is None else references.shifted(part.values, rows))
        rows += 0 if part.histograms is None else len(part.histograms)
    batches = [part.histograms for part in parts if part.histograms is not None]
    return Written(
        np.concatenate([part.series for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate(values),
        start_timestamps.joined([(len(part.times_ms), part.start_timestamps_ms) for part in parts]),
        joined_histograms(batches) if batches else None,
    )


def decode(data: Frame, runs: int, samples: int, *, is_extended: bool) -> Written:
    """The inverse of `frames`, for the given numbers of runs and samples. Raises ValueError, struct.error."""
    octets = memoryview(data).cast("B")
    at, starts, histogram_bytes = 0, 0, 0
    if is_extended:
        starts, histogram_bytes = EXTENSION.unpack_from(octets)
        at = EXTENSION.size
    size = at + 16 * samples + 8 * starts + histogram_bytes + 8 * runs
    if size != octets.nbytes:
        raise ValueError(f"it has {octets.nbytes} bytes; {runs} runs of {samples} samples have {size}")
    times = np.frombuffer(octets, dtype=np.int64, count=samples, offset=at)
    values = np.frombuffer(octets, dtype=np.float64, count=samples, offset=at + 8 * samples)
    at += 16 * samples
    start_timestamps_ms = np.frombuffer(octets, dtype=np.int64, count=starts, offset=at) if starts else None
    at += 8 * starts
    histograms = None
    if histogram_bytes:
        histograms = PackedHistograms.of_words(aligned_words(octets[at : at + histogram_bytes]))
    at += histogram_bytes
    series = np.frombuffer(octets, dtype=np.int32, count=runs, offset=at)
    counts = np.frombuffer(octets, dtype=np.int32, count=runs, offset=at + 4 * runs)
    if counts.min(initial=0) < 0 or counts.sum(dtype=np.int64) != samples:
        raise ValueError(f"its runs have {counts.sum(dtype=np.int64)} samples together; it has {samples}")
    if starts not in (0, samples):
        raise ValueError(f"it has {samples} samples, but {starts} start timestamps")
    if not is_extended:
        # Records written before references existed may have ordinary NaNs with such bits.
        values = references.without_references(values)
    elif not references.refer_into(values, 0 if histograms is None else len(histograms)):
        raise ValueError("its samples refer to histograms that it does not have")
    return Written(series.astype(np.int64), counts.astype(np.int64), times, values, start_timestamps_ms, histograms)

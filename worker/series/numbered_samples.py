"""Samples whose series are given by number, as nearly all are. One kernel call per frame turns them into a record of
the journal and into the columns that the head takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.frames.references import COUNT_SHIFT, NUMBER, ReferenceColumns
from shared.histograms.packed import PackedHistograms, joined
from shared.histograms.references import refers
from shared.kernels import kernel, types
from shared.wire import Frame
from worker.series.arena import BEFORE
from worker.series.sample_record import EXTENSION

ROOM_WORDS = 3
"""Words before the columns of a record, for the header that the journal writes."""
_EXTENSION_WORDS = EXTENSION.size // 8

_WORDS = types.Array(types.int64, 1, "C")
_HALVES = types.Array(types.int32, 1, "C")


@dataclass(slots=True, eq=False)
class NumberedSamples:
    """`record` int64[…]: room for a header and, from word `begin` on, the columns that `sample_record.decode` reads,
    without the histograms. `series` int64[n]: the series number of each sample. The other members are those of
    `sample_record.Written`."""

    record: NDArray[np.int64]
    begin: int
    series: NDArray[np.int64]
    runs: int
    latest_ms: int
    histograms: PackedHistograms | None = None
    start_timestamps_ms: ClassVar[None] = None

    @classmethod
    def of(cls, frames: Sequence[ReferenceColumns], permanent: NDArray[np.int64]) -> NumberedSamples:
        """The samples of frames without start timestamps, in their order. permanent[number]: the permanent id of a
        series."""
        runs = samples = 0
        latest_ms = BEFORE
        packed = list[PackedHistograms]()
        for frame in frames:
            runs += frame.runs
            samples += frame.samples
            latest_ms = max(latest_ms, frame.latest_ms)
            if frame.histograms is not None:
                packed.append(frame.histograms)
        begin = ROOM_WORDS + _EXTENSION_WORDS if packed else ROOM_WORDS
        record = np.empty(begin + 2 * samples + runs, dtype=np.int64)
        series = np.empty(samples, dtype=np.int64)
        halves = record.view(np.int32)
        run = sample = row = 0
        for frame in frames:
            _add(
                frame.words, frame.begin, frame.runs, frame.samples, row, permanent, begin, run, runs, sample, samples,
                record, halves, series,
            )  # fmt: skip
            run += frame.runs
            sample += frame.samples
            row += 0 if frame.histograms is None else len(frame.histograms)
        return cls(record, begin, series, runs, latest_ms, joined(packed) if packed else None)

    def frames(self) -> list[Frame]:
        """The record with room for its header, of 8 · ROOM_WORDS bytes."""
        if self.histograms is None:
            return [self.record.data]
        EXTENSION.pack_into(self.record.data, 8 * ROOM_WORDS, 0, self.histograms.nbytes)
        runs_at = self.begin + 2 * len(self.series)
        return [self.record[:runs_at].data, *self.histograms.bytes(), self.record[runs_at:].data]

    @property
    def times_ms(self) -> NDArray[np.int64]:
        return self.record[self.begin : self.begin + len(self.series)]

    @property
    def values(self) -> NDArray[np.float64]:
        begin = self.begin + len(self.series)
        return self.record[begin : begin + len(self.series)].view(np.float64)

    def rows(self) -> NDArray[np.int64]:
        return self.series


@kernel(
    types.void(
        _WORDS, types.int64, types.int64, types.int64, types.int64, types.Array(types.int64, 1, "C", readonly=True),
        types.int64, types.int64, types.int64, types.int64, types.int64, _WORDS, _HALVES, _WORDS,
    ),
    first=True,
    allocates=False,
)  # fmt: skip
def _add(
    words: np.ndarray,
    frame_begin: int,
    runs: int,
    samples: int,
    first_row: int,
    permanent: np.ndarray,
    begin: int,
    run: int,
    runs_total: int,
    sample: int,
    samples_total: int,
    record: np.ndarray,
    halves: np.ndarray,
    series: np.ndarray,
) -> None:
    """Append a frame, whose runs begin at words[frame_begin], to `record`, and the series of its samples to `series`.
    `halves` is the record as int32; its columns begin at word `begin`. Earlier frames have `run` runs and `sample`
    samples. The histograms of the frame are the rows from `first_row` on."""
    times = begin + sample
    values = times + samples_total
    source = frame_begin + runs
    for i in range(samples):
        record[times + i] = words[source + i]
        bits = words[source + samples + i]
        record[values + i] = bits + first_row if refers(bits) else bits
    ids = 2 * (begin + 2 * samples_total) + run
    counts = ids + runs_total
    for i in range(runs):
        number, count = words[frame_begin + i] & NUMBER, words[frame_begin + i] >> COUNT_SHIFT
        halves[ids + i] = np.int32(permanent[number])
        halves[counts + i] = np.int32(count)
        for _ in range(count):
            series[sample] = number
            sample += 1

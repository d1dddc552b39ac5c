"""Samples of series that came by their numbers, nearly all there are: made into one record of the journal, and into the
columns that the head takes, by one kernel for each frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.kernels import kernel
from shared.reference_frames import COUNT_SHIFT, HEADER_WORDS, NUMBER, ReferenceColumns

ROOM_WORDS = 3
"""Words before the columns of a record, for the header that the journal writes."""

_WORDS = types.Array(types.int64, 1, "C")
_HALVES = types.Array(types.int32, 1, "C")


@dataclass(slots=True, eq=False)
class NumberedSamples:
    """`record` int64[…]: room for a header, then the columns as `sample_record.decode` reads them. `series` int64[n]:
    the number of the series of each sample. What else the head takes is as in `sample_record.Written`."""

    record: NDArray[np.int64]
    series: NDArray[np.int64]
    runs: int
    latest_ms: int
    start_timestamps_ms: ClassVar[None] = None
    histograms: ClassVar[None] = None

    @classmethod
    def of(cls, frames: Sequence[ReferenceColumns], permanent: NDArray[np.int64]) -> NumberedSamples:
        """The samples of frames without start timestamps, in their order. permanent[number]: the id of a series."""
        runs = samples = 0
        for frame in frames:
            runs += frame.runs
            samples += frame.samples
        record = np.empty(ROOM_WORDS + 2 * samples + runs, dtype=np.int64)
        series = np.empty(samples, dtype=np.int64)
        halves = record.view(np.int32)
        run = sample = 0
        for frame in frames:
            _add(frame.words, frame.runs, frame.samples, permanent, run, runs, sample, samples, record, halves, series)
            run += frame.runs
            sample += frame.samples
        return cls(record, series, runs, max(frame.latest_ms for frame in frames))

    @property
    def times_ms(self) -> NDArray[np.int64]:
        return self.record[ROOM_WORDS : ROOM_WORDS + len(self.series)]

    @property
    def values(self) -> NDArray[np.float64]:
        begin = ROOM_WORDS + len(self.series)
        return self.record[begin : begin + len(self.series)].view(np.float64)

    def rows(self) -> NDArray[np.int64]:
        return self.series


@kernel(
    types.void(
        _WORDS, types.int64, types.int64, types.Array(types.int64, 1, "C", readonly=True), types.int64, types.int64,
        types.int64, types.int64, _WORDS, _HALVES, _WORDS,
    ),
    first=True,
    allocates=False,
)  # fmt: skip
def _add(
    words: np.ndarray,
    runs: int,
    samples: int,
    permanent: np.ndarray,
    run: int,
    runs_total: int,
    sample: int,
    samples_total: int,
    record: np.ndarray,
    halves: np.ndarray,
    series: np.ndarray,
) -> None:
    """Add a frame to a record of which `halves` is a view, and its series to those of all samples, behind as many runs
    and samples of earlier frames."""
    times = ROOM_WORDS + sample
    values = times + samples_total
    source = HEADER_WORDS + runs
    for i in range(samples):
        record[times + i] = words[source + i]
        record[values + i] = words[source + samples + i]
    ids = 2 * (ROOM_WORDS + 2 * samples_total) + run
    counts = ids + runs_total
    for i in range(runs):
        number, count = words[HEADER_WORDS + i] & NUMBER, words[HEADER_WORDS + i] >> COUNT_SHIFT
        halves[ids + i] = np.int32(permanent[number])
        halves[counts + i] = np.int32(count)
        for _ in range(count):
            series[sample] = number
            sample += 1

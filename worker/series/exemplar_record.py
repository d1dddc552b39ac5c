"""Exemplars as columns, which is their form in records of the journal and in rows of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.frames.exemplars import ExemplarColumns, joined_labels
from shared.wire import Frame
from worker.series.head import BEFORE

FIXED_BYTES = 24
"""Bytes of one exemplar in a record, besides its labels."""


@dataclass(frozen=True, slots=True)
class ExemplarRecord:
    """Exemplars in order of arrival. `series` int64[n], `times_ms` int64[n], `values` float64[n]; the labels of
    exemplar i are labels[label_offsets[i]:label_offsets[i + 1]], uint8, in canonical form."""

    series: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]
    label_offsets: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def __post_init__(self) -> None:
        count = len(self.series)
        assert count == len(self.times_ms) == len(self.values) == len(self.label_offsets) - 1

    @classmethod
    def of_columns(cls, columns: ExemplarColumns, ids: NDArray[np.int64]) -> ExemplarRecord:
        """The exemplars of a frame. `ids` int64[runs]: the series of each run."""
        series = np.repeat(ids, columns.counts)
        return cls(series, columns.times_ms, columns.values, columns.label_offsets, columns.labels)

    def __len__(self) -> int:
        return len(self.series)

    @property
    def latest_ms(self) -> int:
        """BEFORE, because sealing samples writes all exemplars of the journal so far to the store."""
        return BEFORE

    def of(self, series: NDArray[np.int64]) -> ExemplarRecord:
        """The same exemplars, with `series` (int64[n]) as the ids of their series."""
        return ExemplarRecord(series, self.times_ms, self.values, self.label_offsets, self.labels)

    def between(self, first: int, end: int) -> ExemplarRecord:
        """The exemplars first ≤ i < end."""
        offsets = self.label_offsets[first : end + 1]
        row_slice, label_slice = slice(first, end), slice(int(offsets[0]), int(offsets[-1]))
        return ExemplarRecord(
            self.series[row_slice],
            self.times_ms[row_slice],
            self.values[row_slice],
            offsets - offsets[0],
            self.labels[label_slice],
        )

    def frames(self) -> list[Frame]:
        """The columns as bytes; `decode` reads them."""
        return [
            self.times_ms.data,
            self.values.data,
            self.series.astype(np.int32).data,
            np.diff(self.label_offsets).astype(np.int32).data,
            np.ascontiguousarray(self.labels).data,
        ]


def joined(records: Sequence[ExemplarRecord]) -> ExemplarRecord:
    """The exemplars of all records, one record after another."""
    if len(records) == 1:
        return records[0]
    return ExemplarRecord(
        np.concatenate([record.series for record in records]),
        np.concatenate([record.times_ms for record in records]),
        np.concatenate([record.values for record in records]),
        *joined_labels([record.label_offsets for record in records], [record.labels for record in records]),
    )


def decode(data: Frame, count: int, label_bytes: int) -> ExemplarRecord:
    """The inverse of `frames`, for `count` exemplars. Raises ValueError."""
    size = memoryview(data).nbytes
    if size != FIXED_BYTES * count + label_bytes:
        raise ValueError(f"{size} bytes; {count} exemplars with labels of {label_bytes} have another size")
    times = np.frombuffer(data, dtype=np.int64, count=count)
    values = np.frombuffer(data, dtype=np.float64, count=count, offset=8 * count)
    series = np.frombuffer(data, dtype=np.int32, count=count, offset=16 * count)
    lengths = np.frombuffer(data, dtype=np.int32, count=count, offset=20 * count)
    if lengths.min(initial=0) < 0 or lengths.sum(dtype=np.int64) != label_bytes or series.min(initial=0) < 0:
        raise ValueError(f"the labels of {count} exemplars have {label_bytes} bytes; the lengths or ids are wrong")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    labels = np.frombuffer(data, dtype=np.uint8, count=label_bytes, offset=FIXED_BYTES * count)
    return ExemplarRecord(series.astype(np.int64), times, values, offsets, labels)

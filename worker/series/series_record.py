"""The labels of series with consecutive ids as columns, which the store has as rows and, as long as it may lose these
with the power, the journal as records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.wire import Frame
from worker.series.arena import BEFORE

IDS_MAX = 1 << 31
"""Records and blocks have 4 bytes, signed, for each id."""


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """The series with the consecutive permanent ids from `first` on. `lengths` int32[n]: how many of the canonical
    label bytes `labels`, uint8, each series has; 0 for a hole, which is an id without a series."""

    first: int
    lengths: NDArray[np.int32]
    labels: NDArray[np.uint8]

    @classmethod
    def of(cls, first: int, labels: NDArray[np.uint8], offsets: NDArray[np.int64]) -> SeriesRecord:
        """Series `first` + i has the labels labels[offsets[i]:offsets[i + 1]]. `offsets` begin with 0."""
        return cls(first, np.diff(offsets).astype(np.int32), labels)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def end(self) -> int:
        """The id after the last one."""
        return self.first + len(self)

    @property
    def latest_ms(self) -> int:
        """BEFORE, because sealing syncs the store, which has had these series since before the record was written."""
        return BEFORE

    def between(self, first: int, end: int) -> SeriesRecord:
        """The series with the ids from `first` on, below `end`."""
        assert self.first <= first <= end <= self.end
        lengths = self.lengths[first - self.first : end - self.first]
        start = int(self.lengths[: first - self.first].sum(dtype=np.int64))
        return SeriesRecord(first, lengths, self.labels[start : start + int(lengths.sum(dtype=np.int64))])

    def columns(self) -> list[Frame]:
        """The lengths, then the label bytes; `decode` reads them."""
        assert self.lengths.dtype == np.int32
        return [self.lengths.data, np.ascontiguousarray(self.labels).data]


def decode(first: int, count: int, columns: Frame) -> SeriesRecord:
    """The inverse of `SeriesRecord.columns`, for `count` series with ids from `first` on. Raises ValueError."""
    octets = memoryview(columns).cast("B")
    if first + count > IDS_MAX:
        raise ValueError(f"its series have ids up to {first + count}, and ids end at {IDS_MAX}")
    if octets.nbytes < 4 * count:
        raise ValueError(f"it has {octets.nbytes} bytes for {count} series, whose lengths alone have {4 * count}")
    lengths = np.frombuffer(octets[: 4 * count], dtype=np.int32)
    labels = np.frombuffer(octets[4 * count :], dtype=np.uint8)
    if (shortest := lengths.min(initial=0)) < 0:
        raise ValueError(f"one of its {count} series has {shortest} bytes of labels")
    if (label_bytes := lengths.sum(dtype=np.int64)) != len(labels):
        raise ValueError(f"its {count} series have {label_bytes} bytes of labels, not {len(labels)}")
    return SeriesRecord(first, lengths, labels)

"""New series as columns: a record of the journal with the labels that the store may lose with the power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.wire import Frame
from worker.series.arena import BEFORE
from worker.series.index.registry import IDS_MAX


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """The series with the consecutive permanent ids from `first` on. Series `first` + i has the canonical label bytes
    labels[offsets[i]:offsets[i + 1]], uint8; `offsets` int64[n + 1] begin with 0."""

    first: int
    labels: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def end(self) -> int:
        """The id after the last one."""
        return self.first + len(self)

    @property
    def latest_ms(self) -> int:
        """BEFORE, because sealing syncs the store, which has had these series since before the record was written."""
        return BEFORE

    def frames(self) -> list[Frame]:
        """The record without its header; `decode` reads it."""
        lengths = np.diff(self.offsets).astype(np.int32)
        return [self.first.to_bytes(8, "little"), lengths.data, np.ascontiguousarray(self.labels).data]


def decode(data: Frame, count: int, label_bytes: int) -> SeriesRecord:
    """The inverse of `frames`, for `count` series. Raises ValueError."""
    octets = memoryview(data).cast("B")
    size = 8 + 4 * count + label_bytes
    if octets.nbytes != size:
        raise ValueError(f"it has {octets.nbytes} bytes; {count} series with labels of {label_bytes} bytes have {size}")
    first = int.from_bytes(octets[:8], "little")
    lengths = np.frombuffer(octets, dtype=np.int32, count=count, offset=8)
    if lengths.min(initial=1) < 1 or lengths.sum(dtype=np.int64) != label_bytes:
        raise ValueError(f"the labels of {count} series have {label_bytes} bytes; the lengths are wrong")
    if first + count > IDS_MAX:
        raise ValueError(f"its series have ids up to {first + count}, and ids end at {IDS_MAX}")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return SeriesRecord(first, np.frombuffer(octets, dtype=np.uint8, count=label_bytes, offset=8 + 4 * count), offsets)

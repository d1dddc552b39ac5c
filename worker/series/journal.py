"""What happened to a shard's samples, in order, in its store: the journal from which the head is built at the start.

Family "journal": sequence (8 bytes, big-endian) → one record, either samples or a deletion. Records are columns, not
the request's bytes: a tenth of the size, and replaying them is one kernel call each. Family "series": first id (8
bytes, big-endian) → the label bytes of the series that were new in one commit, ids running on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.storage import Batch, Store

_HEADER = struct.Struct("<BBHIQ")
"""Kind, version, zero, number of runs or ids, number of samples: 16 bytes, so that the columns behind are aligned."""
_RANGE = struct.Struct("<qq")
_SAMPLES, _DELETION = 1, 2
_VERSION = 1
_KEY = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Written:
    """Samples in order of arrival: `series` and `counts` int64[runs], `times_ms` int64[n], `values` float64[n]; run i
    is counts[i] samples of series[i]."""

    series: NDArray[np.int64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]

    def rows(self) -> NDArray[np.int64]:
        """int64[n]: the series of each sample."""
        return np.repeat(self.series, self.counts)

    def encode(self) -> bytes:
        header = _HEADER.pack(_SAMPLES, _VERSION, 0, len(self.series), len(self.times_ms))
        runs = (self.series.astype(np.int32).tobytes(), self.counts.astype(np.int32).tobytes())
        return b"".join((header, self.times_ms.tobytes(), self.values.tobytes(), *runs))


@dataclass(frozen=True, slots=True)
class Deletion:
    """Samples of `series` (int64[n], each once) with start ≤ t ≤ end, of those before it in the journal, are gone."""

    series: NDArray[np.int64]
    start_ms: int
    end_ms: int

    def encode(self) -> bytes:
        header = _HEADER.pack(_DELETION, _VERSION, 0, len(self.series), 0)
        return b"".join((header, _RANGE.pack(self.start_ms, self.end_ms), self.series.astype(np.int32).tobytes()))


Record = Written | Deletion


def _decode(data: bytes) -> Record:
    kind, version, _, runs, samples = _HEADER.unpack_from(data)
    if version != _VERSION or kind not in (_SAMPLES, _DELETION):
        raise ValueError(f"kind {kind}, version {version} is not known to this release")
    at = _HEADER.size
    if kind == _DELETION:
        start_ms, end_ms = _RANGE.unpack_from(data, at)
        series = np.frombuffer(data, dtype=np.int32, count=runs, offset=at + _RANGE.size)
        return Deletion(series.astype(np.int64), start_ms, end_ms)
    times = np.frombuffer(data, dtype=np.int64, count=samples, offset=at)
    values = np.frombuffer(data, dtype=np.float64, count=samples, offset=at + 8 * samples)
    at += 16 * samples
    series = np.frombuffer(data, dtype=np.int32, count=runs, offset=at)
    counts = np.frombuffer(data, dtype=np.int32, count=runs, offset=at + 4 * runs)
    return Written(series.astype(np.int64), counts.astype(np.int64), times, values)


class Journal:
    """One shard's journal. `next_sequence` is that of the next record; ids below `series_saved` are in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.next_sequence = 0
        self.series_saved = 0

    def put(self, batch: Batch, record: Record) -> None:
        batch.put("journal", _KEY.pack(self.next_sequence), record.encode())

    def put_series(self, batch: Batch, label_bytes: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """The series with ids from `series_saved` on: label_bytes[offsets[i]:offsets[i + 1]]."""
        lengths = np.diff(offsets).astype(np.int32)
        value = b"".join((struct.pack("<Q", len(lengths)), lengths.tobytes(), label_bytes.tobytes()))
        batch.put("series", _KEY.pack(self.series_saved), value)

    def series(self) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """(label bytes, int64[n+1] offsets into them) of all series by ascending id, some at a time. Sets
        `series_saved`. Raises ValueError where the rows do not run on."""
        for key, value in self._store.scan("series"):
            if _KEY.unpack(key)[0] != self.series_saved:
                raise ValueError(f"series {self.series_saved} is missing from the store")
            (count,) = struct.unpack_from("<Q", value)
            lengths = np.frombuffer(value, dtype=np.int32, count=count, offset=8)
            self.series_saved += count
            yield value[8 + 4 * count :], np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    def records(self) -> Iterator[Record]:
        """All records in order. Sets `next_sequence`. Raises ValueError naming one that cannot be read."""
        for key, value in self._store.scan("journal"):
            (sequence,) = _KEY.unpack(key)
            try:
                record = _decode(value)
            except (ValueError, struct.error) as error:
                raise ValueError(f"journal record {sequence} cannot be read: {error}") from error
            self.next_sequence = sequence + 1
            yield record

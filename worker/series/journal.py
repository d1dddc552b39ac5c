"""What happened to a shard's samples, in order, in its store: the journal from which the head is built at the start.

Family "journal": sequence (8 bytes, big-endian) → one record, either samples or a deletion, of series by permanent ids.
Records are columns, not the request's bytes: a tenth of the size, and replaying them is one kernel call each.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.telemetry import event
from worker.series.head import BEFORE
from worker.storage import Batch, Store

_HEADER = struct.Struct("<BBHIQ")
"""Kind, version, checksum, number of runs or ids, of samples: 16 bytes, so that the columns behind are aligned."""
_RANGE = struct.Struct("<qq")
_SAMPLES, _DELETION = 1, 2
_VERSION = 2
_KEY = struct.Struct(">Q")
_SEALED = b"series/sealed"
_NEXT = b"series/sequence"


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

    @property
    def latest_ms(self) -> int:
        return int(self.times_ms.max(initial=BEFORE))

    def since(self, start_ms: int) -> Written:
        """Its samples with t ≥ start."""
        kept = self.times_ms >= start_ms
        if kept.all():
            return self
        series = self.rows()[kept]
        return Written(series, np.ones(len(series), dtype=np.int64), self.times_ms[kept], self.values[kept])

    def encode(self) -> bytes:
        runs = (self.series.astype(np.int32).tobytes(), self.counts.astype(np.int32).tobytes())
        return _record(
            _SAMPLES, len(self.series), len(self.times_ms), self.times_ms.tobytes(), self.values.tobytes(), *runs
        )


@dataclass(frozen=True, slots=True)
class Deletion:
    """Samples of `series` (int64[n], each once) with start ≤ t ≤ end, of those before it in the journal, are gone."""

    series: NDArray[np.int64]
    start_ms: int
    end_ms: int

    @property
    def latest_ms(self) -> int:
        """It needs to stay only while there are records before it."""
        return BEFORE

    def encode(self) -> bytes:
        ids = self.series.astype(np.int32).tobytes()
        return _record(_DELETION, len(self.series), 0, _RANGE.pack(self.start_ms, self.end_ms), ids)


Record = Written | Deletion


def _record(kind: int, runs: int, samples: int, *columns: bytes) -> bytes:
    body = b"".join(columns)
    return _HEADER.pack(kind, _VERSION, _check(body), runs, samples) + body


def _check(body: bytes | memoryview) -> int:
    """The store has checksums of its own; this one tells a record from one of a defect, at 0.1 ns a byte."""
    return xxhash.xxh64_intdigest(body) & 0xFFFF


def _decode(data: bytes) -> Record:
    kind, version, check, runs, samples = _HEADER.unpack_from(data)
    if version != _VERSION or kind not in (_SAMPLES, _DELETION):
        raise ValueError(f"kind {kind}, version {version} is not known to this release")
    if check != _check(memoryview(data)[_HEADER.size :]):
        raise ValueError("its checksum is wrong")
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


class Sealed(msgspec.Struct, frozen=True):
    """What blocks have taken over: of the records before `sequence`, all samples with t < `before_ms`. There are no
    records before `cut` any more."""

    sequence: int = 0
    before_ms: int = BEFORE
    cut: int = 0


class Journal:
    """One shard's journal. `next_sequence` is that of the next record.

    The invariant: at any moment, also that of a crash, the shard's samples are those of its blocks and, replayed in
    order over them, those of the records, without what `sealed` says. It holds because the batch that names new blocks
    is the batch that says what they took over and cuts the journal; their files are on the disk before it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.next_sequence = 0
        self.sealed = Sealed()
        self._latest: deque[tuple[int, int]] = deque()  # (sequence, latest time) of each record there is

    def load(self) -> None:
        """Know what is sealed. Call before anything else."""
        saved = self._store.get("meta", _SEALED)
        if saved is not None:
            self.sealed = msgspec.msgpack.decode(saved, type=Sealed)
        following = self._store.get("meta", _NEXT)
        self.next_sequence = max(self.sealed.sequence, 0 if following is None else _KEY.unpack(following)[0])

    def put(self, batch: Batch, record: Record) -> int:
        """Returns the record's sequence, which is used up whatever becomes of the batch: a failed write may be in the
        store all the same, and must not be overwritten by a later record of its number."""
        sequence = self.claim()
        batch.put("journal", _KEY.pack(sequence), record.encode())
        self._latest.append((sequence, record.latest_ms))
        return sequence

    def claim(self) -> int:
        """A sequence of its own for what is no record."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def seal(self, batch: Batch, sequence: int, before_ms: int) -> Sealed:
        """Say in this batch, which names the blocks, what they took over, and cut what is no longer needed."""
        needed = (own for own, latest_ms in list(self._latest) if own >= sequence or latest_ms >= before_ms)
        sealed = Sealed(sequence, before_ms, min(next(needed, sequence), sequence))
        batch.put("meta", _SEALED, msgspec.msgpack.encode(sealed))
        batch.delete_range("journal", _KEY.pack(0), _KEY.pack(sealed.cut))
        return sealed

    def remember(self, batch: Batch) -> None:
        """Have the sequences given so far kept from being given again, though there are no records of them."""
        batch.put("meta", _NEXT, _KEY.pack(self.next_sequence))

    def sealed_to(self, sealed: Sealed) -> None:
        """The batch of `seal` is in the store."""
        before, self.sealed = self.sealed, sealed
        while self._latest and self._latest[0][0] < sealed.cut:
            self._latest.popleft()
        if sealed.cut > before.cut:
            self._store.reclaim("journal", _KEY.pack(before.cut), _KEY.pack(sealed.cut))

    def records(self) -> Iterator[Record]:
        """All that is not sealed, in order. Sets `next_sequence`. A record that cannot be read is left out, as is what
        follows one the store itself cannot read; either is logged."""
        rows = self._store.scan("journal", _KEY.pack(self.sealed.cut))
        while True:
            try:
                key, value = next(rows)
            except StopIteration:
                return
            except Exception as error:  # the library raises plain Exception
                event(logging.ERROR, "journal cut short", at=self.next_sequence, reason=str(error))
                return
            (sequence,) = _KEY.unpack(key)
            self.next_sequence = max(self.next_sequence, sequence + 1)
            try:
                record = _decode(value)
            except (ValueError, struct.error) as error:
                event(logging.ERROR, "journal record skipped", sequence=sequence, reason=str(error))
                continue
            self._latest.append((sequence, record.latest_ms))
            if isinstance(record, Written) and sequence < self.sealed.sequence:
                record = record.since(self.sealed.before_ms)
            yield record

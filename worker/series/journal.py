"""What happened to a shard's samples, in order: the journal from which the head is built at the start.

Its records are in the write-ahead log of the process. Each is either samples or a deletion, of series by permanent ids.
Records are columns, not the request's bytes: a tenth of the size, and replaying them is one kernel call each.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.telemetry import event
from shared.wire import Frame
from worker.damage import DamageReport
from worker.series.head import BEFORE
from worker.storage.faces import JournalStream, RowBatch, Rows

_HEADER = struct.Struct("<BBHIQQ")
"""Kind, version, unused, number of runs or ids, of samples, sequence: 24 bytes, so that the columns are aligned."""
_RANGE = struct.Struct("<qq")
_SAMPLES, _DELETION = 1, 2
_VERSION = 1
_KEY = struct.Struct(">Q")
SEALED = b"series/sealed"
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
        if len(self.series) == len(self.times_ms):
            return self.series  # every run has a sample, so one each
        return np.repeat(self.series, self.counts)

    def of(self, series: NDArray[np.int64]) -> Written:
        """The same samples, of series by these ids."""
        return Written(series, self.counts, self.times_ms, self.values)

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

    def frames(self, sequence: int) -> list[Frame]:
        """The record."""
        header = _HEADER.pack(_SAMPLES, _VERSION, 0, len(self.series), len(self.times_ms), sequence)
        runs = (self.series.astype(np.int32).data, self.counts.astype(np.int32).data)
        return [header, self.times_ms.data, self.values.data, *runs]


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

    def frames(self, sequence: int) -> list[Frame]:
        """The record."""
        header = _HEADER.pack(_DELETION, _VERSION, 0, len(self.series), 0, sequence)
        return [header, _RANGE.pack(self.start_ms, self.end_ms), self.series.astype(np.int32).data]


Record = Written | Deletion


def decode(data: Frame) -> tuple[int, Record]:
    """(sequence, record) of the log's payload. Raises ValueError, struct.error."""
    kind, version, _, runs, samples, sequence = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"version {version} is not known to this release")
    at = _HEADER.size
    if kind == _DELETION:
        start_ms, end_ms = _RANGE.unpack_from(data, at)
        series = np.frombuffer(data, dtype=np.int32, count=runs, offset=at + _RANGE.size)
        return sequence, Deletion(series.astype(np.int64), start_ms, end_ms)
    if kind != _SAMPLES:
        raise ValueError(f"kind {kind} is not known to this release")
    times = np.frombuffer(data, dtype=np.int64, count=samples, offset=at)
    values = np.frombuffer(data, dtype=np.float64, count=samples, offset=at + 8 * samples)
    at += 16 * samples
    series = np.frombuffer(data, dtype=np.int32, count=runs, offset=at)
    counts = np.frombuffer(data, dtype=np.int32, count=runs, offset=at + 4 * runs)
    return sequence, Written(series.astype(np.int64), counts.astype(np.int64), times, values)


class Sealed(msgspec.Struct, frozen=True):
    """What blocks have taken over: of the records before `sequence`, all samples with t < `before_ms`. There are no
    records before `cut` any more."""

    sequence: int = 0
    before_ms: int = BEFORE
    cut: int = 0


class PendingRecord(NamedTuple):
    """A record on its way to the log."""

    wal: JournalStream
    frames: list[Frame]
    sequence: int
    latest_ms: int


class Journal:
    """One shard's journal. `next_sequence` is that of the next record.

    The invariant: at any moment, also that of a crash, the shard's samples are those of its blocks and, replayed in
    order over them, those of the records, without what `sealed` says. It holds because the batch that names new blocks
    is the batch that says what they took over; their files are on the disk before it, and the records are released
    after it.
    """

    def __init__(self, store: Rows, wal: JournalStream, damage: DamageReport) -> None:
        self._store = store
        self._wal = wal
        self._damage = damage
        self.next_sequence = 0
        self.sealed = Sealed()
        self._latest: deque[tuple[int, int, int]] = deque()  # (sequence, latest time, position) of each record there is

    def load(self) -> None:
        """Know what is sealed. Call before anything else. Raises StoreDamaged."""
        saved = self._store.get("meta", SEALED)
        if saved is not None:
            with self._store.decoding("meta", SEALED):
                self.sealed = msgspec.msgpack.decode(saved, type=Sealed)
        following = self._store.get("meta", _NEXT)
        with self._store.decoding("meta", _NEXT):
            self.next_sequence = max(self.sealed.sequence, 0 if following is None else _KEY.unpack(following)[0])

    def entry(self, record: Record) -> PendingRecord:
        """The record as it is to be written to the log, under a sequence of its own, which is used up whatever becomes
        of the write: a failed one may be there all the same, and must not be taken for a later record."""
        sequence = self.claim()
        return PendingRecord(self._wal, record.frames(sequence), sequence, record.latest_ms)

    def written(self, entry: PendingRecord, position: int) -> None:
        """The entry is in the log at this position."""
        self._latest.append((entry.sequence, entry.latest_ms, position))

    def write(self, record: Record, *, durable: bool) -> int:
        """Write it; returns its sequence. Raises Unavailable."""
        entry = self.entry(record)
        self.written(entry, self._wal.write(entry.frames))
        if durable:
            self._wal.sync()
        return entry.sequence

    def claim(self) -> int:
        """A sequence of its own for what is no record."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def is_behind(self) -> bool:
        """Whether the log waits for old records of this shard to be sealed."""
        return self._wal.is_behind()

    def seal(self, batch: RowBatch, sequence: int, before_ms: int) -> Sealed:
        """Say in this batch, which names the blocks, what they took over, and cut what is no longer needed."""
        needed = (number for number, latest_ms, _ in list(self._latest) if number >= sequence or latest_ms >= before_ms)
        sealed = Sealed(sequence, before_ms, min(next(needed, sequence), sequence))
        batch.put("meta", SEALED, msgspec.msgpack.encode(sealed))
        return sealed

    def remember(self, batch: RowBatch) -> None:
        """Have the sequences given so far kept from being given again, though there are no records of them."""
        batch.put("meta", _NEXT, _KEY.pack(self.next_sequence))

    def sealed_to(self, sealed: Sealed) -> None:
        """The batch of `seal` is durably in the store."""
        self.sealed = sealed
        released = -1
        while self._latest and self._latest[0][0] < sealed.cut:
            released = self._latest.popleft()[2]
        self._wal.release(released + 1)

    def records(self) -> Iterator[tuple[int, Record, Frame]]:
        """All that is not sealed, in order: (sequence, record, its bytes). Sets `next_sequence`. Records that cannot be
        read are left out, set aside and known as damage."""
        self._latest.clear()
        for sequence, position, record, payload in self._read():
            if sequence < self.sealed.cut:
                self._wal.release(position + 1)
                continue
            self.next_sequence = max(self.next_sequence, sequence + 1)
            self._latest.append((sequence, record.latest_ms, position))
            if isinstance(record, Written) and sequence < self.sealed.sequence:
                record = record.since(self.sealed.before_ms)
            yield sequence, record, payload

    def _read(self) -> Iterator[tuple[int, int, Record, Frame]]:
        """(sequence, position in the log, record, its bytes)."""
        unreadable: list[tuple[Frame, Exception]] = []
        for position, payload in self._wal.records():
            try:
                sequence, record = decode(payload)
            except (ValueError, struct.error) as error:
                unreadable.append((payload, error))
                continue
            yield sequence, position, record, payload
        if unreadable:
            what = f"{len(unreadable)} records of samples cannot be read, what they say is missing: {unreadable[0][1]}"
            self.set_aside([payload for payload, _ in unreadable], what)

    def set_aside(self, payloads: Sequence[Frame], what: str) -> None:
        """Keep records that make no sense, though they will be released: answers say what is missing, also after the
        next starts, until an operator deletes the copy."""
        text = self._wal.set_aside(payloads, what)
        event(logging.ERROR, "journal records set aside", what=text)
        self._damage.add("series", text)

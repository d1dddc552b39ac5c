"""The journal of a shard: the writes of samples and exemplars, and the deletions, in order. A start rebuilds the head
from it.

Its records are in the write-ahead log of the process. Each record is samples, exemplars or a deletion, with permanent
ids of series, or new series with their ids and labels. Records are columns instead of the request's bytes: they have a
tenth of the size, and one kernel call replays each.
"""

from __future__ import annotations

import logging
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.telemetry import event
from shared.wire import Frame
from worker.damage import DamageReport
from worker.series import exemplar_record, sample_record, series_record
from worker.series.arena import BEFORE
from worker.series.exemplar_record import ExemplarRecord
from worker.series.numbered_samples import ROOM_WORDS, NumberedSamples
from worker.series.sample_record import Written
from worker.series.series_record import SeriesRecord
from worker.storage.faces import JournalStream, RowBatch, Rows

_HEADER = struct.Struct("<BBHIQQ")
"""Kind, version, unused, number of runs, ids, exemplars or series, number of samples or bytes of labels, sequence: 24
bytes, so that the columns are aligned."""
assert _HEADER.size == 8 * ROOM_WORDS
_RANGE = struct.Struct("<qq")
_FIRST = struct.Struct("<Q")
_SAMPLES, _DELETION, _EXEMPLARS, _EXTENDED_SAMPLES, _SERIES = 1, 2, 3, 4, 5
"""Kinds of records. Extended samples have start timestamps or histograms."""
_SERIES_KIND = bytes([_SERIES])
_VERSION = 1
_KEY = struct.Struct(">Q")
SEALED = b"series/sealed"
NEXT = b"series/sequence"


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion of the earlier samples of `series` (int64[n], distinct) with start ≤ t ≤ end."""

    series: NDArray[np.int64]
    start_ms: int
    end_ms: int

    @property
    def latest_ms(self) -> int:
        """BEFORE: a deletion is needed only as long as earlier records are needed."""
        return BEFORE


Change = Written | Deletion | ExemplarRecord
"""A record that names series."""
Record = Change | SeriesRecord


def encode(record: Record | NumberedSamples, sequence: int) -> list[Frame]:
    """The payload of the record for the log; `decode` reads it."""
    if isinstance(record, NumberedSamples):
        kind = _SAMPLES if record.histograms is None else _EXTENDED_SAMPLES
        _HEADER.pack_into(record.record.data, 0, kind, _VERSION, 0, record.runs, len(record.series), sequence)
        return record.frames()
    if isinstance(record, ExemplarRecord):
        header = _HEADER.pack(_EXEMPLARS, _VERSION, 0, len(record), len(record.labels), sequence)
        return [header, *record.frames()]
    if isinstance(record, SeriesRecord):
        assert record.lengths.all(), "new series have labels"
        header = _HEADER.pack(_SERIES, _VERSION, 0, len(record), len(record.labels), sequence)
        return [header, _FIRST.pack(record.first), *record.columns()]
    if isinstance(record, Deletion):
        header = _HEADER.pack(_DELETION, _VERSION, 0, len(record.series), 0, sequence)
        return [header, _RANGE.pack(record.start_ms, record.end_ms), record.series.astype(np.int32).data]
    kind = _EXTENDED_SAMPLES if record.is_extended else _SAMPLES
    return [_HEADER.pack(kind, _VERSION, 0, len(record.series), len(record.times_ms), sequence), *record.frames()]


def decode(data: Frame) -> tuple[int, Record]:
    """Decode a payload of the log into (sequence, record). Raises ValueError, struct.error."""
    kind, version, _, runs, samples, sequence = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"version {version} is not known to this release")
    columns = memoryview(data)[_HEADER.size :]
    if kind == _EXEMPLARS:
        return sequence, exemplar_record.decode(columns, runs, samples)
    if kind == _SERIES:
        return sequence, _decode_series(columns, runs, samples)
    if kind in (_SAMPLES, _EXTENDED_SAMPLES):
        return sequence, sample_record.decode(columns, runs, samples, is_extended=kind == _EXTENDED_SAMPLES)
    if kind != _DELETION:
        raise ValueError(f"kind {kind} is not known to this release")
    size = _RANGE.size + 4 * runs
    if size != columns.nbytes:
        raise ValueError(f"it has {columns.nbytes} bytes; a deletion of {runs} series has {size}")
    start_ms, end_ms = _RANGE.unpack_from(columns)
    series = np.frombuffer(columns, dtype=np.int32, count=runs, offset=_RANGE.size)
    return sequence, Deletion(series.astype(np.int64), start_ms, end_ms)


def _decode_series(columns: memoryview, count: int, label_bytes: int) -> SeriesRecord:
    size = _FIRST.size + 4 * count + label_bytes
    if size != columns.nbytes:
        raise ValueError(
            f"it has {columns.nbytes} bytes; {count} series with labels of {label_bytes} bytes have {size}"
        )
    (first,) = _FIRST.unpack_from(columns)
    record = series_record.decode(first, count, columns[_FIRST.size :])
    if not record.lengths.all():
        raise ValueError(f"one of its {count} series has no labels")
    return record


def decode_next(row: bytes) -> int:
    """The next sequence according to the row NEXT. Raises struct.error."""
    return int(_KEY.unpack(row)[0])


class Sealed(msgspec.Struct, frozen=True):
    """What the blocks contain: all samples with t < `before_ms` of the records before `sequence`. Records before `cut`
    are no longer needed."""

    sequence: int = 0
    before_ms: int = BEFORE
    cut: int = 0


class PendingRecord(NamedTuple):
    """A record that is to be written to the log."""

    wal: JournalStream
    frames: list[Frame]
    sequence: int
    latest_ms: int


class Staged(NamedTuple):
    """What a commit adds to a shard, with the numbers that the index gives to series; None where it has nothing.
    `series`: how many series the index has with those that are new in this commit; 0 if none is."""

    written: Written | NumberedSamples | None
    exemplars: ExemplarRecord | None
    series: int = 0


class Journal:
    """One shard's journal. `next_sequence` is the sequence of the next record.

    The invariant: at any moment, even after a crash, the shard's samples are those of its blocks and, replayed over
    them in order, those of the records, except for the samples that `sealed` excludes. It holds because a single batch
    both names new blocks and says what they contain. The files of the blocks are on disk before this batch is written,
    and the records are released after it.
    """

    def __init__(self, store: Rows, wal: JournalStream, damage: DamageReport) -> None:
        self._store = store
        self._wal = wal
        self._damage = damage
        self.next_sequence = 0
        self.sealed = Sealed()
        # Of each needed record, in the order of the log: small requests make millions of records between two seals.
        self._sequences, self._latest_ms = array("q"), array("q")
        self._positions: list[int] = []  # they may exceed 64 bits

    def load(self) -> None:
        """Read `sealed` and `next_sequence` from the store. Call this first. Raises StoreDamaged."""
        sealed_row = self._store.get("meta", SEALED)
        if sealed_row is not None:
            with self._store.decoding("meta", SEALED):
                self.sealed = msgspec.msgpack.decode(sealed_row, type=Sealed)
        next_row = self._store.get("meta", NEXT)
        with self._store.decoding("meta", NEXT):
            self.next_sequence = max(self.sealed.sequence, 0 if next_row is None else decode_next(next_row))

    def entry(self, record: Record | NumberedSamples) -> PendingRecord:
        """Prepare the record for the log, with a new sequence. The sequence is never used again, even if the write
        fails: the record may be in the log all the same, and must not be taken for a later one."""
        sequence = self.claim()
        return PendingRecord(self._wal, encode(record, sequence), sequence, record.latest_ms)

    def written(self, entry: PendingRecord, position: int) -> None:
        """Note that the entry is in the log at this position."""
        self._note(entry.sequence, entry.latest_ms, position)

    def _note(self, sequence: int, latest_ms: int, position: int) -> None:
        self._positions.append(position)
        self._latest_ms.append(latest_ms)
        self._sequences.append(sequence)  # last, because `seal` reads the other arrays up to the length of this one

    def write(self, record: Record, *, durable: bool) -> int:
        """Write the record, and sync it if `durable`. Returns its sequence. Raises Unavailable."""
        entry = self.entry(record)
        self.written(entry, self._wal.write(entry.frames))
        if durable:
            self._wal.sync()
        return entry.sequence

    def claim(self) -> int:
        """Take the next sequence."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def is_behind(self) -> bool:
        """Whether the log is waiting for old records of this shard to be sealed."""
        return self._wal.is_behind()

    def seal(self, batch: RowBatch, sequence: int, before_ms: int) -> Sealed:
        """Add to `batch`, which also names the new blocks, what these blocks contain and where the journal is cut.
        Returns what was added."""
        # A copy, because an array whose buffer is in use cannot be appended to.
        sequences = np.array(self._sequences[:])
        latest_ms = np.array(self._latest_ms[: len(sequences)])
        needed = sequences[(sequences >= sequence) | (latest_ms >= before_ms)]
        sealed = Sealed(sequence, before_ms, min([sequence, *needed[:1].tolist()]))
        batch.put("meta", SEALED, msgspec.msgpack.encode(sealed))
        return sealed

    def remember(self, batch: RowBatch) -> None:
        """Add `next_sequence` to `batch`, so that no sequence is used twice, even if no record with it remains."""
        batch.put("meta", NEXT, _KEY.pack(self.next_sequence))

    def sealed_to(self, sealed: Sealed) -> None:
        """Release the records that `sealed` has cut. Call this once the batch of `seal` is durable in the store."""
        self.sealed = sealed
        cut = bisect_left(self._sequences, sealed.cut)
        released = self._positions[cut - 1] if cut else -1
        self._forget(cut)
        self._wal.release(released + 1)

    def _forget(self, count: int) -> None:
        """Drop the entries of the first `count` records."""
        del self._sequences[:count], self._latest_ms[:count], self._positions[:count]

    def new_series(self) -> Iterator[SeriesRecord]:
        """The records of the series that were new after the last seal, in order: a seal syncs the store, which then has
        all earlier ones. Records that cannot be read are left out; `records` reports them."""
        for _, payload in self._wal.records():
            if payload[:1] != _SERIES_KIND:
                continue
            with suppress(ValueError, struct.error):
                sequence, record = decode(payload)
                assert isinstance(record, SeriesRecord)
                if sequence >= self.sealed.sequence:
                    yield record

    def records(self) -> Iterator[tuple[int, Change, Frame]]:
        """(sequence, record, its bytes) of all records that are not cut and name series, in order: without samples that
        are sealed, but with exemplars and deletions before `sealed.sequence`. Sets `next_sequence`. Records that cannot
        be read are left out, set aside and reported as damage."""
        self._forget(len(self._sequences))
        cut_to = 0
        for sequence, position, record, payload in self._read():
            if sequence < self.sealed.cut:
                cut_to = position + 1
                continue
            self.next_sequence = max(self.next_sequence, sequence + 1)
            self._note(sequence, record.latest_ms, position)
            if isinstance(record, SeriesRecord):
                continue
            if isinstance(record, Written) and sequence < self.sealed.sequence:
                record = record.since(self.sealed.before_ms)
            yield sequence, record, payload
        self._wal.release(cut_to)

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
            what = (
                f"{len(unreadable)} records of samples cannot be read, so their content is missing: {unreadable[0][1]}"
            )
            self.set_aside([payload for payload, _ in unreadable], what)

    def set_aside(self, payloads: Sequence[Frame], what: str) -> None:
        """Save a copy of records that cannot be used, since the log will release them. Replies report what is missing,
        even after later starts, until an operator deletes the copy."""
        text = self._wal.set_aside(payloads, what)
        event(logging.ERROR, "journal records set aside", what=text)
        self._damage.add("series", text)

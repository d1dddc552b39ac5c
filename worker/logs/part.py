"""The log of one shard: what is written, taken back, dropped and reported after a crash.

Durability: when `append` returns, the records survive the death of this process and the coordinator's; when `sync`
returns, they survive the loss of power. Nobody asking for `sync`, it happens by itself within 100 ms.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread

import msgspec

from shared import wire
from shared.config import Settings
from shared.errors import Unavailable
from shared.labels import Symbols
from shared.messages.log import PRODUCER_ANSWERS_MAX, SEQUENCE_BYTES, Batch, Entry, HeldGroup, HeldSegment, Span
from shared.telemetry import event
from shared.wire import Frame
from worker.logs import rows
from worker.storage import Batch as Changes
from worker.storage import Store

SYNC_AFTER_S = 0.08
"""The coordinator asks for a sync sooner than this; the shard does it by itself when it does not."""
REVOKED_MAX = 65_536
"""Revoked groups remembered: a message that comes after so many newer ones is past its deadline anyway."""

_ENTRY = msgspec.msgpack.Decoder(Entry)
_VALUES = msgspec.msgpack.Decoder(list[bytes])
_ANSWER = msgspec.msgpack.Decoder(tuple[int, int])
_TOTALS = msgspec.msgpack.Decoder(tuple[int, int, int])


@dataclass(slots=True)
class Totals:
    """Of one segment on this shard. `start`: the lowest group in it."""

    records: int
    bytes: int
    start: int


class LogPart:
    """Safe to use from many threads: changes take turns, reads see those below the frontier that the coordinator
    gives them."""

    def __init__(self, store: Store, settings: Settings, symbols: Symbols, directory: Path) -> None:
        self.store = store
        self.lock = Lock()
        self._totals: dict[int, Totals] = {}
        self._epoch = 0
        self._revoked: OrderedDict[int, None] = OrderedDict()
        self._dirty = Event()
        self._closing = Event()
        self._syncer: Thread | None = None

    def load(self) -> None:
        for key, value in self.store.scan("meta", rows.TOTALS, rows.after(rows.TOTALS)):
            self._totals[int.from_bytes(key[len(rows.TOTALS) :], "big")] = Totals(*_TOTALS.decode(value))

    def counts(self) -> dict[str, int]:
        return {"records": sum(t.records for t in list(self._totals.values()))}

    def close(self) -> None:
        self._closing.set()
        self._dirty.set()
        if self._syncer is not None:
            self._syncer.join()

    # Writing

    def append(self, segment: int, group: int, entry_frame: Frame, values_frame: Frame) -> None:
        """Store a group's part; it is on the disk after the next `sync`.

        Raises Unavailable when the group has been revoked, belongs to an earlier life of the coordinator, or the store
        refuses the write; nothing of it is stored then.
        """
        entry = _ENTRY.decode(entry_frame)
        values = _VALUES.decode(values_frame)
        changes = self.store.batch()
        changes.put_many("log", rows.records(segment, entry.keys, entry.sequences), values)
        changes.put("log", rows.entry(segment, group), bytes(entry_frame))
        for batch in entry.batches:
            if batch.producer:
                self._remember_answer(changes, batch)
        size = sum(map(len, values)) + sum(map(len, entry.keys))
        with self.lock:
            if group < self._epoch or group in self._revoked:
                raise Unavailable(f"records from sequence number {group} came after they had been given up")
            old = self._totals.get(segment, Totals(0, 0, group))
            new = Totals(old.records + len(values), old.bytes + size, min(old.start, group))
            self._put_totals(changes, segment, new)
            self.store.write(changes)
            self._totals[segment] = new
        self._mark_dirty()

    def _remember_answer(self, changes: Changes, batch: Batch) -> None:
        known = [key for key, _ in self._answer_rows(batch.producer)]
        for key in known[: max(0, len(known) - PRODUCER_ANSWERS_MAX + 1)]:
            changes.delete("meta", key)
        value = msgspec.msgpack.encode((batch.producer_seq, batch.count))
        changes.put("meta", rows.producer(batch.producer, batch.start), value)

    def _answer_rows(self, producer: str) -> Iterator[tuple[bytes, bytes]]:
        head = rows.producer(producer, 0)[:-SEQUENCE_BYTES]
        return self.store.scan("meta", head, rows.after(head))

    def producer_answers(self, producer: str) -> list[tuple[int, int, int]]:
        """(producer_seq, start, count) of the batches whose answers are remembered, in the order they came."""
        answers = []
        for key, value in self._answer_rows(producer):
            producer_seq, count = _ANSWER.decode(value)
            answers.append((producer_seq, rows.sequence_of(key), count))
        return answers

    def _put_totals(self, changes: Changes, segment: int, totals: Totals) -> None:
        value = msgspec.msgpack.encode((totals.records, totals.bytes, totals.start))
        changes.put("meta", rows.totals(segment), value)

    def sync(self) -> None:
        """Return when every append that returned before is on the disk. Raises Unavailable when the disk fails."""
        self._dirty.clear()
        try:
            self.store.sync()
        except Unavailable:
            self._dirty.set()
            raise

    def _mark_dirty(self) -> None:
        if self._syncer is None:
            with self.lock:
                if self._syncer is None and not self._closing.is_set():
                    self._syncer = Thread(target=self._sync_late, name="log-sync", daemon=True)
                    self._syncer.start()
        self._dirty.set()

    def _sync_late(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            if self._closing.wait(SYNC_AFTER_S) or not self._dirty.is_set():
                continue
            try:
                self.sync()
            except Unavailable as error:
                event(logging.ERROR, "log could not be synced", why=error)

    # Taking back

    def revoke(self, segment: int, group: int, spans: list[Span]) -> None:
        """Remove the group's batches that lie within `spans`, durably, and refuse the group if it arrives later."""
        with self.lock:
            self._revoked[group] = None
            if len(self._revoked) > REVOKED_MAX:
                self._revoked.popitem(last=False)
            frame = self.store.get("log", rows.entry(segment, group))
            if frame is None:
                return
            entry = _ENTRY.decode(frame)
            changes = self.store.batch()
            new = self._without(changes, segment, group, entry, spans)
            self._put_totals(changes, segment, new)
            self.store.write(changes, durable=True)
            self._totals[segment] = new

    def _without(self, changes: Changes, segment: int, group: int, entry: Entry, spans: list[Span]) -> Totals:
        """Add to `changes` what removes the spans' batches; the segment's totals afterwards."""
        left = Totals(*_TOTALS.decode(self.store.get("meta", rows.totals(segment)) or b"\x93\0\0\0"))
        kept = []
        for key, sequence in zip(entry.keys, rows.sequences(entry.sequences).tolist(), strict=True):
            if not _within(sequence, spans):
                kept.append((key, sequence))
                continue
            row = rows.records_of(segment, key) + rows.sequence_bytes(sequence)
            value = self.store.get("log", row)
            if value is not None:
                changes.delete("log", row)
                left.records -= 1
                left.bytes -= len(key) + len(value)
        for batch in entry.batches:
            if batch.producer and _within(batch.start, spans):
                changes.delete("meta", rows.producer(batch.producer, batch.start))
        batches = tuple(batch for batch in entry.batches if not _within(batch.start, spans))
        if batches:
            joined = b"".join(rows.sequence_bytes(sequence) for _, sequence in kept)
            rest = Entry(entry.settled, batches, joined, [key for key, _ in kept])
            changes.put("log", rows.entry(segment, group), wire.pack(rest))
        else:
            changes.delete("log", rows.entry(segment, group))
        return left

    def drop(self, first_segment: int, start: int) -> None:
        """Remove every segment below `first_segment`, and the answers to producers from before `start`."""
        with self.lock:
            gone = [segment for segment in self._totals if segment < first_segment]
            if not gone:
                return
            changes = self.store.batch()
            ranges = []
            for family_head in (rows.RECORD, rows.ENTRY):
                ranges.append((family_head + rows.segment_bytes(0), family_head + rows.segment_bytes(first_segment)))
                changes.delete_range("log", *ranges[-1])
            for segment in gone:
                changes.delete("meta", rows.totals(segment))
            for key, _ in self.store.scan("meta", rows.PRODUCERS, rows.after(rows.PRODUCERS)):
                if rows.sequence_of(key) < start:
                    changes.delete("meta", key)
            self.store.write(changes, durable=True)
            for segment in gone:
                del self._totals[segment]
        for begin, end in ranges:
            self.store.reclaim("log", begin, end)

    # After a crash

    def recover(self, epoch: int, settled: int, first_segment: int) -> tuple[int, int, list[HeldGroup]]:
        """Refuse groups below `epoch` from now on; (a number above every sequence number here, the highest settled
        mark, the groups at or above it)."""
        with self.lock:
            self._epoch = max(self._epoch, epoch)
        held: list[HeldGroup] = []
        above = 0
        for key, frame in self.store.scan("log", rows.ENTRY, rows.after(rows.ENTRY), reverse=True):
            entry = _ENTRY.decode(frame)
            settled = max(settled, entry.settled)
            above = max(above, *(batch.start + batch.count for batch in entry.batches))
            if rows.sequence_of(key) < settled or rows.segment_of(key) < first_segment:
                break
            held.append(HeldGroup(rows.segment_of(key), rows.sequence_of(key), entry.batches))
        return above, settled, [group for group in held if group.group >= settled]

    def segments(self) -> list[HeldSegment]:
        with self.lock:
            return [HeldSegment(number, t.records, t.bytes, t.start) for number, t in sorted(self._totals.items())]


def _within(sequence: int, spans: list[Span]) -> bool:
    return any(start <= sequence < end for start, end in spans)

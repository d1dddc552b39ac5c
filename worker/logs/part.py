"""The log of one shard: what is written, gathered, taken back, dropped and reported after a crash.

Durability: when `append` returns, the records survive the death of this process and the coordinator's; when `sync`
returns, they survive the loss of power. Nobody asking for `sync`, it happens by itself within 100 ms.

An append writes what the message holds as two rows; when enough have come, a thread gathers them into runs by key and
removes the values' rows, in one write.
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
from worker.logs.recent import Column, Recent, within
from worker.logs.runs import unpacked
from worker.storage import Batch as Changes
from worker.storage import Store
from worker.wal.log import Stream

SYNC_AFTER_S = 0.08
"""The coordinator asks for a sync sooner than this; the shard does it by itself when it does not."""
REVOKED_MAX = 65_536
"""Revoked groups remembered: a message that comes after so many newer ones is past its deadline anyway."""
BEHIND_FACTOR = 4
"""With so many times the records that make a gathering due, the next append does it itself: they may not pile up."""

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

    def __init__(self, store: Store, settings: Settings, symbols: Symbols, directory: Path, wal: Stream) -> None:
        self.store = store
        self._wal = wal
        self.lock = Lock()
        self._gather_lock = Lock()  # taken before `lock`, by whoever changes runs
        self._recent = Recent()
        self._gathering = Recent()
        self._totals: dict[int, Totals] = {}
        self._epoch = 0
        self._closed = 0
        self._gathered = -1
        self._revoked: OrderedDict[int, None] = OrderedDict()
        self._work = Event()
        self._dirty = False
        self._closing = Event()
        self._keeper: Thread | None = None

    def load(self) -> None:
        for key, value in self.store.scan("meta", rows.TOTALS, rows.after(rows.TOTALS)):
            self._totals[int.from_bytes(key[len(rows.TOTALS) :], "big")] = Totals(*_TOTALS.decode(value))
        for key, frame in self.store.scan("log", rows.VALUES, rows.after(rows.VALUES)):
            segment, group = rows.segment_of(key), rows.sequence_of(key)
            entry = self._entry(segment, group)
            assert entry is not None, "values are written and removed with their entry"
            numbers = rows.sequences(entry.sequences).tolist()
            self._recent.add(segment, group, numbers, entry.keys, _VALUES.decode(frame))

    def counts(self) -> dict[str, int]:
        return {"records": sum(t.records for t in list(self._totals.values()))}

    def close(self) -> None:
        self._closing.set()
        self._work.set()
        if self._keeper is not None:
            self._keeper.join()

    def _entry(self, segment: int, group: int) -> Entry | None:
        frame = self.store.get("log", rows.entry(segment, group))
        return None if frame is None else _ENTRY.decode(frame)

    # Writing

    def append(self, segment: int, group: int, closed: int, entry_frame: Frame, values_frame: Frame) -> None:
        """Store a group's part; it is on the disk after the next `sync`.

        Raises Unavailable when the group has been given up (revoked, decided without this shard, or of an earlier life
        of the coordinator), or the store refuses the write; nothing of it is stored then.
        """
        entry = _ENTRY.decode(entry_frame)
        values = _VALUES.decode(values_frame)
        numbers = rows.sequences(entry.sequences).tolist()
        changes = self.store.batch()
        changes.put("log", rows.entry(segment, group), bytes(entry_frame))
        changes.put("log", rows.values(segment, group), bytes(values_frame))
        for batch in entry.batches:
            if batch.producer:
                self._remember_answer(changes, batch)
        size = sum(map(len, values)) + sum(map(len, entry.keys))
        with self.lock:
            if group < max(self._epoch, self._closed) or group in self._revoked:
                raise Unavailable(f"records from sequence number {group} came after they had been given up")
            old = self._totals.get(segment, Totals(0, 0, group))
            new = Totals(old.records + len(values), old.bytes + size, min(old.start, group))
            self._put_totals(changes, segment, new)
            self.store.write(changes)
            self._totals[segment] = new
            self._closed = max(self._closed, closed)
            self._recent.add(segment, group, numbers, entry.keys, values)
            self._dirty = True
            behind = self._recent.is_full(BEHIND_FACTOR)
        if behind:
            self._gather()
        self._wake_keeper()

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
        self._dirty = False
        try:
            self.store.sync()
        except Unavailable:
            self._dirty = True
            raise

    # In the background

    def _wake_keeper(self) -> None:
        if self._keeper is None:
            with self.lock:
                if self._keeper is None and not self._closing.is_set():
                    self._keeper = Thread(target=self._keep, name="log-keeper", daemon=True)
                    self._keeper.start()
        self._work.set()

    def _keep(self) -> None:
        """Sync what nobody else has synced in time, and gather."""
        while not self._closing.is_set():
            self._work.wait()
            self._work.clear()
            if self._closing.wait(SYNC_AFTER_S):
                return
            try:
                if self._dirty:
                    self.sync()
                if self._recent.is_full():
                    self._gather()
            except Unavailable as error:
                event(logging.ERROR, "the log could not be synced or gathered", why=error)
                self._work.set()

    def _gather(self) -> None:
        """Move the recent records that are decided into runs. Raises Unavailable; they stay recent then."""
        with self._gather_lock:
            with self.lock:
                if self._closed == self._gathered:
                    return
                self._gathered = self._closed
                self._gathering = self._recent.split(self._closed)
            gathering = self._gathering
            changes = self.store.batch()
            gathered = list(gathering.rows())
            changes.put_many("log", (key for key, _ in gathered), (row for _, row in gathered))
            for segment, group in gathering.groups:
                changes.delete("log", rows.values(segment, group))
            try:
                self.store.write(changes)
            except Unavailable:
                with self.lock:
                    self._gathered = -1
                    self._recent.take_back(gathering)
                    self._gathering = Recent()
                raise
            with self.lock:
                self._gathering = Recent()

    # For readers

    def recent(self, segment: int, key: bytes, start: int, end: int) -> tuple[int | None, Column]:
        """(the lowest number of the key's records that were not in a run when this was called, or None; those with
        start ≤ number < end)."""
        with self.lock:
            older, newer = self._gathering.column(segment, key), self._recent.column(segment, key)
            first = older.sequences or newer.sequences
            lowest = first[0] if first else None
            return lowest, older.between(start, end).followed_by(newer.between(start, end))

    def recent_keys(self, segment: int, prefix: bytes) -> list[bytes]:
        with self.lock:
            found = {*self._gathering.listed(segment, prefix), *self._recent.listed(segment, prefix)}
        return sorted(found)

    # Taking back

    def revoke(self, segment: int, group: int, spans: list[Span]) -> None:
        """Remove the group's batches that lie within `spans`, durably, and refuse the group if it arrives later."""
        with self._gather_lock, self.lock:
            self._revoked[group] = None
            if len(self._revoked) > REVOKED_MAX:
                self._revoked.popitem(last=False)
            entry = self._entry(segment, group)
            if entry is None:
                return
            changes = self.store.batch()
            left = self._without(changes, segment, group, entry, spans)
            self._put_totals(changes, segment, left)
            self.store.write(changes, durable=True)
            self._totals[segment] = left

    def _without(self, changes: Changes, segment: int, group: int, entry: Entry, spans: list[Span]) -> Totals:
        """Add to `changes` what removes the spans' batches; the segment's totals afterwards."""
        numbers = rows.sequences(entry.sequences).tolist()
        frame = self.store.get("log", rows.values(segment, group))
        values = None if frame is None else _VALUES.decode(frame)
        gone = [at for at, number in enumerate(numbers) if within(number, spans)]
        size = 0
        for at in gone:
            key, number = entry.keys[at], numbers[at]
            recent = self._recent.remove(segment, key, number)
            size += len(key) + (len(recent) if recent is not None else 0)
        if values is None:
            size += self._remove_from_runs(changes, segment, {(entry.keys[at]) for at in gone}, spans)
        for batch in entry.batches:
            if batch.producer and within(batch.start, spans):
                changes.delete("meta", rows.producer(batch.producer, batch.start))
        self._put_rest(changes, segment, group, entry, values, spans)
        totals = self._totals[segment]
        return Totals(totals.records - len(gone), totals.bytes - size, totals.start)

    def _put_rest(
        self, changes: Changes, segment: int, group: int, entry: Entry, values: list[bytes] | None, spans: list[Span]
    ) -> None:
        batches = tuple(batch for batch in entry.batches if not within(batch.start, spans))
        if not batches:
            changes.delete("log", rows.entry(segment, group))
            changes.delete("log", rows.values(segment, group))
            return
        numbers = rows.sequences(entry.sequences).tolist()
        kept = [at for at, number in enumerate(numbers) if not within(number, spans)]
        joined = b"".join(rows.sequence_bytes(numbers[at]) for at in kept)
        rest = Entry(entry.settled, batches, joined, [entry.keys[at] for at in kept])
        changes.put("log", rows.entry(segment, group), wire.pack(rest))
        if values is not None:
            changes.put("log", rows.values(segment, group), msgspec.msgpack.encode([values[at] for at in kept]))

    def _remove_from_runs(self, changes: Changes, segment: int, keys: set[bytes], spans: list[Span]) -> int:
        """Rewrite the runs of these keys that hold records of the spans; how many bytes of values go."""
        size = 0
        for key in keys:
            head = rows.runs_of(segment, key)
            end = rows.sequence_bytes(max(end for _, end in spans))
            for row, packed in self.store.scan("log", head, head + end, reverse=True):
                run = unpacked(packed)
                if int(run.sequences[-1]) < min(start for start, _ in spans):
                    break
                left = run.without(spans)
                if left is run:
                    continue
                changes.delete("log", row)
                size += int(run.ends[-1]) - (int(left.ends[-1]) if len(left.ends) else 0)
                if len(left.sequences):
                    changes.put("log", head + rows.sequence_bytes(int(left.sequences[0])), left.packed())
        return size

    def drop(self, first_segment: int, start: int) -> None:
        """Remove every segment below `first_segment`, and the answers to producers from before `start`."""
        ranges = [
            (head + rows.segment_bytes(0), head + rows.segment_bytes(first_segment))
            for head in (rows.RUN, rows.ENTRY, rows.VALUES)
        ]
        with self._gather_lock, self.lock:
            gone = [segment for segment in self._totals if segment < first_segment]
            if not gone:
                return
            changes = self.store.batch()
            for begin, end in ranges:
                changes.delete_range("log", begin, end)
            for segment in gone:
                changes.delete("meta", rows.totals(segment))
            for key, _ in self.store.scan("meta", rows.PRODUCERS, rows.after(rows.PRODUCERS)):
                if rows.sequence_of(key) < start:
                    changes.delete("meta", key)
            self.store.write(changes, durable=True)
            self._recent.drop(first_segment)
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

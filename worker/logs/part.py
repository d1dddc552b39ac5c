"""The log of one shard: what is written, gathered, taken back, dropped and reported after a crash.

Durability: when `append` returns, the records survive the death of this process and the coordinator's; when the
write-ahead log was synced after it, they survive the loss of power.

An append is a record of the write-ahead log, and stays in memory; when enough have come, a thread gathers them into
runs by key in the store, in one write. What has been gathered survives nothing before the store writes it out; then the
write-ahead log is released. All of it is in one family of the store, so that a crash leaves it up to one gathering.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import msgspec

from shared.errors import Unavailable
from shared.messages.log import SEQUENCE_MAX, HeldGroup, HeldSegment, Span
from worker.damage import DamageReport
from worker.logs import entries, removal, rows
from worker.logs.gathering import answer_rows, put, remembered
from worker.logs.keeper import Keeper
from worker.logs.memory import Memory
from worker.logs.messages import Message, Revocation, read
from worker.logs.recent import Snapshot
from worker.storage.faces import JournalStream, RowBatch, Rows

GATHER_BYTES = 6 << 20
"""Gathering begins when so much is in memory, blocks and their tables: long runs come of few keys then, and the write,
during which a worker's other threads stand still, takes some milliseconds."""
GATHER_RECORDS = 1 << 16
GATHER_RECORDS_MIN = 1 << 12
GATHER_ROWS = 1 << 13
"""So many runs make such a write as long. Where keys have few records each, gathering begins with fewer records."""
BEHIND_FACTOR = 4
"""With so many times the records that make a gathering due, the next append does it itself: they may not pile up."""
FLUSH_BYTES = 16 << 20
"""So much is gathered before the store writes it out, as files of that size: a start reads back no more than this and
what is in memory."""
REVOKED_MAX = 65_536
"""Revoked groups remembered: a message that comes after so many newer ones is past its deadline anyway."""

_TOTALS = msgspec.msgpack.Decoder(tuple[int, int, int])


@dataclass(slots=True)
class Totals:
    """Of one segment on this shard. `start`: the lowest group in it."""

    records: int
    bytes: int
    start: int

    def plus(self, records: int, size: int, start: int) -> Totals:
        return Totals(self.records + records, self.bytes + size, min(self.start, start))


@dataclass(frozen=True, slots=True)
class View:
    """The log as it was: records of groups below `gathered` are in the store, the others in these snapshots."""

    gathered: int
    segments: Mapping[int, Sequence[Snapshot]]


class LogPart:
    """Safe to use from many threads: changes take turns, reads see those below the frontier that the coordinator
    gives them."""

    def __init__(self, store: Rows, keeper: Keeper, wal: JournalStream, damage: DamageReport | None = None) -> None:
        self.store = store
        self.damage = damage or DamageReport()
        self.wal = wal
        self.keeper = keeper
        self.lock = Lock()
        self._gather_lock = Lock()  # taken before `lock`, by whoever changes the store's log
        self._memory = Memory()
        self._gathering = Memory()
        self._upto = 0  # the boundary of what is being gathered
        self._gathered = 0
        self._dropped = 0
        self._totals: dict[int, Totals] = {}
        self._stored: dict[int, Totals] = {}  # of what has been gathered
        self._records_due = GATHER_RECORDS
        self._epoch = self._closed = self._life = 0
        self._next_position = 0
        self._unflushed = 0  # bytes gathered since the store wrote them out
        self._revoked: OrderedDict[int, None] = OrderedDict()
        self._closing = False

    def load(self) -> None:
        for key, value in self.store.scan("log", rows.TOTALS, rows.after(rows.TOTALS)):
            self._stored[int.from_bytes(key[len(rows.TOTALS) :], "big")] = Totals(*_TOTALS.decode(value))
        self._totals = dict(self._stored)
        self._gathered = int.from_bytes(self.store.get("log", rows.GATHERED) or b"", "big")
        self._dropped = int.from_bytes(self.store.get("log", rows.DROPPED) or b"", "big")
        self._closed = self._gathered
        for position, payload in self.wal.records():
            self._replay(position, read(payload))
        self.store.sync()
        self._release()
        self.keeper.join(self)

    def _replay(self, position: int, record: Message | Revocation) -> None:
        self._next_position = position + 1
        if record.group < self._gathered or record.segment < self._dropped:
            return
        if isinstance(record, Revocation):
            self._take_back(position, record)
            return
        self._memory.stage(record)
        self.take_in(record, position)

    def counts(self) -> dict[str, int]:
        return {"records": sum(t.records for t in list(self._totals.values()))}

    def close(self) -> None:
        self.keeper.leave(self)
        with self._gather_lock:
            self._closing = True

    # Writing: for `worker.logs.writing`, which holds `lock`

    def stage(self, message: Message, life: int = SEQUENCE_MAX) -> str:
        """Why the group has been given up (revoked, decided without this shard, of an earlier life of the coordinator);
        "" when it may be taken in."""
        given_up = message.group < max(self._epoch, self._closed) or message.group in self._revoked
        if given_up or message.segment < self._dropped or life < self._life:
            return f"records from sequence number {message.group} came after they had been given up"
        self._memory.stage(message)
        return ""

    def take_in(self, message: Message, position: int) -> None:
        """Have the message that was staged last in memory, now that it is in the write-ahead log."""
        records, size = self._memory.add(message, position)
        old = self._totals.get(message.segment, Totals(0, 0, message.group))
        self._totals[message.segment] = old.plus(records, size, message.group)
        self._closed = max(self._closed, message.closed)
        self._next_position = position + 1

    # In the background

    def is_large(self, times: int = 1) -> bool:
        """Whether so much is in memory that gathering is due, or `times` overdue."""
        return self._memory.bytes >= times * GATHER_BYTES or self._memory.records >= times * self._records_due

    def make_room(self) -> None:
        """Gather here and now when that is overdue. Raises Unavailable when the store refuses: no more may come."""
        if self.is_large(BEHIND_FACTOR):
            self.gather()

    def gather(self) -> None:
        """Move the groups that are decided into the store. Raises Unavailable; they stay in memory then."""
        with self._gather_lock:
            if self._closing:
                return
            with self.lock:
                if not self._gathering.segments:
                    if self._closed == self._gathered:
                        return
                    self._upto = self._closed
                    self._gathering = self._memory.split(self._closed)
                gathering = self._gathering
            changes = self.store.batch()
            runs = put(changes, self.store, gathering)
            stored = dict(self._stored)
            for segment, recent in gathering.segments.items():
                if recent.groups:
                    records, size, first = recent.totals()
                    stored[segment] = stored.get(segment, Totals(0, 0, first)).plus(records, size, first)
                    _put_totals(changes, segment, stored[segment])
            changes.put("log", rows.GATHERED, rows.sequence_bytes(self._upto))
            self._unflushed += gathering.bytes
            self.store.write(changes, logged=False)
            with self.lock:
                self._stored, self._gathered, self._gathering = stored, self._upto, Memory()
                self._records_due = max(GATHER_RECORDS_MIN, GATHER_ROWS * gathering.records // max(1, runs))
            if self._unflushed >= FLUSH_BYTES:
                self._flush()

    def flush(self) -> None:
        """Put on the disk what was gathered, and release the write-ahead log. Raises Unavailable."""
        with self._gather_lock:
            if not self._closing:
                self._flush()

    def _flush(self) -> None:
        if self._unflushed:
            self.store.flush("log")
            self._unflushed = 0
        self._release()

    def _release(self) -> None:
        """Let go of what the write-ahead log need not keep, all that was gathered being on the disk. For who has the
        gathering's lock."""
        with self.lock:
            firsts = (self._gathering.first_position, self._memory.first_position)
            position = min((first for first in firsts if first is not None), default=self._next_position)
        self.wal.release(position)

    def keep_up(self) -> None:
        """Gather if it is due, also for the sake of the write-ahead log. Raises Unavailable."""
        behind = self.wal.is_behind()
        if behind or self.is_large():
            self.gather()
        if behind:
            self.flush()

    # For readers

    @property
    def dropped(self) -> int:
        """Every segment below has been dropped."""
        return self._dropped

    def has_dropped(self, segment: int) -> bool:
        with self.lock:  # which a drop has from before its write until it is known here
            return segment < self._dropped

    def view(self) -> View:
        """The log as it is now. What is gathered later is in the store as well then."""
        with self.lock:
            segments: dict[int, list[Snapshot]] = {}
            for memory in (self._gathering, self._memory):
                for segment, recent in memory.segments.items():
                    if len(recent):
                        segments.setdefault(segment, []).append(recent.snapshot())
            return View(self._gathered, segments)

    def producer_answers(self, producer: str) -> list[tuple[int, int, int]]:
        """(producer_seq, start, count) of the batches whose answers are remembered, in the order they came. Not all of
        them are decided: what the shard holds may be taken back."""
        with self.lock:
            recent = [m.answers.get(producer, {}) for m in (self._gathering, self._memory)]
            found = {**recent[0], **recent[1]}
        found |= {answer[1]: answer for _, answer in answer_rows(self.store, producer)}
        return remembered([found[start] for start in sorted(found)])

    # Taking back

    def revoke(self, segment: int, group: int, spans: list[Span], life: int = SEQUENCE_MAX) -> None:
        """Remove the group's batches that lie within `spans`, durably, and refuse the group if it arrives later.

        Raises Unavailable, and removes nothing, when a coordinator of an earlier life than the one that has asked what
        is here wants it: what that one found whole it may have acknowledged meanwhile.
        """
        with self._gather_lock:
            if group < self._gathered and self._unflushed:
                self._flush()  # what is changed in the store has to be there after a crash
            with self.lock:
                if life < self._life:
                    raise Unavailable(f"group {group} is taken back by an earlier life of the coordinator")
                self._revoked[group] = None
                if len(self._revoked) > REVOKED_MAX:
                    self._revoked.popitem(last=False)
                if group >= self._gathered:
                    # Also of a group that is not here: what a failed write has left of it may be, after a crash.
                    revocation = Revocation(segment, group, spans)
                    self._take_back(self.wal.write(revocation.pieces()), revocation)
                else:
                    self._revoke_stored(segment, group, spans)
            self.keeper.sync()

    def _take_back(self, position: int, revocation: Revocation) -> None:
        self._memory.revocations.append((revocation.group, position))
        self._next_position = position + 1
        for memory in (self._gathering, self._memory):
            records, size = memory.revoke(revocation.segment, revocation.group, revocation.spans)
            if records:
                totals = self._totals[revocation.segment]
                self._totals[revocation.segment] = totals.plus(-records, -size, totals.start)

    def _revoke_stored(self, segment: int, group: int, spans: Sequence[Span]) -> None:
        changes = self.store.batch()
        records, size = removal.put_revocation(changes, self.store, segment, group, spans)
        stored, totals = self._stored.get(segment), self._totals.get(segment)
        if stored is None or totals is None:
            return  # the segment has been dropped
        stored = stored.plus(-records, -size, stored.start)
        _put_totals(changes, segment, stored)
        self.store.write(changes, durable=True)
        self._stored[segment] = stored
        self._totals[segment] = totals.plus(-records, -size, totals.start)

    def drop(self, first_segment: int, start: int) -> None:
        """Remove every segment below `first_segment`, and the answers to producers from before `start`."""
        with self._gather_lock, self.lock:
            gone = [segment for segment in self._totals if segment < first_segment]
            if not gone:
                return
            changes = self.store.batch()
            ranges = removal.put_drop(changes, self.store, first_segment, start)
            for segment in gone:
                changes.delete("log", rows.totals(segment))
            changes.put("log", rows.DROPPED, rows.segment_bytes(first_segment))
            self.store.write(changes, durable=True)
            self._dropped = first_segment
            for memory in (self._gathering, self._memory):
                memory.drop(first_segment, start)
            for totals in (self._totals, self._stored):
                for segment in gone:
                    totals.pop(segment, None)
        for begin, end in ranges:
            self.store.reclaim("log", begin, end)

    # After a crash

    def recover(self, epoch: int, settled: int, first_segment: int, life: int = 0) -> tuple[int, int, list[HeldGroup]]:
        """Refuse groups below `epoch`, and messages of an earlier life, from now on; (a number above every sequence
        number here, and not below what is refused, the highest settled mark, the groups at or above it)."""
        with self.lock:
            refused_below = self._epoch  # of a coordinator that may have lost its state since
            self._epoch, self._life = max(self._epoch, epoch), max(self._life, life)
            held = [*self._gathering.groups(), *self._memory.groups()]
            settled = max(settled, self._gathering.settled, self._memory.settled)
            # The marks tell of numbers that were given, also when nothing is left of their records.
            marks = max(self._gathered, self._closed, settled, refused_below)
        above = max((batch.start + batch.count for group in held for batch in group.batches), default=0)
        above = max(above, marks)
        known = {group.group for group in held}
        for row, entry in entries.newest_first(self.store):
            settled, above = max(settled, entry.settled), max(above, entry.above)
            segment = rows.segment_of(row)
            held += [HeldGroup(segment, *group) for group in entry.groups if group[0] not in known]
            if entry.groups[0][0] < settled or segment < first_segment:
                break
        return above, settled, [group for group in held if group.group >= settled and group.segment >= first_segment]

    def segments(self) -> list[HeldSegment]:
        with self.lock:
            return [HeldSegment(number, t.records, t.bytes, t.start) for number, t in sorted(self._totals.items())]


def _put_totals(changes: RowBatch, segment: int, totals: Totals) -> None:
    value = msgspec.msgpack.encode((totals.records, totals.bytes, totals.start))
    changes.put("log", rows.totals(segment), value)

"""The log of one shard: appends, gathering, revocations, dropped segments, and the report after a crash.

Durability: when `append` returns, the records survive the death of this process and the coordinator's; when the
write-ahead log was synced after it, they survive the loss of power.

An append is written to the write-ahead log and stays in memory. When enough records are in memory, a thread gathers
them into runs by key in the store, in one write. The store does not log this write; once it has written the rows to its
files, the write-ahead log is released. All rows are in one family of the store, so that after a crash the store holds
exactly the rows up to one gathering.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from shared.errors import Unavailable
from shared.measurements import Latencies
from shared.messages.log import SEQUENCE_MAX, Batch, HeldGroup, HeldSegment, Span
from worker.damage import DamageReport
from worker.logs import entries, removal, rows
from worker.logs.gathering import answer_rows, put, remembered
from worker.logs.keeper import Keeper
from worker.logs.memory import Memory
from worker.logs.messages import Message, Revocation, read
from worker.logs.recent import time_of
from worker.logs.starts import KeyStarts
from worker.logs.totals import SegmentTotals, Totals
from worker.logs.view import LogView, view_of
from worker.storage.faces import JournalStream, RowBatch, Rows

GATHER_BYTES = 6 << 20
"""Gathering begins when this much is in memory, including the tables of the records. This is enough for long runs if
there are few keys, and the write, which blocks the worker's other threads, still takes only some milliseconds."""
GATHER_RECORDS = 1 << 16
GATHER_RECORDS_MIN = 1 << 12
GATHER_ROWS = 1 << 13
"""A write of this many runs takes as long. If each key has few records, gathering begins with fewer records."""
BEHIND_FACTOR = 4
"""When memory holds this multiple of what makes a gathering due, the next append gathers first. This bounds memory."""
FLUSH_BYTES = 16 << 20
"""When this much has been gathered, the store writes it to files. A start replays no more than this and what was in
memory."""
REVOKED_MAX = 65_536
"""Revoked groups that are remembered. A message that arrives after this many later ones is past its deadline anyway."""


class LogPart:
    """Safe to use from many threads: changes run one at a time, and reads see the changes below the frontier that the
    coordinator sends with them."""

    def __init__(self, store: Rows, keeper: Keeper, wal: JournalStream, damage: DamageReport | None = None) -> None:
        self.store = store
        self.damage = damage or DamageReport()
        self.wal = wal
        self.keeper = keeper
        self.lock = Lock()
        self._gather_lock = Lock()  # guards changes of the log's rows in the store; taken before the others
        self.trim_lock = Lock()  # guards the rows of the starts; taken before `lock`
        self.starts = KeyStarts()
        self.policy_lock = Lock()  # guards `policy_pass`; taken before all others
        self.policy_pass: object = None
        """The pass that has begun (worker.logs.policies)."""
        self._memory = Memory()
        self._gathering = Memory()
        self._upto = 0  # groups below this are being gathered
        self._gathered = 0
        self._dropped = 0
        self._totals = SegmentTotals()
        self._records_due = GATHER_RECORDS
        self._epoch = self._closed = self._life = 0
        self._newest_ms = self._floor_ms = self._floor_life = 0
        self._next_position = 0
        self.records_in = 0
        self._unflushed = 0  # bytes gathered since the store wrote them out
        self._revoked: OrderedDict[int, None] = OrderedDict()
        self._closing = False
        self.gatherings = Latencies()

    def load(self) -> None:
        """Read the marks and totals from the store, then replay the write-ahead log."""
        self._totals.load(self.store)
        self._gathered = int.from_bytes(self.store.get("log", rows.GATHERED) or b"", "big")
        self._dropped = int.from_bytes(self.store.get("log", rows.DROPPED) or b"", "big")
        self._closed = self._gathered
        self.starts.load(self.store, self._gathered)
        self._newest_ms = entries.newest_time_ms(self.store)
        for position, payload in self.wal.records():
            self._replay(position, read(payload))
        self.store.sync()
        self._release()
        self.keeper.join(self)
        self.keeper.cleaner.join(self)

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
        return {"records": self._totals.record_count()}

    def memory_bytes(self) -> int:
        """What the records in memory take."""
        return self._memory.bytes + self._gathering.bytes

    def close(self) -> None:
        self.keeper.cleaner.leave(self)
        self.keeper.leave(self)
        with self._gather_lock:
            self._closing = True

    # Writing: for `worker.logs.writing`, which holds `lock`

    def stage(self, message: Message, life: int = SEQUENCE_MAX) -> str:
        """Stage the message for `take_in`. Returns "", or the reason why the group is refused: it has been revoked,
        it was decided without this shard, an earlier life of the coordinator sent it, or its time is before the newest
        time of such an earlier life. Raises Internal when the frame is not valid."""
        given_up = message.group < max(self._epoch, self._closed) or message.group in self._revoked
        if given_up or message.segment < self._dropped or life < self._life:
            return f"records from sequence number {message.group} arrived after they had been given up"
        if life > self._floor_life:
            self._floor_life, self._floor_ms = life, self._newest_ms
        time_ms = time_of(message.batches)
        if 0 < time_ms < self._floor_ms:
            # The clock was set back while no coordinator ran, and the present one has not seen this shard's report yet.
            return f"the newest records are of {self._floor_ms} ms and these of {time_ms} ms; the clock was set back"
        self._memory.stage(message)
        return ""

    def take_in(self, message: Message, position: int) -> None:
        """Add the message that was staged last to memory. It is in the write-ahead log at `position`."""
        records, size = self._memory.add(message, position)
        self.records_in += records
        time_ms = time_of(message.batches)
        self._totals.add(message.segment, Totals(records, size, message.group, time_ms))
        self._closed = max(self._closed, message.closed)
        self._newest_ms = max(self._newest_ms, time_ms)
        self._next_position = position + 1

    # In the background

    def is_large(self, times: int = 1) -> bool:
        """Whether memory holds at least `times` as much as makes a gathering due."""
        return self._memory.bytes >= times * GATHER_BYTES or self._memory.records >= times * self._records_due

    def make_room(self) -> None:
        """Gather in this thread if gathering is overdue. Raises Unavailable when the store refuses: then no more
        records may be appended."""
        if self.is_large(BEHIND_FACTOR):
            self.gather()

    def gather(self) -> None:
        """Move the groups that are decided into the store. Raises Unavailable; the groups then stay in memory."""
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
                fresh = self.starts.fresh
            started = time.perf_counter()
            remaining = gathering.remaining(fresh)
            changes = self.store.batch()
            runs = put(changes, self.store, remaining)
            stored: dict[int, Totals] = {}
            removed: dict[int, tuple[int, int]] = {}  # segment → (records, bytes) below the starts of their keys
            for segment, recent in remaining.segments.items():
                if recent.groups:
                    before, after = gathering.segments[segment].totals(), recent.totals()
                    removed[segment] = before.records - after.records, before.bytes - after.bytes
                    stored[segment] = self._totals.put_gathered(changes, segment, after)
            assert self._upto >= self._gathered, "a start would replay groups that are in the store already"
            changes.put("log", rows.GATHERED, rows.sequence_bytes(self._upto))
            self._unflushed += gathering.bytes
            self.store.write(changes, logged=False)
            with self.lock:
                self._gathered, self._gathering = self._upto, Memory()
                self._totals.gathered(stored)
                has_unclean = self.starts.look_again(fresh)
                self.starts.gathered(self._upto)
                for segment, (records, size) in removed.items():
                    self._totals.remove(segment, records, size)
                self._records_due = max(GATHER_RECORDS_MIN, GATHER_ROWS * gathering.records // max(1, runs))
            if self._unflushed >= FLUSH_BYTES:
                self._flush()
            if has_unclean:
                self.keeper.cleaner.wake()
            self.gatherings.add(time.perf_counter() - started)

    def flush(self) -> None:
        """Write what was gathered from the store to disk, and release the write-ahead log. Raises Unavailable."""
        with self._gather_lock:
            if not self._closing:
                self._flush()

    def _flush(self) -> None:
        if self._unflushed:
            self.store.flush("log")
            self._unflushed = 0
            with self.lock:
                self.starts.flushed()
        self._release()

    def _release(self) -> None:
        """Release the records that the write-ahead log need not keep. The caller holds the gather lock, and everything
        gathered is on disk."""
        with self.lock:
            firsts = (self._gathering.first_position, self._memory.first_position)
            position = min((first for first in firsts if first is not None), default=self._next_position)
        self.wal.release(position)

    def keep_up(self) -> None:
        """Gather if it is due, or if the write-ahead log waits for records of this shard. Raises Unavailable."""
        behind = self.wal.is_behind()
        if behind or self.is_large():
            self.gather()
        if behind:
            self.flush()

    # For readers

    @property
    def dropped(self) -> int:
        """Every segment below this one has been dropped."""
        return self._dropped

    def has_dropped(self, segment: int) -> bool:
        with self.lock:  # a drop holds the lock from before its write until `_dropped` is set
            return segment < self._dropped

    def view(self) -> LogView:
        """The log as it is now. Records that are gathered later are then in the store as well."""
        with self.lock:
            return self.view_held()

    def view_held(self) -> LogView:
        """As `view`, for a caller that holds `lock`."""
        return view_of(self._gathered, (self._gathering, self._memory), self.starts)

    def recent_batches(self, segment: int) -> list[tuple[Batch, ...]]:
        """The batches of each group of the segment that is in memory, in the order of their arrival."""
        with self.lock:
            in_memory = [memory.segments.get(segment) for memory in (self._gathering, self._memory)]
            return [group.batches for recent in in_memory if recent is not None for group in recent.groups]

    def producer_answers(self, producer: str) -> list[tuple[int, int, int]]:
        """(producer_seq, start, count) of the batches whose answers are remembered, ascending by start. Not all of
        these batches are decided: some may still be revoked."""
        with self.lock:
            recent = [m.answers.get(producer, {}) for m in (self._gathering, self._memory)]
            by_start = {**recent[0], **recent[1]}
        by_start |= {answer[1]: answer for _, answer in answer_rows(self.store, producer)}
        return remembered([by_start[start] for start in sorted(by_start)])

    # Starts of keys (worker.logs.trimming, worker.logs.cleaning)

    def closed_below(self, closed: int) -> None:
        """Every group below this number is decided, as the coordinator says. The caller holds `lock`."""
        self._closed = max(self._closed, closed)

    @property
    def gathered(self) -> int:
        """Groups below this number are in the store, or nowhere."""
        return self._gathered

    def stored_segments(self) -> list[int]:
        return sorted(self._totals.stored)

    @contextmanager
    def changing(self) -> Iterator[bool]:
        """A context in which no other thread changes the log's rows in the store. False when the log is closing."""
        with self._gather_lock:
            yield not self._closing

    def write_removal(self, changes: RowBatch, segment: int = -1, records: int = 0, size: int = 0) -> None:
        """Write `changes`, which remove `records` records with `size` bytes of keys and values from the store. This is
        not durable: a crash may undo it, together with every later write of this kind. The caller is in `changing`.
        Raises Unavailable."""
        changes_totals = records > 0 and segment in self._totals.stored
        if changes_totals:
            self._totals.put_removal(changes, segment, records, size)
        self.store.write(changes, logged=False)
        self._unflushed += size + changes.size_bytes + 1
        with self.lock:
            if changes_totals:
                self._totals.remove_stored(segment, records, size)
        if self._unflushed >= FLUSH_BYTES:
            self._flush()

    # Revoking and dropping

    def revoke(self, segment: int, group: int, spans: list[Span], life: int = SEQUENCE_MAX) -> None:
        """Remove the group's batches that lie within `spans`, durably, and refuse the group if it arrives later.

        Raises Unavailable, and removes nothing, when an earlier life of the coordinator sends this: the present one has
        asked what this shard holds, and may have acknowledged the batches since.
        """
        with self._gather_lock:
            if group < self._gathered and self._unflushed:
                self._flush()  # the rows that the revocation changes must survive a crash
            with self.lock:
                if life < self._life:
                    raise Unavailable(f"an earlier life of the coordinator asks to revoke group {group}")
                self._revoked[group] = None
                if len(self._revoked) > REVOKED_MAX:
                    self._revoked.popitem(last=False)
                if group >= self._gathered:
                    # Written even if the group is not in memory: a failed write may have left it in the log.
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
                self._totals.remove(revocation.segment, records, size)

    def _revoke_stored(self, segment: int, group: int, spans: Sequence[Span]) -> None:
        changes = self.store.batch()
        records, size = removal.put_revocation(changes, self.store, segment, group, spans)
        if segment not in self._totals.stored:
            return  # the segment has been dropped
        self._totals.put_removal(changes, segment, records, size)
        self.store.write(changes, durable=True)
        self._totals.remove_stored(segment, records, size)

    def drop(self, first_segment: int, start: int) -> None:
        """Remove every segment below `first_segment`, and the answers to producers about batches before `start`,
        durably. Raises Unavailable."""
        with self._gather_lock, self.lock:
            dropped = [segment for segment in self._totals.all if segment < first_segment]
            if not dropped:
                return
            changes = self.store.batch()
            ranges = removal.put_drop(changes, self.store, first_segment, start)
            for segment in dropped:
                changes.delete("log", rows.totals(segment))
            changes.put("log", rows.DROPPED, rows.segment_bytes(first_segment))
            self.store.write(changes, durable=True)
            self._dropped = first_segment
            for memory in (self._gathering, self._memory):
                memory.drop(first_segment, start)
            self._totals.drop(first_segment)
        for begin, end in ranges:
            self.store.reclaim("log", begin, end)

    # After a crash

    @property
    def newest_ms(self) -> int:
        """When the newest group that this shard has held since it was opened was appended, in Unix ms; 0: unknown."""
        return self._newest_ms

    def recover(self, epoch: int, settled: int, first_segment: int, life: int = 0) -> tuple[int, int, list[HeldGroup]]:
        """Refuse groups below `epoch`, and messages of an earlier life, from now on. Returns (a number that is above
        every sequence number seen here and not below any refused number, the highest settled mark, the groups at or
        above that mark)."""
        with self.lock:
            refused_below = self._epoch  # set by a coordinator that may have lost its state since
            self._epoch, self._life = max(self._epoch, epoch), max(self._life, life)
            groups = [*self._gathering.groups(), *self._memory.groups()]
            settled = max(settled, self._gathering.settled, self._memory.settled)
            # The marks show which numbers were given, even if none of their records are left.
            marks = max(self._gathered, self._closed, settled, refused_below, self.starts.highest)
        above = max((batch.start + batch.count for group in groups for batch in group.batches), default=0)
        above = max(above, marks)
        in_memory = {group.group for group in groups}
        for row, entry in entries.newest_first(self.store):
            settled, above = max(settled, entry.settled), max(above, entry.above)
            segment = rows.segment_of(row)
            groups += [HeldGroup(segment, *group) for group in entry.groups if group[0] not in in_memory]
            if entry.groups[0][0] < settled or segment < first_segment:
                break
        return above, settled, [group for group in groups if group.group >= settled and group.segment >= first_segment]

    def segments(self) -> list[HeldSegment]:
        with self.lock:
            return self._totals.held_segments()

"""The part of a shard's log that is in memory: groups that are in the write-ahead log, but not in the store yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shared.messages.log import HeldGroup, Span
from worker.logs.messages import Message
from worker.logs.recent import ROW_BYTES, Recent, RecentGroup, within

GROUP_BYTES = 400
"""Memory of a group beside its records."""

ProducerAnswer = tuple[int, int, int]
"""(producer_seq, start, count)."""


class Memory:
    """Groups by segment, and answers to producers. Not safe for threads: its owner's lock guards it."""

    def __init__(self) -> None:
        self.segments: dict[int, Recent] = {}
        self.answers: dict[str, dict[int, ProducerAnswer]] = {}
        """producer → start → answer."""
        self.revocations: list[tuple[int, int]] = []
        """(group, position in the write-ahead log) of revocations of groups that may still arrive, or arrive again."""
        self.settled = 0
        self.records = self.bytes = 0

    def _measure(self) -> None:
        self.records = sum(len(recent) for recent in self.segments.values())
        self.bytes = sum(recent.bytes + GROUP_BYTES * len(recent.groups) for recent in self.segments.values())

    @property
    def first_position(self) -> int | None:
        """The lowest position that the write-ahead log has to keep; None if it need not keep any."""
        positions = [held.position for recent in self.segments.values() for held in recent.groups]
        return min([*positions, *(position for _, position in self.revocations)], default=None)

    def stage(self, message: Message) -> None:
        """Copy and check the message's records, so that `add` of the same message cannot fail. Raises Internal when the
        frame is not valid."""
        recent = self.segments.get(message.segment)
        if recent is None:
            recent = self.segments[message.segment] = Recent()
        recent.stage(message.frame, len(message.batches))

    def add(self, message: Message, position: int) -> tuple[int, int]:
        """Add the message that was staged last. Returns (records, bytes of keys and values)."""
        for batch in message.batches:
            if batch.producer:
                answer = batch.producer_seq, batch.start, batch.count
                self.answers.setdefault(batch.producer, {})[batch.start] = answer
        self.settled = max(self.settled, message.settled)
        held = RecentGroup(message.group, position, message.settled, message.batches)
        records, size = self.segments[message.segment].add(held)
        self.records += records
        self.bytes += len(message.frame) + ROW_BYTES * records + GROUP_BYTES
        return records, size

    def split(self, closed: int) -> Memory:
        """Take out the groups below `closed`, a boundary between groups, and return them."""
        closed_groups = Memory()
        closed_groups.settled = self.settled
        for segment, recent in list(self.segments.items()):
            closed_groups.segments[segment], still_open = recent.split(closed)
            self.segments[segment] = still_open
            if not len(still_open) and not still_open.groups and segment != max(self.segments):
                del self.segments[segment]  # the log continues in a later segment
        for producer, answers in list(self.answers.items()):
            below = {start: answer for start, answer in answers.items() if start < closed}
            if below:
                closed_groups.answers[producer] = below
                self._put_answers(producer, {s: answer for s, answer in answers.items() if s >= closed})
        self.revocations = [item for item in self.revocations if item[0] >= closed]
        self._measure()
        closed_groups._measure()
        return closed_groups

    def _put_answers(self, producer: str, answers: dict[int, ProducerAnswer]) -> None:
        if answers:
            self.answers[producer] = answers
        else:
            self.answers.pop(producer, None)

    def revoke(self, segment: int, group: int, spans: Sequence[Span]) -> tuple[int, int]:
        """Remove the group's batches within the spans. Returns (records, bytes of keys and values) that they had."""
        recent = self.segments.get(segment)
        if recent is None:
            return 0, 0
        self.segments[segment], records, size = recent.without(group, spans)
        self._measure()
        for producer, answers in list(self.answers.items()):
            self._put_answers(producer, {s: answer for s, answer in answers.items() if not within(s, spans)})
        return records, size

    def drop(self, first_segment: int, start: int) -> None:
        """Forget the segments below `first_segment`, and the answers to producers about batches before `start`."""
        self.segments = {segment: recent for segment, recent in self.segments.items() if segment >= first_segment}
        self._measure()
        for producer, answers in list(self.answers.items()):
            self._put_answers(producer, {s: answer for s, answer in answers.items() if s >= start})

    def remaining(self, starts: Mapping[bytes, int]) -> Memory:
        """What is to be stored: everything but the records below the start of their key. This object is unchanged."""
        if not starts:
            return self
        remaining = Memory()
        remaining.segments = {segment: recent.remaining(starts) for segment, recent in self.segments.items()}
        remaining.answers, remaining.settled = self.answers, self.settled
        remaining._measure()
        return remaining

    def groups(self) -> Iterator[HeldGroup]:
        for segment, recent in self.segments.items():
            for held in recent.groups:
                if held.batches:
                    yield HeldGroup(segment, held.group, held.batches)

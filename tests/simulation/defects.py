"""Defects that were mended, or might be made, each put back by replacing a function: the simulation has to find it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from coordinator.log import producers, recovery
from coordinator.log.append import Appender
from coordinator.log.area import LogArea
from coordinator.log.follow import Followers
from coordinator.log.frontier import Frontier
from coordinator.log.producers import Producers
from coordinator.log.recovery import Recovery
from coordinator.log.sequencer import Revoked, Sequencer
from shared.errors import Unavailable
from shared.messages.log import SEQUENCE_MAX, Span
from shared.messages.log_pages import Records
from worker.logs import reading
from worker.logs.part import LogPart
from worker.logs.starts import KeyStarts
from worker.serving import Service

Replaced = Sequence[tuple[Any, str, Any]]
"""(owner, name, what stands there instead)."""


@dataclass(frozen=True)
class Defect:
    """`is_common`: so many histories show it that it is looked for in the ordinary test run."""

    text: str
    replaced: Callable[[], Replaced]
    is_common: bool = True


def _forgets_who_left() -> Replaced:
    """The client that leaves takes what it has begun with it: the next one asks the shard, whose read lane overtakes
    its write lane."""

    async def append(self: Any, append: Any, send: Any) -> tuple[int, int, bool]:
        producer = self._producer(append.producer)
        number = append.producer_seq
        await self._load(append.producer, producer)
        if number in producer.answers:
            return *producer.answers[number][1:], True
        if number in producer.under_way:
            return *(await asyncio.shield(producer.under_way[number]))[1:], True
        outcome = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda future: future.cancelled() or future.exception())
        producer.under_way[number] = outcome
        try:
            start = await send(append)
        except BaseException as error:
            producer.answers.clear()
            producer.is_loaded = False
            outcome.set_exception(Unavailable(f"the first one to send it has gone: {error!r}"))
            raise
        finally:
            del producer.under_way[number]
        producer.remember((number, start, append.count))
        outcome.set_result((number, start, append.count))
        return start, append.count, False

    return [(Producers, "_append", append)]


def _answers_of_open_groups() -> Replaced:
    """And it takes what the shard has for an answer, though its group is open."""
    undecided = [
        (Recovery, "decided_below", property(lambda self: SEQUENCE_MAX)),
        (Recovery, "batches_in_doubt", lambda self: set()),
        (Producers, "forget", lambda self, spans: None),
    ]
    return [*_forgets_who_left(), *undecided]


def _answers_in_doubt() -> Replaced:
    """After a start of the coordinator, the shard's answers count though their batches are in doubt, and are kept when
    these are taken back."""
    return [
        (Recovery, "batches_in_doubt", lambda self: set()),
        (Producers, "forget", lambda self, spans: None),
        (Recovery, "hidden", _hidden_to_readers_only),
        (LogArea, "append", _append_without_second_look),
    ]


def _hidden_to_readers_only(self: Recovery, start: int, end: int) -> list[Span]:
    if (start, end) == (0, SEQUENCE_MAX):
        return []
    return [span for item in self._sequencer.revoked for span in item.spans if span[0] < end and start < span[1]]


async def _append_without_second_look(self: Any, append: Any) -> tuple[int, int]:
    await self.wait_for_state()
    if not append.producer:
        return await self._appender.append(append), append.count
    start, count, repeated = await self._producers.append(append, self._appender.decided)
    if repeated and append.durable:
        await self._wait_durable(start + count)
    return start, count


def _durable_wait_without_second_look() -> Replaced:
    return [*_answers_of_open_groups(), (LogArea, "append", _append_without_second_look)]


def _one_client_ends_the_others() -> Replaced:
    """What is under way belongs to the client that came first."""

    async def unshielded(work: Any) -> Any:
        return await work

    asyncio_without = SimpleNamespace(**{**vars(asyncio), "shield": unshielded})
    return [(producers, "asyncio", asyncio_without)]


def _page_without_progress() -> Replaced:
    """An entry below the range is looked at, and the page ends with it."""
    of_entry = reading._of_entry

    def looks_below(
        part: Any, view: Any, span: Any, row: bytes, entry: Any, prefix: bytes, *rest: Any
    ) -> Iterator[Any]:
        yield from of_entry(part, view, span, row, entry, prefix, *rest)
        if len(entry.numbers) and not len(reading._chosen(entry, view, span, prefix)):
            nothing = Records.of(np.zeros(0, np.uint64), ())
            yield nothing, int(entry.numbers[-1]) + 1, len(entry.numbers)

    return [(reading, "_of_entry", looks_below)]


def _starts_not_read() -> Replaced:
    """A start of the worker does not read what was deleted."""
    return [(KeyStarts, "load", lambda self, store, gathered: None)]


def _starts_forgotten_early() -> Replaced:
    return [(KeyStarts, "done", lambda self, gathered: list(self._clean))]


def _revocation_not_saved() -> Replaced:
    """The group is closed though the disk does not know what is hidden."""

    async def revoke(self: Any, segment: int, group: int, spans: Sequence[Span], shards: Sequence[int]) -> None:
        self._sequencer.revoked.append(Revoked(segment, group, list(spans), list(shards)))
        self._hold_settled()
        self.when_revoked(spans)
        self._to_remove.set()
        try:
            await asyncio.to_thread(self._sequencer.save)
        except Unavailable as error:
            recovery.event(0, "a revocation is not saved", why=error)

    return [(Recovery, "revoke", revoke)]


def _limit_not_written() -> Replaced:
    """Numbers are given before the disk knows that they may be."""

    def extend(self: Any, count: int = 0) -> None:
        self._limit = max(self._limit, self.next + count + 8)

    return [(Sequencer, "extend", extend)]


def _settled_ahead_of_doubt() -> Replaced:
    """Each of three checks would be enough: settled ends below what is in doubt, nothing is synced before the recovery
    is complete, and a sync counts when all shards are there."""

    async def recover(self: Any) -> None:
        self._appender.must_sync(range(self._links.shards))
        await asyncio.gather(self.recovery.run(), self._appender.sync_forever())

    async def sync(self: Any, before: Any = Appender.sync) -> None:
        there = self._unsynced.difference(self._links.unready(self._unsynced))
        if there:
            self._unsynced.intersection_update(there)
            await before(self)

    def settled(self: Any) -> int:
        return int(min(self.durable, self.being_removed))

    return [(Frontier, "settled", property(settled)), (LogArea, "_recover", recover), (Appender, "sync", sync)]


def _settled_ahead_of_removal() -> Replaced:
    """What shows when the list of what is hidden is lost."""

    def settled(self: Any) -> int:
        return int(min(self.durable, self.in_doubt))

    return [(Frontier, "settled", property(settled))]


def _unsynced_counted_as_synced() -> Replaced:
    async def sync(self: Any) -> None:
        if not self._unsynced:
            return
        shards, upto = sorted(self._unsynced), self._frontier.readable
        self._unsynced.clear()
        with contextlib.suppress(Unavailable):
            await self._links.fan_out("log.sync", shards=shards, timeout_s=self._timeout_s)
        self._frontier.synced(upto)

    return [(Appender, "sync", sync)]


def _late_messages_taken_in() -> Replaced:
    """A shard takes what had been given up."""

    def stage(self: Any, message: Any, life: int) -> str:
        self._memory.stage(message)
        return ""

    return [(LogPart, "stage", stage)]


def _readers_pass_doubt() -> Replaced:
    def visible(self: Any) -> int:
        return int(self.durable if self._visibility == "durable" else self.readable)

    return [(Frontier, "visible", property(visible))]


def _released_too_far() -> Replaced:
    """The write-ahead log is let go of before the store has written out what was gathered."""

    def gather(self: Any, before: Any = LogPart.gather) -> None:
        before(self)
        with self._gather_lock:
            self._release()

    return [(LogPart, "gather", gather)]


def _followers_not_published() -> Replaced:
    """Who follows a prefix is not told of new records, and does not notice."""

    def publish(self: Any, group: Any, before: Any = Followers.publish) -> None:
        if group.start % 3:
            before(self, group)

    return [(Followers, "publish", publish)]


def _followers_not_told_of_gaps() -> Replaced:
    """Who follows is told of groups only, not of what a recovery makes visible."""
    return [(Followers, "publish_gap", lambda self: None)] if hasattr(Followers, "publish_gap") else []


def _confirmed_below_the_next_number() -> Replaced:
    """A state that is made anew says the limit of before the shards were asked."""

    def confirm(self: Any) -> None:
        with self._lock:
            self._write(self._limit, None, confirmed=True)
            self._confirmed, self.is_new = True, False

    return [(Sequencer, "confirm", confirm)]


def _early_cancels_forgotten() -> Replaced:
    """A cancellation that comes before its request, by the other connection, has no effect."""

    def cancel(self: Any, request_id: bytes) -> None:
        if (request := self._accepted.get(request_id)) is not None:
            request.cancelled = True

    return [(Service, "_cancel", cancel)]


DEFECTS: dict[str, Defect] = {
    "lookup-overtakes": Defect("the same number is appended twice after its client has left", _forgets_who_left),
    "repeat-before-closed": Defect("a repeat is answered while its group is open", _answers_of_open_groups),
    "durable-wait-once": Defect("the durable wait of a repeat does not look again", _durable_wait_without_second_look),
    "answers-survive": Defect("answers survive the revocation of their batches", _answers_in_doubt),
    "disconnect-shared": Defect("one client's leaving ends another's retry", _one_client_ends_the_others),
    "page-without-progress": Defect("a page's next is not beyond its start", _page_without_progress),
    "revocation-not-saved": Defect("a revocation that is not saved closes its group", _revocation_not_saved),
    "limit-not-written": Defect("numbers are given before their limit is on disk", _limit_not_written),
    "settled-in-doubt": Defect("settled passes a shard in doubt", _settled_ahead_of_doubt),
    "settled-in-removal": Defect("settled passes what is still being removed", _settled_ahead_of_removal),
    "failed-sync-counted": Defect("shards whose log.sync failed count as synced", _unsynced_counted_as_synced),
    "late-message": Defect("a message that was given up is taken in", _late_messages_taken_in),
    "readers-pass-doubt": Defect("readers pass what is in doubt", _readers_pass_doubt, is_common=False),
    "released-too-far": Defect(
        "the write-ahead log is released before the store is written out", _released_too_far, False
    ),
    "confirmed-too-low": Defect(
        "a state made anew has a limit below its numbers", _confirmed_below_the_next_number, is_common=False
    ),
    "early-cancel-forgotten": Defect("a request that was cancelled before it came is run", _early_cancels_forgotten),
    "starts-not-read": Defect("deleted records come back with a start", _starts_not_read, is_common=False),
    "start-forgotten-early": Defect(
        "a key's start is forgotten while records below it are in memory", _starts_forgotten_early, is_common=False
    ),
    "follower-not-told": Defect("a follower is not told of every group", _followers_not_published),
    "follower-passes-over": Defect(
        "a follower is not told of what a recovery makes visible", _followers_not_told_of_gaps
    ),
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """With the defect of that name; "" is none."""
    replaced = DEFECTS[name].replaced() if name else ()
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in replaced]
    try:
        for owner, attribute, value in replaced:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in reversed(before):
            setattr(owner, attribute, value)

"""All consumer groups of the log: joins, polls, commits, and members whose sessions run out.

Only the state of groups is stored, in memory and on the shards. What a member has been given is not stored: a poll
returns the records from the committed position on, or from the number that the member names. So a poll may be repeated,
and neither a crash of the coordinator nor a lost answer loses a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from coordinator.fanout.links import Links
from coordinator.log.groups.group import Group, Session
from coordinator.log.groups.reading import GroupPage, GroupReader
from coordinator.log.groups.state import GroupState, Stale, require_prefix
from coordinator.log.groups.store import GroupStore
from coordinator.log.groups.waiting import Waiter, Waiters
from coordinator.log.reads import Reader, Warnings
from coordinator.log.recovery import Recovery
from coordinator.log.turns import Turns
from shared.errors import BadData, NotFound, TriptychError
from shared.log.slots import NOT_OWNED, slot_count
from shared.settings import Settings
from shared.telemetry import event

SWEEP_S = 0.2
"""How often sessions are checked."""
REMOVAL_RETRY_S = 1.0
"""The pause before a failed removal of members is tried again."""
LATE_S = 1.0
"""If the event loop has stood still for longer than this, sessions are extended by that time, because requests of
members could not arrive."""
UNUSED_S = 60.0
"""A group that has not been used for this time is removed from memory."""
ADVANCE = 100_000
"""A member without records is committed automatically whenever the log has advanced by so many numbers, so that it need
not read all of them again after a restart."""


@dataclass(frozen=True, slots=True)
class Polled:
    """The answer to a poll. `warnings`: what is missing because of damage."""

    page: GroupPage
    generation: int
    warnings: Warnings


class Groups:
    """For the event loop's thread only. Every method raises NotFound for a group that is not there, Stale for a member
    or a generation that is over, and Unavailable for a missing shard."""

    def __init__(
        self,
        settings: Settings,
        links: Links,
        turns: Turns,
        reader: Reader,
        recovery: Recovery,
        visible: Callable[[], int],
    ) -> None:
        self.shards = links.shards
        self._slots = slot_count(links.shards)
        self._write_timeout_s = settings.write_timeout_ms / 1000
        self.store = GroupStore(links, self._write_timeout_s)
        self.reader = GroupReader(links, turns, reader, recovery, settings.query_timeout_ms / 1000)
        self.waiters = Waiters(settings.log_followers_max, links.shards)
        self._visible = visible
        self._recovery = recovery
        self._groups: dict[str, Group] = {}
        self._removals: set[asyncio.Task[None]] = set()

    def _group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None or group.is_deleted:
            group = self._groups[name] = Group(name, self.store, self._slots)
        group.used = time.monotonic()
        return group

    async def group(self, name: str) -> tuple[Group, GroupState]:
        """The group and its state."""
        group = self._group(name)
        return group, await group.load()

    async def join(
        self, name: str, member: str, prefix: bytes | None, start: int | None, session_ms: int
    ) -> tuple[GroupState, int]:
        """Add the member to the group. Returns (state, the member's place in it). `start`: where the group begins if it
        is new, by default with the oldest record."""
        group = self._group(name)
        try:
            state = await group.load()
        except NotFound:
            await group.create(lambda floor: GroupState.new(floor, prefix or b"", start or 0, self._slots))
            state = await group.load()
        require_prefix(state, prefix)
        session = group.sessions.get(member)
        with group.serving(session) if session else contextlib.nullcontext():
            state = await group.change(lambda state: state.joined(member, session_ms))
        place = state.find(member)
        assert place is not None, "it has just joined"
        return state, place

    async def leave(self, name: str, member: str, generation: int) -> None:
        """Remove the member from the group, which gives its slots to the others at once."""

        def left(state: GroupState) -> GroupState:
            state.require(member, generation)
            return state.without([member])

        group, _ = await self.group(name)
        await group.change(left)

    async def commit(self, name: str, member: str, generation: int, upto: int) -> int:
        """Note that every record of the member's slots below `upto` has been processed; on disk when this returns.
        Returns the position up to which all slots of the member are committed. Raises BadData for a number that is
        above both the readable and the committed records."""
        group, state = await self.group(name)
        if upto > self._highest(state, member):
            await self._recovery.wait_complete(self._write_timeout_s)  # right after a start, nothing can be read yet
            state = await group.load()
        if upto > (highest := self._highest(state, member)):
            raise BadData(f"`upTo` is {upto}; it must be at most {highest}, up to which the log can be read")
        state.require(member, generation)
        session = group.sessions[member]

        def committed(state: GroupState) -> GroupState:
            place = state.require(member, generation)
            if session.given is not None and upto > max(session.given, state.lowest(place)):
                raise Stale(
                    f"`upTo` is {upto}, and in generation {generation} member {member!r} has been given records only "
                    f"up to {max(session.given, state.lowest(place))}: go on from what is committed",
                    generation,
                )
            return state.committed_to(place, upto)

        with group.serving(session):
            state = await group.change(committed)
        session.touch()
        return state.lowest(state.require(member, generation))

    def _highest(self, state: GroupState, member: str) -> int:
        """The highest number that this member may commit. In a group that begins in the future, polls return a number
        above the log. A name that is no member any more may send any number that a member may have been given."""
        place = state.find(member)
        committed = int(state.committed.max()) if place is None else state.lowest(place)
        return max(committed, self._visible())

    async def poll(
        self,
        name: str,
        member: str,
        generation: int,
        after: int,
        limit: int,
        wait_s: float,
        parked: Callable[[], AbstractContextManager[None]],
    ) -> Polled:
        """Records of the member's slots from the committed position on, and not below `after`. If there are none, wait
        for some, at most `wait_s`, within the context `parked`."""
        group, state = await self.group(name)
        place = state.require(member, generation)
        session, warnings = group.sessions[member], Warnings()
        start = max(after, state.lowest(place))
        give_up = time.monotonic() + min(wait_s, session.session_ms / 1000)
        with group.serving(session), self._waiting(group, state, place) as waiter:
            while True:
                waiter.woken.clear()
                page = await self._page(state, place, session, after, limit, warnings)
                state = await group.load()
                place = state.require(member, generation)  # the slots may have gone to another member meanwhile
                left_s = give_up - time.monotonic()
                if not page.is_empty or left_s <= 0 or limit == 0:
                    break
                after = max(after, page.next)
                if page.done:
                    with parked():
                        await _set(waiter.woken, left_s)
                    state = await group.load()
                    place = state.require(member, generation)
        session.touch()
        session.gave(start if start > state.lowest(place) else 0, page.next)
        await self._advance(group, state, place, session)
        return Polled(page, generation, warnings)

    @contextlib.contextmanager
    def _waiting(self, group: Group, state: GroupState, place: int) -> Iterator[Waiter]:
        with self.waiters.waiting(state.prefix, state.owners == place) as waiter:
            group.waiters.add(waiter)
            try:
                yield waiter
            finally:
                group.waiters.discard(waiter)

    async def _page(
        self, state: GroupState, place: int, session: Session, after: int, limit: int, warnings: Warnings
    ) -> GroupPage:
        starts, end = state.starts(place, after), self._visible()
        start = int(starts.min())
        if start == NOT_OWNED or limit == 0:
            return GroupPage([], min(max(after, state.lowest(place)), end), True)
        begin = session.skips(start)
        if begin >= end:
            return GroupPage([], max(start, end), True)
        page = await self.reader.page(state.prefix, starts, begin, end, limit, warnings)
        # Slots may have changed hands meanwhile, and nothing is known of those that the member got.
        if page.is_empty and session.generation == state.members[place].generation:
            session.found_empty(start, page.next)
        return page

    async def _advance(self, group: Group, state: GroupState, place: int, session: Session) -> None:
        """Commit what has been found empty, once that is much."""
        lowest = state.lowest(place)
        if session.skips(lowest) - lowest < ADVANCE:
            return
        member, upto = state.members[place], session.empty_upto
        with contextlib.suppress(TriptychError):  # the next poll tries again
            await group.change(lambda now: now.committed_to(now.require(member.name, member.generation), upto))

    async def delete(self, name: str) -> None:
        await self._group(name).delete()
        self._groups.pop(name, None)

    # In the background

    async def run(self) -> None:
        """Remove members whose sessions have run out."""
        due = time.monotonic() + SWEEP_S
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            late_s, due = now - due, now + SWEEP_S
            for group in list(self._groups.values()):
                if late_s > LATE_S:
                    for session in group.sessions.values():
                        session.expires += late_s
                self._sweep(group, now)

    def _sweep(self, group: Group, now: float) -> None:
        is_unused = now - group.used > UNUSED_S and not group.waiters
        # A change that failed leaves no state. Those who wait do not ask for it, so the removal reads it again.
        is_known = not group.is_deleted and (group.state is not None or bool(group.waiters))
        if not is_known:
            if is_unused:
                self._groups.pop(group.name, None)
            return
        if group.expired(now):
            if group.is_removing or now < group.removal_due:
                return
            group.is_removing = True
            removal = asyncio.create_task(self._remove(group))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)
        elif not group.sessions and is_unused:
            self._groups.pop(group.name, None)

    async def _remove(self, group: Group) -> None:
        """Remove the members whose sessions have run out by the time of the change."""
        try:
            await group.change(lambda state: _without(state, group.expired(time.monotonic())))
            group.removal_due = 0.0
        except TriptychError as error:
            if not group.removal_due:  # once, not for as long as the shard is away
                text = "members of a group that have not been heard of stay"
                event(logging.WARNING, text, group=group.name, why=error)
            group.removal_due = time.monotonic() + REMOVAL_RETRY_S
        finally:
            group.is_removing = False


def _without(state: GroupState, names: list[str]) -> GroupState:
    return state.without(names) if names else state


async def _set(woken: asyncio.Event, timeout_s: float) -> None:
    """Return when the event is set, or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await woken.wait()

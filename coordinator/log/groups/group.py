"""One consumer group in the coordinator: its state, changes to it, and the sessions of its members.

A change is on disk before anything of it is answered. Changes that come while one is written are written together.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from coordinator.log.groups.state import GroupState, Member
from coordinator.log.groups.store import GroupStore
from coordinator.log.groups.waiting import Waiter
from shared.errors import Conflict, NotFound, TriptychError

Change = Callable[[GroupState], GroupState]
"""Makes the next state; raises what the request is refused with."""


@dataclass(slots=True)
class Session:
    """A member is removed when it has made no request until `expires` (time.monotonic). `joined`: as in `Member`; 0:
    not known yet. The others are about one generation: `given`: up to where the member has read without a gap, None:
    nobody knows, because the coordinator has started since; `empty_from`, `empty_upto`: between these numbers its slots
    have no records."""

    expires: float
    session_ms: int
    generation: int
    given: int | None
    polls: int = 0
    empty_from: int = 0
    empty_upto: int = 0
    joined: int = 0

    def touch(self) -> None:
        """The member has made a request: its session goes on."""
        self.expires = time.monotonic() + self.session_ms / 1000

    def renew(self, member: Member) -> None:
        """Bring the session up to date with the member. A new generation has been given no records yet, and a join is a
        request of the member."""
        if self.joined != member.joined:
            self.joined, self.session_ms = member.joined, member.session_ms
            self.touch()
        if self.generation != member.generation:
            self.generation, self.given, self.empty_from, self.empty_upto = member.generation, 0, 0, 0

    def skips(self, start: int) -> int:
        """Where a read from `start` may begin."""
        return max(start, self.empty_upto) if start >= self.empty_from else start

    def found_empty(self, start: int, upto: int) -> None:
        """Note that a read found no records from `start` to `upto`."""
        if not self.empty_from <= start <= self.empty_upto:
            self.empty_from, self.empty_upto = start, upto
        self.empty_upto = max(self.empty_upto, upto)

    def gave(self, start: int, upto: int) -> None:
        """Note that the member was given all of its records from `start` to `upto`. `start` is at most the number up to
        which all of its slots are committed, or the number after which the member skipped records itself."""
        if self.given is not None and start <= self.given:
            self.given = max(self.given, upto)


@dataclass(slots=True)
class Group:
    """For the event loop's thread only. `state` None: it must be read from the shard; see `load`."""

    name: str
    store: GroupStore
    slots: int
    state: GroupState | None = None
    is_deleted: bool = False
    used: float = 0.0
    sessions: dict[str, Session] = field(default_factory=dict)
    waiters: set[Waiter] = field(default_factory=set)
    """Members that wait for records: they are woken when slots change hands, and when the group is deleted."""
    is_removing: bool = False
    removal_due: float = 0.0
    """When a removal of members that failed is tried again (time.monotonic); 0: the last one has not failed."""
    _is_fresh: bool = True
    """Whether nothing has been read from the shard yet, so that it is not known what its members were given before."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: deque[tuple[Change, asyncio.Future[GroupState]]] = field(default_factory=deque)
    _writer: asyncio.Task[None] | None = None

    async def load(self) -> GroupState:
        """The state. Raises NotFound when there is no such group."""
        if self.state is None:
            async with self._turn:
                if self.state is None:
                    self._take(await self._stored())
        assert self.state is not None
        return self.state

    async def create(self, make: Callable[[int], GroupState]) -> None:
        """Create the group unless it is there. `make`: its first state, by the revision that it begins with."""
        async with self._turn:
            stored, floor = await self.store.get(self.name)
            if stored is None:
                state = replace(make(floor), revision=floor + 1)
                await self.store.put(self.name, floor, state.stored())
                self._take(state)

    async def change(self, make: Change) -> GroupState:
        """Make this change, and return the state after it when it is on disk. Raises what `make` raises, and
        Unavailable when the outcome is not known."""
        await self.load()
        answer: asyncio.Future[GroupState] = asyncio.get_running_loop().create_future()
        self._waiting.append((make, answer))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await answer

    async def _write(self) -> None:
        """Write changes until none waits. Changes that wait at the same time are written as one."""
        while self._waiting:
            changes = list(self._waiting)
            self._waiting.clear()
            try:
                async with self._turn:
                    answers = await self._written(changes)
            except Exception as error:
                self.state = None  # what the shard has stored is not known
                for _, answer in changes:
                    _fail(answer, error)
            else:
                for answer, state in answers:
                    if not answer.done():
                        answer.set_result(state)

    async def _written(
        self, changes: list[tuple[Change, asyncio.Future[GroupState]]]
    ) -> list[tuple[asyncio.Future[GroupState], GroupState]]:
        before = self.state or await self._stored()
        try:
            return await self._put(before, changes)
        except Conflict:
            # A change sent by an earlier process of the coordinator arrived after this process had read the group.
            return await self._put(await self._stored(), changes)

    async def _put(
        self, before: GroupState, changes: list[tuple[Change, asyncio.Future[GroupState]]]
    ) -> list[tuple[asyncio.Future[GroupState], GroupState]]:
        state, answers = before, []
        refusals: list[tuple[asyncio.Future[GroupState], TriptychError]] = []
        for make, answer in changes:
            try:
                state = make(state)
            except TriptychError as refusal:
                refusals.append((answer, refusal))
            else:
                answers.append((answer, state))
        if state is not before:
            await self.store.put(self.name, before.revision, state.stored())
        for answer, error in refusals:  # after the write: in a Conflict, the state that refused them was out of date
            _fail(answer, error)
        self._take(state)
        return answers

    async def delete(self) -> None:
        """Raises NotFound."""
        async with self._turn:
            if self.is_deleted:  # by another request; a group created since with the same name is a different one
                raise self._not_found()
            self.state = None
            await self.store.delete(self.name)
            self.is_deleted = True
            self._wake()

    async def _stored(self) -> GroupState:
        if not self.is_deleted:
            stored, _ = await self.store.get(self.name)
            if stored is not None:
                return GroupState.of(stored)
        raise self._not_found()

    def _not_found(self) -> NotFound:
        return NotFound(f"there is no group {self.name!r}; the first join makes it")

    def _take(self, state: GroupState) -> None:
        before, self.state = self.state, state
        sessions = {}
        for member in state.members:
            session = self.sessions.get(member.name)
            if session is None:
                session = Session(0.0, member.session_ms, member.generation, None if self._is_fresh else 0)
            session.renew(member)
            sessions[member.name] = session
        self.sessions, self._is_fresh = sessions, False
        if before is None or before.members != state.members:
            self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            waiter.woken.set()

    def expired(self, now: float) -> list[str]:
        """The members whose sessions have run out."""
        return [name for name, session in self.sessions.items() if session.expires <= now and not session.polls]

    @contextmanager
    def serving(self, session: Session) -> Iterator[None]:
        """The context of a request of the member, during which its session does not run out."""
        session.touch()
        session.polls += 1
        try:
            yield
        finally:
            session.polls -= 1


def _fail(answer: asyncio.Future[GroupState], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)

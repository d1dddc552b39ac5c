"""A consumer group at one revision: its members, the owner of each slot, and how far each slot is committed.

A state never changes; each change makes a new state with a higher revision. The *generation* of a member is the
revision at which it joined or its slots last changed. So a generation names one assignment for ever: no generation is
given twice, and a request that names an older one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.log.groups.assignment import NOBODY, Owners, divided
from shared.errors import BadData, Conflict, Overloaded
from shared.log.slots import NOT_OWNED
from shared.messages.log_groups import StoredGroup

MEMBERS_MAX = 256
"""So that each member has at least four slots."""


class Stale(Conflict):
    """The request names a generation that is over. `generation`: with this one the member may continue; None if it must
    join again."""

    def __init__(self, text: str, generation: int | None = None) -> None:
        super().__init__(text)
        self.generation = generation


class Member(msgspec.Struct, frozen=True, array_like=True):
    """`joined`: the generation with which it joined last. A request with an older one is from another process of the
    same name."""

    name: str
    joined: int
    generation: int
    session_ms: int


class _Document(msgspec.Struct, array_like=True):
    """Owners and committed positions as (how many slots, value) of consecutive slots with the same value."""

    members: list[Member]
    owners: list[tuple[int, int]]
    committed: list[tuple[int, int]]


_DOCUMENT = msgspec.msgpack.Decoder(_Document)


@dataclass(frozen=True, slots=True)
class GroupState:
    """`committed`: uint64[slots], every record of a slot below this sequence number has been processed."""

    revision: int
    prefix: bytes
    members: tuple[Member, ...]
    owners: Owners
    committed: NDArray[np.uint64]

    @classmethod
    def new(cls, floor: int, prefix: bytes, start: int, slots: int) -> GroupState:
        """A group without members that begins at sequence number `start`."""
        return cls(floor, prefix, (), np.full(slots, NOBODY, np.int16), np.full(slots, start, np.uint64))

    @classmethod
    def of(cls, stored: StoredGroup) -> GroupState:
        document = _DOCUMENT.decode(stored.document)
        owners, committed = _spread(document.owners, np.int16), _spread(document.committed, np.uint64)
        assert len(owners) == len(committed), "each slot has an owner and a position"
        return cls(stored.revision, stored.prefix, tuple(document.members), owners, committed)

    def stored(self) -> StoredGroup:
        document = _Document(list(self.members), _runs(self.owners), _runs(self.committed))
        return StoredGroup(self.revision, len(self.members), self.prefix, msgspec.msgpack.encode(document))

    def find(self, name: str) -> int | None:
        """The member's place in `members`; None if there is no such member."""
        return next((place for place, member in enumerate(self.members) if member.name == name), None)

    def require(self, name: str, generation: int) -> int:
        """The place of the member that may act in this generation. Raises Stale."""
        place = self.find(name)
        if place is None:
            raise Stale(f"{name!r} is no member of the group; perhaps its session has run out: join again")
        member = self.members[place]
        if member.joined <= generation < member.generation:
            raise Stale(
                f"generation {generation} of member {name!r} is over, since slots have changed hands: go on with "
                f"generation {member.generation}, from what is committed",
                member.generation,
            )
        if generation != member.generation:
            raise Stale(
                f"generation {generation} is not that of member {name!r}, which joined with generation "
                f"{member.joined}: join again"
            )
        return place

    def starts(self, place: int, after: int = 0) -> NDArray[np.uint64]:
        """uint64[slots]: the first number that the member is to read of each of its slots; NOT_OWNED for others."""
        starts = np.maximum(self.committed, np.uint64(after))
        return np.where(self.owners == place, starts, np.uint64(NOT_OWNED))

    def lowest(self, place: int) -> int:
        """The lowest committed position of the member's slots."""
        committed = self.committed[self.owners == place]
        return int(committed.min()) if len(committed) else 0

    # Changes: each returns the state after it

    def joined(self, name: str, session_ms: int) -> GroupState:
        """With this member, which may have joined before. Raises Overloaded for one member too many."""
        revision = self.revision + 1
        place = self.find(name)
        member = Member(name, revision, revision, session_ms)
        if place is not None:
            members = (*self.members[:place], member, *self.members[place + 1 :])
            return replace(self, revision=revision, members=members)
        if len(self.members) == MEMBERS_MAX:
            raise Overloaded(f"the group has {MEMBERS_MAX} members, which is the limit")
        return self._divided((*self.members, member), self.owners)

    def without(self, names: Sequence[str]) -> GroupState:
        """Without these members."""
        remaining = [place for place, member in enumerate(self.members) if member.name not in names]
        new_places = np.full(len(self.members) + 1, NOBODY, np.int16)  # the last entry maps NOBODY to itself
        new_places[remaining] = np.arange(len(remaining))
        return self._divided(tuple(self.members[place] for place in remaining), new_places[self.owners])

    def _divided(self, members: tuple[Member, ...], owners: Owners) -> GroupState:
        """With these members, which own these slots so far. Members that get or lose slots get a new generation."""
        revision = self.revision + 1
        after = divided(owners, len(members))
        changed = set(after[after != owners].tolist()) | set(owners[after != owners].tolist())
        members = tuple(
            msgspec.structs.replace(member, generation=revision) if place in changed else member
            for place, member in enumerate(members)
        )
        return replace(self, revision=revision, members=members, owners=after)

    def committed_to(self, place: int, upto: int) -> GroupState:
        """With the member's slots committed up to this number; no slot's position is lowered."""
        committed = np.where(self.owners == place, np.maximum(self.committed, np.uint64(upto)), self.committed)
        return replace(self, revision=self.revision + 1, committed=committed)


def require_prefix(state: GroupState, prefix: bytes | None) -> None:
    """Raises BadData when a member wants another prefix than its group has."""
    if prefix is not None and prefix != state.prefix:
        raise BadData(f"`prefix` is {prefix!r}, and the group reads {state.prefix!r}; a group has one prefix")


def _runs(values: NDArray[np.int16] | NDArray[np.uint64]) -> list[tuple[int, int]]:
    begins = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
    lengths = np.diff(begins, append=len(values))
    return list(zip(lengths.tolist(), values[begins].tolist(), strict=True))


def _spread(runs: list[tuple[int, int]], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.repeat(np.array([value for _, value in runs], dtype), [length for length, _ in runs])

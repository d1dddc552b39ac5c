"""Consumer groups: how slots are divided, and which generations count."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.log.columns import columns_of
from coordinator.log.frontier import Group as AppendedGroup
from coordinator.log.groups.area import Groups
from coordinator.log.groups.assignment import NOBODY, divided, ranges_of
from coordinator.log.groups.group import Group, Session
from coordinator.log.groups.reading import GroupPage, _together
from coordinator.log.groups.state import MEMBERS_MAX, GroupState, Stale, require_prefix
from coordinator.log.groups.waiting import Waiters
from coordinator.log.reads import Warnings
from shared import wire
from shared.errors import BadData, Conflict, NotFound, Overloaded, Unavailable
from shared.hashing import hash64, shard_of
from shared.log.slots import NOT_OWNED, slot_count, slot_of, slots_of, slots_per_shard
from shared.messages import log_groups
from shared.messages.log_pages import Page, Records
from shared.settings import Settings

SLOTS = 64


# Slots


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1), st.sampled_from([1, 3, 8, 1024, 3000]))
def test_all_keys_of_a_slot_are_on_one_shard(keys: list[bytes], shards: int) -> None:
    hashes = np.array([hash64(key) for key in keys], np.uint64)
    slots = slots_of(hashes, shards).tolist()
    assert slots == [slot_of(key, shards) for key in keys]
    assert [slot // slots_per_shard(shards) for slot in slots] == [shard_of(key, shards) for key in keys]
    assert max(slots) < slot_count(shards)


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(0, 39), max_size=20))
def test_slots_are_divided_evenly_and_stay_where_they_are_when_they_can(members: int, leaving: list[int]) -> None:
    owners = divided(np.full(SLOTS, NOBODY, np.int16), members)
    counts = np.bincount(owners, minlength=members)
    assert counts.max() - counts.min() <= 1
    for member in leaving:
        owners[owners == member] = NOBODY
    after = divided(owners, members)
    counts = np.bincount(after, minlength=members)
    assert counts.max() - counts.min() <= 1
    is_owned = owners != NOBODY
    before = np.bincount(owners[is_owned], minlength=members)
    excess = int(np.maximum(before - (SLOTS // members), 0).sum())
    assert np.count_nonzero(after[is_owned] != owners[is_owned]) <= excess


def test_ranges_name_the_slots_of_a_member() -> None:
    owners = np.array([0, 0, 1, 0, NOBODY, 1], np.int16)
    assert ranges_of(owners, 0) == [(0, 2), (3, 4)]
    assert ranges_of(owners, 1) == [(2, 3), (5, 6)]
    assert ranges_of(owners, 2) == []


# States


def state_of(*members: str) -> GroupState:
    state = GroupState.new(0, b"p", 0, SLOTS)
    for member in members:
        state = state.joined(member, 1000)
    return state


def generation(state: GroupState, name: str) -> int:
    place = state.find(name)
    assert place is not None
    return state.members[place].generation


def test_only_members_whose_slots_change_get_a_new_generation() -> None:
    state = state_of("a", "b")
    assert generation(state, "a") == generation(state, "b") == 2
    again = state.joined("b", 1000)
    assert (generation(again, "a"), generation(again, "b")) == (2, 3)
    assert (again.owners == state.owners).all()
    left = again.without(["b"])
    assert generation(left, "a") == 4


def test_a_stale_generation_is_told_apart_from_another_process_of_the_same_name() -> None:
    state = state_of("a", "b")
    with pytest.raises(Stale, match="generation 1 of member 'a' is over") as moved:
        state.require("a", 1)
    assert moved.value.generation == 2
    again = state.joined("a", 1000)
    with pytest.raises(Stale, match="join again") as replaced:
        again.require("a", 2)
    assert replaced.value.generation is None
    with pytest.raises(Stale, match="no member"):
        again.require("c", 3)
    with pytest.raises(Stale, match="generation 9 is not that"):
        again.require("a", 9)


def test_commits_concern_the_slots_of_the_member_only_and_never_go_back() -> None:
    state = state_of("a", "b").committed_to(0, 50).committed_to(0, 20).committed_to(1, 10)
    assert (state.lowest(0), state.lowest(1)) == (50, 10)
    starts = state.starts(1, after=30)
    assert set(starts[state.owners == 1].tolist()) == {30}
    assert set(starts[state.owners == 0].tolist()) == {NOT_OWNED}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("jlc"), st.integers(0, 5), st.integers(0, 9)), max_size=30))
def test_a_state_is_the_same_after_it_was_stored(steps: list[tuple[str, int, int]]) -> None:
    state = state_of()
    generations: set[int] = set()
    for act, number, upto in steps:
        before = state
        name = f"m{number}"
        place = state.find(name)
        if act == "j":
            state = state.joined(name, 1000)
            assert generation(state, name) not in generations, "a generation is given once"
        elif act == "l":
            state = state.without([name])
        elif place is not None:
            state = state.committed_to(place, upto)
        assert (state.committed >= before.committed).all()
        assert (state.owners >= 0).all() == bool(state.members)
        generations |= {member.generation for member in state.members}
        again = GroupState.of(state.stored())
        assert (again.revision, again.prefix, again.members) == (state.revision, state.prefix, state.members)
        assert (again.owners == state.owners).all() and (again.committed == state.committed).all()


def test_a_group_has_a_bounded_number_of_members_and_one_prefix() -> None:
    state = GroupState.new(0, b"p", 0, slot_count(4))
    for number in range(MEMBERS_MAX):
        state = state.joined(f"m{number}", 1000)
    state.joined("m0", 1000)
    with pytest.raises(Overloaded, match="256 members"):
        state.joined("another", 1000)
    assert len(wire.pack(state.stored())) < 100_000
    require_prefix(state, None)
    require_prefix(state, b"p")
    with pytest.raises(BadData, match="a group has one prefix"):
        require_prefix(state, b"q")


# Sessions


def test_a_session_remembers_what_is_empty_only_where_it_has_read() -> None:
    session = Session(0.0, 1000, 1, 0)
    session.found_empty(10, 50)
    assert (session.skips(5), session.skips(10), session.skips(30), session.skips(70)) == (5, 50, 50, 70)
    session.found_empty(30, 80)
    assert session.skips(10) == 80
    session.found_empty(100, 110)
    assert (session.skips(10), session.skips(100)) == (10, 110)


def test_a_member_that_leaves_a_gap_has_not_been_given_what_follows() -> None:
    session = Session(0.0, 1000, 1, 0)
    session.gave(0, 50)
    session.gave(50, 60)
    session.gave(70, 90)
    assert session.given == 60


# Groups in the coordinator


class FakeStore:
    """Stores in memory. `refuses`: errors of the next puts."""

    def __init__(self) -> None:
        self.stored: dict[str, log_groups.StoredGroup] = {}
        self.puts = 0
        self.refuses: list[Exception] = []

    async def get(self, name: str) -> tuple[log_groups.StoredGroup | None, int]:
        await asyncio.sleep(0)
        return self.stored.get(name), 0

    async def put(self, name: str, expected: int, group: log_groups.StoredGroup) -> None:
        await asyncio.sleep(0)
        self.puts += 1
        if self.refuses:
            raise self.refuses.pop(0)
        if name in self.stored and self.stored[name].revision != expected:
            raise Conflict(f"at {self.stored[name].revision}, expected {expected}")
        self.stored[name] = group

    async def delete(self, name: str) -> None:
        del self.stored[name]


async def made_group(store: FakeStore) -> Group:
    group = Group("g", store, SLOTS)  # type: ignore[arg-type]
    await group.create(lambda floor: GroupState.new(floor, b"", 0, SLOTS))
    return group


async def test_changes_that_come_together_are_written_together() -> None:
    store = FakeStore()
    group = await made_group(store)
    await group.change(lambda state: state.joined("a", 1000))
    before = store.puts
    await asyncio.gather(*(group.change(lambda state, n=n: state.committed_to(0, n)) for n in range(50)))
    assert store.puts <= before + 2
    assert (await group.load()).lowest(0) == 49


async def test_a_change_that_could_not_be_written_is_not_seen() -> None:
    store = FakeStore()
    group = await made_group(store)
    await group.change(lambda state: state.joined("a", 1000))
    store.refuses = [Unavailable("the disk is full")]
    with pytest.raises(Unavailable):
        await group.change(lambda state: state.committed_to(0, 9))
    assert (await group.load()).lowest(0) == 0
    await group.change(lambda state: state.committed_to(0, 7))
    assert GroupState.of(store.stored["g"]).lowest(0) == 7


async def test_a_change_that_another_process_had_sent_before_is_kept() -> None:
    store = FakeStore()
    group = await made_group(store)
    state = await group.change(lambda state: state.joined("a", 1000))
    store.stored["g"] = state.committed_to(0, 5).stored()
    state = await group.change(lambda state: state.joined("b", 1000))
    assert state.lowest(0) == 5 and len(state.members) == 2


async def test_a_refused_change_does_not_concern_the_others() -> None:
    group = await made_group(FakeStore())
    await group.change(lambda state: state.joined("a", 1000))

    def stale(state: GroupState) -> GroupState:
        state.require("b", 1)
        return state

    refused, made = await asyncio.gather(
        group.change(stale), group.change(lambda state: state.committed_to(0, 3)), return_exceptions=True
    )
    assert isinstance(refused, Stale)
    assert isinstance(made, GroupState) and made.lowest(0) == 3


async def test_a_deleted_group_is_not_found() -> None:
    group = await made_group(FakeStore())
    await group.delete()
    with pytest.raises(NotFound, match="there is no group 'g'"):
        await group.load()
    with pytest.raises(NotFound):
        await group.change(lambda state: state.joined("a", 1000))


async def test_members_that_were_not_heard_of_expire_unless_they_are_being_served() -> None:
    group = await made_group(FakeStore())
    await group.change(lambda state: state.joined("a", 1000).joined("b", 5000))
    now = time.monotonic()
    assert group.expired(now) == []
    assert group.expired(now + 2) == ["a"]
    with group.serving(group.sessions["a"]):
        assert group.expired(now + 2) == []
    assert sorted(group.expired(now + 6)) == ["a", "b"]


class Recovering:
    """A recovery of the log that is over when the test says so."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.visible = 0

    async def wait_complete(self, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self.is_over.wait()


async def test_a_commit_just_after_a_start_waits_until_the_log_can_be_read() -> None:
    recovery = Recovering()
    links: Any = SimpleNamespace(shards=1)
    nobody: Any = None
    groups = Groups(Settings(shards=1), links, nobody, nobody, recovery, lambda: recovery.visible)  # type: ignore[arg-type]
    groups.store = FakeStore()  # type: ignore[assignment]
    state, place = await groups.join("g", "a", None, None, 10_000)
    generation = state.members[place].generation
    commit = asyncio.create_task(groups.commit("g", "a", generation, 7))
    too_far = asyncio.create_task(groups.commit("g", "a", generation, 8))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not commit.done(), "nothing can be read yet, and that is no mistake of the client"
    recovery.visible = 7
    groups._groups["g"].sessions["a"].given = None  # as after a start
    recovery.is_over.set()
    await commit
    assert (await groups.group("g"))[1].lowest(place) == 7
    with pytest.raises(BadData, match="`upTo` is 8; it must be at most 7"):
        await too_far


class SlowReader:
    """Finds no records, when the test lets it. `starts`: where its reads began."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.starts: list[int] = []

    async def page(
        self, prefix: bytes, starts: np.ndarray, start: int, end: int, limit: int, warnings: Warnings
    ) -> GroupPage:
        self.starts.append(start)
        await self.goes_on.wait()
        return GroupPage([], end, True)


async def test_what_a_read_found_empty_is_not_said_of_slots_that_came_meanwhile() -> None:
    """Their records would never be given to anybody, and be committed."""
    links: Any = SimpleNamespace(shards=1)
    nobody: Any = None
    groups = Groups(Settings(shards=1), links, nobody, nobody, nobody, lambda: 100)
    groups.store, groups.reader = FakeStore(), (reader := SlowReader())  # type: ignore[assignment]
    for name in ("a", "b"):
        await groups.join("g", name, None, None, 10_000)
    _, state = await groups.group("g")
    poll = asyncio.create_task(groups.poll("g", "a", generation(state, "a"), 0, 10, 0.0, nobody))
    while not reader.starts:
        await asyncio.sleep(0)
    await groups.leave("g", "b", generation(state, "b"))
    reader.goes_on.set()
    with pytest.raises(Stale) as stale:
        await poll
    assert stale.value.generation is not None
    for _ in range(2):
        await groups.poll("g", "a", stale.value.generation, 0, 10, 0.0, nobody)
    assert reader.starts == [0, 0], "all slots are read from the beginning, and what is empty then is not read again"


# Waiting


def test_an_append_wakes_the_members_whose_slots_it_concerns() -> None:
    waiters = Waiters(10, 4)
    owned = np.zeros(slot_count(4), np.bool_)
    owned[slot_of(b"k1", 4)] = True
    with waiters.waiting(b"k", owned) as mine, waiters.waiting(b"k", ~owned) as theirs:
        waiters.publish(AppendedGroup(0, 1, [(0, columns_of([b"x"], [b""]))]))
        assert not mine.woken.is_set() and not theirs.woken.is_set()
        waiters.publish(AppendedGroup(1, 2, [(1, columns_of([b"k1"], [b""]))]))
        assert mine.woken.is_set() and not theirs.woken.is_set()
        waiters.publish_gap()
        assert theirs.woken.is_set()
    assert waiters.count == 0


def test_the_number_of_waiting_members_is_bounded() -> None:
    waiters = Waiters(1, 4)
    every = np.ones(4, np.bool_)
    with (
        waiters.waiting(b"", every),
        pytest.raises(Overloaded, match="the limit is 1"),
        waiters.waiting(b"", every),
    ):
        pass


# Pages of several shards


def page_of(numbers: list[int], following: int, done: bool) -> Page:
    return Page(Records.of(np.array(numbers, np.uint64), [b""] * len(numbers), [b""] * len(numbers)), following, done)


def test_pages_are_cut_where_all_are_complete_and_at_the_limit() -> None:
    pages = [page_of([1, 4, 7], 8, False), page_of([2, 5, 9], 20, True)]
    together = _together(pages, 10)
    assert [page.sequences.tolist() for page in together.pages] == [[1, 4, 7], [2, 5]]
    assert (together.next, together.done) == (8, False)
    together = _together(pages, 3)
    assert [page.sequences.tolist() for page in together.pages] == [[1, 4], [2]]
    assert (together.next, together.done) == (5, False)

"""Requests of the members of a group: joins that prolong a session, commits, and changes that meet other ones."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.log.groups import area
from coordinator.log.groups.area import Groups
from coordinator.log.groups.group import Group
from coordinator.log.groups.state import GroupState, Stale
from coordinator.log.groups.waiting import Waiter
from shared.errors import BadData
from shared.messages import log_groups
from shared.settings import Settings
from tests.unit.test_log_groups import SLOTS, FakeStore, Recovering, generation, made_group

VISIBLE = 7


def made_groups(store: FakeStore) -> Groups:
    """Of a log that can be read up to VISIBLE."""
    recovery: Any = Recovering()
    recovery.is_over.set()
    links: Any = SimpleNamespace(shards=1)
    nobody: Any = None
    groups = Groups(Settings(shards=1), links, nobody, nobody, recovery, lambda: VISIBLE)
    groups.store = store  # type: ignore[assignment]
    return groups


# Sessions


async def test_a_join_prolongs_the_session_of_a_member_that_is_known() -> None:
    group = await made_group(FakeStore())
    await group.change(lambda state: state.joined("a", 1000))
    group.sessions["a"].expires = time.monotonic() + 0.05
    await group.change(lambda state: state.joined("a", 60_000))
    assert group.sessions["a"].expires > time.monotonic() + 50
    assert group.expired(time.monotonic() + 30) == []


async def test_a_join_of_another_member_prolongs_no_session() -> None:
    group = await made_group(FakeStore())
    await group.change(lambda state: state.joined("a", 1000))
    expires = group.sessions["a"].expires
    state = await group.change(lambda state: state.joined("b", 60_000))
    assert generation(state, "a") > 1, "its slots have changed"
    assert group.sessions["a"].expires == expires


class SlowStore(FakeStore):
    """Stores when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()

    async def put(self, name: str, expected: int, group: log_groups.StoredGroup) -> None:
        self.begun.set()
        await self.goes_on.wait()
        await super().put(name, expected, group)


async def test_a_session_does_not_run_out_while_a_join_is_written() -> None:
    store = SlowStore()
    groups = made_groups(store)
    await groups.join("g", "a", None, None, 1000)
    group, _ = await groups.group("g")
    store.begun.clear()
    store.goes_on.clear()
    join = asyncio.create_task(groups.join("g", "a", None, None, 1000))
    await store.begun.wait()
    assert group.expired(time.monotonic() + 60) == []
    store.goes_on.set()
    await join
    assert group.expired(time.monotonic() + 60) == ["a"]


def test_a_group_in_which_members_wait_is_not_let_go() -> None:
    groups = made_groups(FakeStore())
    group = groups._group("g")
    group.waiters.add(waiter := Waiter(np.ones(SLOTS, np.bool_)))
    later = time.monotonic() + 2 * area.UNUSED_S
    groups._sweep(group, later)
    assert groups._group("g") is group, "a change of it wakes them"
    group.waiters.discard(waiter)
    groups._sweep(group, later)
    assert groups._group("g") is not group


# Changes that meet other ones


async def late_join(store: FakeStore) -> tuple[Group, int]:
    """(a group whose member joins again by what an earlier coordinator had sent, the member's generation then)."""
    group = await made_group(store)
    joined = (await group.change(lambda state: state.joined("a", 10_000))).joined("a", 10_000)
    store.stored["g"] = joined.stored()
    return group, generation(joined, "a")


async def test_a_request_that_an_old_state_refuses_is_judged_by_the_new_one() -> None:
    store = FakeStore()
    group, joined = await late_join(store)

    def left(state: GroupState) -> GroupState:
        state.require("a", joined)
        return state.without(["a"])

    state, _ = await asyncio.gather(group.change(left), group.change(lambda state: state.joined("b", 10_000)))
    assert state.members == ()
    assert [member.name for member in GroupState.of(store.stored["g"]).members] == ["b"]


async def test_a_request_that_is_refused_is_not_carried_out() -> None:
    store = FakeStore()
    group, joined = await late_join(store)

    def committed(state: GroupState) -> GroupState:
        return state.committed_to(state.require("a", joined - 1), 5)

    refused, _ = await asyncio.gather(
        group.change(committed), group.change(lambda state: state.joined("b", 10_000)), return_exceptions=True
    )
    assert isinstance(refused, Stale)
    stored = GroupState.of(store.stored["g"])
    assert [member.name for member in stored.members] == ["a", "b"] and not stored.committed.any()


# Commits


async def test_what_a_poll_says_of_a_group_that_begins_in_the_future_can_be_committed() -> None:
    groups = made_groups(FakeStore())
    state, place = await groups.join("g", "a", None, 1000, 10_000)
    joined = state.members[place].generation
    nobody: Any = None
    polled = await groups.poll("g", "a", joined, 0, 10, 0.0, nobody)
    assert polled.page.next == 1000
    assert await groups.commit("g", "a", joined, polled.page.next) == 1000
    _, after = await groups.group("g")
    assert (after.committed == state.committed).all()
    with pytest.raises(BadData, match="`upTo` is 1001; it must be at most 1000"):
        await groups.commit("g", "a", joined, 1001)
    await groups.leave("g", "a", joined)
    with pytest.raises(Stale):
        await groups.commit("g", "a", joined, polled.page.next)


async def test_a_commit_says_how_far_the_member_is_committed() -> None:
    groups = made_groups(FakeStore())
    state, place = await groups.join("g", "a", None, None, 10_000)
    joined = state.members[place].generation
    group, _ = await groups.group("g")
    group.sessions["a"].gave(0, VISIBLE)
    assert await groups.commit("g", "a", joined, 6) == 6
    assert await groups.commit("g", "a", joined, 4) == 6, "it never goes back"

"""Followers miss nothing, whichever way the frontier moves: by groups that close, or by what a start decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from coordinator.log import frontier as frontier_module
from coordinator.log.area import LogArea
from coordinator.log.follow import Follower
from coordinator.log.frontier import Frontier, Group
from coordinator.log.reads import KeySelection
from shared.messages.log import SEQUENCE_MAX
from tests.unit.log_area import EVERYTHING, Log, batch, eventually, key_on


@pytest.fixture(params=["memory", "durable"])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    made = Log(tmp_path, log_visibility=request.param)
    yield made
    made.links.close()


async def next_values(area: LogArea, follower: Follower, count: int) -> list[bytes]:
    """The next `count` values that the follower is given."""
    values: list[bytes] = []
    async with asyncio.timeout(5):
        while len(values) < count:
            values += [value for _, _, value, _ in await area.followers.read(follower, 100)]
    return values


async def has_read_all(area: LogArea, follower: Follower) -> None:
    """Have the follower read what is visible now, which is nothing new to it."""
    async with asyncio.timeout(5):
        while follower.lagging:
            assert await area.followers.read(follower, 100) == []


async def test_a_follower_that_came_during_the_recovery_reads_what_it_found(log: Log) -> None:
    async with log.running(crash=True) as area:
        for i in range(3):
            await area.append(batch((key_on(0), b"%d" % i)))
    log.links.fault = lambda method, shard: "lost" if method == "log.recover" else ""
    async with log.running() as area:
        with area.followers.following(KeySelection(key_on(0)), 0) as follower:
            reading = asyncio.create_task(next_values(area, follower, 4))
            await asyncio.sleep(0.05)
            log.links.fault = lambda method, shard: ""
            await area.recovery.complete.wait()
            await area.append(batch((key_on(0), b"live"), durable=True))
            assert await reading == [b"0", b"1", b"2", b"live"]


async def test_a_follower_reads_what_was_in_doubt_when_it_had_caught_up(log: Log) -> None:
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(0), b"1")))
        await area.append(batch((key_on(0), b"2"), (key_on(1), b"3")))
        await area.append(batch((key_on(0), b"4")))
    log.links.down.add(1)
    async with log.running() as area:
        with area.followers.following(KeySelection(key_on(0)), 1) as follower:
            await has_read_all(area, follower)
            await area.append(batch((key_on(0), b"live")))
            assert follower.position == 1
            log.links.down.clear()
            assert await next_values(area, follower, 3) == [b"2", b"4", b"live"]


async def test_a_follower_of_what_is_durable_reads_what_the_first_sync_of_a_start_shows(tmp_path: Path) -> None:
    log = Log(tmp_path, log_visibility="durable")
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(0), b"1")))
        await area.append(batch((key_on(1), b"2")))
    log.links.fault = lambda method, shard: "lost" if method == "log.sync" else ""
    async with log.running() as area:
        await area.recovery.complete.wait()
        with area.followers.following(EVERYTHING, 0) as follower:
            await has_read_all(area, follower)
            await area.append(batch((key_on(0), b"live")))
            log.links.fault = lambda method, shard: ""
            assert await next_values(area, follower, 3) == [b"1", b"2", b"live"]
    log.links.close()


async def test_a_follower_reads_on_without_the_store_once_it_has_caught_up(log: Log) -> None:
    """Also after the frontier has passed numbers that nobody has: a failed batch, and the gap of a crash."""
    async with log.running(crash=True) as area:
        await area.append(batch((key_on(0), b"1"), durable=True))
    async with log.running() as area:
        await area.recovery.complete.wait()
        await eventually(lambda: area.frontier.visible == area.sequencer.next)
        with area.followers.following(KeySelection(key_on(0)), 0) as follower:
            assert await next_values(area, follower, 1) == [b"1"]
            await has_read_all(area, follower)
            log.links.calls.clear()
            for i in range(3):
                await area.append(batch((key_on(0), b"live %d" % i), durable=True))
                assert await next_values(area, follower, 1) == [b"live %d" % i]
            assert "log.scan" not in log.links.calls


class _Reader:
    """A follower as the frontier sees it: `position` is below what it has been given, or has been told to read."""

    def __init__(self, frontier: Frontier) -> None:
        self.frontier = frontier
        self.position: int | None = None  # None: it reads the store
        frontier.publish, frontier.publish_gap = self.published, self.gap

    def catch_up(self) -> None:
        self.position = max(self.position or 0, self.frontier.visible)

    def published(self, group: Group) -> None:
        if self.position is not None:
            assert group.start <= self.position, "numbers before the group were passed over"
            self.position = max(self.position, group.end)

    def gap(self) -> None:
        self.position = None

    def check(self) -> None:
        assert self.position is None or self.position >= self.frontier.visible, "nobody told of what is visible"


STEPS = ["open", "close", "sync", "doubt", "decide", "skip", "catch up"]


@given(
    visibility=st.sampled_from(["memory", "durable"]),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=40),
)
@hypothesis_settings(max_examples=300, deadline=None)
def test_followers_are_told_of_every_number_whichever_way_the_frontier_moves(
    visibility: str, steps: list[tuple[str, int]]
) -> None:
    frontier = Frontier(visibility)
    frontier.begin_at(20, 10)
    reader = _Reader(frontier)
    reader.catch_up()
    following, open_groups = 20, []
    for step, number in steps:
        if step == "open":
            open_groups.append(Group(following, following + 1 + number % 3))
            following = open_groups[-1].end
            frontier.open(open_groups[-1])
        elif step == "close" and open_groups:
            frontier.close(open_groups.pop(number % len(open_groups)))
        elif step == "sync":
            frontier.synced(frontier.readable)
        elif step == "doubt":
            frontier.in_doubt = number
            frontier.show()
        elif step == "decide":
            frontier.in_doubt = SEQUENCE_MAX
            frontier.show()
        elif step == "skip":
            following += number
            frontier.skip_to(following)
        elif step == "catch up":
            reader.catch_up()
        reader.check()


def test_followers_read_the_store_when_groups_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_module, "UNSEEN_MAX", 2)
    frontier = Frontier("durable")
    frontier.begin_at(0, 0)
    reader = _Reader(frontier)
    reader.catch_up()
    for start in range(4):
        group = Group(start, start + 1)
        frontier.open(group)
        frontier.close(group)
    assert len(frontier._unseen) == 2
    frontier.synced(4)
    assert reader.position is None


async def test_records_that_nobody_may_read_yet_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that cannot be synced, or does not report after a start, keeps everything behind it from readers."""
    monkeypatch.setattr(frontier_module, "UNSEEN_BYTES_MAX", 2_500)
    log = Log(tmp_path, log_visibility="durable")
    key = key_on(0)
    async with log.running() as area:
        await area.recovery.complete.wait()
        with area.followers.following(KeySelection(key), 0) as follower:
            await has_read_all(area, follower)
            log.links.fault = lambda method, shard: "lost" if method == "log.sync" else ""
            for i in range(10):
                await area.append(batch((key, b"%01000d" % i)))
            kept = list(area.frontier._unseen)
            assert len(kept) == 2 and all(group.when_closed is None for group in kept)
            log.links.fault = lambda method, shard: ""
            assert await next_values(area, follower, 10) == [b"%01000d" % i for i in range(10)]
        assert area.frontier._unseen_bytes == 0
    log.links.close()


async def test_a_follower_is_not_given_what_was_deleted_while_it_waited_in_its_queue(log: Log) -> None:
    key, other = key_on(0), key_on(1)
    async with log.running() as area:
        with (
            area.followers.following(KeySelection(key), 0) as of_key,
            area.followers.following(EVERYTHING, 0) as of_all,
        ):
            for follower in (of_key, of_all):
                await has_read_all(area, follower)
            await area.append(batch((key, b"old"), (other, b"other")))
            trimmed = await area.trims.trim(key)
            assert trimmed.records == 1 and trimmed.start >= 2
            await area.append(batch((key, b"new")))
            assert await next_values(area, of_key, 1) == [b"new"]
            assert await next_values(area, of_all, 2) == [b"other", b"new"]

"""Limits of those who follow the log: what is kept for them, and how many may follow."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import pytest

from coordinator.log.columns import columns_of
from coordinator.log.follow import QUEUE_BYTES_MAX, QUEUE_RECORDS_MAX, Follower, Followers
from coordinator.log.frontier import Frontier, Group
from coordinator.log.reads import KeySelection, Reader
from shared.errors import Overloaded
from shared.messages.log_pages import Page, Records

MIDDLE = KeySelection(b"k")
EVERY = KeySelection(None, b"")


def caught_up(selection: KeySelection = EVERY, position: int = 0) -> Follower:
    follower = Follower(selection, position)
    follower.lagging = False
    return follower


def test_a_follower_is_offered_what_it_has_not_been_given() -> None:
    follower = caught_up(position=5)
    follower.wake.clear()
    follower.offer((4, b"k", b"old"))
    assert not follower.wake.is_set()
    follower.offer((5, b"k", b"new"))
    assert follower.wake.is_set()
    assert follower.take(10) == [(5, b"k", b"new")]
    assert follower.position == 6
    assert follower.take(10) == []
    assert follower.position == 6


def test_a_follower_is_given_so_many_and_the_rest_later() -> None:
    follower = caught_up()
    rows = [(n, b"k", b"v") for n in range(3)]
    for row in rows:
        follower.offer(row)
    assert follower.take(2) == rows[:2]
    assert (follower.position, follower.take(2)) == (2, rows[2:])


def test_a_queue_of_exactly_so_many_records_does_not_lag() -> None:
    follower = caught_up()
    for n in range(QUEUE_RECORDS_MAX):
        follower.offer((n, b"k", b""))
    assert not follower.lagging
    follower.offer((QUEUE_RECORDS_MAX, b"k", b""))
    assert follower.lagging
    assert follower.take(10) == []
    assert follower.wake.is_set()


def test_a_queue_takes_one_record_past_its_bytes_and_then_lags() -> None:
    follower = caught_up(MIDDLE)
    follower.offer((0, b"k", bytes(QUEUE_BYTES_MAX - 1)))
    follower.offer((1, b"k", b"x"))
    assert not follower.lagging
    follower.take(1)
    follower.offer((2, b"k", bytes(QUEUE_BYTES_MAX - 2)))
    follower.offer((3, b"k", b"x"))
    assert not follower.lagging
    follower.offer((4, b"k", b""))
    assert follower.lagging


def test_keys_count_in_the_queue_of_who_follows_many() -> None:
    follower = caught_up()
    follower.offer((0, bytes(QUEUE_BYTES_MAX - 1), b"v"))
    assert not follower.lagging
    follower.offer((1, b"", b""))
    assert follower.lagging


class Pages:
    """A reader that gives the pages of a list, and keeps what it was asked."""

    def __init__(self, *pages: Page) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[int, int, int]] = []

    async def wait_for(self, selection: KeySelection) -> None:
        return None

    async def page(self, selection: KeySelection, start: int, end: int, limit: int, **options: Any) -> Page:
        self.asked.append((start, end, limit))
        return self.pages.pop(0)


def page(numbers: list[int], following: int, done: bool) -> Page:
    values = [b"v%d" % n for n in numbers]
    return Page(Records.of(np.array(numbers, np.uint64), values, [b"k"] * len(numbers)), following, done)


def followers(reader: Pages, most: int = 2) -> Followers:
    frontier = Frontier("acked")
    frontier.readable = 9
    return Followers(most, frontier, cast(Reader, reader))


def group(start: int, *keys: bytes) -> Group:
    records = columns_of(list(keys), [b"v"] * len(keys))
    records.blocks(1)
    return Group(start, start + len(keys), [(start, records)], time_ms=77)


async def test_a_follower_reads_pages_until_the_last_and_then_its_queue() -> None:
    reader = Pages(page([1], 5, False), page([7], 9, True))
    area = followers(reader)
    with area.following(MIDDLE, 0) as follower:
        assert await area.read(follower, 3) == [(1, b"k", b"v1", 0)]
        assert (follower.position, follower.lagging, follower.wake.is_set()) == (5, True, True)
        assert await area.read(follower, 3) == [(7, b"k", b"v7", 0)]
        assert (follower.position, follower.lagging, follower.wake.is_set()) == (9, False, False)
        assert reader.asked == [(0, 9, 3), (5, 9, 3)]
        area.publish(group(9, b"j", b"k", b"k"))
        assert await area.read(follower, 1) == [(10, b"k", b"v", 77)]
        assert follower.wake.is_set()
        assert await area.read(follower, 1) == [(11, b"k", b"v", 77)]
        assert not follower.wake.is_set()


async def test_a_failed_read_leaves_the_follower_where_it_was() -> None:
    area = followers(Pages())
    with area.following(MIDDLE, 3) as follower:
        with pytest.raises(IndexError):
            await area.read(follower, 1)
        assert (follower.position, follower.lagging, follower.wake.is_set()) == (3, True, True)


async def test_so_many_may_follow_and_no_more_until_one_leaves() -> None:
    area = followers(Pages(page([], 9, True), page([], 9, True)))
    with area.following(MIDDLE, 0) as by_key:
        with area.following(KeySelection(None, b"k"), 0) as by_prefix:
            with pytest.raises(Overloaded, match="2 reads follow the log, the limit is 2"), area.following(EVERY, 0):
                pass
            for follower in (by_key, by_prefix):
                assert await area.read(follower, 5) == []
            area.publish(group(9, b"k", b"kk", b"j"))
            assert by_key.take(5) == [(9, b"k", b"v", 77)]
            assert by_prefix.take(5) == [(9, b"k", b"v", 77), (10, b"kk", b"v", 77)]
        with area.following(KeySelection(b"j"), 0):
            pass
        area.publish(group(12, b"k", b"j"))
        assert by_key.take(5) == [(12, b"k", b"v", 77)]
        assert by_prefix.take(5) == []


async def test_of_two_that_follow_a_key_one_may_leave() -> None:
    area = followers(Pages(page([], 9, True)))
    with area.following(MIDDLE, 0) as stays:
        assert await area.read(stays, 5) == []
        with area.following(MIDDLE, 0):
            pass
        area.publish(group(9, b"k"))
        assert stays.take(5) == [(9, b"k", b"v", 77)]


@pytest.mark.parametrize("selection", [MIDDLE, KeySelection(None, b"k")])
async def test_who_came_first_is_woken_first(selection: KeySelection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the order is that of addresses, and a simulated history is not the same when it is run again."""
    woken: list[Follower] = []
    monkeypatch.setattr(Follower, "lag", lambda follower: woken.append(follower))
    area = followers(Pages(), most=40)
    with ExitStack() as stack:
        came = [stack.enter_context(area.following(selection, 0)) for _ in range(40)]
        area.publish_gap()
    assert woken == came


async def test_records_that_were_not_kept_are_read_from_the_store() -> None:
    area = followers(Pages(page([], 9, True), page([], 9, True)))
    with area.following(MIDDLE, 0) as by_key, area.following(EVERY, 0) as by_prefix:
        for follower in (by_key, by_prefix):
            await area.read(follower, 5)
        area.publish_gap()
        assert (by_key.lagging, by_prefix.lagging) == (True, True)
        by_prefix.lagging = False
        area.publish(group(10, *[b"k"] * (QUEUE_RECORDS_MAX + 1)))
        assert by_prefix.lagging

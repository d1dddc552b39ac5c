"""Limits of the coordinator's log: the last value within each and the first beyond it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coordinator.calls import WorkerReply
from coordinator.log import frontier as frontier_module
from coordinator.log import producers as producers_module
from coordinator.log.columns import columns_of
from coordinator.log.follow import QUEUE_BYTES_MAX, QUEUE_RECORDS_MAX, Follower, Followers
from coordinator.log.frontier import Frontier, Group
from coordinator.log.producers import Producers
from coordinator.log.reads import WARNINGS_MAX, KeySelection, Reader, Warnings
from coordinator.log.records import Append
from coordinator.log.retention import Retention
from coordinator.log.sequencer import RESERVE_AHEAD, Revoked, Segment, Sequencer
from coordinator.log.waiting import FEW_BATCHES, SMALL_BYTES, SMALL_RECORDS, Queue, Waiting
from shared.config import Settings
from shared.control import LocalControl
from shared.errors import Overloaded
from shared.messages.log import NO_NUMBERS, SEQUENCE_MAX, Page, Records
from shared.wire import Reply

MIDDLE = KeySelection(b"k")
EVERY = KeySelection(None, b"")


# Numbers and segments


def sequencer_in(directory: Path, **options: Any) -> Sequencer:
    made = Sequencer(LocalControl(directory), Settings(**options), wall_ms=lambda: 1_000_000)
    made.open()
    return made


def test_numbers_up_to_the_reserved_limit_touch_no_disk(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.start_segment()
    assert sequencer.ready_for(RESERVE_AHEAD)
    assert not sequencer.ready_for(RESERVE_AHEAD + 1)
    written = (tmp_path / "state").read_bytes()
    sequencer.reserve(RESERVE_AHEAD)
    assert (tmp_path / "state").read_bytes() == written
    sequencer.reserve(1)
    assert (tmp_path / "state").read_bytes() != written


def test_a_further_range_is_reserved_when_less_than_half_of_the_last_is_left(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    assert not sequencer.running_low()
    sequencer.reserve(RESERVE_AHEAD // 2)
    assert not sequencer.running_low()
    sequencer.reserve(1)
    assert sequencer.running_low()
    sequencer.extend()
    assert not sequencer.running_low()
    assert sequencer.ready_for(RESERVE_AHEAD)
    assert not sequencer.ready_for(RESERVE_AHEAD + 1)


def test_a_range_is_never_made_shorter(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.extend(5 * RESERVE_AHEAD)
    sequencer.extend()
    sequencer.start_segment()
    assert sequencer.ready_for(6 * RESERVE_AHEAD)
    assert not sequencer.ready_for(6 * RESERVE_AHEAD + 1)


def test_a_segment_ends_with_exactly_so_many_bytes(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path, log_segment_bytes=1024)
    assert not sequencer.segment_is_due()
    sequencer.reserve(1, 1023)
    assert not sequencer.segment_is_due()
    sequencer.reserve(1, 1)
    assert sequencer.segment_is_due()
    assert not sequencer.ready_for(1)
    sequencer.start_segment()
    assert not sequencer.segment_is_due()
    assert [(s.id, s.start_seq, s.bytes) for s in sequencer.segments] == [(0, 0, 1024), (1, 2, 0)]


def test_a_segment_without_records_is_not_followed_by_another(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    for _ in range(2):
        sequencer.start_segment()
    assert [(s.id, s.start_seq) for s in sequencer.segments] == [(0, 0)]


def test_skipping_goes_up_only(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.skip_to(7)
    sequencer.skip_to(3)
    assert sequencer.next == 7


def test_so_many_segments_are_dropped_and_no_more(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path, log_segment_bytes=1024)
    for _ in range(4):
        sequencer.reserve(1, 2000)
    assert sequencer.log_start == 0
    sequencer.drop_segments(2)
    assert [s.id for s in sequencer.segments] == [2, 3]
    assert sequencer.log_start == 2


def test_segments_that_shards_hold_come_in_order(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    sequencer.segments = [Segment(3, 9, 0)]
    sequencer.add_segments([Segment(2, 5, 0, 7), Segment(1, 0, 0)])
    assert [s.id for s in sequencer.segments] == [1, 2, 3]


def test_what_was_written_down_is_read_again(tmp_path: Path) -> None:
    sequencer = sequencer_in(tmp_path)
    assert sequencer.is_new
    sequencer.confirm()
    assert not sequencer.is_new
    sequencer.reserve(3, 30)
    sequencer.settled = 2
    sequencer.revoked.append(Revoked(0, 1, [(1, 2)], [0]))
    sequencer.close()
    again = sequencer_in(tmp_path)
    assert (again.is_new, again.next, again.settled, again.revoked) == (False, 3, 2, sequencer.revoked)
    assert again.segments == sequencer.segments


# Retention


def due(segments: list[Segment], **options: Any) -> int:
    sequencer = SimpleNamespace(segments=segments, wall_ms=lambda: 10_000)
    return Retention(Settings(**options), *(cast(Any, each) for each in (None, sequencer, None, None, None)))._due()


@pytest.mark.parametrize(
    ("limit_bytes", "dropped"), [(1024 * 4, 0), (1024 * 4 - 1, 1), (1024 * 3, 1), (1024 * 2 - 1, 3), (1, 3), (0, 0)]
)
def test_segments_above_the_size_kept_are_due_from_the_oldest_and_never_the_last(
    limit_bytes: int, dropped: int
) -> None:
    assert due([Segment(n, n, 0, 1024) for n in range(4)], log_retention_bytes=limit_bytes) == dropped


@pytest.mark.parametrize(
    ("kept_ms", "dropped"), [(9000, 0), (8000, 0), (7999, 1), (7000, 1), (6999, 2), (1, 3), (0, 0)]
)
def test_segments_that_ended_before_the_time_kept_are_due(kept_ms: int, dropped: int) -> None:
    """They began at 1, 2, 3 and 4 s; it is 10 s now."""
    assert due([Segment(n, n, 1000 * (n + 1), 9) for n in range(4)], log_retention_ms=kept_ms) == dropped


def test_what_age_has_made_due_does_not_count_for_the_size() -> None:
    segments = [Segment(n, n, 1000 * (n + 1), 1024) for n in range(4)]
    assert due(segments, log_retention_ms=7000, log_retention_bytes=3 * 1024) == 1
    assert due(segments, log_retention_ms=7000, log_retention_bytes=3 * 1024 - 1) == 2
    assert due([], log_retention_ms=1, log_retention_bytes=1) == 0


# What waits


async def waiting(records: int, value: bytes) -> Waiting:
    append = Append(columns_of([b""] * records, [value] * records), True, "", 0)
    return Waiting(append, {}, append.size_bytes, asyncio.get_running_loop().create_future(), time.monotonic() + 10)


async def test_a_queue_under_load_is_due_at_exactly_so_many_records_or_bytes() -> None:
    for records, value in ((SMALL_RECORDS - 1, b""), (1, bytes(SMALL_BYTES - 1))):
        queue = Queue()
        queue.launched(FEW_BATCHES + 1)
        queue.push(await waiting(records, value))
        assert not queue.is_due
        queue.push(await waiting(1, b"x"))
        assert queue.is_due
        queue.pop()
        assert not queue.is_due
        queue.landed(1)
        assert (queue.in_flight, queue.batches_in_flight) == (0, FEW_BATCHES)
        assert queue.is_due


# The frontier


def closed(frontier: Frontier, start: int, end: int) -> Group:
    group = Group(start, end)
    frontier.open(group)
    frontier.close(group)
    return group


@pytest.mark.parametrize("visibility", ["acked", "durable"])
def test_groups_are_shown_in_order_when_all_of_them_may_be_read(visibility: str) -> None:
    frontier = Frontier(visibility)
    shown: list[int] = []
    frontier.publish = lambda group: shown.append(group.end)
    for start in (0, 3, 6):
        closed(frontier, start, start + 3)
    assert shown == ([] if visibility == "durable" else [3, 6, 9])
    frontier.synced(5)
    assert (frontier.visible, shown) == ((5, [3]) if visibility == "durable" else (9, [3, 6, 9]))
    frontier.synced(4)
    assert frontier.durable == 5
    frontier.synced(6)
    frontier.synced(9)
    assert shown == [3, 6, 9]


def test_a_group_within_the_doubt_is_not_shown_until_it_is_gone() -> None:
    frontier = Frontier("acked")
    shown: list[int] = []
    frontier.publish = lambda group: shown.append(group.end)
    frontier.in_doubt = 4
    closed(frontier, 0, 4)
    closed(frontier, 4, 5)
    assert (frontier.visible, shown) == (4, [4])
    frontier.in_doubt = SEQUENCE_MAX
    frontier.show()
    assert shown == [4, 5]


def test_of_too_many_groups_that_nobody_may_see_yet_the_first_are_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frontier_module, "UNSEEN_MAX", 2)
    frontier = Frontier("durable")
    shown: list[Group] = []
    frontier.publish = shown.append
    gaps: list[int] = []
    frontier.publish_gap = lambda: gaps.append(len(shown))
    groups = [closed(frontier, n, n + 1) for n in range(4)]
    frontier.synced(4)
    assert shown == groups[-2:]
    assert gaps == [0]


def test_numbers_are_skipped_only_while_nothing_is_under_way() -> None:
    frontier = Frontier("acked")
    frontier.skip_to(5)
    frontier.skip_to(3)
    assert frontier.readable == 5
    frontier.open(Group(5, 7))
    frontier.skip_to(9)
    assert frontier.readable == 5


async def test_a_durable_wait_ends_with_the_last_number_below() -> None:
    frontier = Frontier("acked")
    wait = asyncio.create_task(frontier.wait_durable(3))
    for upto in (1, 2):
        frontier.synced(upto)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not wait.done()
    frontier.synced(3)
    await asyncio.wait_for(wait, 5)
    await asyncio.wait_for(frontier.wait_durable(3), 5)


# Followers


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
    follower = caught_up()
    follower.offer((0, b"k", bytes(QUEUE_BYTES_MAX - 1)))
    follower.offer((1, b"k", b"x"))
    assert not follower.lagging
    follower.take(1)
    follower.offer((2, b"k", bytes(QUEUE_BYTES_MAX - 2)))
    follower.offer((3, b"k", b"x"))
    assert not follower.lagging
    follower.offer((4, b"k", b""))
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
    return Group(start, start + len(keys), [(start, records)])


async def test_a_follower_reads_pages_until_the_last_and_then_its_queue() -> None:
    reader = Pages(page([1], 5, False), page([7], 9, True))
    area = followers(reader)
    with area.following(MIDDLE, 0) as follower:
        assert await area.read(follower, 3) == [(1, b"k", b"v1")]
        assert (follower.position, follower.lagging, follower.wake.is_set()) == (5, True, True)
        assert await area.read(follower, 3) == [(7, b"k", b"v7")]
        assert (follower.position, follower.lagging, follower.wake.is_set()) == (9, False, False)
        assert reader.asked == [(0, 9, 3), (5, 9, 3)]
        area.publish(group(9, b"j", b"k", b"k"))
        assert await area.read(follower, 1) == [(10, b"k", b"v")]
        assert follower.wake.is_set()
        assert await area.read(follower, 1) == [(11, b"k", b"v")]
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
            assert by_key.take(5) == [(9, b"k", b"v")]
            assert by_prefix.take(5) == [(9, b"k", b"v"), (10, b"kk", b"v")]
        with area.following(KeySelection(b"j"), 0):
            pass
        area.publish(group(12, b"k", b"j"))
        assert by_key.take(5) == [(12, b"k", b"v")]
        assert by_prefix.take(5) == []


async def test_of_two_that_follow_a_key_one_may_leave() -> None:
    area = followers(Pages(page([], 9, True)))
    with area.following(MIDDLE, 0) as stays:
        assert await area.read(stays, 5) == []
        with area.following(MIDDLE, 0):
            pass
        area.publish(group(9, b"k"))
        assert stays.take(5) == [(9, b"k", b"v")]


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


# Reads


def reader_of(starts: list[int], readable: int, hidden: list[tuple[int, int]] | None = None) -> Reader:
    sequencer = SimpleNamespace(
        segments=[Segment(10 + n, start, 0) for n, start in enumerate(starts)], log_start=starts[0] if starts else 0
    )
    frontier = Frontier("acked")
    frontier.readable = readable
    recovery = SimpleNamespace(hidden=lambda start, end: [s for s in hidden or [] if s[0] < end and start < s[1]])
    return Reader(Settings(), cast(Any, None), cast(Any, sequencer), frontier, cast(Any, recovery))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, SEQUENCE_MAX, (10, 12, 4, 30)),
        (4, 5, (10, 10, 4, 5)),
        (9, 10, (10, 10, 9, 10)),
        (9, 11, (10, 11, 9, 11)),
        (10, 20, (11, 11, 10, 20)),
        (10, 21, (11, 12, 10, 21)),
        (20, 30, (12, 12, 20, 30)),
        (29, 40, (12, 12, 29, 30)),
        (30, 40, None),
        (0, 4, None),
        (7, 7, None),
    ],
)
def test_a_range_names_exactly_the_segments_it_reaches_into(
    start: int, end: int, expected: tuple[int, int, int, int] | None
) -> None:
    span = reader_of([4, 10, 20], 30)._range(start, end)
    assert (span and (span.first_segment, span.last_segment, span.start, span.end)) == expected


def test_a_log_without_segments_has_nothing_to_read() -> None:
    assert reader_of([], 30)._range(0, 9) is None


def test_a_key_is_on_one_shard_and_a_prefix_on_all() -> None:
    made = reader_of([0], 9)
    made._links = cast(Any, SimpleNamespace(shards=4))
    assert made._shards(EVERY) == [0, 1, 2, 3]
    assert len(made._shards(MIDDLE)) == 1


def test_warnings_are_kept_once_each_and_the_rest_counted() -> None:
    warnings = Warnings()

    def tell(*texts: str) -> None:
        warnings.add([WorkerReply("w0", (0,), Reply(warnings=texts), 0.0)])

    tell("a", "b")
    tell("b", "a", "c")
    assert (warnings.texts(), len(warnings)) == (["a", "b", "c"], 3)
    tell(*(f"{n}" for n in range(WARNINGS_MAX - 3)))
    assert len(warnings.texts()) == WARNINGS_MAX
    tell("x", "y", "a")
    assert warnings.texts()[-1] == "and 2 more warnings"
    assert len(warnings) == WARNINGS_MAX


async def test_an_empty_page_ends_where_its_range_does() -> None:
    made = reader_of([4], 9)
    made._links = cast(Any, SimpleNamespace(shards=2))

    async def wait_for(shards: list[int]) -> None:
        return None

    made._recovery = cast(Any, SimpleNamespace(wait_for=wait_for))
    for start, end, reverse, following in ((9, 20, False, 9), (12, 20, False, 12), (0, 3, True, 0), (0, 3, False, 3)):
        empty = await made.page(MIDDLE, start, end, 10, reverse)
        assert (empty.next, empty.done, len(empty.records)) == (following, True, 0)
    assert await made.count(MIDDLE, 9, 20) == 0
    assert list(NO_NUMBERS) == []


# Producers


def producers_cached(most: int, monkeypatch: pytest.MonkeyPatch) -> Producers:
    monkeypatch.setattr(producers_module, "PRODUCERS_CACHED_MAX", most)
    return Producers(Settings(), cast(Any, None), cast(Any, None))


def test_the_producer_not_heard_of_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = producers_cached(2, monkeypatch)
    for name in ("a", "b", "a", "c"):
        producers._producer(name)
    assert list(producers._producers) == ["a", "c"]


async def test_a_producer_with_a_batch_under_way_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = producers_cached(1, monkeypatch)
    task: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(0))
    producers._producer("busy").under_way[1] = task
    producers._producer("a")
    assert set(producers._producers) == {"busy", "a"}
    producers._producer("b")
    assert set(producers._producers) == {"busy", "b"}
    await task


def test_a_producer_alone_is_kept_however_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = producers_cached(0, monkeypatch)
    known = producers._producer("a")
    assert producers._producer("a") is known


def test_of_the_answers_about_a_span_exactly_those_within_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    producers = producers_cached(9, monkeypatch)
    for name, first in (("a", 0), ("b", 10)):
        known = producers._producer(name)
        known.is_loaded = True
        for number in range(3):
            known.remember((number, first + number, 1))
    producers._newest_start = 12
    producers.forget([(13, 20)])
    assert all(known.is_loaded for known in producers._producers.values())
    producers.forget([(1, 2), (12, 13)])
    assert {name: sorted(known.answers) for name, known in producers._producers.items()} == {"a": [0, 2], "b": [0, 1]}
    assert not any(known.is_loaded for known in producers._producers.values())

"""Limits of the coordinator's log: the last value within each and the first beyond it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.fanout.calls import WorkerReply
from coordinator.log import frontier as frontier_module
from coordinator.log import producers as producers_module
from coordinator.log.columns import columns_of
from coordinator.log.frontier import Frontier, Group
from coordinator.log.producers import Producers
from coordinator.log.reads import WARNINGS_MAX, KeySelection, Reader, Warnings
from coordinator.log.records import Append
from coordinator.log.sequencer import Segment
from coordinator.log.waiting import FEW_BATCHES, SMALL_BYTES, SMALL_RECORDS, Queue, Waiting
from shared.messages.log import SEQUENCE_MAX
from shared.messages.log_pages import NO_NUMBERS
from shared.settings import Settings
from shared.wire import Reply

MIDDLE = KeySelection(b"k")
EVERY = KeySelection(None, b"")


# What waits


async def waiting(records: int, value: bytes) -> Waiting:
    append = Append(columns_of([b""] * records, [value] * records), True, "", 0)
    return Waiting(append, {}, append.size_bytes, asyncio.get_running_loop().create_future(), time.monotonic() + 10)


async def test_a_queue_under_load_is_due_at_exactly_so_many_records_or_bytes() -> None:
    for records, value in ((SMALL_RECORDS - 1, b""), (1, bytes(SMALL_BYTES - 1))):
        queue = Queue()
        queue.launched(FEW_BATCHES + 1, 9, 9)
        queue.push(await waiting(records, value))
        assert not queue.is_due
        queue.push(await waiting(1, b"x"))
        assert queue.is_due
        queue.pop()
        assert not queue.is_due
        queue.landed(1, 1, 1)
        assert (queue.in_flight, queue.batches_in_flight) == (0, FEW_BATCHES)
        assert (queue.records_in_flight, queue.bytes_in_flight) == (8, 8)
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


# Reads


def reader_of(starts: list[int], readable: int, hidden: list[tuple[int, int]] | None = None) -> Reader:
    sequencer = SimpleNamespace(
        segments=[Segment(10 + n, start, 0) for n, start in enumerate(starts)], log_start=starts[0] if starts else 0
    )
    frontier = Frontier("acked")
    frontier.readable = readable
    recovery = SimpleNamespace(hidden=lambda start, end: [s for s in hidden or [] if s[0] < end and start < s[1]])
    return Reader(Settings(), cast(Any, None), cast(Any, None), cast(Any, sequencer), frontier, cast(Any, recovery))


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
    return Producers(Settings(), cast(Any, None), cast(Any, None), lambda: 0)


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

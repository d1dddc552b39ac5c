"""When batches that wait are sent, and how long their answers may take."""

from __future__ import annotations

import asyncio
import time

import pytest

from coordinator.log.columns import columns_of
from coordinator.log.frontier import Frontier, Group
from coordinator.log.records import Append
from coordinator.log.waiting import (
    FEW_BATCHES,
    LARGE_BYTES,
    LARGE_RECORDS,
    SMALL_BYTES,
    SMALL_RECORDS,
    Deadlines,
    Queue,
    Waiting,
)
from shared.errors import DeadlineExceeded


def waiting(records: int = 1, value: bytes = b"v") -> Waiting:
    append = Append(columns_of([b"k"] * records, [value] * records), True, "", 0)
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return Waiting(append, append.records.blocks(1), append.size_bytes, answer, time.monotonic() + 10)


async def test_nobody_waits_while_little_is_under_way() -> None:
    queue = Queue()
    assert not queue.is_due
    queue.push(waiting())
    assert queue.is_due
    queue.launched(FEW_BATCHES, SMALL_RECORDS - 1, SMALL_BYTES - 1)
    assert queue.is_due


@pytest.mark.parametrize(
    ("much", "records", "value"),
    [
        ((FEW_BATCHES + 1, 9, 9), SMALL_RECORDS, b""),
        ((FEW_BATCHES + 1, 9, 9), 1, bytes(SMALL_BYTES)),
        ((1, SMALL_RECORDS + 7, 0), SMALL_RECORDS + 7, b""),
        ((1, 1, SMALL_BYTES + 7), 1, bytes(SMALL_BYTES + 7)),
        ((1, LARGE_RECORDS + 7, 0), LARGE_RECORDS, b""),
        ((1, 1, LARGE_BYTES + 7), 1, bytes(LARGE_BYTES)),
    ],
)
async def test_while_much_is_under_way_only_as_much_is_sent(
    much: tuple[int, int, int], records: int, value: bytes
) -> None:
    queue = Queue()
    queue.launched(*much)
    queue.push(waiting(max(1, records - 1), value[:-3]))  # each record has a key of one byte
    assert not queue.is_due
    queue.pop()
    queue.push(waiting())
    assert not queue.is_due
    queue.push(waiting(records, value))
    assert queue.is_due
    assert [queue.pop().append.count for _ in range(2)] == [1, records]
    assert (queue.records, queue.bytes) == (0, 0)
    queue.push(waiting())
    queue.landed(*much)
    assert queue.is_due


async def test_after_many_batches_a_queue_waits_for_as_many_as_were_there() -> None:
    queue = Queue()
    queue.push(waiting())
    assert queue.hold(FEW_BATCHES + 1)
    for _ in range(FEW_BATCHES + 1):
        assert not queue.is_due
        queue.push(waiting())
    assert queue.is_due
    queue.launched(FEW_BATCHES, 9, 9)
    while len(queue.batches) > 1:
        queue.pop()
    assert queue.is_due


async def test_a_queue_is_held_neither_after_few_batches_nor_when_it_has_enough_nor_when_the_time_is_up() -> None:
    queue = Queue()
    assert not queue.hold(FEW_BATCHES)
    queue.push(waiting())
    assert queue.is_due
    for records, value in ((SMALL_RECORDS - 1, b""), (1, bytes(SMALL_BYTES - 2))):
        assert queue.hold(FEW_BATCHES + 1) and not queue.is_due
        queue.push(waiting(records, value))
        assert queue.is_due
        queue.batches.pop()
        queue.records, queue.bytes = 1, 2
    assert queue.hold(FEW_BATCHES + 1) and not queue.is_due
    queue.end_hold()
    assert queue.is_due


async def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    deadlines = Deadlines(0.05)
    first, second = waiting().answer, waiting().answer
    deadlines.add(first)
    second.set_result(7)
    deadlines.add(second)
    with pytest.raises(DeadlineExceeded, match="may or may not have been appended"):
        await asyncio.wait_for(first, 5)
    later = waiting().answer
    deadlines.add(later)
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(later, 5)
    assert await second == 7


async def test_answers_that_have_come_are_not_kept() -> None:
    deadlines = Deadlines(60)
    for _ in range(100):
        answer = waiting().answer
        deadlines.add(answer)
        answer.set_result(1)
    assert len(deadlines._answers) == 1


async def test_of_answers_that_come_out_of_order_each_that_does_not_come_is_an_error() -> None:
    deadlines = Deadlines(0.05)
    first, second, third = waiting().answer, waiting().answer, waiting().answer
    deadlines.add(first)
    second.set_result(7)
    deadlines.add(second)
    deadlines.add(third)
    assert [answer for _, answer in deadlines._answers] == [first, second, third]
    first.set_result(5)
    fourth = waiting().answer
    deadlines.add(fourth)
    assert [answer for _, answer in deadlines._answers] == [third, fourth]
    for answer in (third, fourth):
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(answer, 5)
    assert not deadlines._answers


# What followers are told of


@pytest.mark.parametrize("visibility", ["acked", "durable"])
def test_numbers_that_no_group_told_of_are_a_gap_once_and_before_what_follows(visibility: str) -> None:
    frontier = Frontier(visibility)
    told: list[object] = []
    frontier.publish, frontier.publish_gap = lambda group: told.append(group.start), lambda: told.append("gap")
    frontier.begin_at(5, 5)
    assert told == ["gap"]
    frontier.show()
    frontier.skip_to(5)
    assert told == ["gap"]
    for start in (5, 6):
        group = Group(start, start + 1)
        frontier.open(group)
        frontier.close(group)
        frontier.synced(start + 1)
    assert told == ["gap", 5, 6]
    frontier.skip_to(9)
    frontier.synced(9)
    assert told == ["gap", 5, 6, "gap"]
    late = Group(9, 12)
    frontier.open(late)
    frontier.in_doubt = 7
    frontier.show()
    frontier.in_doubt = 8
    frontier.show()
    assert told == ["gap", 5, 6, "gap", "gap"]
    assert frontier.visible == 8

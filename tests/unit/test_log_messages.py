"""Records as columns, pages of several shards as one, and what a producer's shard tells: each at its bounds."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from coordinator.fanout.calls import WorkerReply
from coordinator.log.columns import columns_of
from coordinator.log.producers import Producers
from coordinator.log.records import Append
from shared import wire
from shared.errors import BadData, Unavailable
from shared.messages.log import PRODUCER_ANSWERS_MAX, ProducerReply
from shared.messages.log_pages import Page, Records, merge_pages
from shared.settings import Settings
from shared.wire import Reply


def records(*numbers: int) -> Records:
    """The key of a record has as many bytes as its value has less one."""
    values = [b"v" * (n % 3 + 1) for n in numbers]
    return Records.of(np.array(numbers, np.uint64), values, [b"k" * (n % 3) for n in numbers])


def rows(found: Records) -> list[tuple[int, bytes, bytes]]:
    return list(zip(found.sequences.tolist(), found.key_list(), found.value_list(), strict=True))


@pytest.mark.parametrize("low", range(5))
@pytest.mark.parametrize("high", range(6))
def test_a_cut_has_the_records_at_its_positions(low: int, high: int) -> None:
    whole = records(3, 4, 5, 7)
    assert rows(whole.cut(low, high)) == rows(whole)[low:high]
    without_keys = Records.of(whole.sequences, whole.value_list())
    assert without_keys.cut(low, high).value_list() == whole.value_list()[low:high]
    assert without_keys.cut(low, high).key_list() == []


def test_records_come_back_from_their_frames() -> None:
    whole = records(3, 4, 5)
    assert rows(Records.from_frames(whole.frames())) == rows(whole)


def test_records_are_joined_one_after_another() -> None:
    one, other = records(3, 4), records(1)
    assert rows(Records.joined([one, other])) == [*rows(one), *rows(other)]
    assert Records.joined([one]) is one
    assert rows(Records.joined([])) == []


def merged(limit: int, *pages: Page) -> tuple[list[int], int, bool]:
    page = merge_pages(pages, limit)
    assert [row[1:] for row in rows(page.records)] == [
        (b"k" * (n % 3), b"v" * (n % 3 + 1)) for n, _, _ in rows(page.records)
    ]
    return page.records.sequences.tolist(), page.next, page.done


def test_pages_are_merged_as_far_as_all_are_complete() -> None:
    first, second = Page(records(1, 4, 9), 20, True), Page(records(2, 6), 9, False)
    assert merged(10, first, second) == ([1, 2, 4, 6], 9, False)
    assert merged(10, first, Page(records(2, 6), 20, True)) == ([1, 2, 4, 6, 9], 20, True)
    assert merged(10, Page(records(), 20, True), Page(records(), 20, True)) == ([], 20, True)


@pytest.mark.parametrize(
    ("limit", "numbers", "following", "done"), [(4, [1, 2, 4, 6], 20, True), (3, [1, 2, 4], 6, False)]
)
def test_a_page_over_its_limit_goes_on_at_the_first_record_left_out(
    limit: int, numbers: list[int], following: int, done: bool
) -> None:
    pages = Page(records(1, 4), 20, True), Page(records(2, 6), 20, True)
    assert merged(limit, *pages) == (numbers, following, done)


# What a producer's shard tells


class Told:
    """A shard's answers about a producer, and what the coordinator knows of batches."""

    shards = 1

    def __init__(self, *answers: tuple[int, int, int], decided_below: int = 1000) -> None:
        self.answers = list(answers)
        self.decided_below = decided_below
        self.in_doubt: set[int] = set()
        self.revoked: list[tuple[int, int]] = []
        self.log_start = 0
        self.lookups = 0

    async def wait_for(self, shards: Any) -> None:
        return None

    def batches_in_doubt(self) -> set[int]:
        return set(self.in_doubt)

    def hidden(self, start: int, end: int) -> list[tuple[int, int]]:
        return list(self.revoked)

    async def call(self, method: str, **options: Any) -> list[WorkerReply]:
        self.lookups += 1
        await asyncio.sleep(0)
        return [WorkerReply("w0", (0,), Reply(wire.pack(ProducerReply(self.answers))), 0.0)]


async def append(told: Told, number: int, producers: Producers | None = None) -> tuple[int, int, bool]:
    batch = Append(columns_of([b"k"] * 2, [b"v"] * 2), False, "p", number)
    made = producers or Producers(Settings(), cast(Any, told), cast(Any, told), lambda: told.log_start)
    sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    sent.set_result(500)

    async def send(append: Append) -> int:
        return await sent

    return await made.append(batch, send)


async def test_a_batch_that_the_shard_remembers_is_answered_again() -> None:
    told = Told((1, 10, 4), (2, 14, 5))
    assert await append(told, 1) == (10, 4, True)
    assert await append(told, 2) == (14, 5, True)
    assert await append(told, 3) == (500, 2, False)
    with pytest.raises(BadData, match="`producerSeq` is 0, and producer 'p' is at 2 already"):
        await append(told, 0)


async def test_an_answer_taken_back_hides_none_behind_it() -> None:
    told = Told((1, 10, 4), (2, 14, 5), (3, 19, 1))
    told.revoked = [(14, 19)]
    assert await append(told, 1) == (10, 4, True)
    assert await append(told, 3) == (19, 1, True)
    assert await append(told, 2) == (500, 2, False)
    told.revoked = [(19, 20)]
    assert await append(told, 3) == (500, 2, False)
    told.revoked = [(18, 19)]
    assert await append(told, 3) == (19, 1, True)


@pytest.mark.parametrize(("decided_below", "answer"), [(15, (14, 5, True)), (14, (500, 2, False))])
async def test_only_what_was_decided_before_the_question_is_an_answer(
    decided_below: int, answer: tuple[int, int, bool]
) -> None:
    assert await append(Told((1, 10, 4), (2, 14, 5), decided_below=decided_below), 2) == answer


async def test_what_is_in_doubt_is_neither_answered_nor_sent_again() -> None:
    told = Told((1, 10, 4), (2, 14, 5))
    told.in_doubt = {14}
    for number in (1, 2):
        with pytest.raises(Unavailable, match="batch 2 of producer 'p' is not decided; try again"):
            await append(told, number)
    assert await append(told, 3) == (500, 2, False)


async def test_a_shard_is_asked_once_unless_something_was_in_doubt() -> None:
    told = Told((1, 10, 4))
    producers = Producers(Settings(), cast(Any, told), cast(Any, told), lambda: told.log_start)
    for _ in range(2):
        await append(told, 1, producers)
    assert told.lookups == 1
    told.in_doubt = {10}
    unsure = Producers(Settings(), cast(Any, told), cast(Any, told), lambda: told.log_start)
    for number in (2, 3):
        await append(told, number, unsure)
    assert told.lookups == 3


async def test_what_retention_has_dropped_is_no_answer_of_the_shard_nor_of_memory() -> None:
    told = Told((2, 10, 4), (1, 14, 5))
    told.log_start = 14
    producers = Producers(Settings(), cast(Any, told), cast(Any, told), lambda: told.log_start)
    assert await append(told, 1, producers) == (14, 5, True)
    assert await append(told, 2, producers) == (500, 2, False)
    told.log_start = 501
    assert await append(told, 1, producers) == (500, 2, False)
    told.log_start = 0
    told.answers = [(number, number, 1) for number in range(PRODUCER_ANSWERS_MAX)]
    assert await append(told, 0) == (0, 1, True)


async def test_so_many_answers_are_remembered_and_the_oldest_is_forgotten() -> None:
    told = Told()
    producers = Producers(Settings(), cast(Any, told), cast(Any, told), lambda: told.log_start)
    known = producers._producer("p")
    for number in range(PRODUCER_ANSWERS_MAX):
        known.remember((number, number, 1))
    assert len(known.answers) == PRODUCER_ANSWERS_MAX
    known.remember((PRODUCER_ANSWERS_MAX, PRODUCER_ANSWERS_MAX, 1))
    assert sorted(known.answers) == list(range(1, PRODUCER_ANSWERS_MAX + 1))

"""What becomes of a question that nobody awaits: its answer comes in the turn of the last reply, exactly once."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.fanout.calls import Question
from shared import errors
from shared.wire import Reply
from tests.unit.test_links import LOADING, READY, cluster  # noqa: F401

PARTS = {0: [b"zero"], 1: [b"one"]}


class Answers:
    def __init__(self):
        self.all = []
        self.came = asyncio.Event()

    def __call__(self, result):
        self.all.append(result)
        self.came.set()

    async def one(self):
        """The answer; nothing more comes after it."""
        async with asyncio.timeout(5):
            await self.came.wait()
        await asyncio.sleep(0.05)
        (answer,) = self.all
        return answer


def question(timeout_s=5.0, parts=PARTS):
    return Question("m", timeout_s, parts=parts)


async def test_the_answer_has_the_replies_of_all_workers(cluster):  # noqa: F811
    one = await cluster.worker("w0", {0: READY})
    await cluster.worker("w1", {1: READY})
    answers = Answers()
    cluster.links.submit(question(), answers)
    assert sorted(reply.shards for reply in await answers.one()) == [(0,), (1,)]
    assert {shard: list(frames) for shard, frames in one.seen[0].parts.items()} == {0: [b"zero"]}
    assert all(in_flight == 0 for *_, in_flight in cluster.links.workers())


async def test_nothing_is_sent_or_told_when_a_shard_is_known_to_be_missing(cluster):  # noqa: F811
    worker = await cluster.worker("w0", {0: READY, 1: LOADING})
    answers = Answers()
    with pytest.raises(errors.Unavailable, match="w0 is still loading it"):
        cluster.links.submit(question(), answers)
    await asyncio.sleep(0.05)
    assert not answers.all
    assert not worker.seen


@pytest.mark.parametrize("name", ["BadData", "Unavailable"])
async def test_an_error_of_one_worker_is_the_answer(cluster, name):  # noqa: F811
    await cluster.worker("w0", {0: READY}, lambda request: Reply(error_class=name, error="text"))
    other = await cluster.worker("w1", {1: READY}, lambda request: None if name == "BadData" else Reply(body=b"ok"))
    answers = Answers()
    cluster.links.submit(question(), answers)
    answer = await answers.one()
    assert isinstance(answer, getattr(errors, name))
    assert "text" in str(answer)
    assert all(in_flight == 0 for *_, in_flight in cluster.links.workers())
    assert len(other.cancelled) == (name == "BadData")


@pytest.mark.parametrize("ends", ["at its deadline", "by its caller", "with the worker"])
async def test_a_silent_worker_is_missing_however_the_call_ends(cluster, ends):  # noqa: F811
    slow = await cluster.worker("w0", {0: READY, 1: READY}, lambda request: None)
    answers = Answers()
    call = cluster.links.submit(question(timeout_s=0.1 if ends == "at its deadline" else 30), answers)
    if ends == "by its caller":
        call.finish()
    if ends == "with the worker":
        cluster.links._members.remove(cluster.links.connected()[0], "the test says so")
    assert isinstance(await answers.one(), errors.Unavailable)
    if ends != "with the worker":
        assert slow.cancelled
        assert all(in_flight == 0 for *_, in_flight in cluster.links.workers())


async def test_a_message_that_no_worker_takes_is_an_error(cluster, monkeypatch):  # noqa: F811
    await cluster.worker("w0", {0: READY, 1: READY})
    monkeypatch.setattr(cluster.links, "_transmit", lambda frames: 11)  # EAGAIN
    answers = Answers()
    cluster.links.submit(question(), answers)
    assert not answers.all
    assert "w0 takes no more messages" in str(await answers.one())


async def test_who_is_told_that_a_worker_is_gone_may_give_up_what_else_it_was_asked(cluster):  # noqa: F811
    await cluster.worker("w0", {0: READY, 1: READY}, lambda request: None)
    first, second = Answers(), Answers()
    calls = []

    def tell(result):
        first(result)
        calls[0].finish()

    cluster.links.submit(question(), tell)
    calls.append(cluster.links.submit(question(), second))
    cluster.links._members.remove(cluster.links.connected()[0], "the test says so")
    for answers in (first, second):
        assert isinstance(await answers.one(), errors.Unavailable)

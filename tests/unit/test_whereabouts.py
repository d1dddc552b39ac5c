"""A worker that has no series of a query is not asked again, unless series may have come to it since."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import pytest

from coordinator.fanout import membership
from coordinator.queries import whereabouts as module
from coordinator.queries.cost import Demand
from coordinator.queries.planner import plan
from coordinator.queries.whereabouts import SELECTIONS_MAX, Whereabouts
from shared import errors, wire
from shared.frames import references as reference_frames
from shared.frames import samples as sample_frames
from shared.messages.sub_queries import EvaluateReply, Shape, SubQueryReply
from shared.promql.model import Grid
from tests.unit.test_links import LOADING, READY, cluster  # noqa: F401

M, OTHER = Demand("m", 1, 1, 1), Demand("other", 1, 1, 1)
LABELS = struct.pack("=q", sample_frames.MARK)
NUMBERS = struct.pack("=q", reference_frames.MARK)


def replied(*has_matched: bool) -> EvaluateReply:
    shape = Shape("matrix", 1, 0)
    return EvaluateReply(tuple(SubQueryReply(shape, (), 0, 0.0, has_matched=matched) for matched in has_matched))


def learn(own: Whereabouts, links, demands: Sequence[Demand], **has_matched: bool) -> None:  # type: ignore[no-untyped-def]
    """All workers are asked, and reply as said."""
    versions = {worker.name: worker.index_version for worker in links.connected()}
    for name, matched in has_matched.items():
        own.learn(demands, versions, name, replied(*([matched] * len(demands))))


@pytest.fixture
async def links(cluster):  # noqa: F811
    cluster.first = await cluster.worker("w0", {0: READY, 2: READY})
    cluster.second = await cluster.worker("w1", {1: READY, 3: READY})
    cluster.links.cluster = cluster
    return cluster.links


async def write(links, frame: bytes = LABELS, shard: int = 0, timeout_s: float = 2.0) -> None:  # type: ignore[no-untyped-def]
    await links.call("series.write", parts={shard: [frame]}, timeout_s=timeout_s)


async def test_a_worker_without_series_is_not_asked_again(links):
    own = Whereabouts()
    assert own.asked([M], links).shards is None
    learn(own, links, [M], w0=False, w1=True)
    asked = own.asked([M], links)
    assert asked.shards == (1, 3)
    assert list(asked.versions) == ["w1"]
    assert own.asked([OTHER], links).shards is None


async def test_an_answer_of_which_nobody_knows_when_it_was_asked_tells_nothing(links):
    own = Whereabouts()
    own.learn([M], {}, "w0", replied(False))
    assert own.asked([M], links).shards is None
    learn(own, links, [M], w0=False, w1=True)
    own.learn([M], {}, "w0", replied(False))
    assert own.asked([M], links).shards == (1, 3)


async def test_a_query_of_several_selections_asks_whoever_has_any(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M, OTHER], links).shards is None
    learn(own, links, [OTHER], w0=True, w1=False)
    assert own.asked([M, OTHER], links).shards is None
    learn(own, links, [OTHER], w0=False, w1=False)
    assert own.asked([M, OTHER], links).shards == (1, 3)


async def test_somebody_is_asked_even_if_nobody_has_series(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=False)
    assert own.asked([M], links).shards == (0, 2)


async def test_a_write_with_labels_may_bring_series_from_the_moment_it_is_sent(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    links.cluster.first.answer = lambda request: None
    writing = asyncio.ensure_future(write(links, timeout_s=30))
    await asyncio.sleep(0)
    assert own.asked([M], links).shards is None
    learn(own, links, [M], w0=False, w1=True)  # asked while the write is on its way: nobody knows which was first
    assert own.asked([M], links).shards is None
    writing.cancel()


async def test_after_a_write_with_labels_its_worker_is_asked_once_more(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    await write(links)
    assert own.asked([M], links).shards is None
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M], links).shards == (1, 3)
    learn(own, links, [M], w0=True, w1=True)
    assert own.asked([M], links).shards is None


async def test_what_was_asked_before_a_write_is_not_known_after_it(links):
    own = Whereabouts()
    versions = {worker.name: worker.index_version for worker in links.connected()}
    await write(links)
    own.learn([M], versions, "w0", replied(False))
    assert own.asked([M], links).shards is None


async def test_writes_to_known_series_by_number_and_to_other_workers_bring_nothing(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    await write(links, NUMBERS)
    await write(links, LABELS, shard=1)
    assert own.asked([M], links).shards == (1, 3)


async def test_a_write_that_nobody_waits_for_any_more_may_still_bring_series(links):
    own = Whereabouts()
    links.cluster.first.answer = lambda request: None
    with pytest.raises(errors.Unavailable):
        await write(links, timeout_s=0.05)
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M], links).shards is None


async def test_a_late_answer_to_a_write_tells_that_it_is_over(links):
    own = Whereabouts()
    links.cluster.first.answer = lambda request: None
    sent: list[bytes] = []
    worker = links.connected()[0]
    writing = asyncio.ensure_future(write(links, timeout_s=0.2))
    await asyncio.sleep(0.01)
    sent.extend(worker.pending)
    with pytest.raises(errors.Unavailable):
        await writing
    assert worker.index_version is None
    await links.cluster.first.socket.send_multipart(late_reply(sent[0]))
    async with asyncio.timeout(5):
        while worker.index_version is None:
            await asyncio.sleep(0.01)
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M], links).shards == (1, 3)


def late_reply(request_id: bytes) -> list[bytes]:
    return [bytes(frame) for frame in wire.encode_reply(request_id, wire.Reply(body=b"late"))]


async def test_a_worker_that_has_restarted_is_asked_again(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    before = links.connected()[0].index_version
    links.cluster.first.stop()
    await links.cluster.worker("w0", {0: READY, 2: READY}, pid=2)
    assert links.connected()[0].index_version != before
    assert own.asked([M], links).shards is None


async def silence(links) -> None:  # type: ignore[no-untyped-def]
    """The first worker says nothing until it is held to be down, and then it is there again."""
    worker = links.cluster.first
    worker.tasks[0].cancel()
    async with asyncio.timeout(5):
        while len(links.connected()) == 2:
            await asyncio.sleep(0.01)
        worker.tasks[0] = asyncio.ensure_future(worker.beat())
        while len(links.connected()) < 2:
            await asyncio.sleep(0.01)


async def test_a_worker_that_was_silent_for_a_while_has_what_was_written_before(links, monkeypatch):
    monkeypatch.setattr(membership, "SILENCE_S", 0.3)
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    await write(links)
    await silence(links)
    assert own.asked([M], links).shards is None


async def test_a_worker_that_was_silent_for_a_while_may_still_carry_out_a_write(links, monkeypatch):
    monkeypatch.setattr(membership, "SILENCE_S", 0.3)
    own = Whereabouts()
    links.cluster.first.answer = lambda request: None
    worker = links.connected()[0]
    writing = asyncio.ensure_future(write(links, timeout_s=30))
    await asyncio.sleep(0.01)
    sent = list(worker.pending)
    await silence(links)
    with pytest.raises(errors.Unavailable):
        await writing
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M], links).shards is None
    await links.cluster.first.socket.send_multipart(late_reply(sent[0]))
    async with asyncio.timeout(5):
        while links.connected()[0].index_version is None:
            await asyncio.sleep(0.01)
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M], links).shards == (1, 3)


async def test_all_are_asked_while_a_shard_is_missing_so_that_the_answer_names_it(links):
    own = Whereabouts()
    learn(own, links, [M], w0=False, w1=True)
    links.cluster.first.shards[0] = LOADING
    async with asyncio.timeout(5):
        while not links.unready():
            await asyncio.sleep(0.01)
    assert own.asked([M], links).shards is None


async def test_a_worker_is_asked_from_time_to_time_for_what_it_may_have_to_say(links, monkeypatch):
    own = Whereabouts()
    monkeypatch.setattr(module, "TRUSTED_S", 0.0)
    learn(own, links, [M], w0=False, w1=True)
    assert own.asked([M], links).shards is None


async def test_a_bounded_number_of_short_selections_is_remembered(links):
    own = Whereabouts()
    demands = [Demand(str(number), 1, 1, 1) for number in range(SELECTIONS_MAX + 1)]
    for demand in demands:
        learn(own, links, [demand], w0=False, w1=True)
    assert own.asked(demands[:1], links).shards is None
    assert own.asked(demands[1:2], links).shards == (1, 3)
    long = Demand("x" * (module.SELECTION_CHARACTERS_MAX + 1), 1, 1, 1)
    learn(own, links, [long], w0=False, w1=True)
    assert own.asked([long], links).shards is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('m{a="1",b="2"}', 'm{a="1"} + m{b="2"}'),
        ('{"x=\'1\' y"="2"}', '{x="1",y="2"}'),
        ('m{a="1 | b"}', 'm{a="1"}'),
        ("m", "m2"),
        ('m{a="1"}', 'm{a=~"1"}'),
        ('m{a="1"}', 'm{a!="1"}'),
    ],
)
def test_selections_have_texts_of_their_own(one: str, other: str) -> None:
    texts = [{demand.selections for demand in plan(text, Grid(0, 0)).demands} for text in (one, other)]
    assert not texts[0] & texts[1]


def test_functions_ranges_and_times_of_one_selector_are_one_selection() -> None:
    texts = ['m{a="1"}', 'rate(m{a="1"}[5m])', 'sum(m{a="1"} offset 1h)', 'absent(m{a="1"})']
    assert len({demand.selections for text in texts for demand in plan(text, Grid(0, 0)).demands}) == 1

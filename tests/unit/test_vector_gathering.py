"""Searches alike in all but their vectors share messages to the workers."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.fanout.links import Links
from coordinator.vectors import batching
from coordinator.vectors.area import Searched, VectorArea
from coordinator.vectors.batching import Found, SearchBatches, SearchKind
from coordinator.vectors.search import SearchRequest
from shared import wire
from shared.control import LocalControl
from shared.errors import DeadlineExceeded, Internal
from shared.messages.vectors import (
    Collection,
    CollectionsReply,
    Floats,
    SearchBody,
    SearchReply,
    ShardCollections,
    pack_blobs,
)
from shared.settings import Settings
from shared.telemetry import REQUEST_ID
from shared.wire import Frame, Reply

ANSWER_S = 0.005


class SlowLinks:
    """Answers each query with an id that is its first component, after a while."""

    shards = 1

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.failing = False
        self.answer_s = ANSWER_S
        self.left: list[str] = []
        """The ids of the HTTP requests whose batches were given up."""
        self.attributes: dict[str, object] = {}
        """Of every vector that is found."""

    def unready(self, shards: Any = None) -> dict[int, str]:
        return {}

    async def fan_out(
        self, method: str, *, shards: Any = None, body: Frame = b"", frames: Sequence[Frame] = (), timeout_s: float
    ) -> FanOut:
        if method == "vector.collections":
            empty = CollectionsReply([ShardCollections(0, [], [])])
            return FanOut([WorkerReply("worker-0", (0,), Reply(wire.pack(empty)), 1.0)], {})
        queries = np.frombuffer(frames[0], dtype=np.float32).reshape(-1, 2)
        self.batches.append(len(queries))
        try:
            await asyncio.sleep(self.answer_s)
        except asyncio.CancelledError:
            self.left.append(REQUEST_ID.get())
            raise
        if self.failing:
            raise Internal("no")
        ids = [str(int(query[0])).encode() for query in queries]
        counts = np.ones(len(queries), dtype=np.int32)
        found = [counts.tobytes(), np.zeros(len(queries), np.float32).tobytes(), *pack_blobs(ids), b"", b"", b""]
        if self.attributes:
            found[4:] = [*pack_blobs([wire.pack(self.attributes)] * len(ids)), queries.tobytes()]
        return FanOut([WorkerReply("worker-0", (0,), Reply(wire.pack(SearchReply((), 9)), found), 1.0)], {})


def request(number: int) -> SearchRequest:
    flat: Floats = np.array([number, 1], dtype=np.float32)
    return SearchRequest("", flat, [2], False, 1, (), None, 0, False)


async def area_on(links: SlowLinks, directory: Path) -> VectorArea:
    area = VectorArea(Settings(data=directory, shards=1), cast(Links, links), LocalControl(directory / "vector"))
    await area.start()
    await area.create(Collection(0, "default", 2, "l2", "f32"))
    return area


async def test_concurrent_searches_are_gathered_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    links = SlowLinks()
    area = await area_on(links, tmp_path)

    async def client(number: int) -> None:
        for turn in range(20):
            wanted = 100 * number + turn
            found = await area.search(request(wanted), partial=False)
            assert found.lists[0].ids == [str(wanted).encode()]

    await asyncio.gather(*(client(number) for number in range(8)))
    assert sum(links.batches) == 160
    assert np.mean(links.batches) > 5


async def test_one_search_after_the_other_never_waits_for_company(tmp_path: Path) -> None:
    links = SlowLinks()
    area = await area_on(links, tmp_path)
    await asyncio.gather(*(area.search(request(number), partial=False) for number in range(8)))
    began = time.monotonic()
    for number in range(10):
        await area.search(request(number), partial=False)
    assert links.batches[-10:] == [1] * 10
    assert time.monotonic() - began < 10 * ANSWER_S + 0.5


async def test_failure_reaches_every_search_of_a_batch_and_no_later_one(tmp_path: Path) -> None:
    links = SlowLinks()
    area = await area_on(links, tmp_path)
    links.failing = True
    results = await asyncio.gather(
        *(area.search(request(number), partial=False) for number in range(8)), return_exceptions=True
    )
    assert all(isinstance(result, Internal) for result in results)
    links.failing = False
    assert (await area.search(request(3), partial=False)).lists[0].ids == [b"3"]


def begin(area: VectorArea, number: int) -> asyncio.Task[Searched]:
    async def search() -> Searched:
        REQUEST_ID.set(f"a-{number}")
        return await area.search(request(number), partial=False)

    return asyncio.create_task(search())


async def test_the_workers_stop_when_all_searches_of_a_batch_have_been_canceled(tmp_path: Path) -> None:
    links = SlowLinks()
    area = await area_on(links, tmp_path)
    links.answer_s = 60.0
    first = begin(area, 1)
    await asyncio.sleep(0.05)
    second, third = begin(area, 2), begin(area, 3)  # which wait for the first
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.sleep(0.05)
    assert links.left == ["a-1"]
    assert links.batches == [1, 2]
    third.cancel()
    await asyncio.sleep(0.05)
    assert links.left == ["a-1"]
    second.cancel()
    await asyncio.sleep(0.05)
    assert links.left == ["a-1", "a-2"]
    links.answer_s = ANSWER_S
    assert (await area.search(request(4), partial=False)).lists[0].ids == [b"4"]


async def test_a_canceled_search_leaves_the_others_of_its_batch_their_answers(tmp_path: Path) -> None:
    links = SlowLinks()
    area = await area_on(links, tmp_path)
    links.answer_s = 0.1
    searches = [begin(area, number) for number in range(3)]
    await asyncio.sleep(0.05)
    searches[1].cancel()
    assert [(await searches[number]).lists[0].ids for number in (0, 2)] == [[b"0"], [b"2"]]
    assert not links.left


async def test_a_search_canceled_just_before_its_batch_is_sent_leaves_the_others_their_answers() -> None:
    """Its end is noticed only when the batch has been sent, from which it is missing."""
    held: list[asyncio.Future[None]] = []

    async def ask(_: SearchBody, queries: Floats) -> Found:
        held.append(asyncio.get_running_loop().create_future())
        await held[-1]
        return cast(Found, (SimpleNamespace(lists=queries, unknown=0, vectors=0, nearest=None), None))

    batches = SearchBatches(ask, 5.0)
    kind = SearchKind(cast(SearchBody, SimpleNamespace(collection=None)), b"")
    first, canceled, other = (batches.begin(kind, np.zeros((1, 2), dtype=np.float32)) for _ in range(3))
    await asyncio.sleep(0.01)
    asyncio.get_running_loop().call_soon(canceled.cancel)
    held[0].set_result(None)  # the next batch is sent after the cancellation, and in the same turn of the event loop
    await first
    async with asyncio.timeout(2.0):
        while len(held) < 2:
            await asyncio.sleep(0.001)
        held[1].set_result(None)
        await other
    batches.stop()


async def test_a_batch_whose_searches_are_all_canceled_before_it_begins_holds_up_no_later_one(tmp_path: Path) -> None:
    links = SlowLinks()
    area = await area_on(links, tmp_path)
    collection = area.at_hand("default")
    assert collection is not None
    kind = area.kind(request(1), collection)
    canceled = area.begin(kind, np.ones((1, 2), dtype=np.float32))  # its batch is sent, and begins in the next turn
    canceled.cancel()
    async with asyncio.timeout(2.0):
        assert (await area.search(request(2), partial=False)).lists[0].ids == [b"2"]
    assert canceled.cancelled()


async def test_each_search_expires_at_its_own_time_whether_it_waits_or_is_under_way() -> None:
    asked: list[int] = []

    async def ask(_: SearchBody, queries: Floats) -> Found:
        asked.append(len(queries))
        await asyncio.sleep(60.0)
        raise AssertionError("canceled before")

    batches = SearchBatches(ask, 0.3)
    kind = SearchKind(cast(SearchBody, SimpleNamespace(collection=None)), b"")
    loop = asyncio.get_running_loop()
    ends: list[float] = []
    searches, begun = [], []
    for _ in range(3):  # the first is sent, the others wait for it
        searches.append(batches.begin(kind, np.zeros((1, 2), dtype=np.float32)))
        searches[-1].add_done_callback(lambda _: ends.append(loop.time()))
        begun.append(loop.time())
        await asyncio.sleep(0.1)
    results = await asyncio.wait_for(asyncio.gather(*searches, return_exceptions=True), 5.0)
    assert [str(result) for result in results] == ["the search took longer than 0.3 s"] * 3
    assert all(isinstance(result, DeadlineExceeded) for result in results)
    assert np.array(ends) - np.array(begun) == pytest.approx(0.3, abs=0.09)
    assert asked == [1]
    batches.stop()


async def test_a_search_that_begins_when_another_expires_does_not_delay_the_next_expiry() -> None:
    async def ask(_: SearchBody, queries: Floats) -> Found:
        await asyncio.sleep(60.0)
        raise AssertionError("canceled before")

    batches = SearchBatches(ask, 0.3)
    kind = SearchKind(cast(SearchBody, SimpleNamespace(collection=None)), b"")
    query = np.zeros((1, 2), dtype=np.float32)
    begun_anew: list[asyncio.Future[Found]] = []
    first = batches.begin(kind, query)
    first.at_once(lambda _: begun_anew.append(batches.begin(kind, query)))
    await asyncio.sleep(0.1)
    second, began = batches.begin(kind, query), asyncio.get_running_loop().time()
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(second, 5.0)
    assert first.done() and not begun_anew[0].done()
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.3, abs=0.09)
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(begun_anew[0], 5.0)
    batches.stop()


async def test_answered_searches_are_freed_without_the_collector(tmp_path: Path) -> None:
    area = await area_on(SlowLinks(), tmp_path)
    collection = area.at_hand("default")
    assert collection is not None
    kind = area.kind(request(1), collection)
    gc.disable()
    try:
        answered = [area.begin(kind, np.ones((1, 2), dtype=np.float32)) for _ in range(5)]
        await asyncio.gather(*answered)
        references = [weakref.ref(search) for search in answered]
        answered.clear()
        await asyncio.sleep(0.01)
        assert [reference() for reference in references] == [None] * 5
    finally:
        gc.enable()


async def test_a_kind_that_is_forgotten_leaves_no_timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batching, "QUEUES_MAX", 0)
    area = await area_on(SlowLinks(), tmp_path)
    collection = area.at_hand("default")
    assert collection is not None
    kind = area.kind(request(1), collection)
    search = area.begin(kind, np.ones((1, 2), dtype=np.float32))
    timer = area._batches._queues[kind.key].expiry
    assert timer is not None and not timer.cancelled()
    await search
    assert area._batches._queues == {}
    assert timer.cancelled()

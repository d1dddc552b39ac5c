"""Limits of searches, what each asks of the workers, and how searches share messages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.fanout.links import Links
from coordinator.vectors import batching, search
from coordinator.vectors.area import VectorArea
from coordinator.vectors.merging import MergedHits
from coordinator.vectors.search import (
    EXPANSION_MAX,
    FIELDS_MAX,
    FUSION_DEPTH,
    K_DEFAULT,
    QUERIES_MAX,
    RECALL_MAX,
    RECALL_MIN,
    RESULTS_MAX,
)
from coordinator.vectors.text import QUERY_CHARS_MAX
from proto import vector_pb2
from shared import wire
from shared.control import LocalControl
from shared.errors import BadData, DeadlineExceeded, NotFound, Unavailable
from shared.kernels import compile_all
from shared.messages.vector_text import WordStatistics
from shared.messages.vectors import K_MAX, Collection, SearchReply
from shared.settings import Settings
from shared.wire import Reply
from tests.unit.test_vector_gathering import SlowLinks, area_on, request


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """A first search would wait for the kernels."""
    compile_all()


def read(**fields: Any) -> search.SearchRequest:
    return search.from_json(json.dumps(fields).encode())


TEXT = {"field": "body", "query": "w"}


@pytest.mark.parametrize(
    "fields",
    [
        {"vector": [1], "k": 1},
        {"vector": [1], "k": K_MAX},
        {"vectors": [[1]] * QUERIES_MAX, "k": RESULTS_MAX // QUERIES_MAX},
        {"vector": [1], "expansion": EXPANSION_MAX},
        {"vector": [1], "expansion": 0},
        {"vector": [1], "recall": RECALL_MIN},
        {"vector": [1], "recall": RECALL_MAX},
        {"vector": [1], "includeFields": ["f"] * FIELDS_MAX},
        {"text": {"field": "body", "query": "x" * QUERY_CHARS_MAX}},
        {"vector": [1], "text": TEXT},
        {"vector": [1], "filter": None},
    ],
)
def test_the_largest_searches_are_taken(fields: dict) -> None:
    read(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vector": [1], "k": 0}, "k is 0"),
        ({"vector": [1], "k": K_MAX + 1}, f"k is {K_MAX + 1}"),
        ({"vectors": [[1]] * (QUERIES_MAX + 1), "k": 1}, f"{QUERIES_MAX + 1} entries"),
        ({"vectors": [[1]] * QUERIES_MAX, "k": RESULTS_MAX // QUERIES_MAX + 1}, f"at most {RESULTS_MAX} results"),
        ({"vector": [1], "expansion": EXPANSION_MAX + 1}, "expansion is"),
        ({"vector": [1], "recall": 0.499}, "recall is 0.499; it must be 0.5 to 0.999"),
        ({"vector": [1], "recall": 1}, "recall is 1; it must be 0.5 to 0.999"),
        ({"vector": [1], "recall": 0}, "recall is 0; it must be"),
        ({"vector": [1], "recall": 0.9, "expansion": 5}, "recall is 0.9 and expansion is 5; a search has one of them"),
        ({"vector": [1], "includeFields": ["f"] * (FIELDS_MAX + 1)}, f"includeFields has {FIELDS_MAX + 1}"),
        ({"text": {"field": "b", "query": "x" * (QUERY_CHARS_MAX + 1)}}, f"{QUERY_CHARS_MAX + 1} characters"),
        ({"vectors": [[1]], "text": TEXT}, "vectors and text are both given"),
        ({}, "vector is missing or empty"),
        ({"vectors": []}, "vectors is empty"),
        ({"vectors": [], "text": TEXT}, "vectors and text are both given"),
    ],
)
def test_searches_past_a_limit_are_refused(fields: dict, words: str) -> None:
    with pytest.raises(BadData, match=words):
        read(**fields)


def test_a_search_says_what_it_leaves_to_its_defaults() -> None:
    plain = read(vector=[1, 2])
    assert (plain.k, plain.batch, plain.counts, plain.fields) == (K_DEFAULT, False, [2], None)
    assert (plain.filter, plain.expansion, plain.exact, plain.hybrid()) == (None, 0, False, False)
    assert read(vector=[1], includeFields=[]).fields == ()
    assert read(vector=[1], include_fields=["a"]).fields == ("a",)
    several = read(vectors=[[1, 2], [3, 4]])
    assert (several.batch, several.counts, several.flat.tolist()) == (True, [2, 2], [1, 2, 3, 4])


def test_a_search_in_protobuf_without_k_gives_as_many_results_as_in_json() -> None:
    message = vector_pb2.SearchRequest(vector=[1, 2])
    assert search.from_protobuf(message.SerializeToString()).k == read(vector=[1, 2]).k == K_DEFAULT
    message.offset = K_MAX - K_DEFAULT + 1
    with pytest.raises(BadData, match=f"offset is {message.offset} and k is {K_DEFAULT}"):
        search.from_protobuf(message.SerializeToString())


def test_json_and_protobuf_say_the_same() -> None:
    message = vector_pb2.SearchRequest(collection="c", vector=[1, 2], k=3, expansion=4, exact=True)
    message.include_fields.append("f")
    message.filter.exists.field = "a"
    one = search.from_protobuf(message.SerializeToString())
    other = read(
        collection="c", vector=[1, 2], k=3, expansion=4, exact=True, includeFields=["f"], filter={"exists": "a"}
    )
    for name in one.__slots__:
        np.testing.assert_equal(getattr(one, name), getattr(other, name))
    message = vector_pb2.SearchRequest(k=3)
    message.text.field, message.text.query = "body", "w"
    assert search.from_protobuf(message.SerializeToString()).text.query == "w"
    message.vectors.add().values.extend([1, 2])
    with pytest.raises(BadData, match="vectors and text are both given"):
        search.from_protobuf(message.SerializeToString())


COLLECTION = Collection(1, "c", 2, "cosine", "f32", ("body",))


def test_the_query_that_the_collection_cannot_be_asked_is_named() -> None:
    assert read(vectors=[[1, 2], [3, 4]]).queries(COLLECTION).tolist() == [[1, 2], [3, 4]]
    for fields, words in (
        ({"vectors": [[1, 2], [3]]}, r"vectors\[1\] has 1 components; the dimension of the collection 'c' is 2"),
        ({"vector": [1, 2, 3]}, "vector has 3 components"),
        ({"vectors": [[1, 2], [0, 0]]}, r"vectors\[1\] is all zeros"),
        ({"vector": [1, 1e39]}, "vector: component 1 is not a finite"),
        ({"vector": [1, 2], "text": {"field": "title", "query": "w"}}, "text.field is 'title'.*: body"),
    ):
        with pytest.raises(BadData, match=words):
            asked = read(**fields)
            asked.queries(COLLECTION)
            asked.body(COLLECTION, 7)


@pytest.mark.parametrize(("k", "asked"), [(1, FUSION_DEPTH), (FUSION_DEPTH + 1, FUSION_DEPTH + 1)])
def test_a_hybrid_search_looks_deeper_than_it_shows(k: int, asked: int) -> None:
    assert read(vector=[1, 2], text=TEXT, k=k).body(COLLECTION, 7).k == asked
    assert read(vector=[1, 2], k=k).body(COLLECTION, 7).k == k
    assert read(text=TEXT, k=k).body(COLLECTION, 7).k == k


def test_the_expansion_of_the_request_comes_before_that_of_the_settings() -> None:
    assert read(vector=[1, 2]).body(COLLECTION, 7).expansion == 7
    assert read(vector=[1, 2], expansion=9).body(COLLECTION, 7).expansion == 9


def test_the_recall_of_the_request_comes_before_the_settings() -> None:
    asked = read(vector=[1, 2], recall=0.9).body(COLLECTION, 7, 0.99)
    assert (asked.recall, asked.expansion) == (0.9, 0)
    plain = read(vector=[1, 2]).body(COLLECTION, 0, 0.99)
    assert (plain.recall, plain.expansion) == (0.99, 0)
    message = vector_pb2.SearchRequest(vector=[1, 2], k=3, recall=0.95)
    assert search.from_protobuf(message.SerializeToString()).recall == 0.95
    message.recall = 0
    with pytest.raises(BadData, match="recall is 0; it must be"):
        search.from_protobuf(message.SerializeToString())


# Searches that share messages


async def test_a_search_nobody_answers_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = await area_on(SlowLinks(), tmp_path)
    monkeypatch.setattr(area._batches, "_timeout_s", 0.05)

    async def never(body: Any, queries: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(area._batches, "_ask", never)
    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.05 s"):
        await asyncio.wait_for(area.search(request(1), partial=False), 5)
    await area.stop()


async def test_searches_waiting_at_a_stop_are_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    area = await area_on(SlowLinks(), tmp_path)

    async def never(body: Any, queries: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(area._batches, "_ask", never)
    waiting = asyncio.create_task(area.search(request(1), partial=False))
    await asyncio.sleep(0.05)
    await area.stop()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5)


async def test_a_batch_has_so_many_searches_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "BATCH_MAX", 3)
    links = SlowLinks()
    area = await area_on(links, tmp_path)
    found = await asyncio.gather(*(area.search(request(number), partial=False) for number in range(8)))
    assert [one.lists[0].ids for one in found] == [[b"%d" % number] for number in range(8)]
    assert sum(links.batches) == 8
    assert max(links.batches) == 3


async def test_kinds_of_search_are_forgotten_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "QUEUES_MAX", 1)
    area = await area_on(SlowLinks(), tmp_path)
    for k in (1, 2, 3):
        asked = request(1)
        asked.k = k
        await area.search(asked, partial=False)
        await asyncio.sleep(0)
    assert len(area._batches._queues) == 1


async def test_a_missing_shard_refuses_a_search_that_must_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = await area_on(SlowLinks(), tmp_path)
    submit = area._batches.submit

    async def lacking(body: Any, queries: Any) -> Any:
        found, outcome = await submit(body, queries)
        outcome.missing = {4: "it is down"}
        return MergedHits(found.lists, {"colour"}, found.vectors), outcome

    monkeypatch.setattr(area._batches, "submit", lacking)
    with pytest.raises(Unavailable, match="shard 4 is missing from this answer: it is down"):
        await area.search(request(1), partial=False)
    found = await area.search(request(1), partial=True)
    assert found.lists[0].ids == [b"1"]
    assert (len(found.warnings), found.infos) == (1, [])


async def test_a_field_that_no_vector_has_is_named_when_all_shards_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = await area_on(SlowLinks(), tmp_path)
    submit = area._batches.submit
    vectors = 9

    async def unknown(body: Any, queries: Any) -> Any:
        found, outcome = await submit(body, queries)
        return MergedHits(found.lists, {"colour", "a"}, vectors, {"colour": "color"}), outcome

    monkeypatch.setattr(area._batches, "submit", unknown)
    found = await area.search(request(1), partial=True)
    assert found.infos == [
        "filter: no vector of the collection 'default' has the field 'a'",
        "filter: no vector of the collection 'default' has the field 'colour'; the nearest field is 'color'",
    ]
    vectors = 0
    found = await area.search(request(1), partial=True)
    assert (found.warnings, found.infos) == ([], [])


async def test_a_collection_without_vectors_answers_with_nothing(tmp_path: Path) -> None:
    area = VectorArea(Settings(data=tmp_path, shards=1), cast(Links, SlowLinks()), LocalControl(tmp_path / "vector"))
    await area.start()
    found = await area.search(request(1), partial=False)
    assert [hits.ids for hits in found.lists] == [[]]
    asked = request(1)
    asked.text = read(text=TEXT).text
    with pytest.raises(BadData, match="the default collection has no text fields"):
        await area.search(asked, partial=False)
    asked.collection = "other"
    with pytest.raises(NotFound, match="'other'"):
        await area.search(asked, partial=False)
    await area.stop()


async def test_damage_that_only_the_second_question_of_a_text_search_meets_is_told(tmp_path: Path) -> None:
    """Workers whose own word statistics differ are asked again with those of all."""

    class Damaged(SlowLinks):
        searches = 0

        async def fan_out(self, method: str, **arguments: Any) -> FanOut:
            if method != "vector.search":
                return await super().fan_out(method, **arguments)
            self.searches += 1
            lacking = ["both miss a"] + ["the second misses b"] * (self.searches == 2)
            words = [WordStatistics(100, (1,)), WordStatistics(100, (90,))] if self.searches == 1 else [None, None]
            empty = [np.zeros(1, np.int32).tobytes(), b"", b"", b"", b"", b"", b""]
            replies = [Reply(wire.pack(SearchReply((), 9, {}, one)), empty, warnings=lacking) for one in words]
            return FanOut([WorkerReply(f"worker-{n}", (n,), reply, 1.0) for n, reply in enumerate(replies)], {})

    links = Damaged()
    area = VectorArea(Settings(data=tmp_path, shards=1), cast(Links, links), LocalControl(tmp_path / "vector"))
    await area.start()
    await area.create(Collection(0, "default", 2, "l2", "f32", text=("body",)))
    found = await area.search(read(text=TEXT), partial=True)
    assert links.searches == 2 and found.warnings == ["both miss a", "the second misses b"]
    links.searches = 0
    with pytest.raises(Unavailable, match="both miss a; the second misses b"):
        await area.search(read(text=TEXT), partial=False)
    links.searches = 0
    found = await area.search(read(text=TEXT, groupBy={"field": "colour"}), partial=True)
    assert found.warnings == ["both miss a", "the second misses b"]

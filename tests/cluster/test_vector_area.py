"""The vector area over HTTP on a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from loadtest.bench.vector_client import Connection
from loadtest.harness.cluster import Cluster, Response
from proto import vector_pb2
from tests.cluster.vector_requests import ids, put, refused, search, write
from tests.forked_cluster import ForkedCluster

PROTOBUF = {"Content-Type": "application/protobuf"}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("vectors")).start()
    yield running
    running.stop()


@pytest.fixture
def collection(vectors: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A collection of 4 dimensions under l2 for one test."""
    name = "".join(c for c in request.node.name if c.isalnum())[:64]
    put(vectors, name, {"dimension": 4, "metric": "l2", "textFields": ["body"]})
    yield name
    vectors.request("DELETE", f"/api/v1/vector/collections/{name}")


def test_write_search_get_and_delete_in_json(vectors: Cluster, collection: str) -> None:
    answer = write(
        vectors,
        ("a", {"vector": [1, 0, 0, 0], "colour": "red", "year": 2026, "weight": 1.5, "new": True}),
        ("b", {"vector": [0, 3, 0, 0]}),
        collection=collection,
    )
    assert (answer.status, answer.json()) == (200, {"status": "success", "vectorsUpserted": 2})
    found = search(vectors, vector=[0, 0, 0, 0], k=5, collection=collection)
    assert found == {
        "status": "success",
        "results": [
            {
                "score": 1.0,
                "vector": {
                    "id": "a",
                    "attributes": {"vector": [1, 0, 0, 0], "colour": "red", "year": 2026, "weight": 1.5, "new": True},
                },
            },
            {"score": 3.0, "vector": {"id": "b", "attributes": {"vector": [0, 3, 0, 0]}}},
        ],
    }
    assert vectors.get("/api/v1/vector/vectors/b", collection=collection).json()["vector"]["id"] == "b"
    gone = vectors.post_json("/api/v1/vector/delete", {"ids": ["a", "a", "x"], "collection": collection})
    assert gone.json() == {"status": "success", "vectorsDeleted": 1}
    refused(vectors.get("/api/v1/vector/vectors/a", collection=collection), "'a'", status=404)
    assert ids(search(vectors, vector=[0, 0, 0, 0], k=5, collection=collection)) == ["b"]


def test_write_search_and_delete_in_protobuf(vectors: Cluster, collection: str) -> None:
    request = vector_pb2.WriteRequest(collection=collection)
    for number in range(3):
        vector = request.upsert_vectors.add(id=f"p{number}")
        vector.attributes["vector"].vector_value.values.extend([number, 0, 0, 0])
        vector.attributes["number"].int64_value = number
    accept = {**PROTOBUF, "Accept": "application/protobuf"}
    answer = vectors.request("POST", "/api/v1/vector/write", request.SerializeToString(), accept)
    assert vector_pb2.UpsertVectorsResponse.FromString(answer.body).vectors_upserted == 3
    wanted = vector_pb2.SearchRequest(vector=[2, 0, 0, 0], k=2, collection=collection)
    getattr(wanted.filter, "not").eq.field = "number"
    getattr(wanted.filter, "not").eq.value.int64_value = 2
    answer = vectors.request("POST", "/api/v1/vector/search", wanted.SerializeToString(), accept)
    found = vector_pb2.SearchResponse.FromString(answer.body)
    assert [(result.score, result.vector.id) for result in found.results] == [(1.0, "p1"), (2.0, "p0")]
    assert found.results[0].vector.attributes["number"].int64_value == 1
    assert list(found.results[0].vector.attributes["vector"].vector_value.values) == [1, 0, 0, 0]
    delete = vector_pb2.DeleteRequest(ids=["p1", "p9"], collection=collection).SerializeToString()
    answer = vectors.request("POST", "/api/v1/vector/delete", delete, PROTOBUF)
    assert answer.json() == {"status": "success", "vectorsDeleted": 1}
    many = vectors.post_json(
        "/api/v1/vector/get", {"ids": ["p2", "p1", "p0"], "collection": collection, "includeFields": ["number"]}
    )
    assert many.json()["vectors"] == [
        {"id": "p2", "attributes": {"number": 2}},
        {"id": "p0", "attributes": {"number": 0}},
    ]


def test_the_same_id_twice_in_a_request_is_the_last_one(vectors: Cluster, collection: str) -> None:
    write(vectors, ("a", {"vector": [1, 0, 0, 0]}), ("a", {"vector": [2, 0, 0, 0]}), collection=collection)
    found = search(vectors, vector=[0, 0, 0, 0], collection=collection, includeFields=[])
    assert found["results"] == [{"score": 2.0, "vector": {"id": "a", "attributes": {}}}]


def test_batch_search_answers_each_vector(vectors: Cluster, collection: str) -> None:
    write(vectors, *((f"v{n}", {"vector": [n, 0, 0, 0]}) for n in range(20)), collection=collection)
    found = search(vectors, vectors=[[3.1, 0, 0, 0], [17, 0, 0, 0]], k=2, collection=collection, includeFields=[])
    assert [[hit["vector"]["id"] for hit in entry["results"]] for entry in found["resultSets"]] == [
        ["v3", "v4"],
        ["v17", "v16"],
    ]


def test_concurrent_single_searches_have_the_answers_of_a_batch(vectors: Cluster, collection: str) -> None:
    write(
        vectors,
        *((f"v{n}", {"vector": [n % 7, n % 11, n / 3, 1], "n": n}) for n in range(200)),
        collection=collection,
    )
    condition = {"lt": {"field": "n", "value": 150}}
    wanted = {"k": 3, "includeFields": [], "collection": collection, "filter": condition}
    queries = [[n / 5, 3, n / 2, 1] for n in range(40)]
    expected = [found["results"] for found in search(vectors, vectors=queries, **wanted)["resultSets"]]

    async def one(query: list[float], more: str) -> Any:
        client = Connection(vectors.url)
        request = client.request("/api/v1/vector/search", json.dumps({**wanted, "vector": query}).encode())
        await client.send(request)  # aiohttp reads the first request of a connection if it comes at once
        answer = await client.send(request.replace(b"\r\n\r\n", more.encode() + b"\r\n\r\n", 1))
        client.close()
        return json.loads(answer)["results"]

    async def all_of(more: str) -> list[Any]:
        return await asyncio.gather(*(one(query, more) for query in queries))

    assert asyncio.run(all_of("")) == expected
    assert asyncio.run(all_of("\r\nX-Other: left to aiohttp")) == expected


def test_filters_choose_by_attribute(vectors: Cluster, collection: str) -> None:
    colours = ["red", "green", "blue"]
    write(
        vectors,
        *((f"v{n}", {"vector": [n, 0, 0, 0], "n": n, "colour": colours[n % 3]}) for n in range(9)),
        ("bare", {"vector": [9, 0, 0, 0]}),
        collection=collection,
    )

    def chosen(condition: Any) -> list[str]:
        return ids(search(vectors, vector=[0, 0, 0, 0], k=10, filter=condition, collection=collection))

    assert chosen({"eq": {"field": "colour", "value": "red"}}) == ["v0", "v3", "v6"]
    assert chosen({"in": {"field": "n", "values": [1, 2.0, "x"]}}) == ["v1", "v2"]
    assert chosen({"and": [{"gte": {"field": "n", "value": 2}}, {"lt": {"field": "n", "value": 4.5}}]}) == [
        "v2",
        "v3",
        "v4",
    ]
    assert chosen({"not": {"exists": {"field": "n"}}}) == ["bare"]
    assert chosen(
        {"and": {"filters": [{"neq": {"field": "colour", "value": "red"}}, {"gt": {"field": "n", "value": 6}}]}}
    ) == [
        "v7",
        "v8",
    ]
    assert chosen({"or": [{"gt": {"field": "colour", "value": "green"}}, {"lte": {"field": "n", "value": 1}}]}) == [
        "v0",
        "v1",
        "v3",
        "v6",
    ]


def test_unknown_filters_are_refused(vectors: Cluster, collection: str) -> None:
    write(vectors, ("a", {"vector": [1, 0, 0, 0], "n": 1}), collection=collection)

    def asked(condition: Any) -> Response:
        body = {"vector": [0, 0, 0, 0], "filter": condition, "collection": collection}
        return vectors.post_json("/api/v1/vector/search", body)

    deep: Any = {"exists": "n"}
    for _ in range(31):
        deep = {"not": deep}
    assert asked(deep).status == 200
    refused(asked({"not": deep}), "filter", "32")
    refused(asked({"like": {"field": "n", "value": 1}}), "filter", "'like'", "gte")
    refused(asked({"eq": {"field": "n", "valeu": 1}}), "filter", "'valeu'")
    refused(asked({"lt": {"field": "n", "value": None}}), "'n'", "null")
    refused(asked({"containsAny": {"field": "n", "value": 1}}), "filter", "containsAny", "'value'")
    refused(asked([]), "filter")


def test_a_filter_on_a_field_that_no_vector_has_matches_nothing_and_names_it(vectors: Cluster, collection: str) -> None:
    def asked(name: str, **fields: Any) -> dict[str, Any]:
        condition = {"eq": {"field": name, "value": "red"}}
        return search(vectors, **(fields or {"vector": [0, 0, 0, 0]}), filter=condition, collection=collection)

    assert asked("color") == {"status": "success", "results": []}  # there is no vector yet
    write(vectors, *((f"v{n}", {"vector": [n, 0, 0, 0], "n": n}) for n in range(20)), collection=collection)
    write(vectors, ("a", {"vector": [0, 0, 0, 0], "colour": "red"}), collection=collection)
    found = asked("color")
    assert found["results"] == []
    assert found["infos"] == [
        f"filter: no vector of the collection '{collection}' has the field 'color'; the nearest field is 'colour'"
    ]
    assert ids(asked("colour")) == ["a"] and "infos" not in asked("colour")
    sets = asked("none", vectors=[[0, 0, 0, 0]] * 2)
    assert sets["resultSets"] == [{"results": []}] * 2 and "'none'" in sets["infos"][0]
    wanted = vector_pb2.SearchRequest(vector=[0, 0, 0, 0], k=1, collection=collection)
    wanted.filter.eq.field, wanted.filter.eq.value.string_value = "none", "red"
    accept = {**PROTOBUF, "Accept": "application/protobuf"}
    answer = vectors.request("POST", "/api/v1/vector/search", wanted.SerializeToString(), accept)
    assert "'none'" in vector_pb2.SearchResponse.FromString(answer.body).infos[0]


def test_arrays_null_and_datetimes_are_written_read_and_found(vectors: Cluster, collection: str) -> None:
    rows: list[dict[str, Any]] = [
        {"tags": ["red", "big"], "sizes": [1, 2.5], "at": "2026-01-01T00:00:00Z"},
        {"tags": ["red"], "sizes": [], "flags": [True, False], "at": "2026-01-01T00:00:00.000+02:00"},
        {"tags": "big", "at": "yesterday"},
    ]
    entries = [(f"v{n}", {"vector": [n, 0, 0, 0], "none": None, **row}) for n, row in enumerate(rows)]
    assert write(vectors, *entries, collection=collection).status == 200
    read = vectors.post_json("/api/v1/vector/get", {"ids": ["v0", "v1", "v2"], "collection": collection}).json()
    expected = [{"vector": [n, 0, 0, 0], **row} for n, row in enumerate(rows)]
    assert [entry["attributes"] for entry in read["vectors"]] == expected
    wanted = vector_pb2.SearchRequest(vector=[0, 0, 0, 0], k=1, collection=collection)
    accept = {**PROTOBUF, "Accept": "application/protobuf"}
    answer = vectors.request("POST", "/api/v1/vector/search", wanted.SerializeToString(), accept)
    [result] = vector_pb2.SearchResponse.FromString(answer.body).results
    sizes = result.vector.attributes["sizes"].array_value.values
    assert [one.WhichOneof("value") for one in sizes] == ["int64_value", "float64_value"]

    def chosen(condition: Any) -> list[str]:
        return ids(search(vectors, vector=[0, 0, 0, 0], filter=condition, collection=collection))

    assert chosen({"contains": {"field": "tags", "value": "red"}}) == ["v0", "v1"]
    assert chosen({"containsAll": {"field": "tags", "values": ["red", "big"]}}) == ["v0"]
    assert chosen({"containsAny": {"field": "sizes", "values": [7, 2.5]}}) == ["v0"]
    assert chosen({"eq": {"field": "sizes", "value": None}}) == ["v2"]
    assert chosen({"lt": {"field": "at", "value": "2026-01-01T00:00:00Z"}}) == ["v1"]
    assert chosen({"gte": {"field": "at", "value": "2025-12-31T22:00:00Z"}}) == ["v0", "v1"]
    assert chosen({"eq": {"field": "at", "value": "2025-12-31T22:00:00Z"}}) == ["v1"]
    assert chosen({"exists": {"field": "none"}}) == []


def test_hybrid_search_fuses_text_and_vector(vectors: Cluster, collection: str) -> None:
    write(
        vectors,
        ("near", {"vector": [0, 0, 0, 0], "body": "nothing of note"}),
        ("both", {"vector": [1, 0, 0, 0], "body": "a quick brown fox"}),
        *((f"between{n}", {"vector": [n, 0, 0, 0], "body": "nothing"}) for n in range(2, 9)),
        ("text", {"vector": [9, 0, 0, 0], "body": "fox and hound"}),
        collection=collection,
    )
    text = {"field": "body", "query": "fox"}
    assert set(ids(search(vectors, text=text, collection=collection))) == {"both", "text"}
    assert ids(search(vectors, vector=[0, 0, 0, 0], text=text, collection=collection))[0] == "both"
    answer = vectors.post_json("/api/v1/vector/search", {"text": {**text, "field": "title"}, "collection": collection})
    refused(answer, "text.field", "'title'", "body")


def test_bad_vectors_are_refused_and_nothing_is_applied(vectors: Cluster, collection: str) -> None:
    good = ("good", {"vector": [1, 0, 0, 0]})

    def bad(name: str, attributes: dict[str, Any], *words: str) -> None:
        refused(write(vectors, good, (name, attributes), collection=collection), *words)

    vector = [1, 0, 0, 0]
    bad("i" * 65, {"vector": vector}, "i" * 65, "65 bytes", "id")
    bad("ü" * 33, {"vector": vector}, "66 bytes")
    bad("", {"vector": vector}, "id", "empty")
    bad("b", {"vector": [1, 2]}, "'b'", "attributes.vector", "2 components", "dimension", "4")
    bad("b", {"vector": []}, "'b'", "0 components")
    bad("b", {"colour": "red"}, "'b'", "attributes.vector", "missing")
    bad("b", {"vector": "abc"}, "'b'", "attributes.vector", "array")
    bad("b", {"vector": [1, 2, "x", 4]}, "'b'", "component 2", "'x'")
    bad("b", {"vector": [1, 2, 3, 1e39]}, "'b'", "component 3", "finite")
    bad("b", {"vector": [1, 2, 3, float("nan")]}, "'b'", "attributes.vector", "NaN")
    bad("b", {"vector": vector, "tags": ["x", 1]}, "'b'", "attributes.tags", "element 1", "an integer", "all strings")
    bad("b", {"vector": vector, "tags": [["x"]]}, "'b'", "attributes.tags", "element 0", "an array")
    bad("b", {"vector": vector, "tags": ["x"] * 1025}, "'b'", "attributes.tags", "1025 elements", "1024")
    bad("b", {"vector": vector, "place": {"x": 1}}, "'b'", "attributes.place", "an object cannot be a value")
    bad("b", {"vector": vector, "big": 2**63}, "'b'", "attributes.big", "64-bit")
    assert ids(search(vectors, vector=vector, collection=collection)) == []


def test_bad_requests_are_refused(vectors: Cluster, collection: str) -> None:
    def searched(body: dict[str, Any]) -> Response:
        return vectors.post_json("/api/v1/vector/search", {"collection": collection, **body})

    refused(searched({"vector": [0, 0, 0, 0], "k": 0}), "k is 0")
    refused(searched({"vector": [0, 0, 0, 0], "k": 10_001}), "k is 10001")
    refused(searched({"vector": [0, 0, 0, 0], "k": "many"}), "k")
    refused(searched({"vector": [0, 0, 0]}), "vector", "3 components", "4")
    refused(searched({"vector": []}), "vector", "0 components")
    refused(searched({}), "vector is missing")
    refused(searched({"vector": [0, 0, 0, 0], "wat": 1}), "wat")
    refused(searched({"vector": [0, 0, 0, float("inf")]}), "vector", "Infinity")
    refused(searched({"vector": [0, 0, 0, 0], "collection": "unknown"}), "'unknown'", status=404)
    path = "/api/v1/vector/write"
    refused(vectors.request("POST", path, b"{", {"Content-Type": "application/json"}), "JSON")
    refused(vectors.request("POST", path, b"\x0a\xff", PROTOBUF), "protobuf")
    refused(vectors.request("POST", path, b"{}", {"Content-Type": "text/plain"}), "Content-Type", "text/plain")
    refused(vectors.request("POST", path, b"[" * 100_000, {"Content-Type": "application/json"}), "body")
    deep = b'{"upsertVectors": [{"id": "a", "attributes": {"vector": ' + b"[" * 100_000
    refused(vectors.request("POST", path, deep, {"Content-Type": "application/json"}), "nested too deeply")
    refused(write(vectors, collection=collection), "upsertVectors", "empty")
    refused(vectors.post_json("/api/v1/vector/delete", {"ids": ["i" * 65]}), "ids", "65 bytes")
    refused(vectors.request("GET", path), "POST", status=405)
    refused(put(vectors, collection, {"dimension": 5, "metric": "l2"}), "dimension 4", "dimension 5")
    refused(put(vectors, "other", {"dimension": 0}), "dimension is 0")
    refused(put(vectors, "other", {"dimension": 3, "metric": "manhattan"}), "'manhattan'")


def test_first_vector_fixes_the_dimension_of_the_default_collection(vectors: Cluster) -> None:
    assert search(vectors, vector=[1, 2]) == {"status": "success", "results": []}
    refused(write(vectors, ("a", {"vector": [1, 0, 0]}), ("b", {"vector": [1, 0]})), "'b'", "2 components", "3")
    assert write(vectors, ("a", {"vector": [0, 2, 0]})).status == 200
    refused(write(vectors, ("b", {"vector": [1, 0]})), "'b'", "2 components", "3")
    refused(write(vectors, ("b", {"vector": [0, 0, 0]})), "'b'", "zeros", "cosine")
    assert [(r["score"], r["vector"]["id"]) for r in search(vectors, vector=[0, 1, 0])["results"]] == [(1.0, "a")]


def test_writes_racing_to_be_the_first_agree_on_one_dimension(vectors: Cluster) -> None:
    vectors.request("DELETE", "/api/v1/vector/collections/default")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: write(vectors, (f"r{n}", {"vector": [1] * (2 + n % 2)})), range(8)))
    dimension = vectors.get("/api/v1/vector/collections/default").json()["collection"]["dimension"]
    assert [answer.status for answer in answers] == [200 if 2 + n % 2 == dimension else 400 for n in range(8)]
    found = search(vectors, vector=[1] * dimension, includeFields=[])
    assert ids(found) == [f"r{n}" for n in range(8) if 2 + n % 2 == dimension]


def test_deleted_collection_can_be_made_again_empty(vectors: Cluster) -> None:
    for dimension in (2, 3):
        put(vectors, "again", {"dimension": dimension})
        assert search(vectors, vector=[1] * dimension, collection="again")["results"] == []
        write(vectors, ("a", {"vector": [1] * dimension}), collection="again")
        assert ids(search(vectors, vector=[1] * dimension, collection="again")) == ["a"]
        assert vectors.request("DELETE", "/api/v1/vector/collections/again").status == 200
    refused(vectors.get("/api/v1/vector/collections/again"), "'again'", status=404)


def test_acknowledged_vectors_survive_kill_of_everything(vectors: Cluster) -> None:
    table = np.random.default_rng(1).standard_normal((400, 8)).astype(np.float32)
    put(vectors, "kept", {"dimension": 8})
    write(vectors, *((f"v{n}", {"vector": row.tolist()}) for n, row in enumerate(table)), collection="kept")
    write(vectors, ("v1", {"vector": (-table[1]).tolist()}), collection="kept")
    vectors.post_json("/api/v1/vector/delete", {"ids": ["v2"], "collection": "kept"})
    vectors.kill()
    vectors.start()
    assert ids(search(vectors, vector=table[0].tolist(), k=1, collection="kept")) == ["v0"]
    assert ids(search(vectors, vector=(-table[1]).tolist(), k=1, collection="kept")) == ["v1"]
    assert ids(search(vectors, vector=table[2].tolist(), k=1, collection="kept")) != ["v2"]
    stats = vectors.get("/api/v1/vector/stats").json()["collections"]["kept"]
    assert (stats["vectors"], stats["dimension"], stats["metric"]) == (399, 8, "cosine")


@pytest.mark.parametrize(("text", "status"), [("1", 200), ("0", 200), ("true", 200), ("false", 200), ("yes", 400)])
def test_partial_response_is_a_boolean_as_in_the_other_areas(
    vectors: Cluster, collection: str, text: str, status: int
) -> None:
    write(vectors, ("a", {"vector": [1, 0, 0, 0]}), collection=collection)
    for path, body in (("search", {"vector": [1, 0, 0, 0]}), ("get", {"ids": ["a"]})):
        answer = vectors.post_json(f"/api/v1/vector/{path}?partial_response={text}", {**body, "collection": collection})
        assert answer.status == status, answer.body


def test_missing_worker_means_warnings_on_searches_and_503_on_writes(vectors: Cluster) -> None:
    put(vectors, "partial", {"dimension": 2})
    rows = [(f"v{n}", {"vector": [1, n]}) for n in range(40)]
    write(vectors, *rows, collection="partial")
    with vectors.without_worker("worker-0"):
        answer = search(vectors, vector=[1, 1], k=40, collection="partial", includeFields=[])
        assert len(answer["results"]) < 40
        assert len(answer["warnings"]) == 2
        body = {"vector": [1, 1], "collection": "partial"}
        refused(vectors.post_json("/api/v1/vector/search?partial_response=false", body), "shard", status=503)
        refused(write(vectors, *rows, collection="partial"), "shard", status=503)
    vectors.wait_ready()
    assert len(search(vectors, vector=[1, 1], k=40, collection="partial", includeFields=[])["results"]) == 40

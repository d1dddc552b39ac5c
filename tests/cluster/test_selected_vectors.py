"""Scrolls, counts, facets, deletes and updates by filter, and refined searches, over HTTP on a real cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from proto import vector_pb2
from tests.cluster.vector_requests import ids, put, refused, search, write
from tests.forked_cluster import ForkedCluster

PROTOBUF = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
COLOURS = ["red", "green", "blue"]
ROWS: dict[str, dict[str, Any]] = {
    f"v{n:03}": {"vector": [n, 0, 0, 0], "colour": COLOURS[n % 3], "n": n // 7, **({"odd": True} if n % 2 else {})}
    for n in range(200)
}
RED = {"eq": {"field": "colour", "value": "red"}}
IS_RED = [name for name, row in ROWS.items() if row["colour"] == "red"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("selected")).start()
    put(running, "rows", {"dimension": 4, "metric": "l2", "textFields": ["colour"]})
    shuffled = list(ROWS.items())
    random.Random(1).shuffle(shuffled)
    write(running, *shuffled, collection="rows")
    yield running
    running.stop()


@pytest.fixture
def changing(vectors: Cluster) -> Iterator[str]:
    """A collection of the same vectors, to be changed."""
    put(vectors, "changing", {"dimension": 4, "metric": "l2", "textFields": ["colour"]})
    write(vectors, *ROWS.items(), collection="changing")
    yield "changing"
    vectors.request("DELETE", "/api/v1/vector/collections/changing")


def post(cluster: Cluster, name: str, **fields: Any) -> dict[str, Any]:
    answer = cluster.post_json(f"/api/v1/vector/{name}", {"collection": "rows", **fields})
    assert answer.status == 200, answer.body
    return answer.json()


def scrolled(cluster: Cluster, **fields: Any) -> list[dict[str, Any]]:
    """The vectors of all pages."""
    found: list[dict[str, Any]] = []
    token: dict[str, Any] = {}
    while True:
        page = post(cluster, "scroll", **fields, **token)
        found += page["vectors"]
        if "nextPageToken" not in page:
            return found
        assert len(page["vectors"]) == fields["limit"]
        token = {"pageToken": page["nextPageToken"]}


def names(vectors: list[dict[str, Any]]) -> list[str]:
    return [vector["id"] for vector in vectors]


@pytest.mark.parametrize("limit", [7, 50, 10_000])
def test_a_scroll_gives_every_vector_in_the_order_of_ids(vectors: Cluster, limit: int) -> None:
    found = scrolled(vectors, limit=limit)
    assert names(found) == sorted(ROWS)
    assert found[5] == {"id": "v005", "attributes": ROWS["v005"]}
    red = scrolled(vectors, limit=limit, filter=RED, includeFields=["n"])
    assert names(red) == IS_RED
    assert red[1] == {"id": "v003", "attributes": {"n": 0}}


def test_the_default_limit_of_a_page_is_ten(vectors: Cluster) -> None:
    assert len(post(vectors, "scroll")["vectors"]) == 10


@pytest.mark.parametrize("limit", [9, 10_000])
def test_a_scroll_by_a_field_is_in_its_order(vectors: Cluster, limit: int) -> None:
    rising = scrolled(vectors, limit=limit, orderBy={"field": "n"}, includeFields=[])
    assert names(rising) == sorted(ROWS, key=lambda name: (ROWS[name]["n"], name))
    falling = scrolled(vectors, limit=limit, order_by={"field": "n", "direction": "desc"}, include_fields=[])
    assert names(falling) == sorted(ROWS, key=lambda name: (-ROWS[name]["n"], name))
    sparse = scrolled(vectors, limit=limit, orderBy={"field": "odd", "direction": "desc"}, includeFields=[])
    assert names(sparse) == sorted(ROWS, key=lambda name: ("odd" not in ROWS[name], name))


def test_a_scroll_in_protobuf(vectors: Cluster) -> None:
    request = vector_pb2.ScrollRequest(collection="rows", limit=150, include_fields=["n"])
    request.order_by.field, request.order_by.direction = "n", "desc"
    found: list[str] = []
    while True:
        answer = vectors.request("POST", "/api/v1/vector/scroll", request.SerializeToString(), PROTOBUF)
        page = vector_pb2.ScrollResponse.FromString(answer.body)
        found += [vector.id for vector in page.vectors]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == sorted(ROWS, key=lambda name: (-ROWS[name]["n"], name))
    assert page.vectors[-1].attributes["n"].int64_value == 0


def test_counts_and_facets_are_exact(vectors: Cluster) -> None:
    assert post(vectors, "count") == {"status": "success", "count": 200}
    assert post(vectors, "count", filter=RED)["count"] == len(IS_RED)
    colours = Counter(row["colour"] for row in ROWS.values())
    assert post(vectors, "facets", field="colour")["facets"] == [
        {"value": colour, "count": colours[colour]} for colour in ("green", "red", "blue")
    ]
    tens = Counter(ROWS[name]["n"] for name in IS_RED)
    assert post(vectors, "facets", field="n", filter=RED, limit=5)["facets"] == [
        {"value": value, "count": count} for value, count in sorted(tens.items(), key=lambda e: (-e[1], e[0]))[:5]
    ]
    assert post(vectors, "facets", field="odd")["facets"] == [{"value": True, "count": 100}]


def test_counts_and_facets_in_protobuf(vectors: Cluster) -> None:
    count = vector_pb2.CountRequest(collection="rows")
    count.filter.eq.field, count.filter.eq.value.string_value = "colour", "red"
    answer = vectors.request("POST", "/api/v1/vector/count", count.SerializeToString(), PROTOBUF)
    assert vector_pb2.CountResponse.FromString(answer.body).count == len(IS_RED)
    facets = vector_pb2.FacetsRequest(collection="rows", field="colour", limit=1)
    answer = vectors.request("POST", "/api/v1/vector/facets", facets.SerializeToString(), PROTOBUF)
    [facet] = vector_pb2.FacetsResponse.FromString(answer.body).facets
    assert (facet.value.string_value, facet.count) == ("green", 67)


def test_a_field_that_no_vector_has_matches_nothing_and_is_named(vectors: Cluster) -> None:
    nowhere = {"eq": {"field": "nowhere", "value": 1}}
    infos = ["filter: no vector of the collection 'rows' has the field 'nowhere'"]
    assert post(vectors, "scroll", filter=nowhere) == {"status": "success", "vectors": [], "infos": infos}
    assert post(vectors, "count", filter=nowhere) == {"status": "success", "count": 0, "infos": infos}
    assert post(vectors, "facets", field="nowhere") == {"status": "success", "facets": [], "infos": infos}
    assert post(vectors, "delete", filter=nowhere) == {"status": "success", "vectorsDeleted": 0, "infos": infos}
    assert post(vectors, "update", filter=nowhere, unset=["x"])["infos"] == infos
    assert post(vectors, "search", filter=nowhere) == {"status": "success", "results": [], "infos": infos}
    near = {"vector": [0, 0, 0, 0], "groupBy": {"field": "n"}}
    assert post(vectors, "search", filter=nowhere, **near) == {"status": "success", "groups": [], "infos": infos}
    similar = post(vectors, "count", filter={"eq": {"field": "color", "value": 1}})["infos"]
    assert similar == [
        "filter: no vector of the collection 'rows' has the field 'color'; the nearest field is 'colour'"
    ]


def test_a_vector_with_an_array_counts_for_each_element(vectors: Cluster) -> None:
    put(vectors, "arrays", {"dimension": 1, "metric": "l2"})
    tags: list[Any] = [["a", "b", "a"], ["b"], "b", [], ["c"]]
    write(vectors, *((f"v{n}", {"vector": [n], "tags": tag}) for n, tag in enumerate(tags)), collection="arrays")
    facets = post(vectors, "facets", collection="arrays", field="tags")["facets"]
    assert [(facet["value"], facet["count"]) for facet in facets] == [("b", 3), ("a", 1), ("c", 1)]
    found = search(vectors, vector=[0], collection="arrays", groupBy={"field": "tags"}, includeFields=[])["groups"]
    assert [(group["value"], ids(group)) for group in found] == [
        ("a", ["v0"]),
        ("b", ["v0", "v1", "v2"]),
        ("c", ["v4"]),
    ]
    by_tags = post(vectors, "scroll", collection="arrays", orderBy={"field": "tags"})
    assert names(by_tags["vectors"]) == ["v2", "v0", "v1", "v3", "v4"]
    post(vectors, "update", collection="arrays", ids=["v2", "v3"], set={"tags": ["x", "y"]})
    has_y = {"contains": {"field": "tags", "value": "y"}}
    assert post(vectors, "count", collection="arrays", filter=has_y)["count"] == 2
    vectors.request("DELETE", "/api/v1/vector/collections/arrays")


def test_datetimes_are_ordered_as_texts(vectors: Cluster) -> None:
    """Two texts may be one instant: a filter finds both by either, a scroll gives each once."""
    put(vectors, "times", {"dimension": 1, "metric": "l2"})
    times = ["2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00.0Z", "2025-12-31T23:00:00-01:00"]
    write(vectors, *((f"v{n:02}", {"vector": [n], "at": at}) for n, at in enumerate(times * 3)), collection="times")
    found = scrolled(vectors, collection="times", limit=1, orderBy={"field": "at"}, includeFields=[])
    assert names(found) == [f"v{n:02}" for n in (3, 7, 11, 2, 6, 10, 0, 4, 8, 1, 5, 9)]
    vectors.request("DELETE", "/api/v1/vector/collections/times")


def test_the_default_collection_is_empty_while_it_has_no_vector(vectors: Cluster) -> None:
    for name, fields, answer in (
        ("scroll", {}, {"vectors": []}),
        ("count", {}, {"count": 0}),
        ("facets", {"field": "x"}, {"facets": []}),
        ("delete", {"filter": RED}, {"vectorsDeleted": 0}),
        ("update", {"ids": ["a"], "set": {"x": 1}}, {"vectorsUpdated": 0}),
        ("search", {"filter": RED}, {"results": []}),
        ("search", {"vector": [1], "groupBy": {"field": "x"}}, {"groups": []}),
    ):
        found = vectors.post_json(f"/api/v1/vector/{name}", fields)
        assert found.json() == {"status": "success", **answer}, name


def test_delete_by_filter(vectors: Cluster, changing: str) -> None:
    assert post(vectors, "delete", collection=changing, filter=RED) == {
        "status": "success",
        "vectorsDeleted": len(IS_RED),
    }
    assert names(scrolled(vectors, collection=changing, limit=100)) == [n for n in ROWS if n not in IS_RED]
    request = vector_pb2.DeleteRequest(collection=changing)
    request.filter.exists.field = "odd"
    answer = vectors.request("POST", "/api/v1/vector/delete", request.SerializeToString(), PROTOBUF)
    gone = [n for n in ROWS if n not in IS_RED and "odd" in ROWS[n]]
    assert vector_pb2.DeleteVectorsResponse.FromString(answer.body).vectors_deleted == len(gone)


def test_update_by_ids_and_by_filter(vectors: Cluster, changing: str) -> None:
    updated = post(vectors, "update", collection=changing, ids=["v001", "v002", "x"], set={"n": 2.5}, unset=["colour"])
    assert updated == {"status": "success", "vectorsUpdated": 2}
    got = vectors.get("/api/v1/vector/vectors/v001", collection=changing).json()["vector"]
    assert got == {"id": "v001", "attributes": {"vector": [1, 0, 0, 0], "n": 2.5, "odd": True}}
    by_filter = post(vectors, "update", collection=changing, filter=RED, set={"colour": "dark red", "n": None})
    assert by_filter["vectorsUpdated"] == len(IS_RED)
    count = post(vectors, "count", collection=changing, filter={"eq": {"field": "colour", "value": "dark red"}})
    assert count["count"] == len(IS_RED)
    assert post(vectors, "count", collection=changing, filter={"exists": "n"})["count"] == 200 - len(IS_RED)
    found = search(vectors, vector=[3, 0, 0, 0], k=1, collection=changing)["results"][0]
    assert (found["score"], found["vector"]["attributes"]["colour"]) == (0.0, "dark red")
    found = search(vectors, text={"field": "colour", "query": "dark"}, k=1000, collection=changing)
    assert sorted(ids(found)) == IS_RED
    request = vector_pb2.UpdateRequest(collection=changing, ids=["v000"], unset=["odd"])
    request.set["flag"].bool_value = True
    answer = vectors.request("POST", "/api/v1/vector/update", request.SerializeToString(), PROTOBUF)
    assert vector_pb2.UpdateVectorsResponse.FromString(answer.body).vectors_updated == 1
    assert post(vectors, "count", collection=changing, filter={"exists": "flag"})["count"] == 1


def test_a_search_begins_at_the_offset_and_ends_at_the_threshold(vectors: Cluster) -> None:
    at_zero = {"vector": [0, 0, 0, 0], "collection": "rows", "includeFields": []}
    assert ids(search(vectors, **at_zero, k=3, offset=5)) == ["v005", "v006", "v007"]
    assert ids(search(vectors, **at_zero, k=100, scoreThreshold=4)) == ["v000", "v001", "v002", "v003", "v004"]
    assert ids(search(vectors, **at_zero, k=100, score_threshold=4, offset=4)) == ["v004"]
    assert ids(search(vectors, **at_zero, k=100, scoreThreshold=4, offset=7)) == []
    assert ids(search(vectors, **at_zero, k=10, offset=195)) == [f"v{n}" for n in range(195, 200)]
    batch = vectors.post_json(
        "/api/v1/vector/search",
        {"vectors": [[0, 0, 0, 0], [9.9, 0, 0, 0]], "k": 1, "offset": 1, "collection": "rows", "includeFields": []},
    ).json()
    assert [ids(entry) for entry in batch["resultSets"]] == [["v001"], ["v009"]]
    text = {"text": {"field": "colour", "query": "red"}, "collection": "rows", "k": 100, "includeFields": []}
    best = search(vectors, **text)["results"]
    assert search(vectors, **text, scoreThreshold=best[0]["score"] + 1)["results"] == []
    assert search(vectors, **text, offset=2)["results"] == best[2:]
    hybrid = {**text, "vector": [0, 0, 0, 0]}
    assert search(vectors, **hybrid, offset=3)["results"] == search(vectors, **{**hybrid, "k": 103})["results"][3:]
    request = vector_pb2.SearchRequest(vector=[0, 0, 0, 0], collection="rows", k=2, offset=1, score_threshold=1)
    answer = vectors.request("POST", "/api/v1/vector/search", request.SerializeToString(), PROTOBUF)
    assert [hit.vector.id for hit in vector_pb2.SearchResponse.FromString(answer.body).results] == ["v001"]


def test_under_cosine_the_threshold_is_the_least_score(vectors: Cluster) -> None:
    put(vectors, "angles", {"dimension": 2, "metric": "cosine"})
    write(vectors, ("a", {"vector": [1, 0]}), ("b", {"vector": [0.9, 0.435889894]}), ("c", {"vector": [0, 1]}),
          collection="angles")  # fmt: skip
    found = search(vectors, vector=[1, 0], collection="angles", includeFields=[])
    score = found["results"][1]["score"]
    assert ids(search(vectors, vector=[1, 0], collection="angles", scoreThreshold=score)) == ["a", "b"]
    assert ids(search(vectors, vector=[1, 0], collection="angles", scoreThreshold=score + 1e-6)) == ["a"]
    vectors.request("DELETE", "/api/v1/vector/collections/angles")


def test_a_search_with_a_filter_alone_is_in_the_order_of_ids(vectors: Cluster) -> None:
    found = search(vectors, filter=RED, collection="rows", k=3, includeFields=["n"])
    assert found["results"] == [
        {"score": 0.0, "vector": {"id": name, "attributes": {"n": ROWS[name]["n"]}}} for name in IS_RED[:3]
    ]
    assert ids(search(vectors, filter=RED, collection="rows", k=4, offset=64)) == IS_RED[64:68]
    assert ids(search(vectors, filter=RED, collection="rows", offset=100)) == []


def test_groups_are_in_the_order_of_their_best_results(vectors: Cluster) -> None:
    found = search(
        vectors, vector=[50, 0, 0, 0], collection="rows", groupBy={"field": "n", "groups": 3, "perGroup": 2}
    )["groups"]
    assert [(group["value"], ids(group)) for group in found] == [
        (7, ["v050", "v049"]),
        (6, ["v048", "v047"]),
        (8, ["v056", "v057"]),
    ]
    assert found[0]["results"][0] == {"score": 0.0, "vector": {"id": "v050", "attributes": ROWS["v050"]}}
    blue = {"eq": {"field": "colour", "value": "blue"}}
    found = search(
        vectors, vector=[0, 0, 0, 0], collection="rows", filter=blue, scoreThreshold=10, includeFields=[],
        group_by={"field": "colour", "perGroup": 5},
    )["groups"]  # fmt: skip
    assert [(group["value"], ids(group)) for group in found] == [("blue", ["v002", "v005", "v008"])]
    by_text = search(
        vectors, text={"field": "colour", "query": "red"}, collection="rows", groupBy={"field": "odd", "perGroup": 100}
    )["groups"]
    assert [(group["value"], len(group["results"])) for group in by_text] == [(True, 33)]
    request = vector_pb2.SearchRequest(vector=[0, 0, 0, 0], collection="rows", k=1, include_fields=["n"])
    request.group_by.field, request.group_by.groups, request.group_by.per_group = "colour", 2, 1
    answer = vectors.request("POST", "/api/v1/vector/search", request.SerializeToString(), PROTOBUF)
    groups = vector_pb2.SearchResponse.FromString(answer.body).groups
    assert [(group.value.string_value, group.results[0].vector.id) for group in groups] == [
        ("red", "v000"),
        ("green", "v001"),
    ]


def test_a_group_with_most_of_the_nearest_vectors_does_not_hide_the_others(vectors: Cluster) -> None:
    """One value has the 500 nearest vectors: more than a search for the groups looks at."""
    put(vectors, "skewed", {"dimension": 1, "metric": "l2"})
    near = [(f"a{n}", {"vector": [1 + n / 1000], "tag": "near"}) for n in range(500)]
    far = [(f"b{n}", {"vector": [100 + n], "tag": f"far{n % 3}"}) for n in range(9)]
    write(vectors, *near, *far, ("bare", {"vector": [0]}), collection="skewed")
    found = search(vectors, vector=[0], collection="skewed", includeFields=[], groupBy={"field": "tag", "groups": 4})
    assert [(group["value"], ids(group)) for group in found["groups"]] == [
        ("near", ["a0", "a1", "a2"]),
        ("far0", ["b0", "b3", "b6"]),
        ("far1", ["b1", "b4", "b7"]),
        ("far2", ["b2", "b5", "b8"]),
    ]
    vectors.request("DELETE", "/api/v1/vector/collections/skewed")


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("scroll", {"limit": 0}, ["limit is 0", "1 to 10000"]),
        ("scroll", {"limit": 10_001}, ["limit is 10001"]),
        ("scroll", {"orderBy": {"field": ""}}, ["orderBy.field is ''"]),
        ("scroll", {"orderBy": {"field": "vector"}}, ["orderBy.field is 'vector'"]),
        ("scroll", {"orderBy": {"field": "n", "direction": "up"}}, ["'up'", "'asc' or 'desc'"]),
        ("scroll", {"pageToken": "nonsense"}, ["pageToken is 'nonsense'", "nextPageToken"]),
        ("scroll", {"filter": {}}, ["is not an object with one operator"]),
        ("scroll", {"page": 2}, ["page"]),
        ("facets", {}, ["field"]),
        ("facets", {"field": "vector"}, ["field is 'vector'"]),
        ("facets", {"field": "n", "limit": 0}, ["limit is 0"]),
        ("delete", {}, ["ids and filter are missing"]),
        ("delete", {"filter": {}}, ["is not an object with one operator"]),
        ("delete", {"ids": ["a"], "filter": RED}, ["ids and filter are both given"]),
        ("update", {"set": {"a": 1}}, ["ids and filter are missing"]),
        ("update", {"ids": ["a"]}, ["set and unset are missing"]),
        ("update", {"ids": ["a"], "set": {"vector": [1]}}, ["'vector' is the vector"]),
        ("update", {"ids": ["a"], "set": {"a": 1}, "unset": ["a"]}, ["'a' is in set and in unset"]),
        ("update", {"ids": ["a"], "set": {"a": {"b": 1}}}, ["set.a", "an object cannot be a value"]),
        ("search", {}, ["vector is missing", "a filter"]),
        ("search", {"filter": RED, "scoreThreshold": 1}, ["scoreThreshold is given without"]),
        ("search", {"filter": RED, "groupBy": {"field": "n"}}, ["groupBy is given without"]),
        ("search", {"vector": [0] * 4, "offset": -1}, ["offset is -1"]),
        ("search", {"vector": [0] * 4, "offset": 9_991}, ["offset is 9991 and k is 10", "10000"]),
        ("search", {"vectors": [[0] * 4] * 101, "k": 500, "offset": 500}, ["k and offset are 1000 together"]),
        ("search", {"vector": [0] * 4, "groupBy": {"field": "n", "groups": 101}}, ["groups is 101"]),
        ("search", {"vector": [0] * 4, "groupBy": {"field": "n", "perGroup": 0}}, ["perGroup is 0"]),
        ("search", {"vector": [0] * 4, "groupBy": {"field": "vector"}}, ["groupBy.field is 'vector'"]),
        ("search", {"vectors": [[0] * 4], "groupBy": {"field": "n"}}, ["groupBy and vectors"]),
        ("search", {"vector": [0] * 4, "offset": 1, "groupBy": {"field": "n"}}, ["groupBy and offset"]),
        (
            "search",
            {"vector": [0] * 4, "text": {"field": "colour", "query": "red"}, "groupBy": {"field": "n"}},
            ["a vector or a text, not both"],
        ),
    ],
)
def test_what_is_wrong_is_refused_and_named(
    vectors: Cluster, name: str, fields: dict[str, Any], words: list[str]
) -> None:
    refused(vectors.post_json(f"/api/v1/vector/{name}", {"collection": "rows", **fields}), *words)


def test_a_token_is_for_the_order_of_its_scroll(vectors: Cluster) -> None:
    token = post(vectors, "scroll", orderBy={"field": "n"})["nextPageToken"]
    for order in ({}, {"orderBy": {"field": "n", "direction": "desc"}}, {"orderBy": {"field": "m"}}):
        fields = {"collection": "rows", "pageToken": token, **order}
        refused(vectors.post_json("/api/v1/vector/scroll", fields), "in the order of 'n', asc")


def test_a_page_ends_at_its_bytes_and_the_scroll_goes_on(vectors: Cluster) -> None:
    """Vectors with long attributes fill a page before its limit."""
    put(vectors, "long", {"dimension": 1, "metric": "l2"})
    for n in range(40):
        write(vectors, (f"v{n:02}", {"vector": [n], "text": "x" * 900_000}), collection="long")
    page = post(vectors, "scroll", collection="long", limit=40)
    count = len(page["vectors"])
    assert 10 <= count < 40
    found = names(page["vectors"])
    while "nextPageToken" in page:
        page = post(vectors, "scroll", collection="long", limit=40, pageToken=page["nextPageToken"])
        found += names(page["vectors"])
    assert found == [f"v{n:02}" for n in range(40)]
    ordered = post(vectors, "scroll", collection="long", limit=1, orderBy={"field": "text"}, includeFields=[])
    following = {"orderBy": {"field": "text"}, "includeFields": [], "pageToken": ordered["nextPageToken"]}
    assert names(post(vectors, "scroll", collection="long", limit=2, **following)["vectors"]) == ["v01", "v02"]
    vectors.request("DELETE", "/api/v1/vector/collections/long")


def test_what_missing_shards_have_is_warned_about_or_refused(vectors: Cluster) -> None:
    reads: list[tuple[str, dict[str, Any]]] = [
        ("scroll", {"limit": 300}),
        ("count", {}),
        ("facets", {"field": "n"}),
        ("search", {"vector": [0, 0, 0, 0], "groupBy": {"field": "n"}}),
        ("search", {"filter": RED}),
    ]
    with vectors.without_worker("worker-0"):
        for name, fields in reads:
            assert len(post(vectors, name, **fields)["warnings"]) == 2, name
            path = f"/api/v1/vector/{name}?partial_response=false"
            refused(vectors.post_json(path, {"collection": "rows", **fields}), "shard", status=503)
        assert "infos" not in post(vectors, "count", filter={"exists": "odd"})
        for name, fields in (("delete", {"filter": RED}), ("update", {"filter": RED, "unset": ["x"]})):
            refused(vectors.post_json(f"/api/v1/vector/{name}", {"collection": "rows", **fields}), "shard", status=503)
    vectors.wait_ready()
    assert post(vectors, "count")["count"] == 200

"""The map of a collection, the names of its attributes, and searches by an id, over HTTP on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadtest.harness.cluster import Cluster
from proto import vector_pb2
from tests.cluster.vector_requests import ids, put, refused, search, write
from tests.forked_cluster import ForkedCluster

PROTOBUF = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
COUNT = 240
_random = np.random.default_rng(1)
TABLE = np.round(_random.standard_normal((COUNT, 6)) * [9, 4, 1, 1, 1, 1] + 3, 3)
NAMES = [f"v{n:03}" for n in range(COUNT)]
WORDS = ("red fox", "blue whale", "green frog")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("map")).start()
    put(running, "points", {"dimension": 6, "metric": "l2", "textFields": ["words"]})
    entries = [
        (name, {"vector": row.tolist(), "colour": n % 3, "words": WORDS[n % 3], **({"odd": True} if n % 2 else {})})
        for n, (name, row) in enumerate(zip(NAMES, TABLE, strict=True))
    ]
    write(running, *entries, collection="points")
    yield running
    running.stop()


def drawn(cluster: Cluster, query: str = "", **fields: Any) -> dict[str, Any]:
    answer = cluster.post_json(f"/api/v1/vector/map{query}", {"collection": "points", **fields})
    assert answer.status == 200, answer.body
    return answer.json()


def test_the_map_of_all_vectors_is_their_principal_components(vectors: Cluster) -> None:
    answer = drawn(vectors, attribute="colour")
    points = answer["points"]
    assert answer["vectors"] == COUNT
    assert sorted(points["ids"]) == NAMES
    rows = [NAMES.index(name) for name in points["ids"]]
    assert points["values"] == [row % 3 for row in rows]
    centred = TABLE - TABLE.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    for axis, places in enumerate((points["x"], points["y"])):
        right = (u[:, axis] * s[axis])[rows]
        assert min(np.abs(right - places).max(), np.abs(right + places).max()) < 0.03 * s[0]
    assert answer["variance"] == pytest.approx((s**2 / (s**2).sum())[:2], rel=0.01)
    assert "warnings" not in answer


def test_a_map_is_drawn_the_same_way_twice(vectors: Cluster) -> None:
    first = drawn(vectors, limit=50, filter={"exists": {"field": "odd"}})
    assert len(first["points"]["ids"]) == 50
    assert first["vectors"] == COUNT // 2
    assert "values" not in first["points"]
    assert drawn(vectors, limit=50, filter={"exists": {"field": "odd"}}) == first


def test_a_map_in_protobuf_is_that_in_json(vectors: Cluster) -> None:
    request = vector_pb2.MapRequest(collection="points", limit=30, attribute="odd")
    body = vectors.request("POST", "/api/v1/vector/map", request.SerializeToString(), PROTOBUF)
    answer = vector_pb2.MapResponse.FromString(body.body)
    same = drawn(vectors, limit=30, attribute="odd")
    assert (answer.status, list(answer.variance), answer.vectors) == ("success", same["variance"], same["vectors"])
    assert (list(answer.points.ids), list(answer.points.x)) == (same["points"]["ids"], same["points"]["x"])
    values = [value.bool_value or None for value in answer.points.values]
    assert values == same["points"]["values"]
    assert answer.points.values[values.index(None)].WhichOneof("value") == "null_value"


def test_an_unknown_attribute_is_a_hint_and_no_vectors_are_no_points(vectors: Cluster) -> None:
    answer = drawn(vectors, attribute="colours")
    assert "'colours'" in answer["infos"][0]
    assert "'colour'" in answer["infos"][0]
    empty = drawn(vectors, filter={"eq": {"field": "colour", "value": 9}})
    assert (empty["points"], empty["variance"]) == ({"ids": [], "x": [], "y": []}, [0, 0])
    put(vectors, "empty", {"dimension": 3})
    assert drawn(vectors, collection="empty")["vectors"] == 0
    assert drawn(vectors, collection="")["vectors"] == 0


def test_equal_vectors_and_those_of_one_component_have_a_map(vectors: Cluster) -> None:
    put(vectors, "equal", {"dimension": 3, "metric": "l2"})
    write(vectors, *[(f"e{n}", {"vector": [0.1, 0.7, -3]}) for n in range(9)], collection="equal")
    answer = drawn(vectors, collection="equal")
    assert (answer["points"]["x"], answer["variance"]) == ([0] * 9, [0, 0])
    put(vectors, "line", {"dimension": 1, "metric": "l2"})
    write(vectors, *[(f"e{n}", {"vector": [n]}) for n in range(9)], collection="line")
    answer = drawn(vectors, collection="line")
    assert sorted(answer["points"]["x"]) == pytest.approx(range(-4, 5), abs=1e-5)
    assert answer["variance"] == pytest.approx([1, 0])


def test_a_map_of_many_components_has_fewer_vectors_and_says_so(vectors: Cluster) -> None:
    put(vectors, "long", {"dimension": 16_384})
    table = np.random.default_rng(2).integers(1, 9, (600, 4)).tolist()
    for first in (0, 300):
        entries = [(f"n{n}", {"vector": [*table[n], *[1] * 16_380]}) for n in range(first, first + 300)]
        assert write(vectors, *entries, collection="long").status == 200
    answer = drawn(vectors, collection="long")
    assert (len(answer["points"]["ids"]), answer["vectors"]) == (512, 600)
    assert answer["infos"] == ["limit is 1000; a map of 16384 components has at most 512 vectors"]


def test_wrong_maps_are_refused(vectors: Cluster) -> None:
    for fields, words in (({"limit": 5001}, "1 to 5000"), ({"atribute": "x"}, "atribute"), ({"filter": 3}, "filter")):
        refused(vectors.post_json("/api/v1/vector/map", fields), words)
    refused(vectors.post_json("/api/v1/vector/map", {"collection": "none"}), "none", status=404)
    refused(vectors.post_json("/api/v1/vector/map?limit=3", {}), "limit")


def test_attributes_are_named_with_their_types(vectors: Cluster) -> None:
    answer = vectors.get("/api/v1/vector/collections/points/attributes").json()
    assert answer["attributes"] == [
        {"name": "colour", "types": {"integer": COUNT}},
        {"name": "odd", "types": {"bool": COUNT // 2}},
        {"name": "words", "types": {"string": COUNT}},
    ]
    refused(vectors.get("/api/v1/vector/collections/none/attributes"), "none", status=404)


def nearest(row: int, count: int) -> list[str]:
    distances = np.linalg.norm(TABLE - TABLE[row], axis=1)
    return [NAMES[place] for place in np.argsort(distances, kind="stable")[1 : count + 1]]


def test_a_search_by_an_id_finds_the_nearest_others(vectors: Cluster) -> None:
    for row in (0, 77):
        found = search(vectors, collection="points", id=NAMES[row], k=5, exact=True)
        assert ids(found) == nearest(row, 5)
    later = search(vectors, collection="points", id=NAMES[0], k=3, offset=2, exact=True)
    assert ids(later) == nearest(0, 5)[2:]
    filtered = search(vectors, collection="points", id="v000", k=200, filter={"exists": {"field": "odd"}}, exact=True)
    assert len(ids(filtered)) == COUNT // 2  # the query is not among the odd ones
    request = vector_pb2.SearchRequest(collection="points", id=NAMES[0], k=5, exact=True)
    answer = vectors.request("POST", "/api/v1/vector/search", request.SerializeToString(), PROTOBUF)
    results = vector_pb2.SearchResponse.FromString(answer.body).results
    assert [result.vector.id for result in results] == nearest(0, 5)


def test_a_hybrid_search_by_an_id_leaves_it_out(vectors: Cluster) -> None:
    found = search(vectors, collection="points", id="v000", text={"query": "fox"}, k=10)
    assert len(ids(found)) == 10
    assert "v000" not in ids(found)


def test_a_search_by_an_unknown_id_is_404(vectors: Cluster) -> None:
    refused(vectors.post_json("/api/v1/vector/search", {"collection": "points", "id": "nobody"}), "nobody", status=404)
    refused(vectors.post_json("/api/v1/vector/search", {"id": "nobody"}), "nobody", status=404)


def test_a_map_says_what_is_missing(vectors: Cluster) -> None:
    with vectors.without_worker("worker-0"):
        answer = drawn(vectors)
        assert "is missing from this answer" in answer["warnings"][0]
        assert 0 < len(answer["points"]["ids"]) < COUNT
        whole = vectors.post_json("/api/v1/vector/map?partial_response=false", {"collection": "points"})
        refused(whole, "is missing", status=503)
        attributes = vectors.get("/api/v1/vector/collections/points/attributes").json()
        assert "is missing" in attributes["warnings"][0]
    vectors.wait_ready()

"""What the vector area promises, point by point over HTTP: metrics and storages, ties, limits, settings, progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadtest.harness.cluster import Cluster
from tests.cluster.vector_requests import ids, put, refused, search, write
from tests.forked_cluster import ForkedCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("promises"), settings={"TRIPTYCH_VECTOR_EXPANSION": "200"}).start()
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("metric", "storage", "index"),
    [(name, "f32", "lists") for name in ("cosine", "l2", "dot")]
    + [("cosine", "f16", "lists"), ("cosine", "i8", "lists"), ("cosine", "b1", "graph"), ("l2", "f16", "lists")]
    + [("l2", "f32", "graph"), ("cosine", "i8", "graph")],
)
def test_scores_are_the_metric_of_the_vectors(cluster: Cluster, metric: str, storage: str, index: str) -> None:
    name = f"{metric}-{storage}-{index}"
    asked = {"dimension": 3, "metric": metric, "storage": storage, "index": index}
    made = put(cluster, name, asked)
    assert made.status == 200
    assert made.json()["collection"] == {"name": name, **asked, "textFields": []}
    rows = {"a": [3.0, 4.0, 0.0], "b": [0.0, 1.0, 0.0], "c": [-1.0, 0.0, 2.0]}
    write(cluster, *((key, {"vector": row}) for key, row in rows.items()), collection=name)
    query = np.array([1.0, 2.0, 0.5])

    def score(row: list[float]) -> float:
        vector = np.array(row)
        if metric == "l2":
            return float(np.linalg.norm(vector - query))
        product = float(vector @ query)
        return product if metric == "dot" else product / float(np.linalg.norm(vector) * np.linalg.norm(query))

    best = sorted(rows, key=lambda key: score(rows[key]) if metric == "l2" else -score(rows[key]))
    for exact in (True, False):
        results = search(cluster, vector=query.tolist(), exact=exact, collection=name)["results"]
        assert [result["vector"]["id"] for result in results] == best
        assert [result["score"] for result in results] == pytest.approx(
            [score(rows[key]) for key in best], abs=1e-6 if storage == "f32" else 2e-3
        )
        assert [result["vector"]["attributes"]["vector"] for result in results] == [rows[key] for key in best]


def test_equal_scores_are_in_order_of_ids(cluster: Cluster) -> None:
    put(cluster, "ties", {"dimension": 2})
    names = [f"t{n:02d}" for n in range(30)]
    write(cluster, *((name, {"vector": [n + 1, 0]}) for n, name in enumerate(reversed(names))), collection="ties")
    for exact in (True, False):
        assert ids(search(cluster, vector=[5, 0], k=12, exact=exact, collection="ties", includeFields=[])) == names[:12]


def test_fields_shown_are_those_asked_for(cluster: Cluster) -> None:
    put(cluster, "fields", {"dimension": 2})
    write(cluster, ("a", {"vector": [1, 2], "x": 1, "y": "two"}), collection="fields")

    def shown(**fields: Any) -> dict[str, Any]:
        return search(cluster, vector=[1, 2], collection="fields", **fields)["results"][0]["vector"]["attributes"]

    assert shown() == {"vector": [1, 2], "x": 1, "y": "two"}
    assert shown(includeFields=[]) == {}
    assert shown(includeFields=["y", "none"]) == {"y": "two"}
    assert shown(includeFields=["vector"]) == {"vector": [1, 2]}


def test_replaced_and_deleted_vectors_are_not_seen_by_the_next_request(cluster: Cluster) -> None:
    put(cluster, "next", {"dimension": 2, "metric": "l2"})
    for round_ in range(20):
        write(cluster, ("a", {"vector": [round_, 0], "n": round_}), collection="next")
        assert search(cluster, vector=[round_, 0], collection="next")["results"][0]["score"] == 0
        newest = {"eq": {"field": "n", "value": round_}}
        assert ids(search(cluster, vector=[0, 0], collection="next", filter=newest)) == ["a"]
        if round_:
            older = {"lt": {"field": "n", "value": round_}}
            assert ids(search(cluster, vector=[0, 0], collection="next", filter=older)) == []
    cluster.post_json("/api/v1/vector/delete", {"ids": ["a"], "collection": "next"})
    assert ids(search(cluster, vector=[0, 0], collection="next")) == []
    assert cluster.get("/api/v1/vector/vectors/a", collection="next").status == 404


def test_limits_are_said(cluster: Cluster) -> None:
    put(cluster, "limits", {"dimension": 2})
    many = write(cluster, *((f"v{n}", {"vector": [1, 1]}) for n in range(200_001)), collection="limits")
    assert many.status in (400, 413)
    assert "200001" in many.json()["message"]
    assert write(cluster, *((f"v{n}", {"vector": [1, n]}) for n in range(10_000)), collection="limits").status == 200
    assert len(search(cluster, vector=[1, 1], k=10_000, collection="limits", includeFields=[])["results"]) == 10_000

    many_ids = {"ids": [f"v{n}" for n in range(100_000)], "collection": "limits"}
    got = cluster.post_json("/api/v1/vector/get", {**many_ids, "includeFields": ["vector"]}).json()["vectors"]
    assert [vector["id"] for vector in got] == many_ids["ids"][:10_000]

    def asked(**fields: Any) -> Any:
        return cluster.post_json("/api/v1/vector/search", {"collection": "limits", **fields})

    refused(asked(vector=[0, 0]), "vector", "zeros", "cosine")
    refused(asked(vector=[1, 1], expansion=10_001), "expansion is 10001")
    refused(asked(vector=[1, 1], recall=1), "recall is 1; it must be 0.5 to 0.999")
    refused(asked(vectors=[[1, 1]] * 1001), "1001")
    refused(asked(vectors=[[1, 1], [1]]), "vectors[1]", "1 components")
    refused(asked(vector=[1, 1], vectors=[[1, 1]]), "vector and vectors")
    refused(asked(vector=[1, 1], filter={"eq": {"field": "vector", "value": 1}}), "'vector'")
    refused(asked(vector=[1, 1], filter={"in": {"field": "x", "values": []}}), "0 values")
    refused(cluster.get("/api/v1/vector/vectors/" + "i" * 65), "65 bytes")
    refused(cluster.post_json("/api/v1/vector/get", {"ids": ["a"] * 100_001}), "100001")
    refused(put(cluster, "other", {"dimension": 3, "metric": "l2", "storage": "i8"}), "i8")
    refused(put(cluster, "other", {"dimension": 3, "storage": "f8"}), "'f8'")
    refused(put(cluster, "other", {"dimension": 16_385}), "16385")


def test_progress_and_settings_are_shown(cluster: Cluster) -> None:
    put(cluster, "shown", {"dimension": 2, "storage": "f16"})
    write(cluster, *((f"v{n}", {"vector": [1, n]}) for n in range(100)), collection="shown")
    stats = cluster.get("/api/v1/vector/stats").json()["collections"]["shown"]
    assert (stats["vectors"], stats["storage"], stats["indexed"] + stats["pending"]) == (100, "f16", 100)
    counts = [shard["counts"] for shard in cluster.get("/api/v1/cluster").json()["data"]["shards"]]
    assert all({"vectors", "vectors_to_index"} <= set(entry) for entry in counts)
    names = {entry["name"] for entry in cluster.get("/api/v1/vector/collections").json()["collections"]}
    assert "shown" in names
    assert cluster.request("DELETE", "/api/v1/vector/collections/shown").status == 200
    refused(cluster.get("/api/v1/vector/collections/shown"), "'shown'", status=404)

"""Collections dropped while workers are away, on real processes; damage is said by every read of vectors."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from loadtest.harness.cluster import READY_WITHIN_S, Cluster, freeze
from tests.cluster.vector_requests import ids, put, refused, search, write
from worker.storage.rows.store import Store
from worker.vectors.stored_rows import FAMILY, prefix

NAMES = [f"v{number}" for number in range(20)]
ZERO = [0, 0]


def fill(cluster: Cluster, first: int) -> None:
    assert put(cluster, "c", {"dimension": 2, "metric": "l2"}).status == 200
    vectors = ((name, {"vector": [first, place]}) for place, name in enumerate(NAMES))
    assert write(cluster, *vectors, collection="c").status == 200


def drop(cluster: Cluster) -> list[str]:
    answer = cluster.request("DELETE", "/api/v1/vector/collections/c")
    assert answer.status == 200, answer.body
    return answer.json().get("warnings", [])


def test_drop_with_a_frozen_worker_is_finished_after_everything_was_killed(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(shards=2, workers=2, settings={"TRIPTYCH_WRITE_TIMEOUT": "3s"}).start()
    fill(cluster, 1)
    freeze(cluster.worker_pids()["worker-1"])
    assert any("shard 1" in text for text in drop(cluster))
    refused(cluster.post_json("/api/v1/vector/search", {"vector": ZERO, "collection": "c"}), "'c'", status=404)
    cluster.kill()
    cluster.start()
    fill(cluster, 2)
    give_up = time.monotonic() + READY_WITHIN_S
    while any(b'"dropped":[{' in path.read_bytes() for path in (cluster.directory / "data/vector").glob("*.json")):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    found = search(cluster, vector=ZERO, k=99, collection="c")
    assert sorted(ids(found)) == sorted(NAMES)
    assert all(result["vector"]["attributes"]["vector"][0] == 2 for result in found["results"])
    assert cluster.get("/api/v1/vector/stats").json()["collections"]["c"]["vectors"] == len(NAMES)
    assert drop(cluster) == []
    cluster.stop()
    for number in range(2):
        store = Store(cluster.directory / "data" / "shards" / f"{number:04d}" / "store")
        assert list(store.scan(FAMILY)) == []
        store.close()


def test_every_read_of_vectors_says_what_is_damaged(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=1, workers=1).start()
    fill(cluster, 1)
    cluster.stop()
    store = Store(cluster.directory / "data" / "shards" / "0000" / "store")
    batch = store.batch()
    batch.put(FAMILY, prefix(1) + b"v3", np.zeros(1, np.float32).tobytes())
    store.write(batch)
    store.close()
    cluster.start()
    body = {"vector": ZERO, "k": 99, "collection": "c"}
    answers = [
        search(cluster, **body),
        search(cluster, vectors=[ZERO] * 2, k=99, collection="c"),
        cluster.post_json("/api/v1/vector/get", {"ids": NAMES, "collection": "c"}).json(),
        cluster.get("/api/v1/vector/vectors/v1", collection="c").json(),
        cluster.get("/api/v1/vector/stats").json(),
    ]
    for answer in answers:
        (text,) = answer["warnings"]
        assert "shard 0" in text
        assert "'v3'" in text
    assert len(answers[0]["results"]) == len(answers[2]["vectors"]) == len(NAMES) - 1
    refused(cluster.get("/api/v1/vector/vectors/v3", collection="c"), "'v3'", status=503)
    refused(cluster.post_json("/api/v1/vector/search?partial_response=false", body), "'v3'", status=503)
    assert write(cluster, ("v3", {"vector": ZERO}), collection="c").status == 200
    assert len(search(cluster, **body)["results"]) == len(NAMES)


def test_list_of_collections_lost_in_both_files_is_said_and_no_vector_is_lost(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster(shards=2, workers=1).start()
    fill(cluster, 1)
    cluster.stop()
    for path in (cluster.directory / "data" / "vector").glob("*.json"):
        path.write_bytes(path.read_bytes()[:-1])
    cluster.start()
    assert len(search(cluster, vector=ZERO, k=99, collection="c")["results"]) == len(NAMES)
    assert "made from the shards" in cluster.log("coordinator")
    (text, *_) = cluster.get("/api/v1/vector/collections").json()["warnings"]
    assert "set aside" in text

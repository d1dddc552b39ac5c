"""Sealed samples in a running cluster: deletion, damage, and a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

SETTINGS = {"TRIPTYCH_HEAD_BYTES": "8192", "TRIPTYCH_BLOCK_WINDOW": "10s"}
SEALED_WITHIN_S = 20.0


def write(cluster: Cluster, series: int, first: int, samples: int, at_ms: int) -> int:
    body = compressed(
        [
            ({"__name__": "m", "i": str(i)}, [(at_ms + (first + j) * 1000, float(first + j)) for j in range(samples)])
            for i in range(series)
        ]
    )
    return cluster.request("POST", "/api/v1/write", body, HEADERS).status


def count(cluster: Cluster, at_ms: int, **parameters: str) -> tuple[int, list[str]]:
    answer = cluster.get(
        "/api/v1/query", query="sum(count_over_time(m[1h]))", time=str(at_ms / 1000), **parameters
    ).json()
    result = answer["data"]["result"]
    return int(result[0]["value"][1]) if result else 0, answer.get("warnings", [])


def wait_until_sealed(cluster: Cluster) -> None:
    give_up = time.monotonic() + SEALED_WITHIN_S
    while not all(shard["counts"]["blocks"] for shard in cluster.get("/api/v1/cluster").json()["data"]["shards"]):
        assert time.monotonic() < give_up, cluster.log("worker")
        time.sleep(0.05)


def test_a_corrupt_block_is_named_in_the_warnings_and_the_rest_is_served(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=1, settings=SETTINGS).start()
    at_ms = int(time.time() * 1000) - 600_000
    assert write(cluster, 40, 0, 100, at_ms) == 204
    wait_until_sealed(cluster)
    assert count(cluster, at_ms + 600_000) == (4000, [])
    deleted = cluster.post_form("/api/v1/admin/tsdb/delete_series", match='m{i=~"3."}')
    assert deleted.status == 204
    assert count(cluster, at_ms + 600_000) == (3000, [])
    cluster.stop()
    damaged = max(
        (cluster.directory / "data" / "shards").glob("*/blocks/*.block"), key=lambda path: path.stat().st_size
    )
    data = bytearray(damaged.read_bytes())
    data[20] ^= 0xFF
    damaged.write_bytes(bytes(data))
    cluster.start()
    found, warnings = count(cluster, at_ms + 600_000)
    assert 0 < found < 3000
    [warning] = warnings
    assert damaged.stem in warning and "checksum" in warning
    whole = cluster.get(
        "/api/v1/query", query="sum(count_over_time(m[1h]))", time=str(at_ms / 1000 + 600), partial_response="false"
    )
    assert whole.status == 503 and damaged.stem in whole.json()["error"]
    listed = cluster.get("/api/v1/series", match="m", start=str(at_ms / 1000)).json()
    assert damaged.stem in listed["warnings"][0]
    assert count(cluster, at_ms - 10_000) == (0, [])


def test_a_full_disk_refuses_writes_and_serves_reads(small_disk: Path, new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=1, settings={**SETTINGS, "TRIPTYCH_DATA": str(small_disk / "data")}).start()
    at_ms = int(time.time() * 1000) - 600_000
    kept, status = 0, 204
    assert write(cluster, 500, 0, 10, at_ms) == 204
    for number in range(96):
        filler = small_disk / f"filler-{number}"
        try:
            filler.write_bytes(b"\0" * (1 << 20))
        except OSError:
            break
    for number in range(1, 300):
        status = write(cluster, 500, number, 1, at_ms)
        if status != 204:
            break
        kept = number
    assert status == 503
    found, _ = count(cluster, at_ms + 600_000)
    assert found >= 500 * max(10, kept + 1)
    for filler in small_disk.glob("filler-*"):
        filler.unlink()
    give_up = time.monotonic() + 30
    while (status := write(cluster, 500, 299, 1, at_ms)) != 204:
        assert status == 503 and time.monotonic() < give_up, cluster.log("worker")[-2000:]
        time.sleep(0.2)

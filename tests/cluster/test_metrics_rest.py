"""An idle cluster is small: samples go to blocks and the write-ahead logs give their room back, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

SERIES, SAMPLES, REQUESTS = 1000, 20, 15
START_MS = 1_700_000_000_000
STEP_MS = 15_000
WITHIN_S = 120.0
"""A head of 5 MB rests for 30 s."""
LOG_BYTES_MAX = 100_000


def write(cluster: Cluster, number: int) -> None:
    at_ms = START_MS + number * SAMPLES * STEP_MS
    samples = [(at_ms + n * STEP_MS, float(number * SAMPLES + n)) for n in range(SAMPLES)]
    body = compressed([({"__name__": "m", "n": str(series)}, samples) for series in range(SERIES)])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status in (200, 204)


def log_bytes(cluster: Cluster) -> int:
    files = Path(cluster.directory / "data" / "wal").glob("*/*.wal")
    return sum(path.stat().st_blocks * 512 for path in files)


def counts(cluster: Cluster, name: str) -> int:
    return sum(shard["counts"][name] for shard in cluster.get("/api/v1/cluster").json()["data"]["shards"])


def sums(cluster: Cluster) -> tuple[float, float]:
    last_s = (START_MS + (REQUESTS + 1) * SAMPLES * STEP_MS) / 1000
    answers = []
    for query in ("sum(count_over_time(m[2h]))", "sum(sum_over_time(m[2h]))"):
        answer = cluster.get(f"/api/v1/query?query={query}&time={last_s}").json()
        answers.append(float(answer["data"]["result"][0]["value"][1]))
    return answers[0], answers[1]


def test_a_cluster_at_rest_has_its_samples_in_blocks_and_next_to_no_log(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=1, workers=1)
    cluster.start()
    for number in range(REQUESTS):
        write(cluster, number)
    assert log_bytes(cluster) > 10 * LOG_BYTES_MAX
    give_up = time.monotonic() + WITHIN_S
    while log_bytes(cluster) > LOG_BYTES_MAX or counts(cluster, "head_samples") > SERIES * SAMPLES:
        assert time.monotonic() < give_up, (log_bytes(cluster), counts(cluster, "head_samples"))
        time.sleep(0.5)
    assert counts(cluster, "blocks") > 0
    write(cluster, REQUESTS)
    stored = (REQUESTS + 1) * SAMPLES
    expected = (float(SERIES * stored), float(SERIES * stored * (stored - 1) // 2))
    assert sums(cluster) == expected
    cluster.kill()
    cluster.start()
    assert sums(cluster) == expected

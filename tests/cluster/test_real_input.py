"""Real senders and readers: Prometheus in agent mode and vmagent scrape a node_exporter and write here, promtool reads
back; records and vectors go in and come out; a worker is killed; nothing acknowledged is lost."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.harness.cluster import Cluster
from loadtest.harness.ports import free_port
from shared import hashing

PROGRAMS = ("prometheus", "promtool", "vmagent", "prometheus-node-exporter")
RECORDS = 500
VECTORS = 2_000
DIMENSION = 128
AGENTS = ("prometheus", "vmagent")
AGENTS_LAG_S = 4.0
"""From a scrape to its samples being here: both agents send what they have every half second."""

pytestmark = [
    pytest.mark.skipif(
        any(shutil.which(program) is None for program in PROGRAMS) and not os.environ.get("CI"),
        reason=f"needs {', '.join(PROGRAMS)} (Debian: prometheus victoria-metrics prometheus-node-exporter)",
    ),
    pytest.mark.timeout(180),
]


def scrape_config(path: Path, agent: str, targets: list[str], remote_write: str | None) -> str:
    config = {
        "global": {"scrape_interval": "1s", "external_labels": {"agent": agent}},
        "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": targets}]}],
    }
    if remote_write:
        config["remote_write"] = [{"url": remote_write, "queue_config": {"batch_send_deadline": "500ms"}}]
    path.write_text(json.dumps(config))  # JSON is YAML
    return str(path)


@contextlib.contextmanager
def programs(directory: Path, cluster: Cluster) -> Iterator[None]:
    """A node_exporter and the two agents that scrape it."""
    exporter, write = f"127.0.0.1:{free_port()}", f"{cluster.url}/api/v1/write"
    commands = {
        "exporter": ["prometheus-node-exporter", f"--web.listen-address={exporter}"],
        "prometheus": [
            "prometheus",
            "--enable-feature=agent",
            f"--config.file={scrape_config(directory / 'prometheus.yml', 'prometheus', [exporter], write)}",
            f"--storage.agent.path={directory / 'agent'}",
            f"--web.listen-address=127.0.0.1:{free_port()}",
        ],
        "vmagent": [
            "vmagent",
            f"-promscrape.config={scrape_config(directory / 'vmagent.yml', 'vmagent', [exporter], None)}",
            f"-remoteWrite.url={write}",
            f"-remoteWrite.tmpDataPath={directory / 'vmagent'}",
            "-remoteWrite.flushInterval=500ms",
            f"-httpListenAddr=127.0.0.1:{free_port()}",
        ],
    }
    running = []
    try:
        for name, command in commands.items():
            with open(directory / f"{name}.log", "ab") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=directory))
        yield
        assert all(process.poll() is None for process in running)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(10)


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", "query", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def eventually(condition, within_s: float = 40.0):
    give_up = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.2)
    return value


def read_back_with_promtool(cluster: Cluster) -> None:
    by_agent = "count by (agent) (rate(node_cpu_seconds_total[1m]))"
    eventually(lambda: all(agent in promtool("instant", cluster.url, by_agent) for agent in AGENTS))
    up = promtool("instant", cluster.url, "up")
    assert all(f'agent="{agent}"' in up and 'job="node"' in up for agent in AGENTS), up
    assert "=> 1 @" in up
    assert '{job="node"} => 2 @' in promtool("instant", cluster.url, "count by (job) (up)")
    now = time.time()
    rates = promtool(
        "range",
        f"--start={now - 60:.0f}",
        f"--end={now:.0f}",
        "--step=5s",
        cluster.url,
        "rate(node_cpu_seconds_total[1m])",
    )
    assert 'mode="idle"' in rates
    assert len(rates.splitlines()) > 20
    series = promtool("series", "--match=up", cluster.url)
    assert series.count('__name__="up"') == 2, series
    assert promtool("labels", cluster.url, "agent").split() == sorted(AGENTS)


def append_records(cluster: Cluster) -> dict[str, list[bytes]]:
    """RECORDS records over ten keys, in batches; returns what each key holds."""
    held: dict[str, list[bytes]] = {}
    records = []
    for number in range(RECORDS):
        key, value = f"key-{number % 10}", f"value {number}".encode()
        held.setdefault(key, []).append(value)
        records.append({"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value).decode()})
    for first in range(0, RECORDS, 50):
        batch = {"records": records[first : first + 50], "awaitDurable": True}
        answer = cluster.post_json("/api/v1/log/append", batch)
        assert answer.status == 200, answer.body
        assert answer.json()["recordsAppended"] == 50
    return held


def assert_records(cluster: Cluster, held: dict[str, list[bytes]]) -> None:
    for key, values in held.items():
        answer = cluster.get("/api/v1/log/scan", key=key, limit="1000")
        assert answer.status == 200, answer.body
        records = answer.json()["records"]
        assert [base64.b64decode(record["value"]) for record in records] == values
        sequences = [record["sequence"] for record in records]
        assert sequences == sorted(set(sequences))


def write_vectors(cluster: Cluster) -> dict[str, list[float]]:
    rng = random.Random(7)
    vectors = {f"vector-{n}": [rng.gauss(0, 1) for _ in range(DIMENSION)] for n in range(VECTORS)}
    items = [{"id": i, "attributes": {"vector": v, "number": int(i[7:])}} for i, v in vectors.items()]
    for first in range(0, VECTORS, 500):
        batch = {"upsertVectors": items[first : first + 500]}
        answer = cluster.post_json("/api/v1/vector/write", batch, "application/protobuf+json")
        assert answer.status == 200, answer.body
        assert answer.json() == {"status": "success", "vectorsUpserted": 500}
    return vectors


def assert_vectors(cluster: Cluster, vectors: dict[str, list[float]]) -> None:
    for identifier in list(vectors)[:: VECTORS // 40]:
        answer = cluster.get(f"/api/v1/vector/vectors/{identifier}")
        assert answer.status == 200, answer.body
        assert answer.json()["vector"]["attributes"]["vector"] == pytest.approx(vectors[identifier], rel=1e-6)
        found = cluster.post_json("/api/v1/vector/search", {"vector": vectors[identifier], "k": 3})
        assert found.status == 200, found.body
        assert found.json()["results"][0]["vector"]["id"] == identifier


def samples(cluster: Cluster, at: float) -> dict[str, list]:
    """Every sample of `node_load1` and `up` in the minute before `at`."""
    answer = cluster.get("/api/v1/query", query='{__name__=~"node_load1|up"}[1m]', time=str(at)).json()
    assert answer["status"] == "success"
    assert "warnings" not in answer
    return {json.dumps(series["metric"], sort_keys=True): series["values"] for series in answer["data"]["result"]}


def settled_moment(cluster: Cluster) -> float | None:
    """A time so long ago that what the agents scraped until then has arrived, if both have been scraping by then."""
    at = time.time() - AGENTS_LAG_S
    return at if len(samples(cluster, at)) == 2 * len(AGENTS) else None


def key_of_shard(shard: int, shards: int) -> str:
    return next(k for k in (f"probe-{n}" for n in range(10_000)) if hashing.shard_of(k.encode(), shards) == shard)


def lose_a_worker(cluster: Cluster) -> None:
    """Kill worker-1 and keep its supervisor from restarting it; check what clients see; let it come back."""
    lost = next(
        worker["shards"]
        for worker in cluster.get("/api/v1/cluster").json()["data"]["workers"]
        if worker["worker"] == "worker-1"
    )
    with cluster.without_worker():
        answer = cluster.get("/api/v1/query", query="count(up)").json()
        assert answer["status"] == "success"
        for shard in lost:
            assert any(f"shard {shard} " in warning for warning in answer["warnings"])
        assert cluster.get("/api/v1/query", query="count(up)", partial_response="false").status == 503
        key = base64.b64encode(key_of_shard(lost[0], cluster.shards).encode()).decode()
        refused = cluster.post_json("/api/v1/log/append", {"records": [{"key": key, "value": ""}]})
        assert refused.status == 503
        assert f"shard {lost[0]}" in refused.json()["message"]
        identifier = key_of_shard(lost[0], cluster.shards)
        item = {"id": identifier, "attributes": {"vector": [0.5] * DIMENSION}}
        assert cluster.post_json("/api/v1/vector/write", {"upsertVectors": [item]}).status == 503
    cluster.wait_ready()


def test_real_senders_and_readers_and_a_killed_worker(new_cluster, tmp_path):
    cluster = new_cluster(shards=4, workers=2).start()
    with programs(tmp_path, cluster):
        read_back_with_promtool(cluster)
        held = append_records(cluster)
        vectors = write_vectors(cluster)
        assert_records(cluster, held)
        assert_vectors(cluster, vectors)
        at = eventually(lambda: settled_moment(cluster))
        before = samples(cluster, at)
        lose_a_worker(cluster)
        assert samples(cluster, at) == before
        eventually(lambda: len(samples(cluster, time.time())) == 4)
    cluster.kill()
    cluster.start()
    assert samples(cluster, at) == before
    assert_records(cluster, held)
    assert_vectors(cluster, vectors)


def test_a_scrape_of_its_own_metrics_page_parses(cluster):
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=10) as page:
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=page.read(), capture_output=True, timeout=30, check=False
        )
    assert b"error while linting" not in done.stderr

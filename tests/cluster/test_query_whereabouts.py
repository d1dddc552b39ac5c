"""Queries ask only the workers that may have series of them, and still read every write that was answered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from loadtest.harness.cluster import Cluster, freeze
from loadtest.harness.remote_write_bodies import HEADERS, compressed

ASKED = 20


def write(cluster: Cluster, labels: dict[str, str], now_s: int, value: float = 1.0) -> None:
    body = compressed([({"__name__": "where", **labels}, [(now_s * 1000, value)])])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204


def values(cluster: Cluster, text: str, now_s: int) -> dict[str, str]:
    answer = cluster.get("/api/v1/query", query=text, time=str(now_s)).json()
    assert "warnings" not in answer, answer
    return {series["metric"].get("i", ""): series["value"][1] for series in answer["data"]["result"]}


def evaluated(cluster: Cluster) -> dict[str, int]:
    """By worker: how many queries it has evaluated."""
    pids = cluster.worker_pids()
    time.sleep(1.5)  # measurements come with the next look
    lines = cluster.get("/metrics").body.decode().splitlines()
    found = dict.fromkeys(pids, 0)
    for line in lines:
        if line.startswith("triptych_worker_requests_total{") and 'method="query.evaluate"' in line:
            name = next(name for name in pids if f'worker="{name}"' in line)
            found[name] = int(float(line.split()[-1]))
    return found


def test_a_series_is_asked_of_its_worker_only(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    now_s = int(time.time())
    write(cluster, {"i": "1"}, now_s)
    assert values(cluster, 'where{i="1"}', now_s) == {"1": "1"}
    before = evaluated(cluster)
    for _ in range(ASKED):
        assert values(cluster, 'where{i="1"}', now_s) == {"1": "1"}
    after = evaluated(cluster)
    assert sorted(after[name] - before[name] for name in after) == [0, ASKED]


def test_every_series_is_read_as_soon_as_its_write_is_answered(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    now_s = int(time.time())
    assert values(cluster, 'where{job="a"}', now_s) == {}
    expected = {}
    for number in range(60):
        write(cluster, {"job": "a", "i": str(number)}, now_s)
        expected[str(number)] = "1"
        for _ in range(2):  # the second time, what the first has told is known
            assert values(cluster, 'where{job="a"}', now_s) == expected
            assert values(cluster, f'where{{i="{number}"}}', now_s) == {str(number): "1"}
        # A series that an earlier query looked for in vain.
        assert values(cluster, f'where{{i="{number + 1}"}}', now_s) == {}


def test_a_sample_of_a_known_series_is_read_as_soon_as_it_is_written(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    now_s = int(time.time())
    for value in range(20):
        write(cluster, {"i": "1"}, now_s + value, float(value))
        assert values(cluster, 'where{i="1"}', now_s + value) == {"1": str(value)}
        assert values(cluster, 'sum by (i) (where{i="1"})', now_s + value) == {"1": str(value)}


def test_what_a_restarted_worker_has_is_read(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    now_s = int(time.time())
    for number in range(8):
        write(cluster, {"i": str(number)}, now_s)
    for number in range(8):
        for _ in range(2):
            assert values(cluster, f'where{{i="{number}"}}', now_s) == {str(number): "1"}
    for name, pid in cluster.worker_pids().items():
        cluster.kill_worker(name)
        give_up = time.monotonic() + 30
        while cluster.worker_pids().get(name, pid) == pid:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        cluster.wait_ready()
        write(cluster, {"i": "new", "of": name}, now_s)
        assert values(cluster, f'where{{of="{name}"}}', now_s) == {"new": "1"}
    for number in range(8):
        assert values(cluster, f'where{{i="{number}"}}', now_s) == {str(number): "1"}


def test_what_was_written_to_a_worker_is_read_after_it_stood_still(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=2).start()
    now_s = int(time.time())
    for _ in range(2):
        assert values(cluster, "where", now_s) == {}  # no worker has any
    expected = {}
    for number in range(8):
        write(cluster, {"i": str(number)}, now_s)
        expected[str(number)] = "1"
    for name, pid in cluster.worker_pids().items():
        freeze(pid)
        try:
            give_up = time.monotonic() + 20
            while cluster.get("/-/ready").status == 200:
                assert time.monotonic() < give_up, name
                time.sleep(0.05)
        finally:
            os.kill(pid, signal.SIGCONT)
        cluster.wait_ready()
        assert values(cluster, "where", now_s) == expected

"""Parts of a cluster end, are started again, or are fewer or more than before."""

from __future__ import annotations

import time


def test_a_killed_worker_is_restarted_and_the_other_stays(new_cluster):
    cluster = new_cluster(workers=2).start()
    before = cluster.worker_pids()
    cluster.kill_worker("worker-1")
    give_up = time.monotonic() + 20
    while cluster.worker_pids().get("worker-1") in (None, before["worker-1"]):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    cluster.wait_ready()
    assert cluster.worker_pids()["worker-0"] == before["worker-0"]


def test_workers_register_again_with_a_restarted_coordinator(new_cluster):
    cluster = new_cluster().start()
    before = cluster.worker_pids()
    cluster.coordinator.kill()
    cluster.coordinator.wait()
    cluster.start_coordinator()
    cluster.wait_ready()
    assert cluster.worker_pids() == before


def test_a_coordinator_without_workers_is_healthy_but_not_ready(new_cluster):
    cluster = new_cluster(shards=2)
    cluster.start_coordinator()
    assert cluster.get("/-/healthy").status == 200
    answer = cluster.get("/-/ready")
    assert answer.status == 503
    assert b"shard 1: no worker has registered it" in answer.body
    assert cluster.get("/api/v1/query", query="up").status == 503


def test_more_workers_than_before_find_the_same_data(new_cluster):
    cluster = new_cluster(shards=4, workers=1).start()
    records = [{"key": "aw==", "value": "dg=="}] * 5
    assert cluster.post_json("/api/v1/log/append", {"records": records, "awaitDurable": True}).status == 200
    cluster.stop()
    cluster.workers = 3
    cluster.start()
    assert len(cluster.worker_pids()) == 3
    assert cluster.get("/api/v1/log/count", key="k").json()["count"] == 5

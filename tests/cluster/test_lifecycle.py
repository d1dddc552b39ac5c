"""Starting, stopping, dying: what an operator meets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from loadtest.harness.cluster import ROOT, Cluster


@pytest.fixture
def kind_of_cluster():
    """Processes that are started as a user starts them."""
    return Cluster


def run_module(module, environment):
    return subprocess.run(
        [sys.executable, "-m", module], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def refusal(module, environment):
    """The one line a refused start prints."""
    done = run_module(module, environment)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_port_in_use_is_one_line_and_exit_code_1(new_cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = new_cluster()
        cluster.port = taken.getsockname()[1]
        line = refusal("coordinator", cluster.environment())
    assert f"TRIPTYCH_LISTEN is 127.0.0.1:{cluster.port}, which cannot be bound" in line


@pytest.mark.parametrize("module", ["coordinator", "worker"])
def test_another_shard_count_is_one_line_and_exit_code_1(new_cluster, module):
    from shared import manifest
    from shared.config import Settings
    from shared.control import LocalControl

    cluster = new_cluster(shards=3)
    data = cluster.directory / "data"
    manifest.open_manifest(Settings(data=data, shards=4), LocalControl(data))
    assert "TRIPTYCH_SHARDS is 3, but" in refusal(module, cluster.environment())


@pytest.mark.parametrize("module", ["coordinator", "worker"])
def test_a_bad_setting_is_one_line_and_exit_code_1(new_cluster, module):
    cluster = new_cluster(settings={"TRIPTYCH_QUERY_TIMEOUT": "soon"})
    assert "TRIPTYCH_QUERY_TIMEOUT is 'soon'" in refusal(module, cluster.environment())


def test_a_data_directory_in_use_is_refused_and_its_cluster_works_on(cluster):
    environment = {**cluster.environment(), "TRIPTYCH_LISTEN": "127.0.0.1:0"}
    assert "which another cluster is using" in refusal("coordinator", environment)
    assert "which another cluster is using" in refusal("worker", environment)
    assert cluster.get("/-/ready").status == 200


def test_a_stop_is_clean_quick_and_leaves_no_process(new_cluster):
    cluster = new_cluster().start()
    family = [psutil.Process(pid) for pid in cluster.worker_pids().values()]
    assert cluster.stop() < 5
    assert not any(process.is_running() for process in family)
    assert "Traceback" not in cluster.log("coordinator") + cluster.log("worker")


def test_workers_end_when_their_supervisor_is_killed(new_cluster):
    cluster = new_cluster().start()
    family = [psutil.Process(pid) for pid in cluster.worker_pids().values()]
    cluster.supervisor.kill()
    cluster.supervisor.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    cluster.start_workers()
    cluster.wait_ready()


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


def test_no_thread_of_a_worker_takes_the_processor_from_who_runs(cluster):
    threads = [thread.id for pid in cluster.worker_pids().values() for thread in psutil.Process(pid).threads()]
    assert len(threads) > len(cluster.worker_pids())
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}


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


def test_honcho_starts_both_lines_of_the_procfile_and_stops_them(new_cluster):
    cluster = new_cluster()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        cluster.port = probe.getsockname()[1]
    environment = {**cluster.environment(), "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    with open(cluster.directory / "worker.log", "ab") as log, open(cluster.directory / "coordinator.log", "ab"):
        honcho = subprocess.Popen(
            [sys.executable, "-m", "honcho", "-f", str(ROOT / "Procfile"), "start"],
            env=environment,
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        cluster.wait_ready()
        family = psutil.Process(honcho.pid).children(recursive=True)
        started = time.monotonic()
        honcho.send_signal(signal.SIGINT)
        honcho.wait(10)
        assert time.monotonic() - started < 5
        _, left = psutil.wait_procs(family, timeout=1)
        # One that ended but whose new parent has not collected it yet is not running any more.
        assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
        assert "Traceback" not in cluster.log("worker")
    finally:
        if honcho.poll() is None:
            honcho.kill()

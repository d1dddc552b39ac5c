"""Starting, stopping, dying: what an operator meets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from coordinator.app import STOP_GRACE_S
from coordinator.fanout.membership import SILENCE_S
from loadtest.harness.cluster import ROOT, Cluster
from shared.control import LocalControl
from shared.manifest import endpoint, open_manifest
from shared.settings import Settings


@pytest.fixture
def kind_of_cluster():
    """Processes that are started as a user starts them."""
    return Cluster


def test_a_stop_is_clean_quick_and_leaves_no_process(new_cluster):
    cluster = new_cluster().start()
    family = [psutil.Process(pid) for pid in cluster.worker_pids().values()]
    assert cluster.stop() < 5
    assert not any(process.is_running() for process in family)
    assert "Traceback" not in cluster.log("coordinator") + cluster.log("worker")


def test_a_reader_that_follows_the_log_delays_a_stop_by_no_more_than_the_grace_of_requests(new_cluster):
    cluster = new_cluster().start()
    with socket.create_connection(("127.0.0.1", cluster.port)) as follower:
        follower.sendall(b"GET /api/v1/log/tail?prefix= HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert follower.recv(1000).startswith(b"HTTP/1.1 200")
        cluster.coordinator.terminate()
        began = time.monotonic()
        cluster.coordinator.wait()
        assert time.monotonic() - began < 2 * STOP_GRACE_S


def test_a_hangup_without_a_configuration_file_ends_nothing(new_cluster):
    cluster = new_cluster().start()
    cluster.coordinator.send_signal(signal.SIGHUP)
    give_up = time.monotonic() + 10
    while "SIGHUP changes nothing" not in cluster.log("coordinator"):
        assert cluster.coordinator.poll() is None and time.monotonic() < give_up
        time.sleep(0.01)
    assert cluster.get("/-/ready").status == 200


def test_a_worker_that_stops_in_order_is_missing_at_once(new_cluster):
    cluster = new_cluster().start()
    os.kill(cluster.supervisor.pid, signal.SIGSTOP)  # so that no other one is started
    began = time.monotonic()
    os.kill(cluster.worker_pids()["worker-0"], signal.SIGTERM)
    while (answer := cluster.get("/-/ready")).status == 200:
        time.sleep(0.01)
    assert time.monotonic() - began < SILENCE_S
    assert b"worker-0 has stopped" in answer.body


def test_workers_wait_for_the_next_coordinator_at_a_socket_that_is_in_the_temporary_directory(new_cluster, tmp_path):
    data = tmp_path / ("long" * 25)
    cluster = new_cluster(settings={"TRIPTYCH_DATA": str(data)}).start()
    settings = Settings(data=data)
    directory = Path(endpoint(settings, open_manifest(settings, LocalControl(data))).removeprefix("ipc://")).parent
    assert data not in directory.parents
    pids = cluster.worker_pids()
    cluster.coordinator.terminate()
    assert cluster.coordinator.wait(10) == 0
    assert directory.stat().st_mode & 0o777 == 0o700
    cluster.start_coordinator()
    cluster.wait_ready()
    assert cluster.worker_pids() == pids
    cluster.coordinator.terminate()
    cluster.coordinator.wait(10)
    cluster.stop()
    assert not directory.exists()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_the_thread_that_sends_to_workers_does_not_interrupt_the_coordinator(new_cluster):
    cluster = new_cluster().start()
    threads = Path(f"/proc/{cluster.coordinator.pid}/task")
    sending = [int(one.name) for one in threads.iterdir() if (one / "comm").read_text().startswith("ZMQbg/IO")]
    assert sending and all(os.sched_getscheduler(thread) == os.SCHED_BATCH for thread in sending)


def test_workers_end_when_their_supervisor_is_killed(new_cluster):
    cluster = new_cluster().start()
    family = [psutil.Process(pid) for pid in cluster.worker_pids().values()]
    cluster.supervisor.kill()
    cluster.supervisor.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    cluster.start_workers()
    cluster.wait_ready()


def test_no_thread_of_a_worker_takes_the_processor_from_who_runs(cluster):
    threads = [thread.id for pid in cluster.worker_pids().values() for thread in psutil.Process(pid).threads()]
    assert len(threads) > len(cluster.worker_pids())
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}


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

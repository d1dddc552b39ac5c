"""`triptych serve`, and what a start that cannot be says and leaves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.harness.cluster import ROOT
from loadtest.harness.ports import free_port

WITHIN_S = 60.0
Serve = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, **variables: str) -> subprocess.Popen[bytes]:
        environ = {name: text for name, text in os.environ.items() if not name.startswith("TRIPTYCH_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", "serve", *options],
            cwd=tmp_path,
            env={**environ, "PYTHONPATH": str(ROOT), **variables},
            stderr=(tmp_path / "log").open("wb"),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for(condition: Callable[[], bool], every_s: float = 0.1) -> None:
    give_up = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(every_s)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_however_it_is_ended(serve: Serve, tmp_path: Path, how: signal.Signals) -> None:
    port = free_port()
    (tmp_path / "worker").mkdir()  # what lies here is not taken for a part of the service
    (tmp_path / "worker" / "__main__.py").write_text("raise SystemExit('not this one')")
    process = serve("--listen", f"127.0.0.1:{port}", "--shards", "2", "--workers", "1")
    wait_for(lambda: is_ready(port))
    assert (tmp_path / "data" / "manifest.json").exists()
    children = descendants(process)
    assert len(children) >= 3
    process.send_signal(how)
    assert process.wait(WITHIN_S) == (0 if how != signal.SIGKILL else -how)
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))


def test_the_workers_serve_until_the_coordinator_has_answered_what_is_in_flight(serve: Serve, tmp_path: Path) -> None:
    port = free_port()
    process = serve("--listen", f"127.0.0.1:{port}", "--shards", "2", "--workers", "1")
    wait_for(lambda: is_ready(port))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/log/tail?prefix="):  # is in flight for the whole grace
        process.terminate()
        assert process.wait(WITHIN_S) == 0
    stops = [line for line in (tmp_path / "log").read_text().splitlines() if " stopped" in line]
    assert ["coordinator stopped" in stops[0], "worker stopped" in stops[1]] == [True, True]


NO_CLUSTER = """
import signal, subprocess, sys
from coordinator.commands import serve
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.SIG_DFL)
serve._spawn = lambda module, environ: subprocess.Popen(["sleep", "60"])
serve.GRACE_S = dict.fromkeys(serve.GRACE_S, 5.0)
original = serve.time.sleep
def sleep(seconds):
    print("serves", flush=True)
    original(seconds)
serve.time.sleep = sleep
sys.exit(serve.run({}))
"""


@pytest.mark.parametrize("how", ["ignored", "default"])
def test_a_hangup_ends_it_unless_it_was_started_with_nohup(how: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", NO_CLUSTER, how], env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "serves\n"
        process.send_signal(signal.SIGHUP)
        if how == "ignored":
            assert [process.stdout.readline() for _ in range(3)] == ["serves\n"] * 3
            process.terminate()
        process.stdout.read()
        assert process.wait(WITHIN_S) == 0


@pytest.mark.parametrize("module", ["coordinator", "worker"])
def test_an_interrupt_of_a_start_is_quiet(module: str, tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TRIPTYCH_LISTEN": "127.0.0.1:0"}
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: "zmq" in Path(f"/proc/{process.pid}/maps").read_text(), every_s=0.002)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, text) == (-signal.SIGINT, "")


def test_a_part_that_ends_ends_the_whole(serve: Serve, tmp_path: Path) -> None:
    port = free_port()
    process = serve(TRIPTYCH_LISTEN=f"127.0.0.1:{port}", TRIPTYCH_SHARDS="2", TRIPTYCH_WORKERS="1")
    wait_for(lambda: is_ready(port))
    (coordinator,) = (child for child in descendants(process) if child.cmdline()[-1] == "coordinator")
    coordinator.kill()
    assert process.wait(WITHIN_S) == 128 + signal.SIGKILL
    assert "coordinator ended (SIGKILL); stopping the rest" in (tmp_path / "log").read_text()


def test_a_start_that_fails_for_its_port_leaves_no_manifest(serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = serve("--listen", f"127.0.0.1:{port}")
        assert process.wait(WITHIN_S) == 1
    assert (
        f"TRIPTYCH_LISTEN is 127.0.0.1:{port}, which cannot be bound: Address already in use"
        in (tmp_path / "log").read_text()
    )
    assert not (tmp_path / "data" / "manifest.json").exists()


def test_an_unknown_variable_is_refused_with_the_nearest_name(serve: Serve, tmp_path: Path) -> None:
    process = serve("--listen", f"127.0.0.1:{free_port()}", TRIPTYCH_RETENTON="30d")
    assert process.wait(WITHIN_S) == 1
    assert "TRIPTYCH_RETENTON (did you mean TRIPTYCH_RETENTION?): not a setting" in (tmp_path / "log").read_text()
    assert not (tmp_path / "data" / "manifest.json").exists()


@pytest.mark.parametrize("module", ["coordinator", "worker"])
def test_help_of_a_part_starts_nothing(module: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=WITHIN_S)

    helped, wrong = run("--help"), run("--port", "1")
    assert (helped.returncode, wrong.returncode) == (0, 2)
    assert "`triptych serve` starts the whole service" in helped.stdout
    assert "unknown argument '--port'" in wrong.stderr
    assert not list(tmp_path.iterdir())

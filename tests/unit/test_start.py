"""What a start does not wait for."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from shared.kernels.cache import VARIABLE
from shared.wire import control_address
from worker.process import HEARTBEAT_S

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
ROUNDS = 9
CONNECTED_WITHIN_S = 0.1
"""Of the median of these rounds; 0.01 s to look and up to 0.02 s to connect, and a machine that does other things."""


def run(text: str, **environment: str) -> str:
    """What a new process prints."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_aiohttp_reads_no_authorities_but_requests_to_other_services_have_those_of_the_system() -> None:
    text = """
import os, ssl
before = dict(os.environ)
from coordinator.http import aiohttp_import
aiohttp_import.without_authorities()
from coordinator.prometheus_config.http_client import HttpClientConfig
import aiohttp.connector
assert os.environ == before
theirs, own = aiohttp.connector._SSL_CONTEXT_VERIFIED, HttpClientConfig().tls
assert own.verify_mode == ssl.CERT_REQUIRED and own.check_hostname
print(theirs.cert_store_stats()["x509"], own.cert_store_stats() == ssl.create_default_context().cert_store_stats())
"""
    assert run(text) == "0 True"


def test_the_coordinator_imports_nothing_that_only_other_processes_or_later_requests_need() -> None:
    later = {"multiprocessing", "importlib.metadata", "numba", "llvmlite"}
    imported = run("import sys, coordinator.__main__; print(*sys.modules)").split()
    assert later.isdisjoint(imported)


def test_the_collector_runs_again_when_all_is_imported() -> None:
    text = """
import gc
gc.disable()
from shared.process import interpreter
interpreter.collect_seldom()
print(gc.isenabled(), gc.get_threshold() == interpreter.COLLECTOR_THRESHOLDS, gc.get_freeze_count() > 1000)
"""
    assert run(text) == "True True True"


PARSE = "from shared.promql import parser; print(parser.parse('rate(m[5m]) + 1') == parser._parse('rate(m[5m]) + 1'))"
NOT_MADE = """
import lark.lark
def made(*_): raise AssertionError("the tables are made")
lark.lark.load_grammar = made
"""


def test_the_tables_of_the_parser_are_made_once_and_anew_where_they_are_not_whole(tmp_path: Path) -> None:
    own = {VARIABLE: str(tmp_path)}
    assert run(PARSE, **own) == "True"
    [tables] = tmp_path.glob("promql-*.tables")
    whole = tables.read_bytes()
    assert run(NOT_MADE + PARSE, **own) == "True"
    other_release = "import lark; del lark.Lark._load_from_dict\n"
    assert run(other_release + PARSE, **own) == "True"
    for broken in (b"", whole[:1000], whole[:-1], whole[:100] + bytes(len(whole) - 100)):
        tables.write_bytes(broken)
        assert run(PARSE, **own) == "True"
        assert run(NOT_MADE + PARSE, **own) == "True"
    assert run(PARSE, **{VARIABLE: str(tmp_path / "missing")}) == "True"


WORKER = """
import os, sys
from pathlib import Path
from shared.settings import Settings
from worker.process import WorkerProcess
WorkerProcess("w", [0], Settings(data=Path(sys.argv[1])), sys.argv[2], "c", os.getppid()).run()
"""


@pytest.mark.parametrize("apart_s", [0.0, 0.1])
def test_a_worker_finds_a_coordinator_that_comes_later_at_once(tmp_path: Path, apart_s: float) -> None:
    """`apart_s`: the two connections are possible at different times."""
    address = f"ipc://{tmp_path}/socket"
    command = [sys.executable, "-c", WORKER, str(tmp_path), address]
    worker = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        heard_until_s(address, apart_s)
        waited_s = [heard_until_s(address, apart_s) for _ in range(ROUNDS)]
    finally:
        worker.terminate()
        assert worker.wait(WITHIN_S) == 0
    assert statistics.median(waited_s) < CONNECTED_WITHIN_S, waited_s


def heard_until_s(address: str, apart_s: float) -> float:
    """Seconds until a coordinator, which is there from now on, has heard a worker by both connections."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as requests, context.socket(zmq.ROUTER) as control:
        requests.bind(address)
        time.sleep(apart_s)
        control.bind(control_address(address))
        started = time.monotonic()
        for socket in (requests, control):
            if not socket.poll(WITHIN_S * 1000):
                pytest.fail("the worker does not register")
        waited_s = time.monotonic() - started
    time.sleep(1.5 * HEARTBEAT_S)  # until the worker has noticed
    return waited_s

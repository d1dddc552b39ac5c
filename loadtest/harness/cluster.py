"""A real cluster for tests: coordinator and supervisor as processes, on a free port and a directory of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0
ROOT = Path(__file__).resolve().parents[2]
MEASURED = {"TRIPTYCH_CORE_DUMPS": "true"}
"""Settings of a cluster of which memory and files are measured: without it, only root may read all about a process."""


@dataclass
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Cluster:
    """`start` returns when every shard is ready; `stop` ends it in order, `kill` ends every process with SIGKILL.

    `tree` is the source tree that the processes run, which may be another one than that of the caller. The number of
    shards is by default what a new data directory of two workers has.
    """

    directory: Path
    shards: int = 4
    workers: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)
    coordinator: subprocess.Popen[bytes] | None = None
    supervisor: subprocess.Popen[bytes] | None = None
    port: int = 0
    tree: Path = ROOT
    python: str = sys.executable
    tls: ssl.SSLContext | None = None
    """With which this harness connects, where the settings turn TLS on."""
    authorization: str = ""
    """Header of every request, where the settings ask for one."""

    def __post_init__(self) -> None:
        # Otherwise Python would find the modules of the tree that is installed, which would be measured instead.
        assert (self.tree / "coordinator" / "__main__.py").exists(), f"{self.tree} is no source tree of Triptych"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        own = {
            "TRIPTYCH_LISTEN": f"127.0.0.1:{self.port}",
            "TRIPTYCH_DATA": str(self.directory / "data"),
            "TRIPTYCH_SHARDS": str(self.shards),
            "TRIPTYCH_WORKERS": str(self.workers),
            "TRIPTYCH_ADMIN_API": "true",
            **self.settings,
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRIPTYCH_")}
        return {**inherited, **own, "PYTHONPATH": str(self.tree.resolve())}

    def compile_kernels(self) -> None:
        """Before `start`: so that no kernel is compiled beside what is measured, which takes a minute or more if none
        is in the cache."""
        command = [self.python, "-m", "coordinator.cli", "warm"]
        subprocess.run(command, env=self.environment(), cwd=self.directory, check=True, stdout=subprocess.DEVNULL)

    def start(self) -> Cluster:
        try:
            self.start_workers()
            self.start_coordinator()
            self.wait_ready()
        except BaseException:
            self.kill()  # nobody would end what has started
            raise
        return self

    def start_coordinator(self) -> None:
        """Also a restart: it listens on the same port again."""
        log = self.directory / "coordinator.log"
        before = log.stat().st_size if log.exists() else 0
        self.coordinator = self._spawn("coordinator")
        if self.port:
            return
        give_up = time.monotonic() + READY_WITHIN_S
        while (found := re.search(rb"url=https?://[^:]+:(\d+)", log.read_bytes()[before:])) is None:
            assert self.coordinator.poll() is None, f"the coordinator ended: {self.log('coordinator')}"
            assert time.monotonic() < give_up, f"the coordinator does not listen: {self.log('coordinator')}"
            time.sleep(0.02)
        self.port = int(found[1])

    def start_workers(self) -> None:
        self.supervisor = self._spawn("worker")

    def _spawn(self, module: str) -> subprocess.Popen[bytes]:
        with open(self.directory / f"{module}.log", "ab") as log:
            return subprocess.Popen(
                [self.python, "-m", module], env=self.environment(), stdout=log, stderr=log, cwd=self.directory
            )

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> None:
        give_up = time.monotonic() + within_s
        while True:
            try:
                if self.get("/-/ready").status == 200:
                    return
            except OSError:
                pass
            assert time.monotonic() < give_up, self.log("worker")[-4000:] + self.log("coordinator")[-4000:]
            time.sleep(0.02)

    def worker_pids(self) -> dict[str, int]:
        """Worker name → process id, of those the coordinator knows."""
        return {w["worker"]: w["pid"] for w in self.get("/api/v1/cluster").json()["data"]["workers"]}

    def kill_worker(self, name: str) -> None:
        os.kill(self.worker_pids()[name], signal.SIGKILL)

    @contextmanager
    def without_worker(self, name: str = "worker-1") -> Iterator[None]:
        """A time in which this worker is dead, which the coordinator knows, and nobody starts it again."""
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGSTOP)
        try:
            self.kill_worker(name)
            give_up = time.monotonic() + READY_WITHIN_S
            while self.get("/-/ready").status == 200:
                assert time.monotonic() < give_up, self.log("coordinator")[-4000:]
                time.sleep(0.05)
            yield
        finally:
            self.supervisor.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every process of the cluster at once, as a power cut would end them."""
        roots = [psutil.Process(p.pid) for p in (self.coordinator, self.supervisor) if p and p.poll() is None]
        family = [*roots, *(child for root in roots for child in root.children(recursive=True))]
        for process in family:
            process.kill()
        self._reap()
        psutil.wait_procs(family, timeout=STOP_WITHIN_S)

    def stop(self) -> float:
        """SIGTERM to both; returns how long they took, in seconds."""
        started = time.monotonic()
        for process in (self.coordinator, self.supervisor):
            if process is not None and process.poll() is None:
                process.terminate()
        self._reap()
        return time.monotonic() - started

    def _reap(self) -> None:
        for process in (self.coordinator, self.supervisor):
            if process is not None:
                try:
                    process.wait(STOP_WITHIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.coordinator = self.supervisor = None

    def log(self, module: str) -> str:
        return (self.directory / f"{module}.log").read_text()

    # HTTP

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Response:
        connection: http.client.HTTPConnection
        if self.tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=self.tls)
        every = {"Authorization": self.authorization} if self.authorization else {}
        try:
            connection.request(method, path, body=body, headers=every | dict(headers or {}))
            answer = connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **parameters: str | Sequence[str]) -> Response:
        """Query parameters by keyword; `match` is sent as `match[]`."""
        pairs = _pairs(parameters)
        return self.request("GET", path + ("?" + urllib.parse.urlencode(pairs) if pairs else ""))

    def post_form(self, path: str, **parameters: str | Sequence[str]) -> Response:
        body = urllib.parse.urlencode(_pairs(parameters)).encode()
        return self.request("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})

    def post_json(self, path: str, data: Any, content_type: str = "application/json") -> Response:
        return self.request("POST", path, json.dumps(data).encode(), {"Content-Type": content_type})


def freeze(pid: int) -> None:
    """SIGSTOP; returns when all threads stand still. Until the one that gets the signal has run, the others go on."""
    os.kill(pid, signal.SIGSTOP)
    give_up = time.monotonic() + STOP_WITHIN_S
    while any(_state(task) not in "TZ" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < give_up, f"process {pid} does not stop"
        time.sleep(0.001)


def _state(task: Path) -> str:
    return (task / "stat").read_bytes().rpartition(b") ")[2][:1].decode()


def _pairs(parameters: Mapping[str, str | Sequence[str]]) -> list[tuple[str, str]]:
    pairs = []
    for name, value in parameters.items():
        name = "match[]" if name == "match" else name
        pairs += [(name, value)] if isinstance(value, str) else [(name, v) for v in value]
    return pairs


@contextmanager
def side_by_side(trees: Mapping[str, Path], shards: int, workers: int) -> Iterator[dict[str, Cluster]]:
    """A running cluster of each of these source trees, by their names, until the context ends. A tree other than this
    one runs in its own environment `.venv` if it has one, perhaps of another Python, else in the caller's. Kernels are
    compiled before: a tree that is new here would compile its own beside what is measured."""
    with ExitStack() as stack:
        clusters: dict[str, Cluster] = {}
        for name, tree in trees.items():
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            own = tree.resolve() / ".venv" / "bin" / "python"
            python = str(own) if tree.resolve() != ROOT and own.exists() else sys.executable
            clusters[name] = Cluster(Path(directory), shards=shards, workers=workers, tree=tree, python=python)
            stack.callback(clusters[name].stop)
            clusters[name].compile_kernels()
            clusters[name].start()
        yield clusters

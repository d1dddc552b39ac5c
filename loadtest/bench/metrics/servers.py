"""The servers that are compared, each started on a free port of this machine with a directory of its own."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil

from loadtest.harness.cluster import MEASURED, Cluster
from loadtest.harness.ports import free_port

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 60.0
POLL_S = 0.005
QUIET_S = 0.5
QUIET_SHARE = 0.1
"""Of a core, below which a server is idle."""
SHARDS = 4
WORKERS = 2
SEALED_WITHOUT = 64
"""Samples are sealed when less than one in so many is still in a head."""
SERIES_MAX = 3_000_000
"""VictoriaMetrics refuses queries over more than 300,000 series unless told otherwise."""


@dataclass
class Server:
    """Processes and a directory. Subclasses say how to start; `extra` are query parameters every query gets."""

    name = ""
    extra = ""
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="triptych-bench-")))
    port: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def installed(cls) -> bool:
        return True

    @classmethod
    def version(cls) -> str:
        raise NotImplementedError

    def start(self) -> float:
        """Seconds until it is ready to serve; `directory` may hold what an earlier run left."""
        started = time.monotonic()
        self._launch()
        self._wait_ready()
        return time.monotonic() - started

    def stop(self) -> None:
        for process in self._roots():
            process.terminate()
        _, left = psutil.wait_procs(self._roots(), timeout=STOP_WITHIN_S)
        for process in left:
            process.kill()
        for own in self.processes:
            own.wait(STOP_WITHIN_S)
        self.processes = []

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def family(self) -> list[psutil.Process]:
        roots = self._roots()
        return [*roots, *(child for root in roots for child in root.children(recursive=True))]

    def wait_quiet(self) -> None:
        """Until it has nothing to do any more: Triptych's first start compiles kernels in the background."""
        give_up = time.monotonic() + READY_WITHIN_S
        before = self.cpu_s()
        while time.monotonic() < give_up:
            time.sleep(QUIET_S)
            now = self.cpu_s()
            if now - before < QUIET_SHARE * QUIET_S:
                return
            before = now

    def cpu_s(self) -> float:
        """User and system time of all its processes so far."""
        times = [process.cpu_times() for process in self.family()]
        return sum(t.user + t.system for t in times)

    def memory_bytes(self) -> tuple[int, int]:
        """(resident set sizes added up, the same with pages that processes share counted once)."""
        infos = [process.memory_full_info() for process in self.family()]
        return sum(info.rss for info in infos), sum(info.pss for info in infos)

    def disk_bytes(self) -> int:
        """Allocated blocks of everything in its data directory."""
        return sum(path.stat().st_blocks * 512 for path in self.data().rglob("*") if path.is_file())

    def settle(self) -> None:
        """Have what is in memory written to disk, where there is a way to ask for it."""

    def seal(self) -> None:
        """Have all samples, which are of times long past, in the form they are kept in."""
        self.settle()

    def sealed_bytes(self) -> int:
        """Of the files that hold the samples, without index and logs."""
        return self.disk_bytes()

    def data(self) -> Path:
        return self.directory / "data"

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_WITHIN_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, body = self.get(path)
        if status != 200:
            raise RuntimeError(f"{self.name}: {path} gave {status}: {body[:300]!r}")
        return orjson.loads(body)

    def _launch(self) -> None:
        raise NotImplementedError

    def _ready_path(self) -> str:
        raise NotImplementedError

    def _roots(self) -> list[psutil.Process]:
        return [psutil.Process(process.pid) for process in self.processes if process.poll() is None]

    def _spawn(self, command: list[str]) -> None:
        with open(self.directory / "server.log", "ab") as log:
            self.processes = [subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)]

    def _wait_ready(self) -> None:
        give_up = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                if self.get(self._ready_path())[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > give_up:
                raise RuntimeError(f"{self.name} was not ready within {READY_WITHIN_S:g} s; see {self.directory}")
            time.sleep(POLL_S)


class Triptych(Server):
    name = "Triptych"

    @classmethod
    def version(cls) -> str:
        return f"this tree, {WORKERS} workers, {SHARDS} shards, otherwise default settings"

    def _launch(self) -> None:
        self._cluster = Cluster(self.directory, shards=SHARDS, workers=WORKERS, settings=MEASURED)
        self._cluster.start_workers()
        self._cluster.start_coordinator()
        self.port = self._cluster.port
        self.processes = [p for p in (self._cluster.supervisor, self._cluster.coordinator) if p is not None]

    def seal(self) -> None:
        """A start seals all windows that are past; merging follows."""
        self.stop()
        self.start()
        give_up = time.monotonic() + READY_WITHIN_S
        while not self._is_sealed():
            if time.monotonic() > give_up:
                raise RuntimeError(f"samples are not sealed after {READY_WITHIN_S:g} s; see {self.directory}")
            time.sleep(QUIET_S)
        self.wait_quiet()

    def _is_sealed(self) -> bool:
        """Whether nearly all samples are in blocks: its own metrics of the last minutes never are."""
        counts = [shard["counts"] for shard in self.json("/api/v1/cluster")["data"]["shards"]]
        return SEALED_WITHOUT * sum(each["head_samples"] for each in counts) < sum(each["samples"] for each in counts)

    def sealed_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.data().glob("shards/*/blocks/*"))

    def _ready_path(self) -> str:
        return "/-/ready"


class Prometheus(Server):
    name = "Prometheus"

    @classmethod
    def installed(cls) -> bool:
        return shutil.which("prometheus") is not None

    @classmethod
    def version(cls) -> str:
        return _first_version(["prometheus", "--version"])

    def _launch(self) -> None:
        self.port = free_port()
        (self.directory / "prometheus.yml").write_text("global: {}\n")
        self._spawn(
            [
                "prometheus",
                f"--config.file={self.directory}/prometheus.yml",
                f"--storage.tsdb.path={self.data()}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--web.enable-remote-write-receiver",
                "--log.level=warn",
            ]
        )

    def _ready_path(self) -> str:
        return "/-/ready"


class VictoriaMetrics(Server):
    name = "VictoriaMetrics"
    extra = "&nocache=1"

    @classmethod
    def installed(cls) -> bool:
        return shutil.which("victoria-metrics") is not None

    @classmethod
    def version(cls) -> str:
        return _first_version(["victoria-metrics", "--version"])

    def _launch(self) -> None:
        self.port = free_port()
        self._spawn(
            [
                "victoria-metrics",
                f"-httpListenAddr=127.0.0.1:{self.port}",
                f"-storageDataPath={self.data()}",
                f"-search.maxUniqueTimeseries={SERIES_MAX}",
                "-search.disableCache",
                "-loggerLevel=WARN",
            ]
        )

    def settle(self) -> None:
        self.get("/internal/force_flush")

    def seal(self) -> None:
        self.settle()
        self.get("/internal/force_merge")
        self.wait_quiet()

    def sealed_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.data() / "data").rglob("*") if path.is_file())

    def _ready_path(self) -> str:
        return "/health"


SERVERS: tuple[type[Server], ...] = (Triptych, VictoriaMetrics, Prometheus)


def _first_version(command: list[str]) -> str:
    """What the program says of itself, or else, what its Debian package does: not every build knows its version."""
    for asked in (command, ["dpkg-query", "-W", "-f", "${Version}", command[0]]):
        if shutil.which(asked[0]) is not None:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
            found = re.search(r"(\d+\.\d+\.\d+)", done.stdout + done.stderr)
            if found:
                return found[1]
    return "version unknown"

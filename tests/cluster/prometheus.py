"""A real Prometheus that scrapes targets and sends what it has by remote write."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from loadtest.harness.processes import end

T = TypeVar("T")

FOUND_WITHIN_S = 40.0
STOPS_WITHIN_S = 10.0

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's prometheus is not installed")


@dataclass(frozen=True, slots=True)
class Prometheus:
    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, find: Callable[[], T]) -> T:
        """What `find` returns as soon as that is not empty. Fails with the log when Prometheus ends before."""
        give_up = time.monotonic() + FOUND_WITHIN_S
        while not (found := find()):
            assert self.process.poll() is None and time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.2)
        return found


def scraping(target: str, *remote_writes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration: scrape the target (host:port) each second, and send to these at once."""
    at_once = {"queue_config": {"batch_send_deadline": "100ms"}}
    return {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "scraped", "static_configs": [{"targets": [target]}]}],
        "remote_write": [{**at_once, **remote_write} for remote_write in remote_writes],
    }


@contextmanager
def prometheus(
    directory: Path, config: Mapping[str, Any], feature: str = "agent", port: int = 0, arguments: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """Prometheus with this configuration, its files in `directory`, until the context ends. As an agent it only sends
    and answers no queries. `port`: its own, any by default; `arguments`: more of its command line."""
    path, log = directory / "prometheus.yml", directory / "prometheus.log"
    path.write_text(json.dumps(config))  # JSON is YAML
    storage = "agent" if feature == "agent" else "tsdb"
    command = ["prometheus", f"--enable-feature={feature}", f"--config.file={path}"]
    command += [f"--storage.{storage}.path={directory / storage}", f"--web.listen-address=127.0.0.1:{port}"]
    command += arguments
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield Prometheus(process, log)
    finally:
        end(process, STOPS_WITHIN_S)

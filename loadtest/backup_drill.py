"""Backup and restore of a large cluster under writes: `make backup-drill`, or `python -m loadtest.backup_drill`.

A cluster of its own gets 50 million samples, a million records and 100,000 vectors (times `--scale`). While paced
writers go on in all areas, `triptych backup` runs twice; then it runs once more without writers, is restored, and
everything in the restored cluster is compared with the first one. The targets: 30 s for the first backup, 3 s for the
second, a p99 of the writes of at most 2 times that without a backup.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from loadtest.bench.filling import (
    CHUNK_STEPS,
    DIMENSION,
    JSON,
    PROTOBUF,
    SERIES,
    START_MS,
    append_body,
    write_records,
    write_samples,
    write_vectors,
)
from loadtest.bench.metrics.payloads import STEP_MS
from loadtest.bench.vector_data import write_bodies
from loadtest.harness.cluster import ROOT, Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

SAMPLES, RECORDS, VECTORS = 50_000_000, 1_000_000, 100_000
WRITES_A_SECOND = 20.0
"""Of each of the three writers: 500 samples, 20 records, 10 vectors."""
QUIET_S = 15.0
COMPARED_RECORDS, COMPARED_IDS = 10_000, 1_000
PAGES_AT_ONCE = 4
"""Compared at once, so that neither cluster waits for the other or for this process. One of samples has 23 MB."""
SCAN = "/api/v1/log/scan"


class Writers:
    """Three paced writers. `latencies_s` are those since the last `taken`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stopping = threading.Event()
        self._latencies: list[float] = []
        self.rounds = 0
        self._threads = [threading.Thread(target=self._run, args=(body,)) for body in (_samples, _records, _vectors)]
        for thread in self._threads:
            thread.start()

    def _run(self, request: Callable[[int], tuple[str, bytes, dict[str, str]]]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._cluster.port, timeout=60)
        due, number = time.perf_counter(), 0
        while not self._stopping.is_set():
            path, body, headers = request(number)
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status not in (200, 204):
                raise RuntimeError(f"{path} gave {answer.status}: {text[:300]!r}")
            self._latencies.append(time.perf_counter() - began)
            due, number = max(due + 1 / WRITES_A_SECOND, began), number + 1
            self.rounds = max(self.rounds, number)

    def taken(self) -> list[float]:
        latencies, self._latencies = self._latencies, []
        return latencies

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def _samples(number: int) -> tuple[str, bytes, dict[str, str]]:
    at_ms = START_MS + number * 1_000
    rows = [({"__name__": "paced", "n": str(n)}, [(at_ms, float(number))]) for n in range(500)]
    return "/api/v1/write", compressed(rows), HEADERS


def _records(number: int) -> tuple[str, bytes, dict[str, str]]:
    return "/api/v1/log/append", append_body(b"paced", number, 20), JSON


def _vectors(number: int) -> tuple[str, bytes, dict[str, str]]:
    vectors = np.random.default_rng(number).standard_normal((10, DIMENSION), dtype=np.float32)
    return "/api/v1/vector/write", next(iter(write_bodies(vectors, 10_000_000 + 10 * number))), PROTOBUF


def fill(cluster: Cluster, scale: float) -> int:
    """Write the data. Returns the number of steps of each series."""
    steps = max(CHUNK_STEPS, round(SAMPLES * scale / SERIES / CHUNK_STEPS) * CHUNK_STEPS)
    write_samples(cluster, steps)
    write_records(cluster, round(RECORDS * scale))
    write_vectors(cluster, round(VECTORS * scale))
    return steps


def command(*arguments: str) -> float:
    """Run `triptych`, and show what it says. Returns how long it took, in seconds."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "coordinator.cli", *arguments], env=environment, check=True)
    return time.monotonic() - began


@dataclass(frozen=True, slots=True)
class Page:
    """A request for a part of the data, whose answer is the same in both clusters."""

    what: str
    path: str
    body: bytes | None = None

    def of(self, cluster: Cluster) -> bytes:
        """The answer's data. Raises RuntimeError if the answer is not whole."""
        method = "GET" if self.body is None else "POST"
        answer = cluster.request(method, self.path, self.body, JSON)
        if answer.status != 200 or b'"warnings"' in answer.body[-2000:] or b'"result":[]' in answer.body[:200]:
            raise RuntimeError(f"{self.what}: the answer is not whole: {answer.status} {answer.body[:300]!r}")
        data, found, _ = answer.body.rpartition(b'"nextSequence"')  # it tells the clusters apart
        return data if found and self.path.startswith(SCAN) else answer.body


def pages(first: Cluster, steps: int, vectors: int, rounds: int) -> Iterator[Page]:
    """Pages that together read all that the first cluster has."""
    for begin in range(0, steps, CHUNK_STEPS):  # all series of a time at once: blocks are decoded once
        end_s = (START_MS + (begin + CHUNK_STEPS - 1) * STEP_MS) / 1000
        yield _samples_page(f"m[{CHUNK_STEPS * STEP_MS // 1000}s]", end_s)
    yield _samples_page(f"paced[{rounds + 1}s]", START_MS / 1000 + rounds)
    end = first.get("/api/v1/log/frontier").json()["nextSequence"]
    for begin in range(0, end, COMPARED_RECORDS):
        limits = {"start_seq": begin, "end_seq": min(begin + COMPARED_RECORDS, end), "limit": COMPARED_RECORDS}
        yield Page(f"records from {begin} on", f"{SCAN}?{urlencode({'prefix_base64': '', **limits})}")
    yield Page("records after the last", f"{SCAN}?{urlencode({'prefix_base64': '', 'start_seq': end})}")
    ids = [*range(vectors), *range(10_000_000, 10_000_000 + 10 * rounds + 10)]
    for begin in range(0, len(ids), COMPARED_IDS):
        wanted = [str(number) for number in ids[begin : begin + COMPARED_IDS]]
        yield Page(f"vectors from {wanted[0]} on", "/api/v1/vector/get", json.dumps({"ids": wanted}).encode())


def _samples_page(query: str, end_s: float) -> Page:
    return Page(query, f"/api/v1/query?{urlencode({'query': query, 'time': end_s})}")


def compare(first: Cluster, second: Cluster, steps: int, vectors: int, rounds: int) -> int:
    """Ask both clusters for everything, some pages at once. Returns the number of bytes that were compared. Raises
    RuntimeError if the clusters differ."""

    def compared(page: Page) -> int:
        one, other = page.of(first), page.of(second)
        if one != other and _sorted(one) != _sorted(other):
            raise RuntimeError(f"the restored cluster differs: {page.what}: {one[:200]!r} … {other[:200]!r}")
        return len(one)

    with ThreadPoolExecutor(PAGES_AT_ONCE) as pool:
        return sum(pool.map(compared, pages(first, steps, vectors, rounds)))


def _sorted(body: bytes) -> object:
    """The answer without the order of its series; as it is if it is no answer to a query."""
    if b'"resultType"' not in body[:200]:
        return body
    return sorted(json.loads(body)["data"]["result"], key=str)


def _p99_ms(latencies_s: list[float]) -> float:
    return float(np.percentile(latencies_s, 99)) * 1000


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def drill(directory: Path, scale: float) -> bool:
    """Returns whether the targets were met."""
    (directory / "first").mkdir()
    (directory / "second").mkdir()
    settings = {"TRIPTYCH_ADMIN_API": "true"}
    cluster = Cluster(directory / "first", workers=2, settings=settings).start()
    copy = Cluster(directory / "second", workers=2, settings=settings)
    place = str(directory / "place")
    try:
        began = time.monotonic()
        steps = fill(cluster, scale)
        _say(f"{steps * SERIES:,} samples and the rest were written in {time.monotonic() - began:.0f} s")
        writers = Writers(cluster)
        time.sleep(2)
        writers.taken()
        time.sleep(QUIET_S)
        quiet_ms = _p99_ms(writers.taken())
        first_s = command("backup", place, "--url", cluster.url)
        first_ms = _p99_ms(writers.taken())
        second_s = command("backup", place, "--url", cluster.url)
        second_ms = _p99_ms(writers.taken())
        writers.stop()
        command("backup", place, "--url", cluster.url)
        restore_s = command("restore", place, "--data", str(copy.directory / "data"))
        _say(f"first backup {first_s:.1f} s (target 30), second {second_s:.1f} s (target 3), restore {restore_s:.1f} s")
        _say(
            f"p99 of writes: {quiet_ms:.1f} ms without a backup, {first_ms:.1f} ms during the first "
            f"({first_ms / quiet_ms:.1f} times, target 2), {second_ms:.1f} ms during the second"
        )
        copy.start()
        size = compare(cluster, copy, steps, round(VECTORS * scale), writers.rounds)
    finally:
        cluster.kill()
        copy.kill()
    _say(f"{size:,} bytes of answers of both clusters are equal")
    return first_s <= 30 and second_s <= 3 and first_ms <= 2 * quiet_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, help="for the data (default: a temporary directory)")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="backup-drill-", dir=arguments.directory))
    try:
        return 0 if drill(directory, arguments.scale) else 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

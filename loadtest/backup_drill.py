"""Backup and restore of a large cluster under writes: `make backup-drill`, or `python -m loadtest.backup_drill`.

A cluster of its own gets 50 million samples, a million records and 100,000 vectors (times `--scale`). While paced
writers go on in all areas, `triptych backup` runs twice; then it runs once more without writers, is restored, and
everything in the restored cluster is compared with the first one. The targets: 30 s for the first backup, 3 s for the
second, a p99 of the writes of at most 2 times that without a backup.
"""

from __future__ import annotations

import argparse
import base64
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
from pathlib import Path

import numpy as np

from loadtest.bench.metrics.payloads import STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.vector_data import clustered, write_bodies
from loadtest.harness.cluster import ROOT, Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

SAMPLES, RECORDS, VECTORS = 50_000_000, 1_000_000, 100_000
SERIES, CHUNK_STEPS = 10_000, 100
DIMENSION = 128
CONNECTIONS = 4
RECORDS_AT_ONCE = 5_000
RECORD_BYTES = 100
KEYS = 1_000
WRITES_A_SECOND = 20.0
"""Of each of the three writers: 500 samples, 20 records, 10 vectors."""
QUIET_S = 15.0
START_MS = 1_700_000_000_000 // STEP_MS * STEP_MS
PROTOBUF = {"Content-Type": "application/protobuf"}
JSON = {"Content-Type": "application/json"}
COMPARED_IDS = 1_000


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
    return "/api/v1/log/append", _append_body(b"paced", number, 20), JSON


def _append_body(what: bytes, number: int, count: int) -> bytes:
    random = np.random.default_rng((number, len(what)))
    values = random.bytes(count * RECORD_BYTES)
    rows = []
    for n in range(count):
        key = b"%b %d" % (what, (number * count + n) % KEYS)
        value = values[n * RECORD_BYTES : (n + 1) * RECORD_BYTES]
        rows.append({"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()})
    return json.dumps({"records": rows, "awaitDurable": True}).encode()


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


def write_samples(cluster: Cluster, steps: int, begin: int = 0) -> None:
    """`steps` samples of each of SERIES series, from step `begin` on, as they come from senders that scrape."""
    for first in range(begin, begin + steps, CHUNK_STEPS):
        work = Workload("m", SERIES, CHUNK_STEPS, START_MS + first * STEP_MS)
        send(cluster.port, requests(work, CONNECTIONS, seed=first))
        _say(f"{(first + CHUNK_STEPS) * SERIES:,} samples", end="\r")


def write_records(cluster: Cluster, count: int) -> None:
    """Durable records of RECORD_BYTES random bytes, RECORDS_AT_ONCE in a request."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=120)
    for number in range(count // RECORDS_AT_ONCE):
        _post(connection, "/api/v1/log/append", _append_body(b"key", number, RECORDS_AT_ONCE), JSON)


def write_vectors(cluster: Cluster, count: int) -> None:
    """Vectors of DIMENSION numbers."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=120)
    for body in write_bodies(clustered(count, DIMENSION, 1)):
        _post(connection, "/api/v1/vector/write", body, PROTOBUF)


def _post(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} gave {answer.status}: {content[:300]!r}")
    return content


def command(*arguments: str) -> float:
    """Run `triptych`, and show what it says. Returns how long it took, in seconds."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "coordinator.cli", *arguments], env=environment, check=True)
    return time.monotonic() - began


def everything(cluster: Cluster, steps: int, vectors: int, rounds: int) -> Iterator[tuple[str, bytes]]:
    """(what, the answer) of requests that together read all that the cluster has."""
    for job in range(10):
        for first in range(0, steps, CHUNK_STEPS):
            end_s = (START_MS + (first + CHUNK_STEPS - 1) * STEP_MS) / 1000
            query = f'm{{job="job-{job}"}}[{CHUNK_STEPS * STEP_MS // 1000}s]'
            yield query, _whole(cluster.get("/api/v1/query", query=query, time=str(end_s)).body)
    query, end_s = f"paced[{rounds + 1}s]", START_MS / 1000 + rounds
    yield query, _whole(cluster.get("/api/v1/query", query=query, time=str(end_s)).body)
    start = 0
    while True:
        answer = cluster.get("/api/v1/log/scan", prefix_base64="", start_seq=str(start), limit="10000")
        content = answer.json()
        if "warnings" in content or answer.status != 200:
            raise RuntimeError(f"the log cannot be read: {answer.body[:300]!r}")
        yield f"records from {start} on", json.dumps(content["records"]).encode()
        if not content["records"]:
            break
        start = content["nextSequence"]
    ids = [*range(vectors), *range(10_000_000, 10_000_000 + 10 * rounds + 10)]
    for first in range(0, len(ids), COMPARED_IDS):
        wanted = [str(number) for number in ids[first : first + COMPARED_IDS]]
        yield f"vectors from {wanted[0]} on", cluster.post_json("/api/v1/vector/get", {"ids": wanted}).body


def _whole(body: bytes) -> bytes:
    if b'"warnings"' in body[-2000:] or not body.startswith(b'{"status":"success"'):
        raise RuntimeError(f"the answer is not whole: {body[:300]!r}")
    return body


def compare(first: Cluster, second: Cluster, steps: int, vectors: int, rounds: int) -> int:
    """Returns the number of bytes that were compared. Raises RuntimeError if the clusters differ."""
    total = 0
    asked = [everything(cluster, steps, vectors, rounds) for cluster in (first, second)]
    for (what, one), (_, other) in zip(*asked, strict=True):
        if one != other and _sorted(one) != _sorted(other):
            raise RuntimeError(f"the restored cluster differs: {what}: {one[:200]!r} … {other[:200]!r}")
        total += len(one)
    return total


def _sorted(body: bytes) -> object:
    content = json.loads(body)
    return sorted(content["data"]["result"], key=str) if isinstance(content, dict) and "data" in content else content


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
    cluster = Cluster(directory / "first", shards=8, workers=2, settings=settings).start()
    copy = Cluster(directory / "second", shards=8, workers=2, settings=settings)
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

"""Native histograms in blocks, compared with Prometheus: `python -m loadtest.bench.histogram_blocks [series]`.

The same remote-write messages become a block of ours, in process, and a block of the installed `prometheus`, by its
snapshot of an hour of scrapes. Rates are per second of one core's CPU time, from and to arrays.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import snappy
from numpy.typing import NDArray

from loadtest.harness.histogram_messages import histogram_message
from proto import remote_write_pb2
from shared.histograms.decoding import decoded
from shared.histograms.references import references
from shared.protobuf_fields import varint
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

SERIES, STEPS, BUCKETS, SCRAPE_MS = 1000, 240, 40, 15_000
REQUEST_STEPS = 24
WRITTEN_SERIES, READ_SERIES = 20, 200
READY_WITHIN_S, TIMEOUT_S = 60.0, 60.0
HISTOGRAMS_FIELD = b"\x22"


def show(what: str, figure: float, unit: str) -> None:
    sys.stdout.write(f"{what:<64} {figure:>10.2f} {unit}\n")


def counts_of(kind: str, series: int) -> NDArray[np.int64]:
    """int64[series, steps, buckets]: counts of services of which some are 1,000 times as busy as others. Those that
    have just started have no observations in most buckets at first, and a bucket is in a message from its first one
    on."""
    random = np.random.default_rng(5)
    a_scrape = 15 * random.lognormal(1, 1.5, (series, 1, 1))
    if kind == "busy, load varies":
        a_scrape = 30 * a_scrape * np.exp(np.cumsum(random.normal(0, 0.05, (series, STEPS, 1)), axis=1))
    middle = BUCKETS / 2 + random.normal(0, 3, (series, 1, 1))
    share = np.exp(-0.5 * ((np.arange(BUCKETS) - middle) / 7) ** 2)
    steps = random.poisson(np.broadcast_to(a_scrape * share / share.sum(2, keepdims=True), (series, STEPS, BUCKETS)))
    counted_before = 0 if kind == "just started" else random.integers(1, 1000, (series, 1, BUCKETS))
    return np.cumsum(steps, axis=1) + counted_before


def messages(kind: str, series: int, start_ms: int) -> list[list[bytes]]:
    """A message for each step of each series."""
    random = np.random.default_rng(6)
    counts = counts_of(kind, series)
    upper = 2.0 ** ((np.arange(BUCKETS) - 20) / 8)
    noise = 1 + 0.01 * random.random(counts.shape[:2])
    sums = np.cumsum(np.diff(counts, axis=1, prepend=0) @ upper * noise, axis=1)
    return [
        [_message(counts[one, step], float(sums[one, step]), start_ms + step * SCRAPE_MS) for step in range(STEPS)]
        for one in range(series)
    ]


def _message(counts: NDArray[np.int64], total: float, at_ms: int) -> bytes:
    (used,) = np.nonzero(counts)
    edges = np.flatnonzero(np.diff(used, prepend=-2) > 1)
    lengths = np.diff(np.append(edges, len(used)))
    offsets = np.diff(used[edges], prepend=0) - np.concatenate(([0], lengths[:-1]))[: len(edges)]
    return histogram_message(
        schema=3, count_int=int(counts.sum()), sum=total, zero_threshold=2.0**-128, zero_count_int=0,
        positive_spans=[(int(offset), int(length)) for offset, length in zip(offsets, lengths, strict=True)],
        positive_deltas=np.diff(counts[used], prepend=0).tolist(), timestamp=at_ms,
    )  # fmt: skip


def ours(kind: str, by_series: list[list[bytes]]) -> None:
    series = len(by_series)
    flat = [message for own in by_series for message in own]
    ends = np.cumsum([len(message) for message in flat])
    found = decoded(np.frombuffer(b"".join(flat), np.uint8), np.concatenate(([0], ends[:-1])), ends)
    assert not found.faults.any()
    batch, rows = found.batch, len(flat)
    counts = len(batch.columns.counts)
    with tempfile.TemporaryDirectory() as directory:
        objects = LocalObjects(Path(directory))
        for _ in range(2):  # the first time compiles
            writer, started = BlockWriter(objects, 1), time.thread_time()
            for first in range(0, series, WRITTEN_SERIES):
                own = slice(first * STEPS, min(first + WRITTEN_SERIES, series) * STEPS)
                runs = (own.stop - own.start) // STEPS
                values = references(np.arange(own.start, own.stop))
                writer.add(np.arange(runs) + first, np.full(runs, STEPS), found.timestamps_ms[own], values, None, batch)
            row = writer.finish()
            wrote_s = time.thread_time() - started
            started = time.thread_time()
            block = Block(row, objects, DecodedCache(0))
            for first in range(0, series, READ_SERIES):
                join(block.pieces(np.arange(first, min(first + READ_SERIES, series)), 0, 1 << 60), READ_SERIES)
            read_s = time.thread_time() - started
    show(f"{kind}: Triptych's block", row.size_bytes / rows, "bytes a histogram")
    show(f"{kind}: of a bucket", 8 * row.size_bytes / counts, "bits")
    show(f"{kind}: write", 1e9 * wrote_s / counts, "ns a bucket")
    show(f"{kind}: read and join", 1e9 * read_s / counts, "ns a bucket")


def requests(by_series: list[list[bytes]]) -> Iterator[bytes]:
    for first in range(0, STEPS, REQUEST_STEPS):
        body = bytearray()
        for number, own in enumerate(by_series):
            entry = remote_write_pb2.TimeSeries()
            entry.labels.add(name="__name__", value="latency_seconds")
            entry.labels.add(name="instance", value=f"host-{number:04}:9100")
            content = entry.SerializeToString() + b"".join(
                HISTOGRAMS_FIELD + varint(len(message)) + message for message in own[first : first + REQUEST_STEPS]
            )
            body += b"\x0a" + varint(len(content)) + content
        yield snappy.compress(bytes(body))


def prometheus(kind: str, by_series: list[list[bytes]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory = Path(tempfile.mkdtemp(prefix="triptych-bench-"))
    (directory / "empty.yml").write_text("")
    server = subprocess.Popen(
        [
            "prometheus", f"--config.file={directory / 'empty.yml'}", f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver", "--web.enable-admin-api",
            "--enable-feature=native-histograms", "--log.level=error",
        ]
    )  # fmt: skip
    try:
        _wait_ready(f"http://127.0.0.1:{port}/-/ready")
        for body in requests(by_series):
            _post(f"http://127.0.0.1:{port}/api/v1/write", body)
        name = json.loads(_post(f"http://127.0.0.1:{port}/api/v1/admin/tsdb/snapshot", b""))["data"]["name"]
        blocks = [path.parent for path in (directory / "data" / "snapshots" / name).glob("*/meta.json")]
        stats = [json.loads((block / "meta.json").read_text())["stats"] for block in blocks]
        assert sum(own["numSamples"] for own in stats) == len(by_series) * STEPS, stats
        rows = len(by_series) * STEPS
        chunk_bytes = sum(path.stat().st_size for block in blocks for path in (block / "chunks").iterdir())
        show(f"{kind}: Prometheus's chunks", chunk_bytes / rows, "bytes a histogram")
        index_bytes = sum((block / "index").stat().st_size for block in blocks)
        show(f"{kind}: Prometheus's index of its block", index_bytes / rows, "bytes a histogram")
    finally:
        server.terminate()
        server.wait(TIMEOUT_S)
        shutil.rmtree(directory)


def _wait_ready(url: str) -> None:
    give_up_s = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=TIMEOUT_S).close()
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.1)


def _post(url: str, body: bytes) -> bytes:
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"} if body else {}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST"), timeout=TIMEOUT_S) as answer:
        content: bytes = answer.read()
    return content


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else SERIES
    start_ms = int(time.time() * 1000) - STEPS * SCRAPE_MS
    for kind in ("even load", "busy, load varies", "just started"):
        by_series = messages(kind, series, start_ms)
        ours(kind, by_series)
        if shutil.which("prometheus"):
            prometheus(kind, by_series)


if __name__ == "__main__":
    main()

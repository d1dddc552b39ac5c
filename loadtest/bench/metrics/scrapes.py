"""An hour of node_exporter, scraped every second, as remote-write requests: real values, for figures of bytes a sample.

`python -m loadtest.bench.metrics.scrapes` records it anew, which takes an hour; the recording that is kept is one of
those. It is a matrix of [series × scrapes] float64 (NaN: not in that scrape), packed with lzma.
"""

from __future__ import annotations

import io
import lzma
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import snappy
from numpy.typing import NDArray

from loadtest.harness.ports import free_port
from proto import remote_write_pb2

RECORDING = Path(__file__).with_name("node_exporter.npz.xz")
SECONDS = 3600
INTERVAL_S = 1.0
SCRAPES_A_REQUEST = 4
"""About 2,000 samples a request."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """`times_ms` int64[scrapes], `series` the label sets, `values` float64[series, scrapes]."""

    times_ms: NDArray[np.int64]
    series: list[Labels]
    values: NDArray[np.float64]

    @property
    def samples(self) -> int:
        return int(np.count_nonzero(~np.isnan(self.values)))

    def bodies(self, start_ms: int) -> Iterator[bytes]:
        """Remote-write requests in the order of time, the first scrape at start_ms."""
        times = self.times_ms - self.times_ms[0] + start_ms
        for first in range(0, len(times), SCRAPES_A_REQUEST):
            message = remote_write_pb2.WriteRequest()
            own = range(first, min(first + SCRAPES_A_REQUEST, len(times)))
            for labels, row in zip(self.series, self.values, strict=True):
                there = [scrape for scrape in own if row[scrape] == row[scrape]]
                if there:
                    entry = message.timeseries.add()
                    for name, value in labels:
                        entry.labels.add(name=name, value=value)
                    for scrape in there:
                        entry.samples.add(value=row[scrape], timestamp=int(times[scrape]))
            yield snappy.compress(message.SerializeToString())


def load() -> Recording:
    with np.load(io.BytesIO(lzma.decompress(RECORDING.read_bytes()))) as arrays:
        texts = arrays["series"].tobytes().decode().split("\n")
        return Recording(arrays["times_ms"], [_labels(text) for text in texts], arrays["values"])


def save(times_ms: list[int], scrapes: list[str]) -> None:
    """Keep scrapes, in Prometheus's text format, as the recording."""
    numbers: dict[str, int] = {}
    rows = []
    for text in scrapes:
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        rows.append({numbers.setdefault(name, len(numbers)): float(value) for name, _, value in lines})
    values = np.full((len(numbers), len(rows)), np.nan)
    for scrape, row in enumerate(rows):
        values[list(row), scrape] = list(row.values())
    buffer = io.BytesIO()
    series = np.frombuffer("\n".join(numbers).encode(), dtype=np.uint8)
    np.savez(buffer, times_ms=np.array(times_ms), series=series, values=values)
    RECORDING.write_bytes(lzma.compress(buffer.getvalue(), preset=9))


def _labels(text: str) -> Labels:
    """Of a series as the text format has it, with those a scrape adds; sorted by name."""
    name, _, rest = text.partition("{")
    found = {"__name__": name, "instance": "localhost:9100", "job": "node"}
    found.update((label, value.replace('\\"', '"').replace("\\\\", "\\")) for label, value in _LABEL.findall(rest))
    return tuple(sorted(found.items()))


def record(seconds: int) -> None:
    port = free_port()
    command = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"]
    exporter = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    times: list[int] = []
    scrapes: list[str] = []
    try:
        time.sleep(INTERVAL_S)
        started = time.time()
        for number in range(round(seconds / INTERVAL_S)):
            time.sleep(max(0.0, started + number * INTERVAL_S - time.time()))
            times.append(round(time.time() * 1000))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                scrapes.append(answer.read().decode())
    finally:
        exporter.terminate()
        exporter.wait(10)
    save(times, scrapes)


if __name__ == "__main__":
    if shutil.which("prometheus-node-exporter") is None:
        sys.exit("prometheus-node-exporter is not installed")
    record(SECONDS)

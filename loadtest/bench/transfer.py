"""How fast samples are imported and exported: `python -m loadtest.bench.transfer [--series 1000] [--samples 2000]`.

A cluster of two workers; half of the series are counters and half gauges with two decimals, scraped every 15 s. Rates
are wall-clock, over HTTP and with this process on the same machine; beside them is the CPU time of the cluster and of
this process. Blocks are created with Debian's promtool, and left out without it.
"""

from __future__ import annotations

import argparse
import http.client
import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.command_client import Client
from coordinator.commands.transferring import import_samples
from loadtest.harness.cluster import Cluster
from loadtest.harness.processes import family, processor_s

START_MS, SCRAPE_MS = 1_700_000_000_000, 15_000
ROUNDS = 3
FORMATS = ("arrow", "parquet", "jsonl", "csv")
PIECE_BYTES = 1 << 20


def _values(series: int, samples: int) -> NDArray[np.float64]:
    """float64[series, samples]."""
    random = np.random.default_rng(1)
    values = np.round(50 + np.cumsum(random.normal(0, 0.5, (series, samples)), axis=1), 2)
    values[::2] = np.cumsum(random.integers(0, 200, (len(values[::2]), samples)), axis=1)
    return values


def _write_lines(path: Path, name: str, values: NDArray[np.float64]) -> None:
    times = ",".join(str(START_MS + SCRAPE_MS * k) for k in range(values.shape[1]))
    with open(path, "w") as file:
        for i, own in enumerate(values.tolist()):
            labels = f'"__name__":"{name}","instance":"host-{i % 50}:9100","job":"node","pod":"pod-{i}"'
            file.write(f'{{"metric":{{{labels}}},"values":[{",".join(map(repr, own))}],"timestamps":[{times}]}}\n')


def _write_openmetrics(path: Path, name: str, values: NDArray[np.float64]) -> None:
    with open(path, "w") as file:
        file.write(f"# TYPE {name} gauge\n")
        for i, own in enumerate(values.tolist()):
            head = f'{name}{{instance="host-{i % 50}:9100",job="node",pod="pod-{i}"}}'
            file.write("".join(f"{head} {v!r} {(START_MS + SCRAPE_MS * k) / 1000}\n" for k, v in enumerate(own)))
        file.write("# EOF\n")


def _measure(what: str, cluster: Cluster, samples: int, work: Callable[[], int]) -> None:
    """The fastest of the rounds."""
    processes = family(cluster)
    best = (float("inf"), 0.0, 0.0, 0)
    for _ in range(ROUNDS):
        cpu_s, own_s, started = processor_s(processes), time.process_time(), time.perf_counter()
        size = work()
        took_s = time.perf_counter() - started
        best = min(best, (took_s, processor_s(processes) - cpu_s, time.process_time() - own_s, size))
    took_s, cpu_s, own_s, size = best
    sys.stdout.write(
        f"{what:<28} {samples / took_s / 1e6:>7.2f} M samples/s {size / samples:>7.1f} bytes/sample; CPU time "
        f"{cpu_s / samples * 1e9:>5.0f} ns/sample of the cluster, {own_s / samples * 1e9:>5.0f} of the client\n"
    )


def _export(cluster: Cluster, name: str, format_: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=600)
    connection.request("GET", f"/api/v1/export?match[]={name}&format={format_}")
    answer = connection.getresponse()
    assert answer.status == 200
    size, buffer = 0, bytearray(PIECE_BYTES)
    while read := answer.readinto(buffer):
        size += read
    connection.close()
    return size


def _import(cluster: Cluster, path: Path) -> int:
    output = io.BytesIO()
    assert import_samples(Client(cluster.url), [path], output, begins_anew=True) == 0, output.getvalue()
    files = [path] if path.is_file() else [own for own in path.rglob("*") if own.is_file()]
    return sum(own.stat().st_size for own in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=2000)
    arguments = parser.parse_args()
    values = _values(arguments.series, arguments.samples)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        cluster = Cluster(root, workers=2, settings={"TRIPTYCH_SELF_SCRAPE": "0"})
        cluster.compile_kernels()
        cluster.start()
        try:
            _write_lines(root / "lines.jsonl", "lines", values)
            _measure("import of JSON lines", cluster, values.size, lambda: _import(cluster, root / "lines.jsonl"))
            for format_ in FORMATS:
                own = format_
                _measure(f"export, {own}", cluster, values.size, lambda own=own: _export(cluster, "lines", own))  # type: ignore[misc]
            if shutil.which("promtool"):
                _write_openmetrics(root / "in.om", "blocks", values)
                made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", f"{root}/in.om", f"{root}/blocks"]
                subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
                _measure("import of blocks", cluster, values.size, lambda: _import(cluster, root / "blocks"))
                _measure("import of OpenMetrics", cluster, values.size, lambda: _import(cluster, root / "in.om"))
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()

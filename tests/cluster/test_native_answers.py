"""Answers over native histograms are those of Prometheus, to which the same is written by remote write 1.0."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snappy

from loadtest.harness.cluster import Cluster
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.ports import free_port
from loadtest.harness.remote_write_bodies import HEADERS
from proto.remote_write_pb2 import WriteRequest

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None and not os.environ.get("CI"), reason="needs prometheus"),
    pytest.mark.timeout(120),
]

STEP_MS = 15_000
SAMPLES = 80
SERIES = 12
JOBS = 3
START_S = 30.0
RELATIVE_TOLERANCE = 1e-9

EXACT = [
    "native_seconds",
    'native_seconds{job="0"}[1m]',
    "native_seconds offset 2m",
    "rate(native_seconds[2m])",
    "increase(native_seconds[3m])",
    "sum by (job) (rate(native_seconds[2m]))",
    "sum(native_gauge)",
    "sum without (i) (increase(native_seconds[5m]))",
    "count by (job) (native_seconds)",
    "group(native_gauge)",
    "count_over_time(native_seconds[2m])",
    "present_over_time(native_gauge[1m])",
    "timestamp(native_seconds)",
    "histogram_count(native_gauge)",
    "histogram_count(rate(native_seconds[2m]))",
    "histogram_sum(sum(rate(native_seconds[2m])))",
    "histogram_fraction(-Inf, +Inf, native_gauge)",
    "histogram_fraction(1, 4, sum by (job) (native_gauge))",
    "native_seconds + native_seconds",
    'native_gauge and on (i) native_seconds{job="1"}',
    'native_gauge unless native_gauge{i=~"1.*"}',
    "absent(native_seconds)",
]
"""What version 2.42 knows of histograms, and shows in full: negative zero buckets it leaves out."""
ROUGH = {
    "histogram_quantile(0.5, sum by (job) (rate(native_seconds[2m])))": 0.1,
    "histogram_quantile(0.99, native_gauge)": 0.1,
}
"""Its tolerance: version 2.42 interpolates within buckets in another way."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("prometheus")
    (directory / "prometheus.yml").write_text("{}")
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus", "--enable-feature=native-histograms", "--web.enable-remote-write-receiver",
        f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with open(directory / "log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await_ready(f"http://{address}/-/ready", process, directory / "log")
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert process.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.05)


def body(end_ms: int) -> bytes:
    """Counters, of which some are reset, and gauges, with zero buckets, negative buckets and gaps between spans."""
    random = np.random.default_rng(7)
    request = WriteRequest()
    for number in range(SERIES):
        for name, is_gauge in (("native_seconds", False), ("native_gauge", True)):
            entry = request.timeseries.add()
            for label, value in (("__name__", name), ("i", str(number)), ("job", str(number % JOBS))):
                entry.labels.add(name=label, value=value)
            counts = random.integers(0, 9, 12)
            for k in range(SAMPLES):
                grown = random.integers(0, 9, 12)
                begins_again = is_gauge or (number % 4 == 1 and k == SAMPLES // 2)
                counts = grown if begins_again else counts + grown
                entry.histograms.append(_message(counts, end_ms - (SAMPLES - 1 - k) * STEP_MS, is_gauge=is_gauge))
    return snappy.compress(request.SerializeToString())


def _message(counts: np.ndarray, time_ms: int, *, is_gauge: bool) -> bytes:
    zero, negative, positive = int(counts[0]), counts[1:4], counts[4:]
    return histogram_message(
        timestamp=time_ms, schema=2, count_int=int(counts.sum()), sum=float(counts.sum()) / 8, zero_threshold=0.001,
        zero_count_int=zero, negative_spans=[(0, 3)], negative_deltas=np.diff(negative, prepend=0).tolist(),
        positive_spans=[(-2, 4), (3, 4)], positive_deltas=np.diff(positive, prepend=0).tolist(),
        reset_hint=3 if is_gauge else 0,
    )  # fmt: skip


def ask(url: str, path: str, parameters: dict[str, str]) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
        series = json.load(answer)["data"]["result"]
    return sorted(series, key=lambda one: sorted(one["metric"].items()))


def same(ours: Any, theirs: Any, tolerance: float) -> bool:
    """Whether two parts of answers are the same but for the last digits of numbers."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], tolerance) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(same(a, b, tolerance) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours == theirs or math.isclose(float(ours), float(theirs), rel_tol=tolerance)
    return bool(ours == theirs)


def test_answers_are_those_of_prometheus(cluster: Cluster, prometheus: str) -> None:
    end_ms = int(time.time() * 1000) // 60_000 * 60_000 - 60_000
    written = body(end_ms)
    for url in (cluster.url, prometheus):
        request = urllib.request.Request(f"{url}/api/v1/write", data=written, headers=HEADERS, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status in (200, 204)
    # No time of an evaluation is the end of a window at which a sample lies: version 2.42 has closed windows.
    last_s = end_ms / 1000 - 7
    instant = {"time": str(last_s)}
    steps = {"start": str(last_s - 600), "end": str(last_s), "step": "45"}
    differing = []
    for query, tolerance in {**dict.fromkeys(EXACT, RELATIVE_TOLERANCE), **ROUGH}.items():
        for path, times in (("query", instant), ("query_range", steps)):
            if path == "query_range" and query.endswith("]"):
                continue
            ours, theirs = (ask(url, path, {"query": query, **times}) for url in (cluster.url, prometheus))
            if not same(ours, theirs, tolerance) or (not ours and not query.startswith("absent")):
                differing.append((query, path, str(ours)[:600], str(theirs)[:600]))
    assert not differing, "\n".join(map(str, differing))

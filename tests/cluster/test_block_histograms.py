"""Native histograms of a snapshot of Prometheus are imported: its answers and ours are the same afterwards."""

from __future__ import annotations

import io
import json
import struct
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import snappy

from coordinator.command_client import Client
from coordinator.commands import transferring
from loadtest.harness.cluster import Cluster
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.ports import free_port
from loadtest.harness.remote_write_bodies import HEADERS
from proto.remote_write_pb2 import WriteRequest
from tests.cluster.prometheus import needs_prometheus, prometheus
from tests.cluster.test_native_answers import RELATIVE_TOLERANCE, ask, same

pytestmark = [needs_prometheus, pytest.mark.timeout(120)]

STEP_MS = 15_000
SAMPLES = 150
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
ARGUMENTS = ("--web.enable-remote-write-receiver", "--web.enable-admin-api")
RAW = [f"imported_{kind}[1h]" for kind in ("counter", "float", "gauge", "wide")]
EXACT = [
    "imported_counter",
    "imported_wide",
    "rate(imported_counter[2m])",
    "increase(imported_float[3m])",
    "histogram_count(imported_counter)",
    "histogram_sum(imported_gauge)",
    "histogram_count(rate(imported_float[2m]))",
    "sum(rate(imported_counter[2m]))",
    "count_over_time(imported_counter[5m])",
    "histogram_fraction(-Inf, +Inf, imported_gauge)",
]
ROUGH = {"histogram_quantile(0.9, rate(imported_counter[2m]))": 0.1}
"""Its tolerance: version 2.42 interpolates within buckets in another way."""


def written(end_ms: int) -> bytes:
    """A counter that is reset, gets more buckets and is stale for a while; one of floats; a gauge, which version 2.42
    can only take a snapshot of if it never falls; and one with a wide range of numbers and times."""
    random = np.random.default_rng(3)
    request = WriteRequest()
    counts = dict.fromkeys(("counter", "float", "gauge", "wide"), np.zeros(8))
    for name in counts:
        series = request.timeseries.add()
        series.labels.add(name="__name__", value=f"imported_{name}")
        for k in range(SAMPLES):
            time_ms = end_ms - (SAMPLES - 1 - k) * STEP_MS - (k % 7 if name == "wide" else 0)
            grown = random.integers(0, 9, 8) * (1_000_000 if name == "wide" and k % 11 == 0 else 1)
            counts[name] = grown if name == "counter" and k == 40 else counts[name] + grown
            is_stale = name == "counter" and k in (60, 61)
            message = (
                histogram_message(sum=STALE, timestamp=time_ms)
                if is_stale
                else _message(name, k, time_ms, counts[name])
            )
            series.histograms.append(message)
    return snappy.compress(request.SerializeToString())


def _message(name: str, k: int, time_ms: int, counts: np.ndarray) -> bytes:
    zero, negative, positive = counts[0], counts[1:3], counts[3 : 8 if k >= 90 else 6]
    total = zero + negative.sum() + positive.sum()
    spans = [(-2, 2), (3, len(positive) - 2)]
    head = {"timestamp": time_ms, "schema": 2, "sum": float(total) / 8, "zero_threshold": 0.001 if k < 120 else 0.25}
    if name == "float":
        return histogram_message(
            **head, count_float=total / 2, zero_count_float=zero / 2, negative_spans=[(0, 2)], positive_spans=spans,
            negative_counts=negative / 2, positive_counts=positive / 2,
        )  # fmt: skip
    return histogram_message(
        **head, count_int=int(total), zero_count_int=int(zero), negative_spans=[(0, 2)], positive_spans=spans,
        negative_deltas=np.diff(negative, prepend=0).astype(int).tolist(),
        positive_deltas=np.diff(positive, prepend=0).astype(int).tolist(), reset_hint=3 if name == "gauge" else 0,
    )  # fmt: skip


def post(url: str, body: bytes = b"") -> bytes:
    request = urllib.request.Request(url, data=body, headers=HEADERS, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def test_answers_of_imported_histograms_are_those_of_prometheus(cluster: Cluster, tmp_path: Path) -> None:
    end_ms = int(time.time() * 1000) // 60_000 * 60_000 - 60_000
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with prometheus(tmp_path, {}, feature="native-histograms", port=port, arguments=ARGUMENTS) as running:
        running.wait_for(lambda: _is_ready(url))
        post(f"{url}/api/v1/write", written(end_ms))
        name = json.loads(post(f"{url}/api/v1/admin/tsdb/snapshot"))["data"]["name"]
        output = io.BytesIO()
        code = transferring.import_samples(Client(cluster.url), [tmp_path / "tsdb" / "snapshots" / name], output)
        assert (code, output.getvalue()) == (0, b"%d samples imported\n" % (4 * SAMPLES))
        instant = {"time": str(end_ms / 1000 + 1)}
        steps = {"start": str(end_ms / 1000 - 1800 - 7), "end": str(end_ms / 1000 - 7), "step": "45"}
        differing = []
        for query, tolerance in {**dict.fromkeys([*RAW, *EXACT], RELATIVE_TOLERANCE), **ROUGH}.items():
            path, times = ("query", instant) if query in RAW else ("query_range", steps)
            ours, theirs = (ask(base, path, {"query": query, **times}) for base in (cluster.url, url))
            if not same(ours, theirs, tolerance) or not ours:
                differing.append((query, path, str(ours)[:600], str(theirs)[:600]))
    assert not differing, "\n".join(map(str, differing))


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False

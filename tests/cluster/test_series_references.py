"""Series that go to the workers by number, while workers and the coordinator are killed and started again."""

from __future__ import annotations

import time
from typing import Any

import pytest
import snappy

from loadtest.harness.cluster import Cluster
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2, body, request_v2
from proto.remote_write_pb2 import WriteRequest

SERIES, HISTOGRAMS = 300, 40
READY_WITHIN_S = 30.0


def send(cluster: Cluster, number: int, version: int, time_ms: int) -> None:
    """The value of each series, and the sum of each histogram, tells which it is and which request it comes from."""
    series = [({"__name__": "m", "i": str(i)}, [(time_ms, float(1000 * i + number))]) for i in range(SERIES)]
    series += [({"__name__": "h", "i": str(i)}, []) for i in range(HISTOGRAMS)]
    request: Any
    if version == 1:
        request, headers = (
            WriteRequest.FromString(body((sorted(own.items()), floats) for own, floats in series)),
            HEADERS,
        )
    else:
        request, headers = request_v2(series), HEADERS_V2
    for i, own in enumerate(request.timeseries[SERIES:]):
        own.histograms.append(histogram_message(timestamp=time_ms, sum=float(1000 * i + number)))
    raw = request.SerializeToString()
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        answer = cluster.request("POST", "/api/v1/write", snappy.compress(raw), headers)
        if answer.status == 204:
            return
        assert answer.status == 503, answer.body
        assert time.monotonic() < deadline, answer.body
        time.sleep(0.05)


def counter(cluster: Cluster, name: str) -> float:
    lines = cluster.get("/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.split()[0] == name)


@pytest.mark.parametrize("bytes_max", ["0", "20KB", "128MB"])
def test_samples_reach_their_own_series_whichever_process_is_killed(new_cluster, bytes_max: str) -> None:
    settings = {"TRIPTYCH_SERIES_REFERENCES_BYTES": bytes_max}
    cluster = new_cluster(shards=4, workers=2, settings=settings).start()
    start_ms = int(time.time() * 1000) - 60_000
    number = 0
    for event in ("", "worker-0", "worker-1", "everything", ""):
        if event == "everything":
            cluster.kill()
            cluster.start()
        elif event:
            cluster.kill_worker(event)
        for version in (1, 2, 1, 2):
            send(cluster, number, version, start_ms + number * 1000)
            number += 1
        if event.startswith("worker"):
            assert (counter(cluster, "triptych_stale_writes_total") > 0) == (bytes_max != "0")
    by_number = counter(cluster, "triptych_series_by_number_total")
    if bytes_max == "0":
        assert by_number == 0
    else:
        assert by_number >= 6 * (SERIES + HISTOGRAMS if bytes_max == "128MB" else 40)
    first, last = str(start_ms / 1000), str(start_ms / 1000 + number - 1)
    for query, count in (("m", SERIES), ("histogram_sum(h)", HISTOGRAMS)):
        answer = cluster.get("/api/v1/query_range", query=query, start=first, end=last, step="1")
        found = answer.json()["data"]["result"]
        assert len(found) == count
        for series in found:
            own = 1000 * int(series["metric"]["i"])
            assert [float(value) for _, value in series["values"]] == [own + n for n in range(number)]

"""Segments, retention and visibility over HTTP, on clusters with settings of their own; what a shell shows."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import ROOT, Cluster
from tests.forked_cluster import ForkedCluster

SEGMENT_BYTES = 4096


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def append(cluster: Cluster, *records: tuple[bytes, bytes]) -> int:
    body = {"records": [{"key": b64(k), "value": b64(v)} for k, v in records], "awaitDurable": True}
    answer = cluster.post_json("/api/v1/log/append", body)
    assert answer.status == 200, answer.body
    start = answer.json()["startSequence"]
    assert isinstance(start, int)
    return start


def get(cluster: Cluster, path: str, **parameters: str) -> dict[str, Any]:
    answer = cluster.get(f"/api/v1/log/{path}", **parameters)
    assert answer.status == 200, answer.body
    body = answer.json()
    assert isinstance(body, dict)
    return body


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Segments of 4 KB; of those, four are kept."""
    settings = {
        "TRIPTYCH_LOG_SEGMENT_BYTES": str(SEGMENT_BYTES),
        "TRIPTYCH_LOG_RETENTION_BYTES": str(4 * SEGMENT_BYTES + 2000),
        "TRIPTYCH_LOG_VISIBILITY": "durable",
    }
    cluster = ForkedCluster(tmp_path_factory.mktemp("segmented"), shards=2, workers=1, settings=settings).start()
    yield cluster
    cluster.kill()


def test_segments_end_by_size_and_the_oldest_go(segmented: Cluster) -> None:
    starts = [append(segmented, (b"old" if i < 5 else b"new", bytes(5000))) for i in range(12)]
    assert starts == list(range(12))
    give_up = time.monotonic() + 20
    while get(segmented, "frontier")["logStartSequence"] < 9:
        assert time.monotonic() < give_up, get(segmented, "segments")
        time.sleep(0.1)
    first = get(segmented, "frontier")["logStartSequence"]
    segments = get(segmented, "segments")["segments"]
    assert [s["startSeq"] for s in segments] == list(range(first, 12))
    assert [s["id"] for s in segments] == list(range(first, 12))
    assert [s["startTimeMs"] for s in segments] == sorted(s["startTimeMs"] for s in segments)
    assert [s["startSeq"] for s in get(segmented, "segments", start_seq="10", end_seq="11")["segments"]] == [10]
    assert [s["startSeq"] for s in get(segmented, "segments", limit="1")["segments"]] == [first]

    scanned = get(segmented, "scan", prefix="")
    assert [r["sequence"] for r in scanned["records"]] == list(range(first, 12))
    assert scanned["logStartSequence"] == first
    assert get(segmented, "scan", key="old", start_seq="2")["records"] == []
    assert get(segmented, "scan", key="new", reverse="true", limit="1")["records"][0]["sequence"] == 11
    assert get(segmented, "count")["count"] == 12 - first
    assert get(segmented, "count", key="old")["count"] == 0
    assert [k["key"] for k in get(segmented, "keys")["keys"]] == [b64(b"new")]


def test_keys_are_listed_by_segment(segmented: Cluster) -> None:
    append(segmented, (b"in/this", b"1"))
    here = get(segmented, "segments")["segments"][-1]["id"]
    append(segmented, (b"in/this", bytes(SEGMENT_BYTES)))
    append(segmented, (b"in/next", b"2"), (b"in/next-too", b"3"))

    def keys(**parameters: str) -> list[bytes]:
        return [base64.b64decode(k["key"]) for k in get(segmented, "keys", prefix="in/", **parameters)["keys"]]

    assert keys() == [b"in/next", b"in/next-too", b"in/this"]
    assert keys(start_segment=str(here), end_segment=str(here + 1)) == [b"in/this"]
    assert keys(start_segment=str(here + 1)) == [b"in/next", b"in/next-too"]
    assert keys(end_segment=str(here)) == []
    assert keys(start_segment=str(here + 1), limit="1") == [b"in/next"]
    assert keys(start_segment=str(here + 1), after="in/next") == [b"in/next-too"]


def test_what_is_not_on_disk_yet_is_not_visible(segmented: Cluster) -> None:
    """`durable` visibility: an append that did not wait is read when it is on the disk, within 100 ms and the fsync."""
    body = {"records": [{"key": b64(b"soon"), "value": b64(b"v")}]}
    start = segmented.post_json("/api/v1/log/append", body).json()["startSequence"]
    read = get(segmented, "scan", key="soon", start_seq=str(start), follow="true", timeout="10s")
    assert [r["sequence"] for r in read["records"]] == [start]
    assert get(segmented, "frontier")["durableSequence"] > start


def test_segments_end_by_age_and_old_ones_go(new_cluster: Callable[..., Cluster]) -> None:
    settings = {"TRIPTYCH_LOG_SEGMENT_AGE": "300ms", "TRIPTYCH_LOG_RETENTION": "1s"}
    cluster = new_cluster(shards=1, workers=1, settings=settings).start()
    append(cluster, (b"k", b"old"))
    time.sleep(0.4)
    second = append(cluster, (b"k", b"newer"))
    assert second in [s["startSeq"] for s in get(cluster, "segments")["segments"]]
    give_up = time.monotonic() + 20
    while get(cluster, "frontier")["logStartSequence"] <= second:
        assert time.monotonic() < give_up
        time.sleep(0.1)
    empty = get(cluster, "scan", key="k")
    assert (empty["records"], empty["logStartSequence"]) == ([], 2)
    assert append(cluster, (b"k", b"new")) == 2
    assert [r["sequence"] for r in get(cluster, "scan", key="k")["records"]] == [2]


def test_an_event_stream_is_live(cluster: Cluster) -> None:
    key = f"live-{time.time_ns()}"
    request = urllib.request.Request(
        f"{cluster.url}/api/v1/log/scan?key={key}&timeout=20s", headers={"Accept": "text/event-stream"}
    )
    append(cluster, (key.encode(), b"1"))
    with urllib.request.urlopen(request, timeout=30) as stream:
        for value in (b"1", b"2", b"3"):
            if value != b"1":
                append(cluster, (key.encode(), value))
            lines = [stream.readline() for _ in range(3)]
            assert lines[0].startswith(b"id: ")
            assert base64.b64decode(json.loads(lines[1].removeprefix(b"data: "))["value"]) == value
            assert lines[2] == b"\n"


def test_long_reads_show_progress_on_a_terminal(cluster: Cluster, tmp_path: Path) -> None:
    key = f"long-{time.time_ns()}"
    for _ in range(3):
        append(cluster, *[(key.encode(), b"%d" % i) for i in range(8000)])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "coordinator.cli", "log", "scan", "--key", key, "--values", "--url", cluster.url]
    with open(tmp_path / "values", "wb") as output:
        subprocess.run(command, stdout=output, stderr=theirs, cwd=ROOT, timeout=60, check=True)
    os.close(theirs)
    shown = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", os.read(ours, 65536).decode())  # without colours and the cursor
    os.close(ours)
    steps = [step.strip() for step in shown.split("\r")]
    assert any(step.startswith("0 records read") for step in steps)  # between is what ten looks a second see
    assert steps[-2].startswith("24,000 records read")
    assert steps[-1] == ""
    assert (tmp_path / "values").read_bytes().count(b"\n") == 24_000

"""Tombstones over HTTP and from a shell: appended in every form, and shown by every kind of read."""

from __future__ import annotations

import json
import uuid
from itertools import pairwise

import numpy as np
import pytest

from loadtest.harness.cluster import Cluster
from proto import log_pb2
from tests.cluster.log_groups import Consumer
from tests.cluster.log_requests import PROTOBUF, append, refused, scan
from tests.cluster.test_log_cli import run
from tests.cluster.test_log_tail import events, tailing


@pytest.fixture
def key() -> str:
    return f"tombstone-{uuid.uuid4().hex}"


def test_every_read_shows_a_tombstone(cluster: Cluster, key: str) -> None:
    start = append(cluster, [(key.encode(), b"value")])["startSequence"]
    message = log_pb2.AppendRequest()
    message.records.add(key=log_pb2.Key(value=key.encode()), tombstone=True)
    assert cluster.request("POST", "/api/v1/log/append", message.SerializeToString(), PROTOBUF).status == 200
    stone = {"keyText": key, "tombstone": True, "headers": {"why": "left"}}
    assert cluster.post_json("/api/v1/log/append", {"records": [stone]}).status == 200

    for found in (scan(cluster, key=key), scan(cluster, prefix=key)):
        rows = found["records"]
        assert [(row["value"], row.get("tombstone")) for row in rows] == [("dmFsdWU=", None), ("", True), ("", True)]
        assert rows[2]["headers"] == {"why": "left"}
    readable = scan(cluster, key=key, encoding="json")["records"]
    assert [(row["text"], row.get("tombstone")) for row in readable] == [("value", None), ("", True), ("", True)]
    with tailing(cluster, f"key={key}&start_seq={start + 1}") as answer:
        told = [json.loads(event["data"]) for event in events(answer, 3) if "data" in event]
        assert [record["tombstone"] for record in told] == [True, True]
    answer = cluster.request("GET", f"/api/v1/log/scan?key={key}", headers={"Accept": "application/protobuf"})
    read = log_pb2.ScanResponse.FromString(answer.body)
    stones = []
    for page in read.pages:
        ends = np.cumsum([0, *page.header_lengths]).tolist()
        stones += [log_pb2.RecordHeaders.FromString(page.headers[a:b]).tombstone for a, b in pairwise(ends)]
    assert stones == [False, True, True]


def test_a_member_of_a_group_is_given_tombstones(cluster: Cluster, key: str) -> None:
    member = Consumer(cluster, f"g-{key}", "m", {"prefixText": key})
    append(cluster, [(key.encode(), b"value")])
    stone = {"keyText": key, "tombstone": True}
    assert cluster.post_json("/api/v1/log/append", {"records": [stone]}).status == 200
    rows = member.poll(max=10)["records"]
    assert [row.get("tombstone") for row in rows] == [None, True]


def test_a_tombstone_has_no_value(cluster: Cluster, key: str) -> None:
    rows = [{"keyText": key, "text": "v"}, {"keyText": key, "text": "v", "tombstone": True}]
    message = refused(cluster.post_json("/api/v1/log/append", {"records": rows}), 400)
    assert "`$.records[1]` has more than one of `value`, `text`, `json` and `tombstone`" in message
    assert scan(cluster, key=key)["records"] == []


def test_tombstones_from_a_shell(cluster: Cluster, key: str) -> None:
    assert run(cluster, "append", "--key", key, stdin=b"value\n").returncode == 0
    appended = run(cluster, "append", "--key", key, "--tombstone")
    assert (appended.returncode, appended.stdout) == (0, b"1 record appended\n"), appended.stderr
    lines = [line.split(b"\t") for line in run(cluster, "scan", "--key", key).stdout.splitlines()]
    assert [line[1:] for line in lines] == [[key.encode(), b"value"], [key.encode(), b"", b"tombstone"]]
    shown = run(cluster, "tail", "--key", key, "--start", "0", "--limit", "2", "--json").stdout.splitlines()
    assert [json.loads(line).get("tombstone") for line in shown] == [None, True]
    answer = run(cluster, "append", "--separator", "\t", "--tombstone")
    assert (answer.returncode, answer.stderr) == (1, b"triptych: --tombstone needs --key; it reads no lines\n")

"""Clients that ask for much and read nothing for a while: others are served, memory is given back, and what is read at
last is whole."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlencode

import pytest

from coordinator.http.streaming import PATIENCE_S
from loadtest.harness.cluster import MEASURED, Cluster
from loadtest.harness.remote_write_bodies import compressed
from proto import log_pb2
from tests.cluster.log_requests import append

SERIES, STEPS = 200, 11_000
END_S = 1_700_000_000
RECORDS, RECORDS_AT_ONCE = 60_000, 6_000
HEAVY_QUERY = "/api/v1/query_range?" + urlencode(
    {"query": "last_over_time(unread[1y])", "start": END_S - STEPS + 1, "end": END_S + STEPS, "step": 2}
)
"""Some 60 MB of text."""
UNREAD = 3
MB = 1 << 20


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("unread"), settings=MEASURED).start()
    try:
        series = [
            ({"__name__": "unread", "i": str(i)}, [(1000 * (END_S - STEPS), i + 0.123456789)]) for i in range(SERIES)
        ]
        kind = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        assert cluster.request("POST", "/api/v1/write", compressed(series), kind).status == 204
        for first in range(0, RECORDS, RECORDS_AT_ONCE):
            append(cluster, [(b"unread-%d" % (i % 2), b"%090d" % i) for i in range(first, first + RECORDS_AT_ONCE)])
        yield cluster
    finally:
        cluster.kill()


class Deaf:
    """A client that has sent a request, and reads nothing before `read`."""

    def __init__(self, cluster: Cluster, path: str, accept: str = "*/*") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(60)
        self._socket.connect(("127.0.0.1", cluster.port))
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())

    def read(self) -> bytes:
        """Raises HTTPException when the answer is not whole."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MB)
        response = http.client.HTTPResponse(self._socket)
        response.begin()
        assert response.status == 200
        return response.read()

    def close(self) -> None:
        self._socket.close()


def spooled_files(cluster: Cluster) -> int:
    """Files without a name that the coordinator has open."""
    assert cluster.coordinator is not None
    directory = f"/proc/{cluster.coordinator.pid}/fd"
    count = 0
    for name in os.listdir(directory):
        with suppress(OSError):  # closed meanwhile
            count += "(deleted)" in os.readlink(f"{directory}/{name}")
    return count


def test_heavy_queries_pass_answers_that_are_not_read_and_those_are_whole_at_last(filled: Cluster) -> None:
    expected = json.loads(filled.get(HEAVY_QUERY).body)
    assert len(expected["data"]["result"]) == SERIES
    deaf = [Deaf(filled, HEAVY_QUERY) for _ in range(UNREAD)]
    try:
        give_up = time.monotonic() + 60
        while spooled_files(filled) < UNREAD and time.monotonic() < give_up:
            time.sleep(0.1)
        assert spooled_files(filled) == UNREAD
        assert filled.get(HEAVY_QUERY + "&timeout=30s").status == 200
        for client in deaf:
            assert json.loads(client.read()) == expected
    finally:
        for client in deaf:
            client.close()
    give_up = time.monotonic() + 10
    while spooled_files(filled) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert spooled_files(filled) == 0


@pytest.mark.parametrize(
    ("parameters", "numbers"),
    [
        ({"key": "unread-0"}, range(0, RECORDS, 2)),
        ({"key": "unread-1", "reverse": "true"}, range(RECORDS - 1, 0, -2)),
        ({"prefix": "unread-"}, range(RECORDS)),
        ({"prefix": "unread-", "limit": "50000"}, range(50_000)),
    ],
)
def test_a_scan_that_is_read_late_has_every_record_once(
    filled: Cluster, parameters: dict[str, str], numbers: range
) -> None:
    path = "/api/v1/log/scan?" + urlencode({"limit": RECORDS, **parameters})
    in_json, in_protobuf = Deaf(filled, path), Deaf(filled, path, "application/protobuf")
    try:
        time.sleep(2 * PATIENCE_S)
        records = json.loads(in_json.read())["records"]
        assert [int(base64.b64decode(record["value"])) for record in records] == list(numbers)
        answer = log_pb2.ScanResponse.FromString(in_protobuf.read())
        values = b"".join(page.values for page in answer.pages)
        assert [int(values[at : at + 90]) for at in range(0, len(values), 90)] == list(numbers)
    finally:
        in_json.close()
        in_protobuf.close()

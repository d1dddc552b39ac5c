"""What is not HTTP or not a URL, over raw sockets: its area's envelope, one line in the log, the connection ends."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster

HOST = b"Host: localhost\r\n"
LONG = b"a" * 70_000
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
METRICS, LOG, VECTOR = b"/api/v1/query", b"/api/v1/log/append", b"/api/v1/vector/search"


def get(path: bytes, query: bytes = b"", headers: bytes = HOST) -> bytes:
    return b"GET " + path + query + b" HTTP/1.1\r\n" + headers + b"\r\n"


def post(path: bytes, rest: bytes) -> bytes:
    kind = FORM if path == METRICS else JSON
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + kind + rest


def cases(path: bytes) -> dict[str, list[bytes]]:
    """What is sent, a pause between the parts."""
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(10_000))
    return {
        "raw byte in the URL": [get(path, b"?q=\xff\xfe")],
        "control byte in the URL": [get(path, b"?q=\x01")],
        "NUL in the URL": [get(path, b"?q=\x00")],
        "URL in two parts": [b"GET " + path, b"?q=\xff HTTP/1.1\r\n" + HOST + b"\r\n"],
        "request line over 64 KB": [get(path, b"?q=" + LONG)],
        "request line over 1 MB": [get(path, b"?q=" + LONG * 20)],
        "header line over 64 KB": [get(path, headers=HOST + b"X: " + LONG + b"\r\n")],
        "header line without an end": [get(path, headers=HOST + b"X: " + LONG)[:-4]],
        "header line over 64 KB in parts": [b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"X: ", LONG, b"\r\n\r\n"],
        "10,000 headers": [get(path, headers=HOST + many)],
        "header name with a space": [get(path, headers=HOST + b"X y: 1\r\n")],
        "header with a control byte": [get(path, headers=HOST + b"X: \x01\r\n")],
        "bad chunk size": [post(path, CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n")],
        "chunk longer than said": [post(path, CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n")],
        "bad chunk after a good one": [post(path, CHUNKED + b"3\r\nabc\r\n"), b"zz\r\n"],
        "Content-Length that is no number": [post(path, b"Content-Length: abc\r\n\r\n")],
        "negative Content-Length": [post(path, b"Content-Length: -5\r\n\r\n")],
        "two Content-Lengths": [post(path, b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef")],
        "Content-Length and chunks": [post(path, b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n")],
        "compressed chunks": [post(path, b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")],
        "no Host": [get(path, headers=b"")],
        "two Hosts": [get(path, headers=HOST * 2)],
        "HTTP/0.9": [b"GET " + path + b"\r\n\r\n"],
        "HTTP/3.7": [b"GET " + path + b" HTTP/3.7\r\n" + HOST + b"\r\n"],
        "unknown method": [b"FOO " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"],
        "URL of another host that is none": [b"GET http://[::1" + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"],
        "percent sign without digits": [get(path, b"?query=%zz")],
        "query that is not UTF-8": [get(path, b"?query=%ff")],
        "path that is not UTF-8": [get(path, b"/%ff")],
        "unknown Expect": [b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Expect: nonsense\r\n\r\n"],
        "gzip that is none": [post(path, b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde")],
        "deflate that is none": [post(path, b"Content-Encoding: deflate\r\nContent-Length: 5\r\n\r\nabcde")],
    }


NOWHERE = {
    "TLS": [b"\x16\x03\x01\x02\x00\x01\x00\xfc\r\n\r\n"],
    "no HTTP at all": [b"hello there\r\n\r\n"],
    "zeros": [bytes(1000)],
    "URL without a slash": [b"GET api HTTP/1.1\r\n" + HOST + b"\r\n"],
}
"""Requests whose path nobody can tell."""
FORMS = {"percent sign without digits": b"query=%zz", "escapes that are not UTF-8": b"query=%ff"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = ForkedCluster(tmp_path_factory.mktemp("malformed"), shards=1, workers=1).start()
    give_up = time.monotonic() + 30
    while "speed measured" not in running.log("coordinator") and time.monotonic() < give_up:
        time.sleep(0.05)
    yield running
    running.stop()


def exchange(server: Cluster, parts: list[bytes]) -> bytes:
    """All that is answered until the server ends the connection, which it does within seconds."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        for place, part in enumerate(parts):
            if place:
                time.sleep(0.05)
            connection.sendall(part)
        answer = b""
        while received := connection.recv(65536):
            answer += received
        return answer


def assert_refused(server: Cluster, path: bytes, parts: list[bytes]) -> None:
    before = server.log("coordinator")
    answer = exchange(server, parts)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400", answer
    assert head.split()[0] in (b"HTTP/1.0", b"HTTP/1.1")
    assert b"content-type: application/json" in head.lower()
    content = json.loads(body)
    if path in (LOG, VECTOR):
        assert set(content) == {"status", "message"}
        assert content["message"]
    else:
        assert set(content) == {"status", "errorType", "error"}
        assert content["errorType"] == "bad_data"
        assert content["error"]
    assert content["status"] == "error"
    lines = server.log("coordinator").removeprefix(before).splitlines()
    assert len(lines) == 1, lines
    assert " info malformed request " in lines[0]


@pytest.mark.parametrize("kind", cases(METRICS))
@pytest.mark.parametrize("path", [METRICS, LOG, VECTOR], ids=["metrics", "log", "vector"])
def test_malformed_request_is_400_in_its_areas_envelope_with_one_line_in_the_log(
    server: Cluster, path: bytes, kind: str
) -> None:
    assert_refused(server, path, cases(path)[kind])


@pytest.mark.parametrize("kind", NOWHERE)
def test_request_without_a_path_is_400_in_the_metrics_envelope(server: Cluster, kind: str) -> None:
    assert_refused(server, b"", NOWHERE[kind])


@pytest.mark.parametrize("kind", FORMS)
def test_malformed_form_is_400(server: Cluster, kind: str) -> None:
    body = FORMS[kind]
    assert_refused(server, METRICS, [post(METRICS, b"Content-Length: %d\r\n\r\n" % len(body) + body)])


@pytest.mark.parametrize("is_one_piece", [False, True])
def test_requests_before_a_malformed_one_are_answered(server: Cluster, is_one_piece: bool) -> None:
    healthy = b"GET /-/healthy HTTP/1.1\r\n" + HOST + b"\r\n"
    query = post(METRICS, b"Content-Length: 7\r\n\r\nquery=1")
    parts = [healthy, query, get(VECTOR, b"?q=\xff")]
    answer = exchange(server, [b"".join(parts)] if is_one_piece else parts)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b" 400 ") == 1
    assert answer.rstrip().endswith(b"}")
    assert b'"message"' in answer
    assert server.get("/-/healthy").status == 200

"""Requests that may be refused from their bytes alone, and the answer they get."""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime

import pytest

from coordinator.http.early_refusal import HEAD_CACHED_BYTES_MAX, path_of_whole, refusal
from coordinator.http.responses import SERVER

BODY = b'{"records":[]}'


def post(*headers: bytes, body: bytes = BODY, length: int | None = None) -> bytes:
    lines = [b"POST /api/v1/log/append HTTP/1.1", b"Host: h", *headers]
    lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"GET /api/v1/query?query=up%7B%7D&time=1 HTTP/1.1\r\nHost: h\r\n\r\n", "/api/v1/query"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", "/metrics"),
        (post(), "/api/v1/log/append"),
        (post(b"Connection: keep-alive"), "/api/v1/log/append"),
        (post().replace(b"Content-Length: ", b"content-length:\t "), "/api/v1/log/append"),
        (b"POST /api/v1/query HTTP/1.1\r\n\r\n", "/api/v1/query"),
        (post(b"Cookie: " + bytes(HEAD_CACHED_BYTES_MAX)), "/api/v1/log/append"),
    ],
)
def test_a_whole_request_is_known_by_its_path(data: bytes, path: str) -> None:
    assert path_of_whole(data) == path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /metrics HTTP/1.1\r\n",
        b"GET /metrics HTTP/1.0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        b"get /metrics HTTP/1.1\r\n\r\n",
        b"GET http://h/metrics HTTP/1.1\r\n\r\n",
        b"HEAD /metrics HTTP/1.1\r\n\r\n",
        post(length=len(BODY) + 1),
        post(length=len(BODY) - 1),
        post(b"Content-Length: 14"),
        post(b"Content-Length : 14"),
        post(b"Transfer-Encoding: chunked"),
        post(b"Expect: 100-continue"),
        post(b"Connection: close"),
        post(b"Upgrade: h2c"),
    ],
)
def test_everything_else_is_left_to_the_parser(data: bytes) -> None:
    assert path_of_whole(data) is None


@pytest.mark.parametrize(
    ("path", "member"), [("/api/v1/query", "error"), ("/api/v1/log/scan", "message"), ("/api/v1/vector/get", "message")]
)
def test_the_answer_is_503_in_the_envelope_of_the_area_and_says_when_to_come_back(path: str, member: str) -> None:
    head, _, body = refusal(path, "too much", "a-1", b"X-Frame-Options: deny\r\n").partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines)
    assert len(headers) == len(lines)
    assert headers["Server"] == SERVER
    assert abs(parsedate_to_datetime(headers["Date"]).timestamp() - time.time()) < 60
    assert first == "HTTP/1.1 503 Service Unavailable"
    assert headers["Content-Type"].startswith("application/json")
    assert int(headers["Content-Length"]) == len(body)
    assert 1 <= int(headers["Retry-After"]) <= 3
    assert headers["X-Request-Id"] == "a-1"
    assert headers["X-Frame-Options"] == "deny"
    assert json.loads(body)[member] == "too much"


def test_clients_refused_together_do_not_come_back_together() -> None:
    assert len({refusal("/api/v1/query", "too much", "a-1", b"") for _ in range(100)}) == 3

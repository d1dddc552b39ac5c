"""The id of a request in its answer, whatever the answer is, and in the logs of all processes that worked on it."""

from __future__ import annotations

import http.client
import socket

import pytest

from loadtest.harness.cluster import Cluster


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/-/healthy", 200),
        ("GET", "/api/v1/query?query=1", 200),
        ("GET", "/api/v1/query?query=(", 400),
        ("GET", "/metrics", 200),
        ("GET", "/nothing", 404),
        ("PATCH", "/api/v1/query", 405),
        ("POST", "/api/v1/write", 400),
        ("GET", "/api/v1/log/scan?prefix_base64=&limit=1", 200),
        ("GET", "/api/v1/%zz", 400),
    ],
)
def test_every_answer_has_the_id_of_its_request(cluster: Cluster, method: str, path: str, status: int) -> None:
    answer = cluster.request(method, path, None, {"X-Request-Id": "mine.1"})
    assert (answer.status, answer.headers["x-request-id"]) == (status, "mine.1")
    first, second = (cluster.request(method, path).headers["x-request-id"] for _ in range(2))
    assert first != second and first.split("-")[0] == second.split("-")[0]


def test_a_request_that_is_no_http_has_an_id_as_well(cluster: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=5) as connection:
        connection.sendall(b"GET /api/v1/query HTTP/1.1\r\nBroken\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 400 and answer.headers["X-Request-Id"]


def test_the_logs_of_both_kinds_of_process_name_the_request(cluster: Cluster) -> None:
    """A malformed request is logged by the coordinator."""
    cluster.request("GET", "/api/v1/%zz", None, {"X-Request-Id": "found-again"})
    lines = [line for line in cluster.log("coordinator").splitlines() if "found-again" in line]
    assert len(lines) == 1 and lines[0].endswith(" request=found-again")

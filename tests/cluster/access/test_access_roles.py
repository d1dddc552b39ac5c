"""Who gets in, with real processes: roles, refusals, limits of a token, and secrets."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from loadtest.harness.cluster import Cluster
from tests.cluster.secured import (
    ALICE,
    PASSWORD,
    QUERY,
    RECORDS,
    Files,
    ask,
    bearer,
    secure_socket,
    wait_until,
)


@pytest.mark.parametrize(
    ("method", "path", "reader", "writer"),
    [
        ("GET", QUERY, 200, 200),
        ("POST", QUERY, 200, 200),
        ("HEAD", QUERY, 200, 200),
        ("GET", "/api/v1/labels", 200, 200),
        ("POST", "/api/v1/write", 403, 400),
        ("GET", "/api/v1/log/count?key=k", 200, 200),
        ("POST", "/v1/metrics", 403, 200),
        ("POST", "/v1/logs", 403, 200),
        ("POST", "/api/v1/log/append", 403, 200),
        ("PUT", "/api/v1/log/cursors/c", 403, 400),
        ("DELETE", "/api/v1/log/keys?key=nobodys", 403, 200),
        ("GET", "/api/v1/log/policies", 200, 200),
        ("PUT", "/api/v1/log/policies/p", 403, 403),
        ("POST", "/api/v1/vector/search", 400, 403),
        ("POST", "/api/v1/vector/write", 403, 403),
        ("DELETE", "/api/v1/vector/collections/default", 403, 403),
        ("GET", "/metrics", 200, 200),
        ("GET", "/api/v1/status/buildinfo", 200, 200),
        ("GET", "/api/v1/status/memory", 200, 200),
        ("GET", "/api/v1/status/tsdb", 200, 200),
        ("GET", "/api/v1/status/runtimeinfo", 200, 200),
        ("GET", "/api/v1/status/settings", 403, 403),
        ("GET", "/api/v1/status/flags", 403, 403),
        ("GET", "/api/v1/status/config", 403, 403),
        ("POST", "/-/reload", 403, 403),
        ("GET", "/api/v1/cluster", 200, 200),
        ("GET", "/nowhere", 404, 404),
        ("DELETE", "/api/v1/query", 405, 405),
    ],
)
def test_a_request_needs_the_role_of_its_route(
    server: Cluster, method: str, path: str, reader: int, writer: int
) -> None:
    body = {"POST": RECORDS if "log" in path else b"{}", "PUT": b"{}"}.get(method)
    if "query" in path:
        body = None
    assert ask(server, path, "", method, body).status == 401
    assert ask(server, path, bearer("reader"), method, body).status == reader
    assert ask(server, path, bearer("writer"), method, body).status == writer
    assert ask(server, path, ALICE, method, body).status not in (401, 403)


def test_refusals_have_the_envelope_of_their_area_and_say_what_would_be_right(server: Cluster) -> None:
    refused = ask(server, QUERY)
    assert refused.json()["errorType"] == "bad_data"
    assert "send one with Basic or Bearer" in refused.json()["error"]
    assert refused.headers["x-frame-options"] == "deny"
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
    connection.request("GET", QUERY)
    challenges = connection.getresponse().headers.get_all("WWW-Authenticate")
    connection.close()
    assert challenges == ['Basic realm="triptych", charset="UTF-8"', 'Bearer realm="triptych"']
    connection.request("GET", QUERY, headers={"X-Requested-With": "page"})
    challenges = connection.getresponse().headers.get_all("WWW-Authenticate")
    connection.close()
    # At the scheme Basic, a browser would ask with a window of its own.
    assert challenges == ['X-Basic realm="triptych", charset="UTF-8"', 'Bearer realm="triptych"']
    forbidden = ask(server, "/api/v1/log/append", bearer("reader"), "POST", RECORDS)
    assert forbidden.json()["message"] == (
        "the token reader does not have the role write in the area log, which this request needs"
    )


def test_health_is_open_and_a_wrong_credential_does_not_close_it(server: Cluster) -> None:
    for authorization in ("", "Bearer x", bearer("nobody"), ALICE):
        assert ask(server, "/-/healthy", authorization).status == 200
        assert ask(server, "/-/ready", authorization).status == 200


def test_a_token_in_the_address_does_not_count(server: Cluster) -> None:
    token = bearer("reader").removeprefix("Bearer ")
    assert ask(server, f"{QUERY}&access_token={token}").status == 401


def test_a_body_is_not_asked_for_before_the_credential_is_known(server: Cluster) -> None:
    with secure_socket(server) as secure:
        secure.sendall(
            b"POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        assert secure.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_token_has_its_rate(server: Cluster) -> None:
    statuses = Counter(ask(server, QUERY, bearer("slow")).status for _ in range(10))
    assert statuses[503] >= 5
    assert statuses[200] >= 2


def test_a_token_has_its_share_of_followers_whatever_connections_it_uses(server: Cluster) -> None:
    """One percent of 300."""
    follow = "/api/v1/log/scan?key=nothing&follow=true&timeout=2"
    statuses: Counter[int] = Counter()

    def read() -> None:
        statuses[ask(server, follow, bearer("small")).status] += 1

    threads = [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: statuses[503] == 2)
    assert ask(server, follow.replace("timeout=2", "timeout=0"), bearer("reader")).status == 200
    for thread in threads:
        thread.join()
    assert statuses == {200: 3, 503: 2}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: localhost\r\nno header\r\n", 400),
        (f"GET {QUERY}%zz HTTP/1.1\r\nHost: localhost\r\n", 400),
        (f"GET {QUERY} HTTP/1.1\r\nHost: foreign.example\r\n", 403),
        (f"GET {QUERY} HTTP/1.1\r\nHost: localhost\r\n", 401),
        ("GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n", 200),
    ],
)
def test_every_answer_has_the_headers_of_the_file(server: Cluster, lines: str, status: int) -> None:
    with secure_socket(server) as secure:
        secure.sendall(f"{lines}\r\n".encode())
        head = secure.recv(65536).partition(b"\r\n\r\n")[0].lower()
    assert head.split()[1] == b"%d" % status
    assert head.count(b"x-frame-options: deny") == 1


def test_refusals_of_overload_have_the_headers_of_the_file(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write_web(rest="http_server_config:\n  headers:\n    X-Frame-Options: deny\n")
    cluster = files.cluster(with_tokens=False, TRIPTYCH_MEMORY_RESERVE_BYTES="1000000GB").start()
    try:
        with secure_socket(cluster) as secure:
            secure.sendall(b"POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            head = secure.recv(65536).lower()
        assert head.startswith(b"http/1.1 503 ")
        for line in (b"server: triptych\r\n", b"date: ", b"x-request-id: ", b"x-frame-options: deny\r\n"):
            assert head.count(b"\r\n" + line) == 1, line
        metrics = cluster.get("/metrics").body.decode()
        assert 'triptych_overload_refused_total{reason="memory"} 1.0' in metrics
        assert 'path="/api/v1/write"' not in metrics  # refused before its route was known
    finally:
        cluster.stop()


def test_secrets_are_in_no_log_and_no_answer(server: Cluster) -> None:
    secret = bearer("reader").split()[1]
    answers = [
        ask(server, path, bearer("reader")).body
        for path in ("/metrics", "/api/v1/cluster", f"{QUERY}&explain=true", "/api/v1/query?query=%7B")
    ]
    for line in (
        f"Authorization: {secret}\x01",
        f"Authorization : {secret}",
        f"Authorization: {secret}" + "x" * 70_000,
    ):
        with secure_socket(server) as secure, suppress(OSError):
            secure.sendall(f"GET {QUERY} HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode())
            answers.append(secure.recv(65536))
    texts = [answer.decode() for answer in answers] + [server.log("coordinator"), server.log("worker")]
    for text in texts:
        assert "Secret-" not in text
        assert PASSWORD not in text
        assert "$2b$" not in text

"""What a page that is open in a browser beside a cluster can do to it, in the bytes that browsers send."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.cluster.test_http import ENDPOINTS, POST, assert_error

MEANT_FOR_READING = {
    "/api/v1/query",
    "/api/v1/query_range",
    "/api/v1/format_query",
    "/api/v1/parse_query",
    "/api/v1/series",
    "/api/v1/query_exemplars",
    "/api/v1/labels",
    "/api/v1/read",
    "/api/v1/vector/search",
    "/api/v1/vector/map",
}
CHANGING = [(POST, path) for path, methods in ENDPOINTS.items() if POST in methods and path not in MEANT_FOR_READING]
CHANGING += [
    ("PUT", "/api/v1/log/cursors/a"),
    ("DELETE", "/api/v1/log/cursors/a"),
    ("DELETE", "/api/v1/log/keys?key=a"),
    ("PUT", "/api/v1/log/policies/a"),
    ("DELETE", "/api/v1/log/policies/a"),
    ("PUT", "/api/v1/vector/collections/a"),
    ("DELETE", "/api/v1/vector/collections/a"),
]
EVIL = "https://evil.example"
DELETE_ALL = b"match%5B%5D=%7B__name__%21%3D%22%22%7D"


def form_post(cluster: Cluster, path: str, content_type: str, body: bytes, origin: str = EVIL) -> bytes:
    """The answer to what Chromium sends for a form of another site that submits itself."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost:{cluster.port}\r\nConnection: keep-alive\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: max-age=0\r\nOrigin: {origin}\r\n"
        f"Content-Type: {content_type}\r\nUpgrade-Insecure-Requests: 1\r\n"
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0\r\n"
        "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nSec-Fetch-Site: cross-site\r\n"
        "Sec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\nSec-Fetch-Dest: document\r\n"
        "Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        return connection.recv(65536)


def count(cluster: Cluster, selector: str) -> int:
    return len(cluster.get("/api/v1/series", match=selector, start="1699990000", end="1700010000").json()["data"])


def test_a_form_of_another_site_deletes_nothing(cluster: Cluster) -> None:
    body = compressed([({"__name__": "kept"}, [(1_700_000_000_000, 1.0)])])
    assert cluster.request("POST", "/api/v1/write", body, HEADERS).status == 204
    form = "application/x-www-form-urlencoded"
    for content_type in (form, "text/plain", "multipart/form-data; boundary=----WebKitFormBoundaryx"):
        answer = form_post(cluster, "/api/v1/admin/tsdb/delete_series", content_type, DELETE_ALL)
        assert answer.startswith(b"HTTP/1.1 403 "), answer
        assert b"TRIPTYCH_ALLOWED_ORIGINS" in answer
    answer = form_post(cluster, "/api/v1/admin/tsdb/delete_series?" + DELETE_ALL.decode(), form, b"", origin="null")
    assert answer.startswith(b"HTTP/1.1 403 "), answer
    assert count(cluster, "kept") == 1


@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_every_endpoint_refuses_a_change_from_another_site(cluster: Cluster, method: str, path: str) -> None:
    refused = cluster.request(method, path, b"{}", {"Origin": EVIL, "Content-Type": "text/plain"})
    assert_error(path, refused, 403)
    assert "access-control-allow-origin" not in refused.headers
    assert cluster.request(method, path, b"", {"Origin": f"http://127.0.0.1:{cluster.port}"}).status != 403


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
def test_every_endpoint_refuses_a_name_that_is_not_its_own(cluster: Cluster, path: str) -> None:
    refused = cluster.request(ENDPOINTS[path][0], path, b"", {"Host": f"evil.example:{cluster.port}"})
    assert "TRIPTYCH_ALLOWED_HOSTS" in str(assert_error(path, refused, 403))


def test_another_site_reads_nothing(cluster: Cluster) -> None:
    answer = cluster.request("GET", "/api/v1/query?query=1", None, {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    asked = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    preflight = cluster.request("OPTIONS", "/api/v1/write", None, asked)
    assert preflight.status == 405
    assert not [name for name in preflight.headers if name.startswith("access-control-")]


def exchanged(cluster: Cluster, message: bytes) -> bytes:
    """The answer's head, and what comes with it."""
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=10) as connection:
        connection.sendall(message)
        answer = b""
        while b"\r\n\r\n" not in answer and (piece := connection.recv(65536)):
            answer += piece
        return answer


def test_clients_without_a_host_are_served(cluster: Cluster) -> None:
    assert b" 200 OK\r\n" in exchanged(cluster, b"GET /-/healthy HTTP/1.0\r\n\r\n")


def test_two_hosts_are_not_one(cluster: Cluster) -> None:
    message = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert b" 400 " in exchanged(cluster, message).split(b"\r\n")[0]


ANSWERS = {
    "small": b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "at once": b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "head": b"HEAD /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "stream": b"GET /api/v1/log/scan?key=a&follow=true&timeout=1ms HTTP/1.1\r\nHost: localhost\r\n"
    b"Accept: text/event-stream\r\nConnection: close\r\n\r\n",
    "no such path": b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\r\n\r\n",
    "two lengths": b"POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "HTTP/0.9": b"GET /-/healthy\r\n\r\n",
    "expectation": b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nExpect: nonsense\r\n\r\n",
    "other site": b"GET /-/healthy HTTP/1.1\r\nHost: evil.example\r\n\r\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_no_answer_says_what_versions_are_running(cluster: Cluster, kind: str) -> None:
    head = exchanged(cluster, ANSWERS[kind]).partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.")
    assert b"\r\nServer: Triptych\r\n" in head + b"\r\n"
    assert b"aiohttp" not in head
    assert b"Python" not in head


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Cluster]:
    """One shard, with the settings of a careful user."""
    settings = {
        "TRIPTYCH_ADMIN_API": "false",
        "TRIPTYCH_ALLOWED_HOSTS": "triptych,*.example.org",
        "TRIPTYCH_ALLOWED_ORIGINS": EVIL,
    }
    running = type(cluster)(tmp_path_factory.mktemp("strict"), shards=1, workers=1, settings=settings).start()
    yield running
    running.stop()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/api/v1/admin/tsdb/delete_series", "/api/v1/admin/tsdb/snapshot", "/api/v1/admin/"])
def test_the_admin_interface_is_off(strict: Cluster, method: str, path: str) -> None:
    body = assert_error(path, strict.request(method, path, DELETE_ALL), 404)
    assert "TRIPTYCH_ADMIN_API=true" in body["error"]


def test_settings_admit_names_and_origins(strict: Cluster) -> None:
    body = compressed([({"__name__": "from_a_page"}, [(1_700_000_000_000, 1.0)])])
    for host in ("triptych:9090", "a.example.org"):
        headers = dict(HEADERS) | {"Host": host, "Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
        assert strict.request("POST", "/api/v1/write", body, headers).status == 204
    assert strict.request("GET", "/-/ready", None, {"Host": "evil.example"}).status == 403

"""The page's files as HTTP: validators, encodings, and paths that are none of theirs. What the page does is tested in
tests/page."""

from __future__ import annotations

import gzip
import http.client
import re
from collections.abc import Iterator

import pytest

from loadtest.harness.cluster import Cluster, Response
from tests.forked_cluster import ForkedCluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator without workers: the page opens before any shard is ready."""
    running = ForkedCluster(tmp_path_factory.mktemp("page"))
    running.start_coordinator()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def script(server: Cluster) -> str:
    """The path of a file that the page names."""
    (path,) = re.findall(r'<script type="module" src="([^"]+)"', server.get("/").body.decode())
    return f"/{path}"


def raw(server: Cluster, path: bytes, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of the answer to a path that is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest(method, "/", skip_accept_encoding=True)
    connection._buffer[0] = method.encode() + b" " + path + b" HTTP/1.1"  # type: ignore[attr-defined]
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_the_page_is_served_before_any_shard_is_ready(server: Cluster) -> None:
    assert server.get("/-/ready").status == 503
    assert server.get("/").status == 200


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html,application/xhtml+xml"])
def test_the_page_is_html_whatever_a_client_accepts(server: Cluster, accept: str) -> None:
    answer = server.request("GET", "/", headers={"Accept": accept})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_a_head_has_the_headers_of_the_answer(server: Cluster, script: str) -> None:
    for path in ("/", script):
        full, head = server.get(path), server.request("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        for name in ("etag", "content-length", "content-type", "cache-control", "content-security-policy", "vary"):
            assert head.headers[name] == full.headers[name]


def test_both_encodings_have_one_weak_validator(server: Cluster, script: str) -> None:
    plain = server.get(script)
    packed = server.request("GET", script, headers={"Accept-Encoding": "br, gzip;q=0.5"})
    refused = server.request("GET", script, headers={"Accept-Encoding": "gzip;q=0, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body == refused.body
    assert "content-encoding" not in refused.headers
    assert plain.headers["etag"] == packed.headers["etag"]
    assert plain.headers["etag"].startswith('W/"')
    assert plain.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("condition", "status"),
    [("{}", 304), ("{strong}", 304), ('"x", {}, "y"', 304), ("*", 304), ('"x"', 200), ("{cut}", 200), ("", 200)],
)
def test_a_page_that_is_known_is_not_sent_again(server: Cluster, condition: str, status: int) -> None:
    etag = server.get("/").headers["etag"]
    wanted = condition.format(etag, strong=etag.removeprefix("W/"), cut=etag.removeprefix("W/")[:-2] + '"')
    answer = server.request("GET", "/", headers={"If-None-Match": wanted})
    assert answer.status == status
    assert answer.headers["etag"] == etag
    assert bool(answer.body) == (status == 200)


def test_a_range_is_answered_with_all(server: Cluster, script: str) -> None:
    answer = server.request("GET", script, headers={"Range": "bytes=0-3"})
    assert (answer.status, answer.body) == (200, server.get(script).body)


@pytest.mark.parametrize(
    "path",
    [
        b"%s/../files.py",
        b"%s/..%%2ffiles.py",
        b"%s/%%2e%%2e/%%2e%%2e/etc/passwd",
        b"%s/..%%5c..%%5cfiles.py",
        b"%s//main.js",
        b"%s/main.js%%00",
        b"%s/main.js/",
        b"%s/index.html",
        b"%s/files.py",
        b"%s/vendor/package.json",
        b"%s/vendor/entry.js",
        b"/ui/0/%ff%fe",
        b"%s/" + b"a/" * 30_000,
        b"%s/",
        b"/ui/../ui/main.js",
        b"/ui//main.js",
        b"/ui/",
        b"/ui",
        b"//etc/passwd",
    ],
)
def test_paths_that_are_none_of_its_files_are_not_found(server: Cluster, script: str, path: bytes) -> None:
    base = script.rpartition("/")[0].encode()
    status, body = raw(server, path % base if b"%s" in path else path)
    assert status == (400 if b"%ff" in path else 404)  # what is no UTF-8 is no URL
    assert len(body) < 1000
    assert b"Traceback" not in body


def test_the_page_takes_no_other_method(server: Cluster, script: str) -> None:
    for path in ("/", script):
        answer = server.request("POST", path, b"")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_files_of_another_version_say_where_those_of_this_one_are(server: Cluster, script: str) -> None:
    answer: Response = server.get("/ui/0123456789abcdef/main.js")
    assert answer.status == 404
    assert script.rpartition("/")[0] in answer.json()["error"]
    assert "immutable" not in answer.headers.get("cache-control", "")


def test_the_page_asks_last_for_what_is_not_shown_first(server: Cluster) -> None:
    lines = [line for line in server.get("/").body.decode().splitlines() if "modulepreload" in line]
    late = {re.findall(r"ui/\w+/(\w+)/", line)[0] for line in lines if 'fetchpriority="low"' in line}
    assert late == {"log", "vectors", "alerts", "cluster"}
    assert "/vendor.js" in lines[0]

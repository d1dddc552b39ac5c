"""Which pages of other sites may read answers, and what they may do beside that: TRIPTYCH_CORS_ORIGIN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, compressed

WIKI, EDITOR, EVIL = "https://wiki.example.org", "https://editor.example.org", "https://evil.example"
CROSS = {"Sec-Fetch-Site": "cross-site"}
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module")
def open_to_pages(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Cluster]:
    settings = {
        "TRIPTYCH_CORS_ORIGIN": r"https://(wiki|editor)\.example\.org",
        "TRIPTYCH_ALLOWED_ORIGINS": EDITOR,
        "TRIPTYCH_ADMIN_API": "true",
    }
    running = type(cluster)(tmp_path_factory.mktemp("cors"), shards=1, workers=1, settings=settings).start()
    series = [({"__name__": "long", "i": f"{i:05}", "x": "y" * 50}, [(1_700_000_000_000, 1.0)]) for i in range(9_000)]
    assert running.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204
    yield running
    running.stop()


def asked(cluster: Cluster, origin: str, method: str, path: str, wants: str = "POST") -> Response:
    if method != "OPTIONS":
        return cluster.request(method, path, None, CROSS | {"Origin": origin})
    preflight = {"Origin": origin, "Access-Control-Request-Method": wants, "Access-Control-Request-Headers": "x"}
    return cluster.request(method, path, None, CROSS | preflight)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/query?query=1", 200),
        ("/api/v1/query?query=1%2B", 400),
        ("/api/v1/query?query=long&time=1700000001", 200),  # in pieces
        ("/api/v1/nothing", 404),
        ("/api/v1/log/scan?key=aw==", 200),
        ("/metrics", 200),
        ("/federate?match[]=up", 200),
        ("/-/ready", 200),
    ],
)
def test_a_page_whose_origin_matches_reads(open_to_pages: Cluster, path: str, status: int) -> None:
    answer = asked(open_to_pages, WIKI, "GET", path)
    assert answer.status == status, answer.body
    assert answer.headers[ALLOW] == WIKI
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-credentials" not in answer.headers
    for other in (
        EVIL,
        WIKI + ".evil.example",
        "https://x" + WIKI,
        "null",
        "https://wikixexample.org",
        WIKI + "a" * 400,
    ):
        refused = asked(open_to_pages, other, "GET", path)
        assert ALLOW not in refused.headers
        assert "Origin" in refused.headers["vary"]


def test_a_preflight_is_answered_without_a_credential(open_to_pages: Cluster) -> None:
    answer = asked(open_to_pages, WIKI, "OPTIONS", "/api/v1/query_range")
    assert answer.status == 204
    assert answer.headers[ALLOW] == WIKI
    assert answer.headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    assert (
        "PUT"
        in asked(open_to_pages, EDITOR, "OPTIONS", "/api/v1/log/cursors/a").headers["access-control-allow-methods"]
    )
    refused = asked(open_to_pages, EVIL, "OPTIONS", "/api/v1/query_range")
    assert refused.status == 405
    assert ALLOW not in refused.headers
    assert open_to_pages.request("OPTIONS", "/api/v1/query", None, {"Origin": WIKI}).status == 405


def test_reading_is_not_changing(open_to_pages: Cluster) -> None:
    body = compressed([({"__name__": "from_a_page"}, [(1_700_000_000_000, 1.0)])])
    for origin, status in ((WIKI, 403), (EDITOR, 204)):
        headers = dict(HEADERS) | CROSS | {"Origin": origin}
        answer = open_to_pages.request("POST", "/api/v1/write", body, headers)
        assert answer.status == status
        assert answer.headers[ALLOW] == origin
    path = "/api/v1/admin/tsdb/delete_series"
    assert asked(open_to_pages, WIKI, "OPTIONS", path).status == 403
    assert asked(open_to_pages, WIKI, "GET", "/api/v1/debug/profile").status == 403
    assert asked(open_to_pages, EDITOR, "OPTIONS", path).status == 204


def test_a_name_that_was_rebound_reads_nothing(open_to_pages: Cluster) -> None:
    headers = {"Host": "evil.example", "Origin": WIKI}
    assert open_to_pages.request("GET", "/api/v1/query?query=1", None, headers).status == 403


def test_programs_get_what_they_got(open_to_pages: Cluster) -> None:
    answer = open_to_pages.request("GET", "/api/v1/query?query=1")
    assert not [name for name in answer.headers if name.startswith("access-control-")]

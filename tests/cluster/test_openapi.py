"""The OpenAPI document and its page, over HTTP."""

from __future__ import annotations

import gzip

import pytest
import yaml

from loadtest.harness.cluster import Cluster


def test_the_document_is_served(cluster: Cluster) -> None:
    answer = cluster.get("/api/v1/openapi.yaml")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/yaml")
    told = yaml.load(answer.body, yaml.CSafeLoader)
    assert told["openapi"] == "3.1.0"
    assert "/api/v1/query" in told["paths"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/docs", "text/html"), ("/docs.css", "text/css"), ("/api/v1/openapi.yaml", "application/yaml")],
)
def test_its_files_are_typed_compressed_and_asked_for_once(cluster: Cluster, path: str, kind: str) -> None:
    plain = cluster.get(path)
    assert plain.headers["content-type"] == f"{kind}; charset=utf-8"
    assert plain.headers["content-security-policy"].startswith("default-src 'self'")
    zipped = cluster.request("GET", path, headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(zipped.body) == plain.body
    again = cluster.request("GET", path, headers={"If-None-Match": plain.headers["etag"]})
    assert again.status == 304

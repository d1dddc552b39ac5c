"""Requests for vectors over HTTP, for tests."""

from __future__ import annotations

import json
from typing import Any

from loadtest.harness.cluster import Cluster, Response


def put(cluster: Cluster, name: str, settings: dict[str, Any]) -> Response:
    body = json.dumps(settings).encode()
    return cluster.request("PUT", f"/api/v1/vector/collections/{name}", body, {"Content-Type": "application/json"})


def write(cluster: Cluster, *vectors: tuple[str, dict[str, Any]], **fields: Any) -> Response:
    upserts = [{"id": name, "attributes": attributes} for name, attributes in vectors]
    return cluster.post_json("/api/v1/vector/write", {"upsertVectors": upserts, **fields}, "application/protobuf+json")


def search(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    answer = cluster.post_json("/api/v1/vector/search", fields)
    assert answer.status == 200, answer.body
    return answer.json()


def ids(answer: dict[str, Any]) -> list[str]:
    return [result["vector"]["id"] for result in answer["results"]]


def refused(answer: Response, *words: str, status: int = 400) -> None:
    content = answer.json()
    assert (answer.status, content["status"]) == (status, "error"), content
    assert set(content) == {"status", "message"}
    for word in words:
        assert word in content["message"], content["message"]

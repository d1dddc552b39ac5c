"""Requests to the log over HTTP, for tests."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from loadtest.harness.cluster import Cluster, Response

PROTOBUF = {"Content-Type": "application/protobuf"}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def record(key: bytes, value: bytes) -> dict[str, str]:
    return {"key": b64(key), "value": b64(value)}


def append(cluster: Cluster, records: Sequence[tuple[bytes, bytes]], **options: Any) -> dict[str, Any]:
    answer = cluster.post_json("/api/v1/log/append", {"records": [record(k, v) for k, v in records], **options})
    assert answer.status == 200, answer.body
    return answer.json()


def scan(cluster: Cluster, **parameters: str) -> dict[str, Any]:
    answer = cluster.get("/api/v1/log/scan", **parameters)
    assert answer.status == 200, answer.body
    return answer.json()


def values(answer: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(r["value"]) for r in answer["records"]]


def refused(answer: Response, status: int) -> str:
    body = answer.json()
    assert (answer.status, body["status"]) == (status, "error"), body
    assert body.keys() == {"status", "message"}
    return body["message"]

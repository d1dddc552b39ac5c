"""Headers of records over HTTP."""

from __future__ import annotations

import uuid

from loadtest.harness.cluster import Cluster
from tests.cluster.log_requests import refused, scan


def test_headers_and_the_content_type_come_back_with_the_record(cluster: Cluster) -> None:
    key = f"key-{uuid.uuid4().hex}"
    rows = [
        {"keyText": key, "text": "plain"},
        {"keyText": key, "text": "{}", "headers": {"trace": "00-af", "ключ": "é"}, "contentType": "application/json"},
    ]
    for batch in (rows, [rows[1]] * 50):
        assert cluster.post_json("/api/v1/log/append", {"records": batch}).status == 200
    for selection in ({"key": key}, {"prefix": key}):
        found = scan(cluster, **selection, encoding="text")["records"]
        assert [{name: row[name] for name in row if name not in ("sequence", "timeMs")} for row in found] == [
            *rows,
            *[rows[1]] * 50,
        ]
    many = {"keyText": key, "text": "", "headers": {str(n): "" for n in range(65)}}
    answer = cluster.post_json("/api/v1/log/append", {"records": [many]})
    assert "`$.records[0].headers` has 65 entries; it may have at most 64" in refused(answer, 400)

"""What the log refuses over HTTP: malformed bodies and parameters, and what is above a limit."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from proto import log_pb2
from tests.cluster.log_requests import PROTOBUF, append, b64, record, refused, values


@pytest.fixture
def key() -> bytes:
    return f"key-{uuid.uuid4().hex}".encode()


GOOD = {"key": "aw==", "value": "dg=="}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"records": []}, "`records` is empty"),
        ({}, "`records`"),
        ({"records": [GOOD, {"key": "!!!", "value": "dg=="}]}, "$.records[1].key"),
        ({"records": [{"key": "aw==", "value": "dg"}]}, "$.records[0].value"),
        ({"records": [{"key": "aw=="}]}, "`value`"),
        ({"records": [{"value": "dg=="}]}, "`key`"),
        ({"records": [{"key": 5, "value": "dg=="}]}, "$.records[0].key"),
        ({"records": [GOOD], "awaitDurable": "yes"}, "$.awaitDurable"),
        ({"records": [GOOD], "awaitDurabel": True}, "awaitDurabel"),
        ({"records": [GOOD], "producerId": "p"}, "`producerSeq`"),
        ({"records": [GOOD], "producerSeq": 1}, "`producerId`"),
        ({"records": [GOOD], "producerId": "p", "producerSeq": -1}, "$.producerSeq"),
        ({"records": [GOOD] * 10_001}, "10001 records"),
        ({"records": [{"key": b64(b"k" * 65_536), "value": ""}]}, "records[0].key"),
        ([GOOD], "object"),
    ],
)
def test_a_malformed_append_names_the_field(cluster: Cluster, body: Any, names: str) -> None:
    assert names in refused(cluster.post_json("/api/v1/log/append", body), 400)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "`records` is empty"),
        ({"records": [GOOD, {"key": "!!!", "value": "dg=="}]}, "$.records[1].key"),
        ({"records": [GOOD, {"key": {"value": "aw=="}, "value": "d"}]}, "$.records[1].value"),
        ({"records": [{"value": "dg=="}]}, "$.records[0].key"),
        ({"records": [{"key": 5, "value": "dg=="}]}, "$.records[0].key"),
        ({"records": [GOOD], "await_durable": 1}, "$.await_durable"),
        ({"records": [GOOD], "producer_id": "p", "producer_seq": "x"}, "producerSeq"),
    ],
)
def test_a_malformed_protojson_append_names_the_field(cluster: Cluster, body: Any, names: str) -> None:
    assert names in refused(cluster.post_json("/api/v1/log/append", body, "application/protobuf+json"), 400)


def test_a_value_above_the_limit_is_refused(cluster: Cluster) -> None:
    body = {"records": [GOOD, record(b"k", bytes((8 << 20) + 1))]}
    assert "records[1].value" in refused(cluster.post_json("/api/v1/log/append", body), 400)


def test_a_batch_above_the_limit_is_too_large(cluster: Cluster) -> None:
    body = {"records": [record(b"k", bytes(8 << 20))] * 5}
    assert "bytes" in refused(cluster.post_json("/api/v1/log/append", body), 413)


def test_a_value_at_the_limit_is_kept(cluster: Cluster, key: bytes) -> None:
    append(cluster, [(key, bytes(8 << 20))] * 3)
    answer = cluster.get("/api/v1/log/scan", key=key.decode()).json()
    assert [len(v) for v in values(answer)] == [8 << 20] * 3


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-protobuf", ""])
def test_another_content_type_is_refused(cluster: Cluster, content_type: str) -> None:
    answer = cluster.request("POST", "/api/v1/log/append", b"{}", {"Content-Type": content_type})
    assert "Content-Type" in refused(answer, 400)


@pytest.mark.parametrize("content_type", ["application/json", "application/protobuf+json", "application/protobuf"])
@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"{", b'{"records": [{"key": "aw==", "value": "\xff"}]}', b"\x0a\x05a"]
)
def test_a_corrupt_body_is_refused(cluster: Cluster, content_type: str, body: bytes) -> None:
    refused(cluster.request("POST", "/api/v1/log/append", body, {"Content-Type": content_type}), 400)


def test_a_protobuf_record_without_a_key_is_refused(cluster: Cluster) -> None:
    message = log_pb2.AppendRequest(records=[log_pb2.Record(value=b"v")])
    answer = cluster.request("POST", "/api/v1/log/append", message.SerializeToString(), PROTOBUF)
    assert "records[0].key" in refused(answer, 400)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("scan", "'key'"),
        ("scan?key=a&prefix=b", "'prefix'"),
        ("scan?key=a&key_base64=YQ==", "key_base64"),
        ("scan?key_base64=%21", "key_base64"),
        ("scan?key=a&start_seq=-1", "start_seq"),
        ("scan?key=a&end_seq=18446744073709551616", "end_seq"),
        ("scan?key=a&limit=0", "limit"),
        ("scan?key=a&limit=many", "limit"),
        ("scan?key=a&reverse=maybe", "reverse"),
        ("scan?key=a&reverse=true&follow=true", "reverse"),
        ("scan?prefix=a&reverse=true", "reverse"),
        ("scan?key=a&follow=true&timeout=soon", "timeout"),
        ("segments?start_seq=x", "start_seq"),
        ("segments?endSeq=1.5", "endSeq"),
        ("keys?limit=0", "limit"),
        ("keys?start_segment=x", "start_segment"),
        ("count?key=a&start_seq=x", "start_seq"),
        ("cursors/" + "n" * 257, "name"),
    ],
)
def test_a_malformed_parameter_is_named(cluster: Cluster, path: str, names: str) -> None:
    assert names in refused(cluster.get("/api/v1/log/" + path), 400)


def test_the_maximum_end_is_taken(cluster: Cluster) -> None:
    assert cluster.get("/api/v1/log/segments", end_seq="18446744073709551615").status == 200


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"positions": []}', b'{"positions": [{"key": "!", "sequence": 1}]}']
)
def test_a_malformed_cursor_is_refused(cluster: Cluster, body: bytes) -> None:
    refused(cluster.request("PUT", "/api/v1/log/cursors/c", body), 400)


@pytest.mark.parametrize(("method", "path"), [("GET", "append"), ("POST", "scan"), ("DELETE", "segments")])
def test_a_wrong_method_is_refused(cluster: Cluster, method: str, path: str) -> None:
    refused(cluster.request(method, "/api/v1/log/" + path), 405)

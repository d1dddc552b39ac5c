"""Answers of log reads as their readers decode them."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from coordinator.api.log.answers import JSON_START, event, json_end, json_records, protobuf_page, warning_event
from proto import log_pb2
from shared.messages.log_pages import Records

ROWS = [(7, b"k", b"v", 1735689600123), (9, b"\xff", b"", 0)]


def page(rows: list[tuple[int, bytes, bytes]]) -> Records:
    return Records(
        np.array([sequence for sequence, _, _ in rows], np.uint64),
        np.array([len(value) for _, _, value in rows], np.uint32),
        b"".join(value for _, _, value in rows),
        np.array([len(key) for _, key, _ in rows], np.uint32),
        b"".join(key for _, key, _ in rows),
        np.arange(5, 5 + len(rows)),
    )


def test_a_scan_is_one_json_document() -> None:
    body = JSON_START + json_records(ROWS[:1]) + b"," + json_records(ROWS[1:]) + json_end(10, 3, [])
    expected = [
        {"sequence": sequence, "key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
        | ({"timeMs": time_ms} if time_ms else {})
        for sequence, key, value, time_ms in ROWS
    ]
    assert json.loads(body) == {
        "status": "success",
        "records": expected,
        "nextSequence": 10,
        "logStartSequence": 3,
    }
    assert json.loads(JSON_START + json_records(ROWS) + json_end(10, 3, []))["records"] == expected
    assert json.loads(JSON_START + json_records([]) + json_end(0, 0, ['a "b"']))["warnings"] == ['a "b"']


def test_a_record_is_an_event_with_its_number_as_id() -> None:
    identity, data, *rest = event(ROWS[0]).split(b"\n")
    assert identity == b"id: 7" and rest == [b"", b""]
    expected = {"sequence": 7, "key": "aw==", "value": "dg==", "timeMs": 1735689600123}
    assert json.loads(data.removeprefix(b"data: ")) == expected


def test_a_warning_is_an_event_without_an_id() -> None:
    assert warning_event("shard 1:\nit is down") == b'event: warning\ndata: "shard 1:\\nit is down"\n\n'


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300, 16_383, 16_384, 70_000])
def test_a_page_is_a_protobuf_message_whatever_its_size(size: int) -> None:
    rows = [(1 << 40, b"key", bytes(size)), ((1 << 63) - 1, b"k" * 5, b"v")]
    response = log_pb2.ScanResponse.FromString(b"".join(protobuf_page(page(rows))))
    (read,) = response.pages
    assert list(read.sequences) == [1 << 40, (1 << 63) - 1]
    assert list(read.key_lengths) == [3, 5] and read.keys == b"keykkkkk"
    assert list(read.times_ms) == [5, 6]
    assert list(read.value_lengths) == [size, 1] and read.values == bytes(size) + b"v"
    assert response == log_pb2.ScanResponse(pages=[read])


def test_columns_of_no_bytes_are_left_out() -> None:
    pieces = protobuf_page(page([(1, b"", b"")]))
    response = log_pb2.ScanResponse.FromString(b"".join(pieces))
    (read,) = response.pages
    assert (list(read.sequences), list(read.key_lengths), list(read.value_lengths)) == ([1], [0], [0])
    assert (read.keys, read.values) == (b"", b"")
    assert len(pieces) == 1 + 2 * 4
    assert protobuf_page(page([])) == [b"\x12\x00"]


def test_a_column_goes_out_as_it_came() -> None:
    records = page([(1, b"key", b"value")])
    assert any(piece is records.values for piece in protobuf_page(records))

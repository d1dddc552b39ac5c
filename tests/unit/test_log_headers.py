"""Headers of records: from every form of an append through the shards to every form of an answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.api.log import answers
from coordinator.headers.negotiation import JSON, PROTOBUF, PROTOBUF_JSON
from coordinator.log import records
from coordinator.log.columns import FEW_RECORDS, columns_of
from coordinator.log.follow import Follower, rows_of
from coordinator.log.headers import packed, unpacked
from coordinator.log.reads import KeySelection
from proto import log_pb2
from shared.errors import BadData, TooLarge
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.log.headers import HeadedValue, joined, size_of, split
from shared.messages.log import SEQUENCE_MAX, Batch, Range
from shared.messages.log_pages import Records
from shared.settings import Settings
from tests.unit.log_area import EVERYTHING, Log
from tests.unit.log_shard import OneShard
from worker.logs import reading, writing
from worker.logs.messages import Message

HEADERS = {"trace": "00-af", "ключ": "значение", "empty": ""}
PACKED = packed(HEADERS, "text/plain", "r")


def headed(value: bytes, headers: bytes = PACKED) -> HeadedValue:
    return split(joined(headers, value))


def shown(value: bytes) -> tuple[bytes, bytes]:
    return bytes(value), value.headers if isinstance(value, HeadedValue) else b""


def parsed(content_type: str, body: bytes) -> list[tuple[bytes, bytes]]:
    batch = records.parse(content_type, body, Settings()).records
    return [shown(batch.value(at)) for at in range(len(batch))]


def test_headers_are_in_front_of_a_value() -> None:
    value = split(joined(PACKED, b"value"))
    assert (value, value.headers, size_of(value)) == (b"value", PACKED, 5 + len(PACKED))
    assert unpacked(PACKED) == (dict(sorted(HEADERS.items())), "text/plain", False)
    assert size_of(b"value") == 5
    with pytest.raises(ValueError, match="a stored value of 3 bytes is said to begin with"):
        split(b"\xff\xff\xff")


@pytest.mark.parametrize("count", [1, FEW_RECORDS, FEW_RECORDS + 1, 700])
@pytest.mark.parametrize("content_type", [JSON, PROTOBUF_JSON, PROTOBUF])
def test_headers_are_read_from_bodies_of_every_size(content_type: str, count: int) -> None:
    rows: list[dict[str, Any]] = [{"key": "aw==", "value": "dg=="} for _ in range(count)]
    rows[0] |= {"headers": HEADERS, "contentType": "text/plain"}
    rows[-1] |= {"contentType": "text/plain", "headers": HEADERS}
    body = json.dumps({"records": rows}).encode()
    if content_type == PROTOBUF:
        message = log_pb2.AppendRequest()
        for row in rows:
            added = message.records.add(value=b"v", headers=row.get("headers"), content_type=row.get("contentType"))
            added.key.value = b"k"
        body = message.SerializeToString()
    expected = [(b"v", PACKED if at in (0, count - 1) else b"") for at in range(count)]
    assert parsed(content_type, body) == expected
    padded = body if content_type == PROTOBUF else body[:-1] + b" " * 70_000 + b"}"
    assert parsed(content_type, padded) == expected


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"headers": {str(n): "" for n in range(65)}}, r"`\$.records\[0\].headers` has 65 entries; .* at most 64"),
        ({"headers": {"a": "é" * 8192}}, r"`\$.records\[0\]` has 16385 bytes of headers and content type; .* 16384"),
        ({"contentType": "t" * 16385}, "has 16385 bytes of headers and content type"),
        ({"headers": {"": "v"}}, "has an empty name"),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": [["a", "b"]]}, "headers"),
    ],
)
@pytest.mark.parametrize("content_type", [JSON, PROTOBUF_JSON])
def test_headers_over_a_bound_or_of_another_form_are_refused(
    content_type: str, fields: dict[str, Any], text: str
) -> None:
    body = {"records": [{"key": "aw==", "value": "dg==", **fields}]}
    with pytest.raises(BadData, match=text):
        records.parse(content_type, json.dumps(body).encode(), Settings())


def test_headers_count_for_the_size_of_a_batch() -> None:
    rows = [{"key": "aw==", "value": "", "headers": {"a": "v" * 16_000}}] * 3
    with pytest.raises(TooLarge):
        records.parse(JSON, json.dumps({"records": rows}).encode(), Settings(log_batch_bytes_max=40_000))


@pytest.mark.parametrize("many", [False, True])
def test_shards_keep_headers_in_memory_in_the_store_and_over_a_start(tmp_path: Path, many: bool) -> None:
    shard = OneShard(tmp_path / "shard")
    count = 3 * FEW_RECORDS if many else 5
    values = [b"v%d" % at for at in range(count)]
    batch = columns_of([b"k%d" % (at % 2) for at in range(count)], values, dict.fromkeys(range(0, count, 3), PACKED))
    message = Message(0, 0, 0, 0, (Batch(0, count, (0,)),), batch.blocks(1)[0])
    assert not writing.append({0: (shard.part, message)}, durable=True)
    expected = [(value, PACKED if at % 3 == 0 else b"") for at, value in enumerate(values)]

    def check() -> None:
        span = Range(0, 9, 0, SEQUENCE_MAX)
        merged = reading.merge(shard.part, span, b"", 1000, lambda: None).records
        assert [shown(value) for value in Records.from_frames(merged.frames()).value_list()] == expected
        for reverse in (False, True):
            page = reading.scan(shard.part, span, b"k1", 1000, reverse).records
            own = expected[1::2]
            assert [shown(value) for value in page.value_list()] == (own[::-1] if reverse else own)

    check()
    shard.restart()
    check()
    block = block_of([(hash64(b"z"), 0, b"z", b"later")])
    more = Message(0, 5000, 5000, 0, (Batch(5000, 1, (0,)),), block)
    assert not writing.append({0: (shard.part, more)}, durable=True)
    expected.append((b"later", b""))
    shard.part.revoke(0, 5000, [(5000, 5001)])
    expected.pop()
    check()
    shard.part.gather()
    check()
    assert len(shard.part.view().segments) == 0, "they have been gathered"
    shard.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.links.close()


async def test_a_follower_gets_the_headers_from_the_queue_and_from_the_store(log: Log) -> None:
    async with log.running() as area:
        batch = columns_of([b"k", b"k"], [b"a", b"b"], {1: PACKED})
        await area.append(records.Append(batch, False, "", 0))
        with area.followers.following(KeySelection(b"k"), 0) as follower:
            rows = await area.followers.read(follower, 10)
            assert [shown(row[2]) for row in rows] == [(b"a", b""), (b"b", PACKED)]
            await area.append(records.Append(columns_of([b"k"], [b"c"], {0: PACKED}), False, "", 0))
            assert [shown(row[2]) for row in await area.followers.read(follower, 10)] == [(b"c", PACKED)]
        async for page in area.reader.pages(EVERYTHING, 0, SEQUENCE_MAX, 10):
            values = [shown(row[2]) for row in rows_of(page.records, EVERYTHING)]
            assert values == [(b"a", b""), (b"b", PACKED), (b"c", PACKED)]


def test_headers_count_for_the_queue_of_a_follower() -> None:
    follower = Follower(KeySelection(b"k"), 0)
    follower.lagging = False
    follower.offer((1, b"k", headed(b"v"), 0))
    assert follower._bytes == 1 + len(PACKED)


def test_answers_show_headers_where_there_are_some() -> None:
    rows = [(1, b"k", b"v", 7), (2, b"k", headed(b"w"), 8), (3, b"k", headed(b"", packed({}, "a/b", "r")), 9)]
    content = json.loads(b"[" + answers.json_records(rows) + b"]")
    assert content == [
        {"sequence": 1, "key": "aw==", "value": "dg==", "timeMs": 7},
        {"sequence": 2, "key": "aw==", "value": "dw==", "timeMs": 8, "headers": HEADERS, "contentType": "text/plain"},
        {"sequence": 3, "key": "aw==", "value": "", "timeMs": 9, "contentType": "a/b"},
    ]
    readable = json.loads(b"[" + answers.json_records(rows, answers.Form(answers.Encoding.TEXT)) + b"]")
    assert readable[1]["headers"] == HEADERS and readable[1]["text"] == "w"
    data = answers.event(rows[1]).split(b"data: ")[1]
    assert json.loads(data) == content[1]


def test_a_protobuf_page_has_the_headers_as_columns_of_their_own() -> None:
    stored = [b"v", joined(PACKED, b"w"), b""]
    flags = np.array([False, True, False])
    page = Records.of(np.arange(3, dtype=np.uint64), stored, [b"k"] * 3, np.arange(3), flags)
    (read,) = log_pb2.ScanResponse.FromString(b"".join(answers.protobuf_page(page))).pages
    assert (read.values, list(read.value_lengths)) == (b"vw", [1, 1, 0])
    assert (read.headers, list(read.header_lengths)) == (PACKED, [0, len(PACKED), 0])
    assert dict(log_pb2.RecordHeaders.FromString(read.headers).headers) == HEADERS
    (plain,) = log_pb2.ScanResponse.FromString(b"".join(answers.protobuf_page(page.cut(0, 1)))).pages
    assert (plain.values, list(plain.header_lengths)) == (b"v", [])


def test_the_hint_about_text_sees_the_value_without_its_headers() -> None:
    body = {"records": [{"key": base64.b64encode(b"k").decode(), "value": "user", "headers": {"a": "b"}}]}
    batch = records.parse(JSON, json.dumps(body).encode(), Settings()).records
    assert batch.value(0) == base64.b64decode("user")

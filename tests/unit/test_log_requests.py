"""Append requests by example: what each content type takes, and how what is wrong is named."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from coordinator.log import records
from coordinator.log.columns import ManyRecords
from coordinator.log.records import BESIDE_BYTES_MAX, PRODUCER_BYTES_MAX, PRODUCER_SEQ_MAX, WALK_BYTES_MIN, parse
from proto import log_pb2
from shared.errors import BadData, TooLarge
from shared.messages.log import KEY_BYTES_MAX
from shared.settings import Settings

SETTINGS = Settings(log_records_max=200, log_record_bytes_max=100, log_batch_bytes_max=10_000)
JSON, PROTO_JSON, PROTOBUF = "application/json", "application/protobuf+json", "application/protobuf"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body_of(count: int = 1, **beside: Any) -> bytes:
    record = {"key": b64(b"k"), "value": b64(b"v")}
    return json.dumps({"records": [record] * count, **beside}).encode()


def message(count: int = 1, **beside: Any) -> bytes:
    request = log_pb2.AppendRequest(**beside)
    for _ in range(count):
        added = request.records.add(value=b"v")
        added.key.value = b"k"
    return request.SerializeToString()


def rows(content_type: str, body: bytes) -> list[tuple[bytes, bytes]]:
    columns = parse(content_type, body, SETTINGS).records
    return [(columns.key(at), columns.value(at)) for at in range(len(columns))]


def test_the_content_type_is_one_of_three() -> None:
    with pytest.raises(BadData, match="Content-Type is 'text/plain'; it must be one of application/json, "):
        parse("text/plain", body_of(), SETTINGS)


@pytest.mark.parametrize("count", [1, 150])
@pytest.mark.parametrize("content_type", [JSON, PROTO_JSON, PROTOBUF])
def test_what_stands_beside_the_records_is_read_in_small_and_large_bodies(content_type: str, count: int) -> None:
    if content_type == PROTOBUF:
        plain, full = message(count), message(count, await_durable=True, producer_id="p", producer_seq=7)
    else:
        plain, full = body_of(count), body_of(count, awaitDurable=True, producerId="p", producerSeq=7)
    assert (len(plain) < WALK_BYTES_MIN) == (count == 1) or content_type == PROTOBUF
    read = parse(content_type, plain, SETTINGS)
    assert (read.count, read.durable, read.producer, read.producer_seq) == (count, False, "", 0)
    read = parse(content_type, full, SETTINGS)
    assert (read.count, read.durable, read.producer, read.producer_seq) == (count, True, "p", 7)
    assert (read.size_bytes, rows(content_type, full)) == (2 * count, [(b"k", b"v")] * count)


@pytest.mark.parametrize("beside", [BESIDE_BYTES_MAX, BESIDE_BYTES_MAX + 1])
def test_a_body_with_too_much_behind_its_records_is_left_to_the_general_reader(
    beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of(150)
    end = body.rindex(b"]")
    body = body[:end] + b"]" + b" " * (beside - 2) + b"}"
    general: list[int] = []
    reader = records._READERS[JSON]
    monkeypatch.setitem(records._READERS, JSON, lambda body: general.append(len(body)) or reader(body))
    assert parse(JSON, body, SETTINGS).count == 150
    assert bool(general) is (beside > BESIDE_BYTES_MAX)


def test_so_many_records_are_read_by_the_kernels_and_one_more_is_refused() -> None:
    for content_type, make in ((JSON, body_of), (PROTOBUF, message)):
        body = make(200) if content_type == JSON else make(200, producer_id="p" * 256, producer_seq=1)
        assert isinstance(parse(content_type, body, SETTINGS).records, ManyRecords)
        with pytest.raises(BadData, match="`records` holds 201 records; it may hold at most 200"):
            parse(content_type, make(201), SETTINGS)


def test_the_smallest_records_are_read_by_the_kernels_and_by_the_general_readers_alike() -> None:
    bare = json.dumps({"records": [{"key": "", "value": ""}] * 200}, separators=(",", ":")).encode()
    empty = log_pb2.AppendRequest()
    for _ in range(200):
        empty.records.add().key.value = b""
    for content_type, body in ((JSON, bare), (PROTOBUF, empty.SerializeToString())):
        assert rows(content_type, body) == [(b"", b"")] * 200


# Producers


@pytest.mark.parametrize("content_type", [JSON, PROTO_JSON])
@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"producerId": "p"}, "`producerSeq` is missing"),
        ({"producerSeq": 1}, "`producerId` is missing"),
        ({"producerId": "", "producerSeq": 0}, "`producerId` is missing"),
        (
            {"producerId": "p" * (PRODUCER_BYTES_MAX + 1), "producerSeq": 1},
            f"has {PRODUCER_BYTES_MAX + 1} bytes; it may have at most {PRODUCER_BYTES_MAX}",
        ),
        ({"producerId": "é" * (PRODUCER_BYTES_MAX // 2 + 1), "producerSeq": 1}, f"has {PRODUCER_BYTES_MAX + 2} bytes"),
        ({"producerId": "p", "producerSeq": -1}, "producerSeq|>= 0"),
        ({"producerId": "p", "producerSeq": PRODUCER_SEQ_MAX + 1}, "producerSeq|valid append request"),
    ],
)
@pytest.mark.parametrize("count", [1, 150])
def test_a_producer_has_an_id_and_a_number(content_type: str, beside: dict[str, Any], words: str, count: int) -> None:
    with pytest.raises(BadData, match=words):
        parse(content_type, body_of(count, **beside), SETTINGS)


@pytest.mark.parametrize("content_type", [JSON, PROTO_JSON])
@pytest.mark.parametrize(("producer", "seq"), [("p", 0), ("p" * PRODUCER_BYTES_MAX, PRODUCER_SEQ_MAX), ("é" * 128, 1)])
def test_the_largest_producers_are_taken(content_type: str, producer: str, seq: int) -> None:
    read = parse(content_type, body_of(producerId=producer, producerSeq=seq), SETTINGS)
    assert (read.producer, read.producer_seq) == (producer, seq)
    read = parse(PROTOBUF, message(producer_id=producer, producer_seq=seq), SETTINGS)
    assert (read.producer, read.producer_seq) == (producer, seq)


def test_a_number_past_the_largest_is_refused_in_protobuf_as_well() -> None:
    for count in (1, 800):
        body = message(count, producer_id="p", producer_seq=PRODUCER_SEQ_MAX + 1)
        with pytest.raises(BadData, match=f"must be between 0 and {PRODUCER_SEQ_MAX}"):
            parse(PROTOBUF, body, Settings())
    assert parse(PROTOBUF, message(producer_seq=5), SETTINGS).producer_seq == 0


@pytest.mark.parametrize(("given", "seq"), [("0", 0), ("17", 17), (str(PRODUCER_SEQ_MAX), PRODUCER_SEQ_MAX), (3, 3)])
def test_protojson_takes_integers_as_text(given: str | int, seq: int) -> None:
    assert parse(PROTO_JSON, body_of(producerId="p", producerSeq=given), SETTINGS).producer_seq == seq
    assert parse(PROTO_JSON, body_of(producer_id="p", producer_seq=given), SETTINGS).producer_seq == seq


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("x", "`.*producerSeq` is 'x'; it must be a whole number"),
        ("-1", "must be a whole number"),
        ("", "must be a whole number"),
        ("٣", "must be a whole number"),
        ("²", "must be a whole number"),
        (str(PRODUCER_SEQ_MAX + 1), "must be between 0 and"),
        (-1, "must be between 0 and"),
        (PRODUCER_SEQ_MAX + 1, "must be between 0 and"),
        (None, "`producerSeq` is missing"),
    ],
)
def test_protojson_refuses_what_is_no_number_of_a_batch(given: str | int | None, words: str) -> None:
    with pytest.raises(BadData, match=words):
        parse(PROTO_JSON, body_of(producerId="p", producerSeq=given), SETTINGS)


# ProtoJSON


def test_protojson_takes_null_snake_case_and_base64_of_any_kind() -> None:
    listed = [
        {"key": "-_g", "value": None},
        {"key": {"value": "aw"}, "value": "dg"},
        {"key": {}, "value": "dg=="},
        {"key": {"value": None}, "value": ""},
        {"key": "", "value": "+/g="},
    ]
    text = json.dumps({"records": listed, "await_durable": True, "producer_id": "p", "producer_seq": "9"}).encode()
    assert rows(PROTO_JSON, text) == [
        (b"\xfb\xf8", b""),
        (b"k", b"v"),
        (b"", b"v"),
        (b"", b""),
        (b"", b"\xfb\xf8"),
    ]
    read = parse(PROTO_JSON, text, SETTINGS)
    assert (read.durable, read.producer, read.producer_seq) == (True, "p", 9)
    read = parse(PROTO_JSON, body_of(awaitDurable=True, producer_id=None, producer_seq=None), SETTINGS)
    assert (read.durable, read.producer, read.producer_seq) == (True, "", 0)
    assert not parse(PROTO_JSON, body_of(awaitDurable=None, await_durable=False), SETTINGS).durable
    assert parse(PROTO_JSON, body_of(producer_seq=5, producerId="p"), SETTINGS).producer_seq == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"records":[{"key":"aw==","value":null},{"value":"dg=="}]}', r"`\$.records\[1\].key` is missing"),
        ('{"records":[{"key":null,"value":"dg=="}]}', r"`\$.records\[0\].key` is missing"),
        ('{"records":[{"key":"aw==","value":null},{"key":"a","value":""}]}', r"`\$.records\[1\].key` is not base64"),
        ('{"records":[{"key":"aw","value":"d"}]}', r"`\$.records\[0\].value` is not base64"),
        ('{"records":[{"key":"a w=","value":""}]}', r"`\$.records\[0\].key` is not base64"),
        ('{"records":[{"key":"ключ","value":""}]}', r"`\$.records\[0\].key` is not base64"),
        ('{"records":null}', "`records` is empty"),
        ("{}", "`records` is empty"),
        ('{"records":5}', "not a valid append request"),
        ('{"records":[],"more":1}', "not a valid append request"),
        ("\udcff", "the body is not"),
    ],
)
def test_protojson_names_the_field_that_is_wrong(text: str, words: str) -> None:
    with pytest.raises(BadData, match=words):
        parse(PROTO_JSON, text.encode("utf-8", "surrogateescape"), SETTINGS)


# JSON and protobuf


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"records":[]}', "`records` is empty; it must hold at least one record"),
        ("{}", "the body is not a valid append request"),
        ("", "the body is not a valid append request"),
        ('{"records":[{"key":"aw==","value":"dg==","x":1}]}', "the body is not a valid append request"),
        ('{"records":[{"key":{"value":"aw==","x":1},"value":"dg=="}]}', "the body is not a valid append request"),
        ('{"records":[{"key":"aw==","value":"dg=="}],"x":1}', "the body is not a valid append request"),
        ('{"records":[{"key":"aw=="}]}', "the body is not a valid append request"),
        ('{"records":[{"key":"aw==","value":"dg=="}],"await_durable":true}', "not a valid append request"),
        ('{"records":[{"key":"aw==","value":"dg=="}],"producerId":"\udcff"}', "the body is not"),
    ],
)
def test_json_is_the_interfaces_and_nothing_else(text: str, words: str) -> None:
    with pytest.raises(BadData, match=words):
        parse(JSON, text.encode("utf-8", "surrogateescape"), SETTINGS)


def test_a_key_may_be_an_object_with_a_value() -> None:
    text = b'{"records":[{"key":{"value":"aw=="},"value":"dg=="},{"key":"a2s=","value":""}]}'
    assert rows(JSON, text) == [(b"k", b"v"), (b"kk", b"")]


def test_protobuf_names_what_is_wrong() -> None:
    with pytest.raises(BadData, match="the body is not a protobuf AppendRequest"):
        parse(PROTOBUF, b"\xff", SETTINGS)
    with pytest.raises(BadData, match="`records` is empty"):
        parse(PROTOBUF, b"", SETTINGS)
    request = log_pb2.AppendRequest()
    request.records.add(value=b"v").key.value = b""
    assert rows(PROTOBUF, request.SerializeToString()) == [(b"", b"v")]
    request.records.add(value=b"v")
    with pytest.raises(BadData, match=r"`records\[1\].key` is missing"):
        parse(PROTOBUF, request.SerializeToString(), SETTINGS)


# Limits


def test_keys_and_values_have_so_many_bytes_and_the_longer_one_is_named() -> None:
    settings = Settings(log_records_max=200, log_record_bytes_max=100, log_batch_bytes_max=10 * KEY_BYTES_MAX)

    def request(*sizes: tuple[int, int]) -> bytes:
        listed = [{"key": b64(b"k" * key), "value": b64(b"v" * value)} for key, value in sizes]
        return json.dumps({"records": listed}).encode()

    assert parse(JSON, request((KEY_BYTES_MAX, 100)), settings).size_bytes == KEY_BYTES_MAX + 100
    assert parse(JSON, request((1, 100), (2, 100)), settings).size_bytes == 203
    with pytest.raises(BadData, match=rf"`records\[1\].key` has {KEY_BYTES_MAX + 1} bytes; .* most {KEY_BYTES_MAX}"):
        parse(JSON, request((1, 1), (KEY_BYTES_MAX + 1, 1)), settings)
    for rest in (0, 100):
        sizes = [(1, 100), (1, 1), (1, 101), (1, 102), *[(9, 9)] * rest]
        with pytest.raises(BadData, match=r"`records\[2\].value` has 101 bytes; it may have at most 100"):
            parse(JSON, request(*sizes), settings)


def test_a_batch_has_so_many_bytes() -> None:
    for count in (2, 100):
        settings = Settings(log_batch_bytes_max=2 * count)
        assert parse(JSON, body_of(count), settings).size_bytes == 2 * count
        settings = Settings(log_batch_bytes_max=2 * count - 1)
        with pytest.raises(TooLarge, match=f"holds {2 * count} bytes .* it may hold at most {2 * count - 1}"):
            parse(JSON, body_of(count), settings)

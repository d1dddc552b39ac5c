"""Append requests: the kernels' readers and the general ones answer the same, whatever comes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.log import records
from coordinator.log.columns import FEW_RECORDS, BatchRecords, FewRecords, ManyRecords, columns_of
from coordinator.log.records import Append
from loadtest.bench.log_load import json_body, keys_from, protobuf_body
from proto import log_pb2
from shared.errors import BadData, TriptychError
from shared.hashing import hash64, shard_of
from shared.log.blocks import block_of
from shared.settings import Settings

SETTINGS = Settings(log_records_max=12, log_record_bytes_max=40, log_batch_bytes_max=200)
JSON, PROTO_JSON, PROTOBUF = "application/json", "application/protobuf+json", "application/protobuf"

octets = st.binary(max_size=9) | st.sampled_from([b"", b"\0", b"\xff" * 41, b"x" * 40])


def both(content_type: str, body: bytes, settings: Settings = SETTINGS) -> tuple[Any, Any]:
    """What the general reader alone answers, and the walk before it."""
    smallest = records.WALK_BYTES_MIN
    answers = []
    try:
        for bytes_min in (1 << 40, 0):
            records.WALK_BYTES_MIN = bytes_min
            answers.append(outcome(lambda: records.parse(content_type, body, settings)))
    finally:
        records.WALK_BYTES_MIN = smallest
    return answers[0], answers[1]


def outcome(read: Callable[[], Append]) -> Any:
    try:
        append = read()
    except TriptychError as error:
        return type(error), str(error)
    return rows_of(append.records), append.durable, append.producer, append.producer_seq, append.size_bytes


def rows_of(columns: BatchRecords) -> list[tuple[bytes, bytes]]:
    return [(columns.key(at), columns.value(at)) for at in range(len(columns))]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


texts = octets.map(b64) | st.sampled_from(
    ["dh==", "dg=", "dg", "d", "====", "dg==dg==", "d-_g", "dg\n=", "ключ", "Zm9vYg=="]
)
keys = texts | texts.map(lambda text: {"value": text}) | st.sampled_from([None, 5, {}, {"value": "", "x": 1}])
plain = st.text(max_size=9) | st.sampled_from(
    ["", "user", "a/b", 'a "b"', "back\\slash", "line\n", "ключ", "€", "😀", "\x7f", "x" * 40, "é" * 21, "12345678"]
)
json_values = st.sampled_from(["", 5, 1.5, None, {"a": [1, "b c"]}, [], {"key": "x"}])
key_forms = st.fixed_dictionaries({}, optional={"key": keys, "keyText": plain})
value_forms = st.fixed_dictionaries({}, optional={"value": texts, "text": plain, "json": json_values})
mixed_record = st.tuples(key_forms, value_forms, st.booleans()).map(
    lambda forms: {**forms[0], **forms[1]} if forms[2] else {**forms[1], **forms[0]}
)
record = (
    st.fixed_dictionaries({"key": keys, "value": texts})
    | mixed_record
    | st.sampled_from(
        [{}, 5, {"key": "aw=="}, {"value": "aw==", "key": "aw==", "more": 1}, {"value": "dg==", "key": "aw=="}]
    )
)
beside = st.fixed_dictionaries(
    {},
    optional={
        "awaitDurable": st.sampled_from([True, False, "yes", None]),
        "producerId": st.sampled_from(["", "p", 'a"records":[', "\\", "ключ", "p" * 257]),
        "producerSeq": st.sampled_from([0, 7, -1, 1 << 63, "5"]),
        "unknown": st.just([]),
    },
)
good_record = st.fixed_dictionaries({"key": octets.map(b64), "value": octets.map(b64)}) | st.fixed_dictionaries(
    {"keyText": plain, "text": plain}
)
bodies = st.tuples(st.lists(good_record, max_size=13) | st.lists(record, max_size=4), beside, st.booleans())


def request_of(parts: tuple[list[Any], dict[str, Any], bool]) -> dict[str, Any]:
    listed, others, first = parts
    return {"records": listed, **others} if first else {**others, "records": listed}


@given(bodies, st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]), st.booleans())
def test_json_is_read_alike(
    parts: tuple[list[Any], dict[str, Any], bool], indent: int | None, separators: tuple[str, str], escaped: bool
) -> None:
    body = json.dumps(request_of(parts), indent=indent, separators=separators, ensure_ascii=escaped).encode()
    for content_type in (JSON, PROTO_JSON):
        general, walked = both(content_type, body)
        assert walked == general


GOOD = (
    b'{"records":[{"key":"aw==","value":"dg=="},{"value":"dg==","key":{"value":"aw=="}},'
    b'{"keyText":"\xc3\xa9","text":"plain"}],"awaitDurable":true}'
)


@given(
    st.integers(0, len(GOOD)),
    st.integers(0, len(GOOD)),
    st.binary(max_size=2) | st.sampled_from(list(b'{}[]",:= =')).map(lambda c: bytes([c])),
)
@example(len(GOOD), len(GOOD), b',"records":[]}')
@example(len(GOOD) - 1, len(GOOD), b',"records":[]}')
@example(len(GOOD) - 1, len(GOOD), b',"rec\\u006frds":[]}')
@example(0, 0, b"\xef\xbb\xbf")
@example(0, 1, b'{"x":{')
def test_damaged_json_is_read_alike(start: int, end: int, middle: bytes) -> None:
    general, walked = both(JSON, GOOD[:start] + middle + GOOD[end:])
    assert walked == general


@given(st.binary(max_size=40))
def test_any_bytes_are_read_alike(body: bytes) -> None:
    for content_type in (JSON, PROTOBUF):
        general, walked = both(content_type, body)
        assert walked == general


messages = st.lists(
    st.tuples(octets, octets, st.sampled_from(["both", "empty key", "no key", "no value"])), max_size=13
)


def protobuf_request(rows: list[tuple[bytes, bytes, str]], durable: bool, producer: str, seq: int) -> bytes:
    message = log_pb2.AppendRequest(await_durable=durable, producer_id=producer, producer_seq=seq)
    for key, value, kind in rows:
        added = message.records.add()
        if kind != "no key":
            added.key.CopyFrom(log_pb2.Key(value=b"" if kind == "empty key" else key))
        if kind != "no value":
            added.value = value
    return message.SerializeToString()


@given(
    messages, st.booleans(), st.sampled_from(["", "p", "p" * 257]), st.sampled_from([0, 3, (1 << 64) - 1]), st.data()
)
def test_protobuf_is_read_alike(
    rows: list[tuple[bytes, bytes, str]], durable: bool, producer: str, seq: int, data: st.DataObject
) -> None:
    body = protobuf_request(rows, durable, producer, seq)
    general, walked = both(PROTOBUF, body)
    assert walked == general
    at = data.draw(st.integers(0, len(body)))
    other = body[:at] + data.draw(st.binary(max_size=2)) + body[data.draw(st.integers(at, len(body))) :]
    general, walked = both(PROTOBUF, other)
    assert walked == general


@given(st.binary(max_size=6) | st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"\xc3\xa9\xf0\x9f\x98\x80 and eight more plain characters")
@example(b"\xed\xa0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"\xe0\x80\x80")
@example(b"\xc3")
def test_text_of_any_bytes_is_read_alike(text: bytes) -> None:
    general, walked = both(JSON, b'{"records":[{"keyText":"k","text":"' + text + b'"}]}')
    assert walked == general


def text_body(names: list[bytes]) -> bytes:
    rows = [{"keyText": name.decode(), "text": f"{i} of the values: é"} for i, name in enumerate(names)]
    return json.dumps({"records": rows, "awaitDurable": True}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("content_type", "make"), [(JSON, json_body), (JSON, text_body), (PROTO_JSON, text_body), (PROTOBUF, protobuf_body)]
)
def test_what_clients_send_is_read_by_the_kernels(
    content_type: str, make: Callable[[list[bytes]], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = keys_from(0, 1000)
    body = make(names)
    expected, _ = both(content_type, body, Settings())
    monkeypatch.setattr(records, "_READERS", {content_type: lambda body: pytest.fail("read by the general reader")})
    append = records.parse(content_type, body, Settings())
    assert isinstance(append.records, ManyRecords)
    assert outcome(lambda: append) == expected
    assert (append.count, [key for key, _ in expected[0]], append.durable) == (1000, names, True)


lists = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=20)), min_size=1, max_size=3 * FEW_RECORDS)


@given(lists, st.integers(1, 9), st.binary(max_size=2))
def test_few_and_many_records_are_cut_and_chosen_alike(
    rows: list[tuple[bytes, bytes]], shards: int, prefix: bytes
) -> None:
    columns = columns_of([key for key, _ in rows], [value for _, value in rows])
    assert isinstance(columns, FewRecords if len(rows) <= FEW_RECORDS else ManyRecords)
    assert rows_of(columns) == rows
    assert columns.size_bytes == sum(len(key) + len(value) for key, value in rows)
    if isinstance(columns, ManyRecords):
        assert columns.longest_key == max(len(key) for key, _ in rows)
        assert columns.longest_value == max(len(value) for _, value in rows)
    blocks = {shard: bytes(block) for shard, block in columns.blocks(shards).items()}
    expected: dict[int, list[tuple[int, int, bytes, bytes]]] = {}
    for at, (key, value) in enumerate(rows):
        expected.setdefault(shard_of(key, shards), []).append((hash64(key), at, key, value))
    assert blocks == {shard: block_of(own) for shard, own in expected.items()}
    assert list(columns.having(prefix)) == [at for at, (key, _) in enumerate(rows) if key.startswith(prefix)]


@given(lists, st.sets(st.binary(max_size=12), min_size=1))
def test_records_of_followed_keys_are_among_those_found(rows: list[tuple[bytes, bytes]], followed: set[bytes]) -> None:
    columns = columns_of([key for key, _ in rows], [value for _, value in rows])
    columns.blocks(3)
    followed = followed | {rows[0][0]}
    hashes = np.sort(np.array([hash64(key) for key in followed], np.uint64))
    found = [at for at in columns.among(hashes) if columns.key(at) in followed]
    assert found == [at for at, (key, _) in enumerate(rows) if key in followed]


FORMS = (
    *('"key": "dXNlcg=="', '"keyText": "user"', '"keyText": "\\u00e4{"', '"key": {"value": "dXNlcg=="}', '"key": ""'),
    *(
        '"value": "aGVsbG8="',
        '"text": "hello"',
        '"text": ""',
        '"json": {"a": 1}',
        '"tombstone": true',
        '"tombstone": false',
    ),
    *(
        '"headers": {"a": "b"}',
        '"headers": {}',
        '"contentType": "text/plain"',
        '"other": 1',
        '"key": 7',
        '"value": "?"',
    ),
    *(f'"text": "{"v" * 41}"', f'"keyText": "{"k" * 65_536}"', '"text": "\\ud800"'),
)
BESIDE = ("", ', "awaitDurable": true', ', "producerId": "p", "producerSeq": 1', ', "producerSeq": 1', ', "other": 1')


@given(st.lists(st.sampled_from(FORMS), max_size=3), st.sampled_from(BESIDE), st.integers(0, 2))
@example(['"keyText": "user"', '"text": "hello"'], BESIDE[1], 1)
@example(['"key": "dXNlcg=="', '"value": "aGVsbG8="'], BESIDE[0], 1)
def test_one_plain_record_is_read_alike(forms: list[str], beside: str, count: int) -> None:
    body = f'{{"records": [{", ".join(["{" + ", ".join(forms) + "}"] * count)}]{beside}}}'.encode()
    batch = records.one_plain(body, SETTINGS)
    expected = outcome(lambda: records.parse(JSON, body, SETTINGS))
    if batch is not None:
        assert outcome(lambda: batch) == expected
        assert batch.records.blocks(4) == records.parse(JSON, body, SETTINGS).records.blocks(4)
    usual = len(forms) == 2 and forms[0] in FORMS[:3] and forms[1] in FORMS[5:8] and beside in BESIDE[:2] and count == 1
    assert batch is not None or not usual or forms[0] == FORMS[2], "a brace in a text is left to the general reader"


def numbered(digits: str) -> Any:
    text = json.dumps({"records": [{"key": "aw=="}], "producerId": "p", "producerSeq": digits})
    return outcome(lambda: records.parse(PROTO_JSON, text.encode(), SETTINGS))


@pytest.mark.parametrize(("digits", "number"), [("7", 7), ("0007", 7), ("0" * 5000, 0), (str(2**63 - 1), 2**63 - 1)])
def test_a_producer_s_number_may_be_a_text_with_leading_zeros(digits: str, number: int) -> None:
    assert numbered(digits)[3] == number


@pytest.mark.parametrize("digits", [str(2**63), "1" + "0" * 5000, "x" * 5000, "", "-1", "\u0661"])
def test_a_producer_s_number_that_is_none_is_named_in_short(digits: str) -> None:
    kind, text = numbered(digits)
    assert kind is BadData and text.startswith("`$.producerSeq` is ") and len(text) < 200


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"{{", b'{"records": [{]}', b'{"records": [{"keyText": "\xff"}]}', b"[[{{"]
)
def test_what_is_no_request_is_left_to_the_general_reader(body: bytes) -> None:
    assert records.one_plain(body, SETTINGS) is None

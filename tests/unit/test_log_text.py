"""Plain text and JSON values in appends and in answers of the log."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from coordinator.api.log import answers, cursors
from coordinator.api.log.answers import Encoding, Form
from coordinator.log import records
from coordinator.log.columns import columns_of
from coordinator.log.record_forms import hints
from shared.errors import BadData
from shared.log.headers import joined, split
from shared.settings import Settings

JSON, PROTO_JSON = "application/json", "application/protobuf+json"
BOTH_TYPES = pytest.mark.parametrize("content_type", [JSON, PROTO_JSON])


def parsed(content_type: str, *rows: dict[str, Any] | str) -> list[tuple[bytes, bytes]]:
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    batch = records.parse(content_type, f'{{"records":[{",".join(texts)}]}}'.encode(), Settings()).records
    return [(batch.key(at), batch.value(at)) for at in range(len(batch))]


# Appends


@BOTH_TYPES
def test_text_is_stored_as_utf8(content_type: str) -> None:
    rows = [{"keyText": "ключ", "text": 'a "b"\n'}, {"keyText": "", "text": ""}, {"keyText": "user", "value": "/w=="}]
    expected = [("ключ".encode(), b'a "b"\n'), (b"", b""), (b"user", b"\xff")]
    assert parsed(content_type, *rows) == expected


@BOTH_TYPES
def test_a_json_value_is_stored_compact_and_otherwise_as_it_was_sent(content_type: str) -> None:
    sent = ' { "b" : 1.0 ,\n "a": [ 2e5, 12345678901234567890123, "x  \\u00e9 \\/" ] } '
    kept = b'{"b":1.0,"a":[2e5,12345678901234567890123,"x  \\u00e9 \\/"]}'
    assert parsed(content_type, f'{{"keyText":"k","json":{sent}}}') == [(b"k", kept)]
    for value in (b"null", b"0", b'"text"', b"[]", b"false"):
        assert parsed(content_type, f'{{"keyText":"k","json":{value.decode()}}}') == [(b"k", value)]


@BOTH_TYPES
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"key": "aw==", "keyText": "k", "text": ""}, r"`\$.records\[1\]` has `key` and `keyText`"),
        ({"key": {"value": "aw=="}, "keyText": "k", "text": ""}, r"`\$.records\[1\]` has `key` and `keyText`"),
        ({"text": ""}, r"`\$.records\[1\].key` is missing: give `key` \(base64\) or `keyText`"),
        ({"keyText": "k", "text": "", "value": ""}, r"`\$.records\[1\]` has more than one of"),
        ({"keyText": "k", "json": 1, "value": ""}, r"`\$.records\[1\]` has more than one of"),
        ({"keyText": "k", "json": None, "text": ""}, r"`\$.records\[1\]` has more than one of"),
        ({"keyText": "k", "text": 5}, r"\$.records\[1\].text"),
        ({"key": "ord ers", "text": ""}, "base64.*; plain text goes into `keyText` and `text`"),
        ({"keyText": "k" * 65_536, "text": ""}, r"`records\[1\].key` has 65536 bytes"),
    ],
)
def test_a_record_has_one_key_and_one_value(content_type: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        parsed(content_type, {"keyText": "good", "text": ""}, row)


def test_a_record_without_a_value_is_refused_in_json_and_empty_in_protojson() -> None:
    with pytest.raises(BadData, match=r"`\$.records\[0\].value` is missing: give `value` \(base64\), `text` or `json`"):
        parsed(JSON, {"keyText": "k"})
    assert parsed(PROTO_JSON, {"keyText": "k"}) == [(b"k", b"")]


@BOTH_TYPES
@pytest.mark.parametrize("value", ["[" * 60_000 + "]" * 60_000, "[" * 5_000 + "]" * 5_000])
def test_a_json_value_that_is_nested_too_deeply_is_refused(content_type: str, value: str) -> None:
    with pytest.raises(BadData, match="nested too deeply"):
        parsed(content_type, f'{{"keyText":"k","json":{value}}}')


@BOTH_TYPES
@pytest.mark.parametrize("value", [b"nul", b"{a:1}", b"[1,]", b'"\xff"', b'{"a":"\xed\xa0\x80"}'])
def test_what_is_not_json_in_utf8_is_refused(content_type: str, value: bytes) -> None:
    with pytest.raises(BadData):
        records.parse(content_type, b'{"records":[{"keyText":"k","json":' + value + b"}]}", Settings())


def test_a_large_body_names_the_record_by_its_place_in_the_body() -> None:
    rows = [{"keyText": "k", "text": 'with "quotes"' * 20}] * 500
    with pytest.raises(BadData, match=r"\$.records\[500\]"):
        parsed(JSON, *rows, {"keyText": "k"})
    assert parsed(JSON, *rows)[-1] == (b"k", b'with "quotes"' * 20)


# Hints


@pytest.mark.parametrize("word", ["user", "orders/1", "userName", "Username", "ABCD", "inbox/an", "customer"])
def test_a_word_that_was_taken_as_base64_is_worth_a_hint(word: str) -> None:
    octets = base64.b64decode(word)
    (hint,) = hints(columns_of([b"k", octets], [b"", b""]))
    assert hint.startswith(f"`$.records[1].key` is '{word}', base64 of {len(octets)} bytes that are not UTF-8 (")
    assert hint.endswith("if the text was meant, send it as `keyText`")
    (hint,) = hints(columns_of([b"k"], [octets]))
    assert "`$.records[0].value`" in hint and hint.endswith("send it as `text`")


@pytest.mark.parametrize(
    "octets", [b"plain", "ключ".encode(), b"", b"\xff", bytes(range(128, 160)), b"\xba\xc7\xab" * 50]
)
def test_text_and_what_does_not_look_like_a_word_get_no_hint(octets: bytes) -> None:
    assert hints(columns_of([octets], [octets])) == []


def test_of_many_records_only_the_first_is_looked_at() -> None:
    octets = base64.b64decode("user")
    assert len(hints(columns_of([octets] + [b"k"] * 99, [b""] * 100))) == 1
    assert hints(columns_of([b"k"] * 99 + [octets], [b""] * 100)) == []


# Answers


def record_of(key: bytes, value: bytes, encoding: Encoding) -> Any:
    (record,) = json.loads(b"[" + answers.json_records([(7, key, value, 0)], Form(encoding)) + b"]")
    assert record.pop("sequence") == 7
    return record


def test_text_is_shown_as_text_and_other_bytes_as_base64() -> None:
    for encoding in (Encoding.TEXT, Encoding.JSON):
        assert record_of("ключ".encode(), b'a "b"\n', encoding) == {"keyText": "ключ", "text": 'a "b"\n'}
        assert record_of(b"\xff", b"v", encoding) == {"key": "/w==", "text": "v"}
        assert record_of(b"k", b"\xff", encoding) == {"keyText": "k", "value": "/w=="}
        assert record_of(b"", b"", encoding) == {"keyText": "", "text": ""}
    assert record_of(b"k", b"v", Encoding.BASE64) == {"key": "aw==", "value": "dg=="}
    assert record_of(b"k", b'{"a":1}', Encoding.TEXT) == {"keyText": "k", "text": '{"a":1}'}


@pytest.mark.parametrize("value", [b'{"a": [1, "b"]}', b"null", b"0", b'" "', b" [1,\r\n2] ", b'"\\u00e9"'])
def test_a_value_that_is_json_stands_as_it_is(value: bytes) -> None:
    assert record_of(b"k", value, Encoding.JSON) == {"keyText": "k", "json": json.loads(value)}


@pytest.mark.parametrize("value", [b"", b"{", b"NaN", b"01", b"1 2", b'"\x01"', b'"\\ud800"', b"[" * 200 + b"]" * 200])
def test_a_value_that_is_not_json_or_nested_too_deeply_is_text(value: bytes) -> None:
    assert record_of(b"k", value, Encoding.JSON) == {"keyText": "k", "text": value.decode()}


def test_values_with_many_brackets_that_are_not_deep_are_json() -> None:
    value = json.dumps([[1], {"a": "[" * 200}] * 100).encode()
    assert record_of(b"k", value, Encoding.JSON)["json"] == json.loads(value)


@pytest.mark.parametrize("value", [b'{\n"a":\r1\r\n}', b"a\nb\r\n\r\nc"])
def test_no_value_breaks_the_lines_of_an_event(value: bytes) -> None:
    text = answers.event((3, b"k\n", value, 0), Form(Encoding.JSON))
    head, data, *rest = text.split(b"\n")
    assert (head, rest) == (b"id: 3", [b"", b""]) and b"\r" not in data
    record = json.loads(data.removeprefix(b"data: "))
    assert record["keyText"] == "k\n" and ("json" in record or record["text"].encode() == value)


def test_a_record_in_text_has_its_time_if_that_is_known() -> None:
    for encoding in Encoding:
        text = answers.json_records([(7, b"k", b"{}", 1_700_000_000_123)], Form(encoding))
        (record,) = json.loads(b"[" + text + b"]")
        assert record["timeMs"] == 1_700_000_000_123
        assert "timeMs" not in record_of(b"k", b"{}", encoding)


def cut(value: bytes, encoding: Encoding, value_bytes: int) -> Any:
    (record,) = json.loads(b"[" + answers.json_records([(7, b"k", value, 0)], Form(encoding, value_bytes)) + b"]")
    return {name: record[name] for name in ("value", "text", "json", "valueBytes") if name in record}


def test_of_a_long_value_only_its_beginning_is_sent_with_its_length() -> None:
    assert cut(b"abcdef", Encoding.BASE64, 3) == {"value": "YWJj", "valueBytes": 6}
    assert cut(b"abcdef", Encoding.TEXT, 0) == {"text": "", "valueBytes": 6}
    assert cut(b"abc", Encoding.TEXT, 3) == {"text": "abc"}
    assert cut(b'{"a":1}', Encoding.JSON, 7) == {"json": {"a": 1}}
    assert cut(b"[1,2,3]", Encoding.JSON, 3) == {"text": "[1,", "valueBytes": 7}
    assert cut(split(joined(b"", b"abcdef")), Encoding.TEXT, 2) == {"text": "ab", "valueBytes": 6}


def test_text_is_not_cut_within_a_character() -> None:
    assert cut("ключ".encode(), Encoding.TEXT, 3) == {"text": "к", "valueBytes": 8}
    assert cut(b"ab\xffcd", Encoding.TEXT, 3) == {"value": "YWL/", "valueBytes": 5}


def test_the_encoding_is_one_of_three() -> None:
    assert answers.encoding({}) == Encoding.BASE64
    assert [answers.encoding({"encoding": name}) for name in ("base64", "text", "json")] == list(Encoding)
    with pytest.raises(BadData, match="parameter 'encoding' is 'TEXT'; it must be one of base64, text, json"):
        answers.encoding({"encoding": "TEXT"})


# Cursors


def test_a_position_names_its_key_in_one_form() -> None:
    body = b'{"positions":[{"keyText":"\xd0\xba","sequence":5},{"key":"aw==","sequence":6}]}'
    assert [move.key for move in cursors._moves(cursors._positions(body))[0]] == ["к".encode(), b"k"]
    for given, keys in (("neither", {}), ("both", {"key": "aw==", "keyText": "k"})):
        body = msgspec.json.encode({"positions": [{"sequence": 5, **keys}]})
        with pytest.raises(BadData, match=rf"`positions\[0\]` has {given} of `key` \(base64\) and `keyText`"):
            cursors._moves(cursors._positions(body))

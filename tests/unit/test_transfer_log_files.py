"""Records of the log in files: the batches that an import appends."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from coordinator.transfer import log_files
from coordinator.transfer.arrow import library
from coordinator.transfer.log_files import batches, records_of_batch, records_of_lines

Records = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "BATCH_RECORDS", 50)
    monkeypatch.setattr(log_files, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(log_files, "BODY_BYTES", 40_000, raising=False)


def sizes(found: list[Records]) -> list[int]:
    return [len(json.dumps(batch)) for batch in found]


@pytest.mark.parametrize(
    "record",
    [
        {"keyText": "k", "text": "漢" * 300},
        {"keyText": "k", "text": "😀" * 300},
        {"keyText": "k", "text": "\0" * 300},
        {"keyText": "漢" * 300, "text": ""},
        {"keyText": "k", "text": "", "headers": {"trace": "t" * 2000}},
        {"keyText": "k", "text": "", "contentType": "t" * 2000},
    ],
)
def test_no_request_is_larger_than_the_server_takes(record: dict[str, Any]) -> None:
    records = [record] * 200
    found = list(batches(records))
    assert [own for batch in found for own in batch] == records
    assert max(sizes(found)) <= 40_000
    assert len(found) <= 100, "they still are batches"


def test_a_record_that_no_request_can_have_is_sent_alone() -> None:
    large = {"keyText": "k", "text": "漢" * 9000}
    small = {"keyText": "k", "text": "漢"}
    assert list(batches([small, large, small])) == [[small], [large], [small]]


def test_a_text_beside_a_large_one_stays_in_its_request() -> None:
    """The last record of a batch is counted without its text: that is how batches have always been numbered."""
    records = [{"keyText": "k", "text": "a" * 9_000}, {"keyText": "k", "text": "b" * 9_000}]
    assert [len(batch) for batch in batches(records)] == [2]


def test_batches_that_a_server_takes_begin_where_those_of_earlier_releases_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "BODY_BYTES", 100_000)
    chance = random.Random(1)
    forms = [
        lambda size: {"key": "a2V5", "value": "A" * size},
        lambda size: {"keyText": "k", "text": "ü" * size, "headers": {"h": "v"}},
        lambda size: {"keyText": "k", "json": {"text": "ü" * (size // 8)}},
        lambda size: {"key": "a2V5", "tombstone": True},
    ]
    records = [chance.choice(forms)(chance.choice((10, 300, 3000))) for _ in range(1000)]
    found = list(batches(records))
    assert 40_000 < max(sizes(found)) <= 100_000
    begins, size = [0], 0
    for at, record in enumerate(records):
        own = len(json.dumps(record)) if "json" in record else len(record.get("key", "")) + len(record.get("value", ""))
        if at > begins[-1] and (at - begins[-1] == 50 or size + own > 10_000):
            begins.append(at)
            size = 0
        size += own + len(record.get("text", "")) + 100
    assert [sum(map(len, found[:n])) for n in range(len(found))] == begins


GOOD = b'{"key":{"value":"aw=="},"text":"t"}\n'


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"keyText": "k", "value": 5}, "`value` is 5, which is no text"),
        ({"keyText": "k", "value": None}, "`value` is null, which is no text"),
        ({"keyText": "k", "text": 1.5}, "`text` is 1.5, which is no text"),
        ({"keyText": "k", "text": {"a": 1}}, '`text` is {"a": 1}, which is no text'),
        ({"key": 7, "text": "t"}, "`key` is 7, which is no text"),
        ({"keyText": ["k"], "text": "t"}, r"`keyText` is \[\"k\"\], which is no text"),
    ],
)
def test_a_record_whose_key_or_value_is_no_text_is_named_by_its_line(record: dict[str, Any], why: str) -> None:
    lines = [GOOD, b"\n", json.dumps(record).encode()]
    with pytest.raises(ValueError, match=f"line 3 is no record: its {why}"):
        list(batches(records_of_lines(lines)))


def test_a_line_of_too_many_levels_is_no_json() -> None:
    with pytest.raises(ValueError, match="line 2 is no JSON: maximum recursion depth"):
        list(records_of_lines([GOOD, b'{"keyText":"k","json":' + b"[" * 100_000]))


def test_a_tombstone_needs_no_value() -> None:
    assert list(records_of_lines([b'{"keyText":"k","tombstone":true,"value":null}'])) == [
        {"keyText": "k", "tombstone": True}
    ]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": [1], "value": ["v"]}, "'key' has 1;"),
        ({"key": [None, "k"], "value": ["v", "v"]}, "'key' has None;"),
        ({"key": ["k"], "value": [1.5]}, r"'value' has 1\.5;"),
    ],
)
def test_a_column_of_records_without_bytes_or_texts_is_named(columns: dict[str, list[Any]], why: str) -> None:
    with pytest.raises(ValueError, match=f"the column {why} it must have bytes or texts"):
        list(records_of_batch(library().RecordBatch.from_pydict(columns)))


@pytest.mark.parametrize("headers", [5, "x", [1]])
def test_headers_of_records_that_are_no_maps_are_named(headers: Any) -> None:
    batch = library().RecordBatch.from_pydict({"key": ["k"], "value": ["v"], "headers": [headers]})
    with pytest.raises(ValueError, match=r"the column 'headers' has .*; it must have maps of texts"):
        list(records_of_batch(batch))

"""Bodies of the log: appends in three content types, by every reader that may get them, and cursors."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from coordinator.api.log import cursors
from coordinator.headers.negotiation import JSON, PROTOBUF, PROTOBUF_JSON
from coordinator.log import records
from coordinator.log.records import Append
from proto import log_pb2
from shared.errors import BadData, TooLarge
from shared.log import blocks as log_blocks
from shared.settings import Settings
from tests.fuzz.target import Target

SETTINGS = Settings(log_records_max=50)
SHARDS = 3


def _read(content_type: str, data: bytes) -> None:
    """The readers of small, of usual and of large bodies find the same records, or refuse alike."""
    outcomes = {
        "general": _outcome(lambda: records._READERS[content_type](data)),
        "sliced": _outcome(lambda: records._SLICED_READERS[content_type](data, SETTINGS)),
    }
    general, sliced = outcomes["general"], outcomes["sliced"]
    if isinstance(general, list) and len(general) <= SETTINGS.log_records_max and isinstance(sliced, list):
        assert general == sliced, f"the general reader has {general}, the reader of large bodies {sliced}"
    walked = records._WALKS[content_type](data, SETTINGS)
    if walked is not None:
        seen = [(walked.records.key(at), walked.records.value(at)) for at in range(walked.count)]
        assert seen == general, f"the kernel has {seen}, the general reader {general}"
    append = records.parse(content_type, data, SETTINGS)
    _check_blocks(append)


def _outcome(read: Callable[[], Any]) -> list[tuple[bytes, bytes]] | str:
    try:
        lists = read()
    except (BadData, TooLarge) as error:
        return str(error)
    return list(zip(lists.keys, lists.values, strict=True))


def _check_blocks(append: Append) -> None:
    count = 0
    for block in append.take_blocks(SHARDS).values():
        halves = np.frombuffer(block, np.uint32).copy()
        blocks, held, _ = log_blocks.measure(halves, 0, len(halves) // 2)
        assert blocks == 1, f"a block is measured as {blocks} blocks"
        count += held
    assert count == append.count, f"the blocks have {count} records, the batch {append.count}"


def _cursors(data: bytes) -> None:
    small = _moves(lambda: cursors._positions(data))
    large = _moves(lambda: cursors._sliced_positions(data))
    if not isinstance(small, str) and not isinstance(large, str):
        assert small == large, f"a small body has {small}, a large one {large}"


def _moves(read: Callable[[], Any]) -> object:
    try:
        return cursors._moves(read())
    except (BadData, TooLarge) as error:
        return str(error)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def json_bodies() -> Iterator[bytes]:
    few = [{"key": _text(b"k%d" % i), "value": _text(b"v" * i)} for i in range(3)]
    yield json.dumps({"records": few}).encode()
    yield json.dumps({"records": few[:1], "awaitDurable": True, "producerId": "p", "producerSeq": 7}).encode()
    yield b'{"awaitDurable":false,"records":[{"key":{"value":"aw=="},"value":""}]}'
    yield b'{"records":[{"keyText":"k","tombstone":true},{"key":"aw==","tombstone":true,"headers":{"a":"b"}}]}'
    yield b'{"records":[{"keyText":"k","text":"\xc3\xa9"},{"json":{"a": [1, "b"]},"keyText":"\\u00e9"}]}'
    yield b'{"await_durable":null,"records":[{"key":"aw","value":null}],"producer_id":"p","producer_seq":"8"}'


def _proto_bodies() -> Iterator[bytes]:
    request = log_pb2.AppendRequest(await_durable=True, producer_id="p", producer_seq=3)
    for i in range(3):
        request.records.add(key=log_pb2.Key(value=b"k%d" % i), value=b"v" * i)
    yield request.SerializeToString()
    yield log_pb2.AppendRequest(records=[log_pb2.Record(key=log_pb2.Key(), value=b"x")]).SerializeToString()
    yield log_pb2.AppendRequest(records=[log_pb2.Record(key=log_pb2.Key(), tombstone=True)]).SerializeToString()


_BASE64 = st.binary(max_size=6).map(_text) | st.sampled_from(("aw", "a_-=", "====", "\u00e9", "a\\/b"))
_TEXT = st.text(max_size=6) | st.sampled_from(("user", "\u00e9", 'a"b', "a\\b"))
_ODD: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.text(max_size=3) | st.just([]) | st.just({})
)


def json_strategy() -> st.SearchStrategy[bytes]:
    keys = _BASE64 | _BASE64.map(lambda text: {"value": text}) | _ODD
    record = st.fixed_dictionaries(
        {},
        optional={"key": keys, "value": _BASE64 | _ODD, "other": _ODD, "keyText": _TEXT, "text": _TEXT, "json": _ODD}
        | {"tombstone": st.booleans() | _ODD, "headers": _ODD, "contentType": _ODD},
    )
    usual = st.fixed_dictionaries({"key": _BASE64, "value": _BASE64}) | st.fixed_dictionaries(
        {"keyText": _TEXT, "text": _TEXT}
    )
    request = st.fixed_dictionaries(
        {"records": st.lists(usual, max_size=4) | st.lists(usual | record, max_size=4) | _ODD},
        optional=dict.fromkeys(
            ("awaitDurable", "producerId", "producerSeq", "producer_id", "producer_seq", "await_durable"), _ODD
        ),
    )
    spaces = st.sampled_from(((",", ":"), (", ", ": "), ("\n,\t", " :\r")))
    return st.tuples(request, spaces).map(lambda pair: json.dumps(pair[0], separators=pair[1]).encode())


def _positions() -> Iterator[bytes]:
    yield b'{"positions":[{"keyText":"k","sequence":1}]}'
    yield b'{"positions":[{"key":"aw==","sequence":5},{"key":"","sequence":0,"expected":null}]}'


_TOKENS = (
    "records",
    "key",
    "value",
    "keyText",
    "text",
    "json",
    "tombstone",
    "awaitDurable",
    "producerId",
    "producerSeq",
    "null",
    "true",
    "\\u0000",
    "\\/",
)

TARGETS = [
    Target("log-append-json", partial(_read, JSON), json_bodies, json_strategy, tokens=_TOKENS),
    Target("log-append-protojson", partial(_read, PROTOBUF_JSON), json_bodies, json_strategy, tokens=_TOKENS),
    Target("log-append-protobuf", partial(_read, PROTOBUF), _proto_bodies),
    Target("log-cursors", _cursors, _positions, tokens=("positions", "key", "keyText", "sequence", "expected", "null")),
]

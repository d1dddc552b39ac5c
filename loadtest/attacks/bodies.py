"""Attacks by large bodies of tiny things: 63 MB each, three at once."""

from __future__ import annotations

import snappy

from loadtest.attacks.sending import Request
from loadtest.attacks.target import Target
from loadtest.harness.remote_write_bodies import HEADERS as REMOTE_WRITE
from loadtest.harness.remote_write_bodies import body as remote_write_body

BODY_BYTES = 63 << 20
INFLATED_BYTES = 255 << 20
"""Of the bodies of remote write, which come compressed."""
APPEND, UPSERT, DELETE, SEARCH = (
    "/api/v1/log/append",
    "/api/v1/vector/write",
    "/api/v1/vector/delete",
    "/api/v1/vector/search",
)
WRITE = "/api/v1/write"
JSON, PROTO_JSON, PROTOBUF = "application/json", "application/protobuf+json", "application/protobuf"


def _post(path: str, body: bytes, kind: str) -> Request:
    return Request("POST", path, body, {"Content-Type": kind})


def _repeated(begin: bytes, item: bytes, end: bytes, size: int = BODY_BYTES) -> bytes:
    """`begin`, then `item` and commas up to that size, then `end`."""
    count = (size - len(begin) - len(end)) // (len(item) + 1)
    return begin + (item + b",") * (count - 1) + item + end


def _filled(item: bytes, size: int = BODY_BYTES) -> bytes:
    return item * (size // len(item))


def records(_: Target) -> list[Request]:
    return [
        _post(APPEND, _repeated(b'{"records":[', b'{"key":"","value":""}', b"]}"), JSON),
        _post(APPEND, _repeated(b'{"records":[', b"{}", b"]}"), PROTO_JSON),
        _post(APPEND, _filled(b"\x0a\x00"), PROTOBUF),
    ]


def vectors(_: Target) -> list[Request]:
    tiny = b'{"id":"a","attributes":{"vector":[1]}}'
    return [
        _post(UPSERT, _repeated(b'{"upsertVectors":[', tiny, b"]}"), JSON),
        _post(UPSERT, _filled(b"\x0a\x00"), PROTOBUF),
        _post(DELETE, _repeated(b'{"ids":[', b'"a"', b"]}"), JSON),
    ]


def components(_: Target) -> list[Request]:
    """Few vectors of many tiny numbers, a search with millions of components, and ProtoJSON."""
    numbers = _repeated(b"[", b"1", b"]", BODY_BYTES - 100)
    return [
        _post(UPSERT, b'{"upsertVectors":[{"id":"a","attributes":{"vector":' + numbers + b"}}]}", JSON),
        _post(SEARCH, b'{"k":1,"vector":' + numbers + b"}", JSON),
        _post(SEARCH, b'{"k":1,"vectors":' + _repeated(b"[", b"[]", b"]", BODY_BYTES - 100) + b"}", PROTO_JSON),
    ]


def series(_: Target) -> list[Request]:
    """Millions of series with one label and one sample, of empty series, of empty entries of metadata."""
    tiny = b"".join(remote_write_body([({"__name__": f"a{n:04d}"}, [(1, 1.0)])]) for n in range(10_000))
    bodies = (_filled(tiny, INFLATED_BYTES), _filled(b"\x0a\x00", INFLATED_BYTES), _filled(b"\x1a\x00", INFLATED_BYTES))
    return [Request("POST", WRITE, snappy.compress(body), REMOTE_WRITE) for body in bodies]


def nested(_: Target) -> list[Request]:
    filters = b'{"vector":[1],"k":1,"filter":' + _filled(b'{"not":', BODY_BYTES - 100)
    return [
        _post(APPEND, b'{"records":' + b"[" * (BODY_BYTES - 100), JSON),
        _post(APPEND, _repeated(b'{"records":[', b"[[],[]]", b"]}"), PROTO_JSON),
        _post(SEARCH, filters, JSON),
    ]


def forms(_: Target) -> list[Request]:
    """Parameters of queries: a long text, millions of fields, and nothing but escapes."""
    kind = "application/x-www-form-urlencoded"
    return [
        _post("/api/v1/query", b"query=" + _filled(b"1%2B", BODY_BYTES - 100) + b"1", kind),
        _post("/api/v1/series", _filled(b"match[]=a&"), kind),
        _post("/api/v1/query", b"query=" + _filled(b"%41", BODY_BYTES - 100), kind),
    ]

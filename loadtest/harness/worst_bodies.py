"""Bodies of requests that cost a decoder the most for their size: tiny things by the million, deep nesting, long texts.

Each function makes one body of about `size_bytes`. `WORST` lists them by endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import snappy

from coordinator.headers.negotiation import FORM, JSON, PROTOBUF, PROTOBUF_JSON, REMOTE_WRITE
from coordinator.series.metadata import METADATA_MAX
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import HEADERS_V2
from shared.protobuf_fields import delimited_head, varint

Make = Callable[[int], bytes]

SNAPPY_RATIO = 4
"""How many bytes a body of remote write has decompressed, for one that it is sent with; snappy's most is 21."""


def repeated(unit: bytes, before: bytes = b"", after: bytes = b"", between: bytes = b"") -> Make:
    """`before`, as many `unit` as fit with `between` them, `after`."""

    def make(size_bytes: int) -> bytes:
        count = (size_bytes - len(before) - len(after) - len(unit)) // (len(unit) + len(between))
        return b"".join((before, (unit + between) * count, unit, after))

    return make


def listed(unit: bytes, name: str, after: str = "]}") -> Make:
    """A JSON object with one array of this name."""
    return repeated(unit, b'{"%s":[' % name.encode(), after.encode(), b",")


def within(*numbers: int) -> Callable[[Make], Make]:
    """A message as the content of fields with these numbers, the outermost first."""

    def wrap(inner: Make) -> Make:
        def make(size_bytes: int) -> bytes:
            body = inner(size_bytes - 6 * len(numbers))
            for number in reversed(numbers):
                body = delimited_head(number, len(body)) + body
            return body

        return make

    return wrap


def compressed(inner: Make) -> Make:
    """Snappy of a message SNAPPY_RATIO times as large: nothing but repetitions, so it is smaller still."""
    return lambda size_bytes: bytes(snappy.compress(inner(SNAPPY_RATIO * size_bytes)))


def one(body: bytes) -> bytes:
    """A length-delimited field 1 with this content."""
    return delimited_head(1, len(body)) + body


def at_most(bytes_max: int, inner: Make) -> Make:
    """A smaller message, which is not refused for the number of things in it before they are read."""
    return lambda size_bytes: inner(min(size_bytes, bytes_max))


_MANY_VECTOR = b'{"id":"a","attributes":{"vector":[1]}}'
_COUNTER = one(one(b"__name__") + b"\x12\x01a")


def _with_array(elements: Make) -> Make:
    """One vector in protobuf, with an attribute that is an array of these elements."""
    identity = b"\x0a\x01a"
    vector = b"\x1a\x12\x0a\x06vector\x12\x08" + b"\x2a\x06\x0a\x04\x00\x00\x80\x3f"

    def attribute(size_bytes: int) -> bytes:
        return b"\x0a\x01a" + within(2, 6)(elements)(size_bytes)

    return within(1)(lambda size_bytes: identity + vector + within(3)(attribute)(size_bytes))


_SYMBOLS = b"\x22\x00\x22\x08__name__\x22\x01a"
_SAMPLE = b"\x12\x00"


def _series(*references: int, then: bytes = _SAMPLE) -> bytes:
    """A series of remote write 2.0."""
    packed = b"".join(varint(reference) for reference in references)
    message = delimited_head(1, len(packed)) + packed + then
    return delimited_head(5, len(message)) + message


def _table(*texts: bytes) -> bytes:
    """More symbols, the first of which is number 3."""
    return _SYMBOLS + b"".join(delimited_head(4, len(text)) + text for text in texts)


def _within_series(inner: Make) -> Make:
    """A request with one series, which has this content."""
    return lambda size_bytes: _SYMBOLS + within(5)(inner)(size_bytes - len(_SYMBOLS))


def _exemplars(then: bytes) -> Make:
    """A request with one series, of exemplars with labels as long as they may be."""
    series = within(5)(repeated(b"\x22\x04\x0a\x02\x02\x03", b"\x0a\x02\x01\x02", then))
    table = _table("𝄞".encode() * 127)
    return lambda size_bytes: table + series(size_bytes - len(table))


def _families(size_bytes: int) -> bytes:
    """Series of as many metrics as may have metadata, and then some of one metric with other metadata each."""
    names = _table(*(b"m%04d" % i for i in range(METADATA_MAX - 1)))
    metadata = [_series(1, 3 + i, then=b"\x2a\x02\x08\x01") for i in range(METADATA_MAX - 1)]
    return repeated(_series(1, 2), names + b"".join(metadata))(size_bytes)


_WIDE = histogram_message(schema=8, positive_spans=[(0, 10_000)], positive_deltas=[0] * 10_000)
"""As many buckets as a histogram may have, of one byte each."""


def _histograms(message: bytes, field: int) -> bytes:
    """The field of a TimeSeries that has this histogram."""
    return delimited_head(field, len(message)) + message


def _layouts(field: int, before: bytes, size_bytes: int) -> bytes:
    """A TimeSeries of histograms with one bucket, each with an index of its own."""
    messages = (
        _histograms(histogram_message(schema=8, count_int=1, positive_spans=[(i, 1)], positive_deltas=[1]), field)
        for i in range(min(20_000, size_bytes // 24))
    )
    return before + b"".join(messages)


_LONG_NAMES = [b"n" * 1000 + b"%03d" % i for i in range(255)]
_LONG_VALUE = _table(b"v" * 60_000)
_DESCENDING = [1, 2, *(symbol for i in range(254) for symbol in (4 + i, 2)), 3, 2]
"""References to names that take long to compare, of which the last is out of order."""

APPEND, CURSORS = "/api/v1/log/append", "/api/v1/log/cursors/worst"
UPSERT, DELETE, GET, SEARCH = (f"/api/v1/vector/{name}" for name in ("write", "delete", "get", "search"))
SCROLL, UPDATE = "/api/v1/vector/scroll", "/api/v1/vector/update"
WRITE_V2 = HEADERS_V2["Content-Type"]
COLLECTION, WRITE, QUERY = "/api/v1/vector/collections/worst", "/api/v1/write", "/api/v1/query"

WORST: dict[str, tuple[str, str, Make]] = {
    # Log
    "append, tiny records": (APPEND, JSON, listed(b'{"key":"","value":""}', "records")),
    "append, tiny keys as objects": (APPEND, PROTOBUF_JSON, listed(b'{"key":{"value":""}}', "records")),
    "append, empty objects": (APPEND, PROTOBUF_JSON, listed(b"{}", "records")),
    "append, empty arrays": (APPEND, JSON, repeated(b"[]", b"[", b"]", b",")),
    "append, deep": (APPEND, JSON, repeated(b"[", b'{"records":[{"key":', b"]}")),
    "append, one text": (APPEND, JSON, repeated(b"A", b'{"records":[{"key":"","value":"', b'"}]}')),
    "append, one escaped text": (APPEND, JSON, repeated(b"\\/", b'{"records":[{"key":"","value":"', b'"}]}')),
    "append, escaped texts": (APPEND, PROTOBUF_JSON, listed(b'{"key":"","value":"%s"}' % (b"\\/" * 5000), "records")),
    "append, spaces": (APPEND, JSON, repeated(b" ", b'{"records":', b'[{"key":"","value":""}]}')),
    "append, duplicate members": (APPEND, JSON, repeated(b'"awaitDurable":true', b"{", b',"records":[]}', b",")),
    "append, duplicate lists": (APPEND, JSON, repeated(b'"records":[]', b"{", b"}", b",")),
    "append, not closed": (APPEND, JSON, listed(b'{"key":"","value":""}', "records", "")),
    "append, empty messages": (APPEND, PROTOBUF, repeated(b"\x0a\x00")),
    "append, empty keys": (APPEND, PROTOBUF, repeated(b"\x0a\x02\x0a\x00")),
    "append, one record of keys": (APPEND, PROTOBUF, within(1)(repeated(b"\x0a\x00"))),
    "append, scalars": (APPEND, PROTOBUF, repeated(b"\x10\x00")),
    "append, unknown fields": (APPEND, PROTOBUF, repeated(b"\x7a\x00")),
    "cursors, tiny positions": (CURSORS, JSON, listed(b'{"key":"","sequence":0}', "positions")),
    # Vectors
    "upsert, empty objects": (UPSERT, PROTOBUF_JSON, listed(b"{}", "upsertVectors")),
    "upsert, empty arrays": (UPSERT, PROTOBUF_JSON, repeated(b"[]", b"[", b"]", b",")),
    "upsert, tiny vectors": (UPSERT, PROTOBUF_JSON, listed(_MANY_VECTOR, "upsertVectors")),
    "upsert, as many as may be": (UPSERT, PROTOBUF_JSON, at_most(7_700_000, listed(_MANY_VECTOR, "upsertVectors"))),
    "upsert, tiny components": (
        UPSERT,
        PROTOBUF_JSON,
        repeated(b"0", b'{"upsertVectors":[{"id":"a","attributes":{"vector":[', b"]}}]}", b","),
    ),
    "upsert, large vectors": (
        UPSERT,
        PROTOBUF_JSON,
        listed(b'{"id":"a","attributes":{"vector":[%s1]}}' % (b"0," * 3000), "upsertVectors"),
    ),
    "upsert, a list as attribute": (
        UPSERT,
        PROTOBUF_JSON,
        repeated(b"[]", b'{"upsertVectors":[{"id":"a","attributes":{"vector":[1],"a":[', b"]}}]}", b","),
    ),
    "upsert, many attributes": (
        UPSERT,
        PROTOBUF_JSON,
        repeated(b'"a":1', b'{"upsertVectors":[{"id":"a","attributes":{"vector":[1],', b"}}]}", b","),
    ),
    "upsert, arrays as attributes": (
        UPSERT,
        PROTOBUF_JSON,
        listed(b'{"id":"a","attributes":{"vector":[1],"a":[%s1]}}' % (b"1," * 1023), "upsertVectors"),
    ),
    "upsert, texts of an array": (
        UPSERT,
        PROTOBUF_JSON,
        repeated(b'""', b'{"upsertVectors":[{"id":"a","attributes":{"vector":[1],"a":[', b"]}}]}", b","),
    ),
    "upsert, nested arrays": (
        UPSERT,
        PROTOBUF_JSON,
        at_most(
            6 << 20, repeated(b"[]", b'{"upsertVectors":[{"id":"a","attributes":{"vector":[1],"a":[[', b"]]}}]}", b",")
        ),
    ),
    "upsert, deep": (UPSERT, PROTOBUF_JSON, repeated(b"[", b'{"upsertVectors":[{"attributes":{"vector":', b"]}")),
    "upsert, one text": (
        UPSERT,
        PROTOBUF_JSON,
        repeated(b"\\/", b'{"upsertVectors":[{"id":"a","attributes":{"vector":[1],"a":"', b'"}}]}'),
    ),
    "upsert, empty messages": (UPSERT, PROTOBUF, repeated(b"\x0a\x00")),
    "upsert, empty attributes": (UPSERT, PROTOBUF, within(1)(repeated(b"\x1a\x00"))),
    "upsert, empty values": (UPSERT, PROTOBUF, within(1, 3, 2)(repeated(b"\x2a\x00"))),
    "upsert, elements of an array": (UPSERT, PROTOBUF, _with_array(repeated(b"\x0a\x00"))),
    "upsert, nested elements": (UPSERT, PROTOBUF, _with_array(within(1, 6)(repeated(b"\x0a\x00")))),
    "upsert, short arrays": (UPSERT, PROTOBUF, repeated(_with_array(lambda _: b"\x0a\x02\x20\x01" * 1024)(0))),
    "upsert, unpacked components": (UPSERT, PROTOBUF, within(1, 3, 2, 5)(repeated(b"\x0d\x00\x00\x00\x00"))),
    "delete, empty ids": (DELETE, PROTOBUF_JSON, listed(b'""', "ids")),
    "delete, empty ids, protobuf": (DELETE, PROTOBUF, repeated(b"\x0a\x00")),
    "get, fields": (GET, PROTOBUF_JSON, listed(b'""', "includeFields", '],"ids":[]}')),
    "get, fields, protobuf": (GET, PROTOBUF, repeated(b"\x12\x00")),
    "search, components": (SEARCH, PROTOBUF_JSON, listed(b"0", "vector")),
    "search, vectors": (SEARCH, PROTOBUF_JSON, listed(b"[]", "vectors")),
    "search, values of a filter": (
        SEARCH,
        PROTOBUF_JSON,
        repeated(b"0", b'{"vector":[1],"filter":{"in":{"field":"a","values":[', b"]}}}", b","),
    ),
    "search, deep filter": (SEARCH, PROTOBUF_JSON, repeated(b'{"not":', b'{"vector":[1],"filter":', b"}}")),
    "search, wide filter": (SEARCH, PROTOBUF_JSON, repeated(b"{}", b'{"vector":[1],"filter":{"and":[', b"]}}", b",")),
    "search, packed components": (SEARCH, PROTOBUF, within(1)(repeated(bytes(4)))),
    "search, unpacked components": (SEARCH, PROTOBUF, repeated(b"\x0d\x00\x00\x00\x00")),
    "search, empty vectors": (SEARCH, PROTOBUF, repeated(b"\x32\x00")),
    "search, filter, protobuf": (SEARCH, PROTOBUF, within(4, 3)(repeated(b"\x12\x02\x10\x00"))),
    "search, wide filter, protobuf": (SEARCH, PROTOBUF, within(4, 8)(repeated(b"\x0a\x00"))),
    "search, text fields": (SEARCH, JSON, repeated(b'"":1', b'{"text":{"query":"a","fields":{', b"}}}", b",")),
    "search, highlight": (SEARCH, JSON, repeated(b'"a_":1', b'{"text":{"query":"a","highlight":{', b"}}}", b",")),
    "search, text fields, protobuf": (SEARCH, PROTOBUF, within(10)(repeated(b"\x1a\x00"))),
    "scroll, values of a filter": (
        SCROLL,
        PROTOBUF_JSON,
        at_most(2_000_000, repeated(b"0", b'{"filter":{"in":{"field":"a","values":[', b"]}}}", b",")),
    ),
    "scroll, fields": (SCROLL, PROTOBUF_JSON, at_most(2_000_000, listed(b'""', "includeFields"))),
    "delete, wide filter": (DELETE, PROTOBUF_JSON, repeated(b"{}", b'{"filter":{"and":[', b"]}}", b",")),
    "update, empty ids": (UPDATE, PROTOBUF_JSON, listed(b'""', "ids")),
    "update, names": (UPDATE, PROTOBUF_JSON, at_most(1_500_000, listed(b'""', "unset", '],"ids":[]}'))),
    "update, a list as attribute": (
        UPDATE,
        PROTOBUF_JSON,
        at_most(1_500_000, repeated(b"[]", b'{"ids":[],"set":{"a":[', b"]}}", b",")),
    ),
    "update, empty values, protobuf": (UPDATE, PROTOBUF, at_most(1_500_000, repeated(b"\x22\x00"))),
    "collection, text fields": (COLLECTION, JSON, listed(b'""', "textFields", '],"dimension":2}')),
    # Metrics
    "write, zeros": (WRITE, REMOTE_WRITE, compressed(bytes)),
    "write, empty series": (WRITE, REMOTE_WRITE, compressed(repeated(b"\x0a\x00"))),
    "write, odd series": (WRITE, REMOTE_WRITE, compressed(repeated(b"\x0a\x02\x0a\x00"))),
    "write, empty samples": (WRITE, REMOTE_WRITE, compressed(within(1)(repeated(b"\x12\x00", _COUNTER)))),
    "write, empty labels": (WRITE, REMOTE_WRITE, compressed(within(1)(repeated(b"\x0a\x00")))),
    "write, exemplars": (WRITE, REMOTE_WRITE, compressed(within(1)(repeated(b"\x1a\x00")))),
    "write, odd samples": (WRITE, REMOTE_WRITE, compressed(within(1)(repeated(b"\x12\x00", b"\x0a\x00" + _COUNTER)))),
    "write, empty histograms": (WRITE, REMOTE_WRITE, compressed(within(1)(repeated(b"\x22\x00", _COUNTER)))),
    "write, few empty histograms": (
        WRITE,
        REMOTE_WRITE,
        compressed(at_most(500_000, within(1)(repeated(b"\x22\x00", _COUNTER)))),
    ),
    "write, faulty histograms": (
        WRITE,
        REMOTE_WRITE,
        compressed(at_most(1_000_000, within(1)(repeated(b"\x22\x02\x10\x01", _COUNTER)))),
    ),
    "write, wide histograms": (
        WRITE,
        REMOTE_WRITE,
        compressed(at_most(4_100_000, within(1)(repeated(_histograms(_WIDE, 4), _COUNTER)))),
    ),
    "write, too wide histograms": (
        WRITE,
        REMOTE_WRITE,
        compressed(within(1)(repeated(_histograms(_WIDE, 4), _COUNTER))),
    ),
    "write, histograms of many layouts": (WRITE, REMOTE_WRITE, compressed(within(1)(partial(_layouts, 4, _COUNTER)))),
    "write, empty metadata": (WRITE, REMOTE_WRITE, compressed(repeated(b"\x1a\x00"))),
    "write, one metadata": (WRITE, REMOTE_WRITE, compressed(within(3)(repeated(b"\x08\x00")))),
    "write, unknown fields": (WRITE, REMOTE_WRITE, compressed(repeated(b"\x7a\x00"))),
    "write, unknown and empty": (
        WRITE,
        REMOTE_WRITE,
        lambda size: bytes(snappy.compress(repeated(b"\x0a\x00", b"\x7a\x00")(min(size, 16 << 20)))),
    ),
    "write, few odd series": (
        WRITE,
        REMOTE_WRITE,
        compressed(at_most(400_000, repeated(b"\x0a\x02\x0a\x00"))),
    ),
    # Metrics by remote write 2.0
    "write 2.0, empty symbols": (WRITE, WRITE_V2, compressed(repeated(b"\x22\x00"))),
    "write 2.0, empty series": (WRITE, WRITE_V2, compressed(repeated(b"\x2a\x00", b"\x22\x00"))),
    "write 2.0, few empty series": (
        WRITE,
        WRITE_V2,
        compressed(at_most(200_000, repeated(b"\x2a\x00", b"\x22\x00"))),
    ),
    "write 2.0, small series": (WRITE, WRITE_V2, compressed(at_most(4 << 20, repeated(_series(1, 2), _SYMBOLS)))),
    "write 2.0, empty samples": (WRITE, WRITE_V2, compressed(_within_series(repeated(_SAMPLE, b"\x0a\x02\x01\x02")))),
    "write 2.0, exemplars": (WRITE, WRITE_V2, compressed(_within_series(repeated(b"\x22\x00", b"\x0a\x02\x01\x02")))),
    "write 2.0, long exemplars": (WRITE, WRITE_V2, compressed(at_most(400_000, _exemplars(b"")))),
    "write 2.0, long exemplars, odd": (WRITE, WRITE_V2, compressed(at_most(400_000, _exemplars(b"\x78\x00")))),
    "write 2.0, few empty histograms": (
        WRITE,
        WRITE_V2,
        compressed(at_most(500_000, _within_series(repeated(b"\x1a\x00", b"\x0a\x02\x01\x02")))),
    ),
    "write 2.0, wide histograms, odd": (
        WRITE,
        WRITE_V2,
        compressed(at_most(4_100_000, _within_series(repeated(_histograms(_WIDE, 3), b"\x0a\x02\x01\x02\x78\x00")))),
    ),
    "write 2.0, histograms of many layouts": (
        WRITE,
        WRITE_V2,
        compressed(_within_series(partial(_layouts, 3, b"\x0a\x02\x01\x02"))),
    ),
    "write 2.0, references": (WRITE, WRITE_V2, compressed(_within_series(within(1)(repeated(b"\x01"))))),
    "write 2.0, single references": (WRITE, WRITE_V2, compressed(_within_series(repeated(b"\x08\x01")))),
    "write 2.0, long labels": (WRITE, WRITE_V2, compressed(at_most(4 << 20, repeated(_series(1, 3), _LONG_VALUE)))),
    "write 2.0, long labels, odd": (
        WRITE,
        WRITE_V2,
        compressed(at_most(500_000, repeated(_series(1, 3, then=b"\x78\x00"), _LONG_VALUE))),
    ),
    "write 2.0, long names": (WRITE, WRITE_V2, compressed(repeated(_series(*_DESCENDING), _table(*_LONG_NAMES)))),
    "write 2.0, metadata": (WRITE, WRITE_V2, compressed(at_most(4 << 20, _families))),
    "write 2.0, unknown fields": (WRITE, WRITE_V2, compressed(repeated(b"\x7a\x00", b"\x22\x00"))),
    # Queries
    "query, plain": (QUERY, FORM, repeated(b"a", b"query=")),
    "query, escapes": (QUERY, FORM, repeated(b"%41", b"query=")),
    "query, escaped UTF-8": (QUERY, FORM, repeated(b"%C3%A9", b"query=")),
    "query, fields": (QUERY, FORM, repeated(b"a=b", between=b"&")),
    "query, separators": (QUERY, FORM, repeated(b"&", b"query=1")),
    "query, plus": (QUERY, FORM, repeated(b"+", b"query=1")),
}
"""What it is → (path, Content-Type, what makes the body)."""

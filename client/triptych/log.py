"""The log area: appends, reads, cursors."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

import numpy as np

from triptych.calls import (
    JSON,
    PROTOBUF,
    Call,
    Listing,
    Parameters,
    Reading,
    ServerResponse,
    as_json,
    flattened,
    gathered,
    target,
)
from triptych.protobuf import delimited, whole
from triptych.records import Appendable, Record, Records, Text, encoded, joined, octets, page_of
from triptych.remarks import announce
from triptych.times import Time, text_of

PAGE_RECORDS = 10_000
FOLLOW_S = 30.0
"""How long one request of a following reader waits for records."""
KEYS_OF_PAGE = 10_000
ENDED_EARLY = ("the answer ends early", "the search is not at the end")
"""The beginnings of warnings that only say that the next page has the rest."""


@dataclass(frozen=True)
class Appended:
    """`records` with consecutive numbers from `start_sequence` on. `infos`: hints."""

    records: int
    start_sequence: int


@dataclass(frozen=True)
class Frontier:
    """`next`: the number of the next record; `readable`, `durable`: records below it can be read, are on disk;
    `log_start`: records below it have been dropped."""

    next: int
    readable: int
    durable: int
    log_start: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offset:
    """The first record at or after a time. `time`: when it was appended, in Unix seconds; None if there is no such
    record: `sequence` is then where the next one is expected."""

    sequence: int
    time: float | None


def append(
    records: Iterable[Appendable],
    *,
    await_durable: bool = False,
    producer: str = "",
    producer_sequence: int | None = None,
) -> Call[Appended]:
    """Append records, given as (key, value) or NewRecord, all or none; they get consecutive numbers.

    `await_durable`: returns when they are on disk. Without `producer` and its number for this batch (see `producer()`),
    a batch is sent again only if it was not sent: a batch whose answer is lost may have been appended.
    """
    if (producer == "") != (producer_sequence is None):
        raise ValueError("producer and producer_sequence belong together")
    body = encoded(records) + (whole(2, 1) if await_durable else b"")
    if producer_sequence is not None:
        body += delimited(3, producer.encode()) + whole(4, producer_sequence)
    return append_call(body, repeatable=producer_sequence is not None)


def append_call(body: bytes, *, repeatable: bool) -> Call[Appended]:
    """`body`: an AppendRequest."""

    def read(answer: ServerResponse) -> Appended:
        content = answer.json()
        return Appended(content["recordsAppended"], content["startSequence"])

    headers = {"Content-Type": PROTOBUF, "Accept": JSON}
    return Call("POST", "/api/v1/log/append", read, headers, body, repeatable=repeatable, changes=True)


def pages(
    *,
    key: Text | None = None,
    prefix: Text | None = None,
    start: int = 0,
    end: int | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    limit: int | None = None,
    reverse: bool = False,
    grep: str = "",
    grep_not: str = "",
    where: str = "",
    page_records: int = PAGE_RECORDS,
) -> Reading[Records]:
    """The records of a `scan` in pages of columns, which are made into tables the fastest. The last page has the
    `warnings` of all pages, and the `next` from which a later read continues."""
    chosen = _selection(key, prefix) + _search(grep, grep_not, where) + _bounds(start_time, end_time)
    chosen += [("reverse", "true")] if reverse else []
    records_left = limit
    missing: dict[str, None] = {}
    while records_left is None or records_left > 0:
        page_limit = page_records if records_left is None else min(records_left, page_records)
        place = _range(start, end)
        page = yield _scan([*chosen, *place, ("limit", str(page_limit))], key)
        missing.update(dict.fromkeys(_missing_for_good(page)))
        records_left = None if records_left is None else records_left - len(page)
        at = end if reverse else start
        # A shorter page is the last, unless it ended early; one that ends where it began would come again.
        is_stuck = page.next == at
        is_last = is_stuck or records_left == 0 or (len(page) < page_limit and not page.warnings)
        if is_last:
            page = replace(page, warnings=tuple({**missing, **dict.fromkeys(page.warnings if is_stuck else ())}))
        yield [page]
        if is_last:
            announce(page.warnings)
            return
        start, end = (start, page.next) if reverse else (page.next, end)


def _missing_for_good(page: Records) -> list[str]:
    """The warnings of a page that is not the last, without those about records that the next page has."""
    return [text for text in page.warnings if not text.startswith(ENDED_EARLY)]


scan = flattened(
    pages,
    "scan",
    """The records of a key, of the keys with a prefix, or of all, with `start` ≤ number < `end`, as they are read.

    `reverse`: newest first, of one key. `grep`, `grep_not`: RE2 expressions that a line of the value matches, or none
    does; `where`: a condition of values that are JSON, such as `$.level = "error"`.
    """,
)
read = gathered(pages, joined, "read", """The records that `scan` gives, all at once, as columns.""")


def follow(
    *,
    key: Text | None = None,
    prefix: Text | None = None,
    start: int | None = None,
    start_time: Time | None = None,
    grep: str = "",
    grep_not: str = "",
    where: str = "",
    page_records: int = 1000,
) -> Reading[Record]:
    """Records as they are appended, for as long as the caller's loop runs: from `start` or `start_time` on, else from
    now on. Continues after the last record when the server is back from an outage, however long that takes."""
    if start is None and start_time is None:
        start = (yield frontier()).readable
    chosen = [*_selection(key, prefix), *_search(grep, grep_not, where), ("follow", "true")]
    chosen += [("timeout", f"{FOLLOW_S:g}s"), ("limit", str(page_records))]
    place = _bounds(start_time, None) if start is None else _range(start, None)
    while True:
        page = yield _scan([*chosen, *place], key, wait_s=FOLLOW_S, endless=True)
        announce(_missing_for_good(page))
        yield list(page)
        # A time that is in the future on the server's clock would stand for another place in each request.
        place = _range(page.next, None)


def keys(prefix: Text = b"", *, start_time: Time | None = None, end_time: Time | None = None) -> Reading[bytes]:
    """The distinct keys with a prefix, ascending, as they are read."""
    after: Parameters = []
    while True:
        chosen = [*_octets("prefix", prefix), *_bounds(start_time, end_time), ("limit", str(KEYS_OF_PAGE)), *after]
        page = yield _get("/api/v1/log/keys", chosen, _keys)
        yield page
        if not page.more or not page:
            return
        after = _octets("after", page[-1])


def count(
    *,
    key: Text | None = None,
    prefix: Text | None = None,
    start: int = 0,
    end: int | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    grep: str = "",
    grep_not: str = "",
    where: str = "",
) -> Call[int]:
    """How many records a `scan` would return."""
    chosen = _selection(key, prefix) + _search(grep, grep_not, where) + _range(start, end)
    return _get("/api/v1/log/count", chosen + _bounds(start_time, end_time), lambda answer: int(answer.json()["count"]))


def offset(time: Time, *, key: Text | None = None, prefix: Text | None = None) -> Call[Offset]:
    """The first record at or after a time, of a key, of the keys with a prefix, or of all."""
    chosen = ([] if key is None and prefix is None else _selection(key, prefix)) + [("time", text_of(time))]

    def read(answer: ServerResponse) -> Offset:
        content = answer.json()
        return Offset(content["sequence"], content["timeMs"] / 1000 if "timeMs" in content else None)

    return _get("/api/v1/log/offsets", chosen, read)


def frontier() -> Call[Frontier]:
    """Where the log begins, and up to which numbers it can be read and is on disk."""

    def read(answer: ServerResponse) -> Frontier:
        content = answer.json()
        return Frontier(
            content["nextSequence"],
            content["readableSequence"],
            content["durableSequence"],
            content["logStartSequence"],
            tuple(content.get("warnings", ())),
        )

    return _get("/api/v1/log/frontier", [], read)


def delete_key(key: Text, *, before: int | None = None) -> Call[int | None]:
    """Delete the records of a key, or those with numbers below `before`. Returns how many there were; None if they
    could not be counted in time. If the call is repeated because its answer was lost, the result does not count the
    records that the first attempt has deleted."""
    chosen = _octets("key", key) + ([] if before is None else [("before_seq", str(before))])
    path = target("/api/v1/log/keys", chosen)
    return Call("DELETE", path, lambda answer: answer.json().get("recordsDeleted"), changes=True)


def cursor(name: str, *, key: Text | None = None) -> Call[dict[bytes, int]]:
    """The positions of a cursor, key → number: all of them, or that of one key if it has been set."""

    def read(answer: ServerResponse) -> dict[bytes, int]:
        return {base64.b64decode(row["key"]): row["sequence"] for row in answer.json()["positions"]}

    return _get(_cursor(name), [] if key is None else _octets("key", key), read)


def set_cursor(
    name: str,
    positions: Mapping[Text, int | str | datetime],
    *,
    expected: Mapping[Text, int | None] | None = None,
) -> Call[None]:
    """Set positions of a cursor, all or none: numbers, or datetimes, which stand for the first record from then on.
    They are on disk when this returns.

    `expected`: what these positions must be now (None: not set); otherwise Conflict. Such a call is sent once. Raises
    ValueError for a key in it that has no new position: the server compares only what it sets.
    """
    expected_positions = {octets(key): sequence for key, sequence in (expected or {}).items()}
    without_position = sorted(expected_positions.keys() - {octets(key) for key in positions})
    if without_position:
        raise ValueError(f"expected has keys without a new position: {', '.join(map(repr, without_position))}")
    rows: list[dict[str, Any]] = []
    for key, position in positions.items():
        if isinstance(position, (float, bool)):
            raise TypeError(f"the position of {key!r} is {position!r}; it must be a number of a record or a datetime")
        place: dict[str, Any] = {"time": text_of(position)}
        if isinstance(position, (int, np.integer)):
            place = {"sequence": int(position)}
        row = {"key": base64.b64encode(octets(key)).decode(), **place}
        if octets(key) in expected_positions:
            row["expected"] = expected_positions[octets(key)]
        rows.append(row)
    body = as_json({"positions": rows})
    return Call(
        "PUT", _cursor(name), lambda answer: None, {"Content-Type": JSON}, body, repeatable=not expected, changes=True
    )


def delete_cursor(name: str) -> Call[None]:
    """Delete a cursor with all its positions."""
    return Call("DELETE", _cursor(name), lambda answer: None, changes=True)


def cursors() -> Reading[str]:
    """The names of cursors, as they are read."""
    yield from names_of("/api/v1/log/cursors", "cursors", "name")


def names_of(path: str, member: str, name: str) -> Reading[str]:
    """All names of a list that is read in pages."""
    after: Parameters = []
    while True:
        page = yield _get(path, [("limit", "1000"), *after], lambda answer: _names(answer.json(), member, name))
        yield page
        if not page.more or not page:
            return
        after = [("after", page[-1])]


def _keys(answer: ServerResponse) -> Listing[bytes]:
    content = answer.json()
    return Listing([base64.b64decode(row["key"]) for row in content["keys"]], content)


def _names(content: Mapping[str, Any], member: str, name: str) -> Listing[str]:
    return Listing([row[name] for row in content[member]], content)


def _cursor(name: str) -> str:
    return f"/api/v1/log/cursors/{quote(name, safe='')}"


def _get(path: str, parameters: Parameters, read: Any) -> Call[Any]:
    return Call("GET", target(path, parameters), read)


def _scan(parameters: Parameters, key: Text | None, wait_s: float = 0.0, endless: bool = False) -> Call[Records]:
    asked = None if key is None else octets(key)
    return Call(
        "GET",
        target("/api/v1/log/scan", parameters),
        lambda answer: page_of(answer.body, asked),
        {"Accept": PROTOBUF},
        wait_s=wait_s,
        endless=endless,
    )


def _selection(key: Text | None, prefix: Text | None) -> Parameters:
    """The selection: all keys if both are missing. Raises ValueError for both."""
    if key is not None and prefix is not None:
        raise ValueError("key and prefix exclude each other")
    return _octets("prefix", prefix or b"") if key is None else _octets("key", key)


def _octets(name: str, text: Text) -> Parameters:
    return [(f"{name}_base64", base64.b64encode(octets(text)).decode())]


def _search(grep: str, grep_not: str, where: str) -> Parameters:
    return [(name, text) for name, text in (("grep", grep), ("grep_not", grep_not), ("where", where)) if text]


def _range(start: int, end: int | None) -> Parameters:
    return [("start_seq", str(start))] + ([] if end is None else [("end_seq", str(end))])


def _bounds(start_time: Time | None, end_time: Time | None) -> Parameters:
    bounds = (("start_time", start_time), ("end_time", end_time))
    return [(name, text_of(time)) for name, time in bounds if time is not None]

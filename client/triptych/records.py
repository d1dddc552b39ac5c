"""Records of the log: those to append, as protobuf, and those that were read, as columns (`proto/log.proto`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Union, cast

import numpy as np
from numpy.typing import NDArray

from triptych.errors import ServerError
from triptych.protobuf import delimited, fields, whole
from triptych.tables import Column, Table

Text = Union[str, bytes]
Value = Union[str, bytes, Mapping[str, Any], list[Any], int, float, bool, None]
"""The value of a record: text and bytes as they are, anything else as JSON."""


@dataclass(frozen=True)
class NewRecord:
    """A record to append. `tombstone`: marks the end of its key; it has no value."""

    key: Text
    value: Value = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    tombstone: bool = False

    def encoded(self) -> bytes:
        """A `Record` of protobuf. Raises TypeError for a value that JSON does not have."""
        parts = [delimited(1, delimited(1, octets(self.key))), delimited(2, value_bytes(self.value))]
        parts += [
            delimited(3, delimited(1, name.encode()) + delimited(2, text.encode()))
            for name, text in self.headers.items()
        ]
        if self.content_type:
            parts.append(delimited(4, self.content_type.encode()))
        if self.tombstone:
            parts.append(whole(5, 1))
        return b"".join(parts)


Appendable = Union[NewRecord, tuple[Text, Value]]


def octets(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)


def value_bytes(value: Value) -> bytes:
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return octets(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def encoded(records: Iterable[Appendable]) -> bytes:
    """The `records` of an AppendRequest."""
    return b"".join(
        delimited(1, (record if isinstance(record, NewRecord) else NewRecord(*record)).encoded()) for record in records
    )


@dataclass(frozen=True)
class Record:
    """`time`: when it was appended, in Unix seconds; None if that is not known."""

    sequence: int
    key: bytes
    value: bytes
    time: float | None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    tombstone: bool = False

    @property
    def key_text(self) -> str:
        """Raises UnicodeDecodeError if the key is not text."""
        return self.key.decode()

    @property
    def text(self) -> str:
        """The value as text. Raises UnicodeDecodeError if it is not."""
        return self.value.decode()

    def json(self) -> Any:
        """The value, which is JSON. Raises ValueError if it is not."""
        return json.loads(self.value)


@dataclass(frozen=True, eq=False)
class Records(Table):
    """Records as columns: `sequences` uint64[n], `times_ms` int64[n] (0: unknown), and lists of n. `headed`: place →
    headers, content type and tombstone of the records that have some.

    `next`: the `start` (in reverse: the `end`) of the read that goes on from here, and `log_start`: records below it
    have been dropped. `warnings`: what is missing. As a table, key and value are text, where bytes that are not UTF-8
    are replaced; `columns(text=False)` has the bytes.
    """

    sequences: NDArray[np.uint64]
    times_ms: NDArray[np.int64]
    keys: list[bytes]
    values: list[bytes]
    headed: Mapping[int, tuple[Mapping[str, str], str, bool]]
    next: int = 0
    log_start: int = 0
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Record]:
        rows = zip(self.sequences.tolist(), self.keys, self.values, self.times_ms.tolist())
        for place, (sequence, key, value, time_ms) in enumerate(rows):
            headers, content_type, tombstone = self.headed.get(place, ({}, "", False))
            yield Record(sequence, key, value, time_ms / 1000 if time_ms else None, headers, content_type, tombstone)

    def columns(self, text: bool = True) -> dict[str, Column]:
        times = self.times_ms.astype("datetime64[ms]")
        times[self.times_ms == 0] = np.datetime64("NaT")
        keys: list[Any] = [key.decode("utf-8", "replace") for key in self.keys] if text else list(self.keys)
        values: list[Any] = [value.decode("utf-8", "replace") for value in self.values] if text else list(self.values)
        return {"sequence": self.sequences, "time": times, "key": keys, "value": values}


NONE = Records(np.zeros(0, np.uint64), np.zeros(0, np.int64), [], [], {})


def joined(pages: list[Records]) -> Records:
    """All records of consecutive pages, with the positions of the last page."""
    headed: dict[int, tuple[Mapping[str, str], str, bool]] = {}
    begin = 0
    for page in pages:
        headed.update({begin + place: headers for place, headers in page.headed.items()})
        begin += len(page)
    last = pages[-1] if pages else NONE
    return Records(
        np.concatenate([NONE.sequences, *(page.sequences for page in pages)]),
        np.concatenate([NONE.times_ms, *(page.times_ms for page in pages)]),
        [key for page in pages for key in page.keys],
        [value for page in pages for value in page.values],
        headed,
        last.next,
        last.log_start,
        last.warnings,
    )


def page_of(body: bytes, key: bytes | None) -> Records:
    """The records of a ScanResponse, in the order of their numbers unless they descend. `key`: that of all records of a
    page without keys. Raises ServerError."""
    try:
        return _page(memoryview(body), key)
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise ServerError(f"the answer is not a page of records: {error}") from error


def _page(body: memoryview, key: bytes | None) -> Records:
    pages: list[Records] = []
    following = log_start = 0
    warnings: list[str] = []
    for number, content in fields(body):
        if number == 2:
            pages.append(_columns(cast(memoryview, content), key))
        elif number == 3:
            following = cast(int, content)
        elif number == 4:
            log_start = cast(int, content)
        elif number == 5:
            warnings.append(bytes(cast(memoryview, content)).decode())
    end = replace(NONE, next=following, log_start=log_start, warnings=tuple(warnings))
    return joined([*pages, end])


def _columns(page: memoryview, key: bytes | None) -> Records:
    """A `Page`: columns of records."""
    parts: dict[int, memoryview] = {number: cast(memoryview, content) for number, content in fields(page)}
    empty = memoryview(b"")
    sequences = np.frombuffer(parts.get(1, empty), "<u8")
    values = _split(parts.get(3, empty), parts.get(2, empty))
    keys = _split(parts.get(5, empty), parts.get(4, empty)) if 4 in parts else [key or b""] * len(sequences)
    times = np.frombuffer(parts[6], "<i8") if 6 in parts else np.zeros(len(sequences), np.int64)
    if not len(sequences) == len(values) == len(keys) == len(times):
        raise ValueError("its columns are of different lengths")
    headers = _split(parts.get(8, empty), parts.get(7, empty))
    headed = {place: _headers(memoryview(packed)) for place, packed in enumerate(headers) if packed}
    return Records(sequences, times, keys, values, headed)


def _split(joined_values: memoryview, lengths: memoryview) -> list[bytes]:
    ends = np.cumsum(np.frombuffer(lengths, "<u4"), dtype=np.int64).tolist()
    if (ends[-1] if ends else 0) != len(joined_values):
        raise ValueError("lengths do not add up to what is there")
    text = bytes(joined_values)
    return [text[start:end] for start, end in zip([0, *ends], ends)]


def _headers(packed: memoryview) -> tuple[Mapping[str, str], str, bool]:
    """A `RecordHeaders`: headers, content type, tombstone."""
    headers: dict[str, str] = {}
    content_type, tombstone = "", False
    for number, content in fields(packed):
        if number == 1:
            pair = {at: bytes(cast(memoryview, text)).decode() for at, text in fields(cast(memoryview, content))}
            headers[pair.get(1, "")] = pair.get(2, "")
        elif number == 2:
            content_type = bytes(cast(memoryview, content)).decode()
        elif number == 3:
            tombstone = bool(content)
    return headers, content_type, tombstone


def by_sequence(records: Records) -> Records:
    """The same records, ascending: the pages of several shards stand one after the other."""
    order = np.argsort(records.sequences, kind="stable").tolist()
    return Records(
        records.sequences[order],
        records.times_ms[order],
        [records.keys[place] for place in order],
        [records.values[place] for place in order],
        {at: records.headed[place] for at, place in enumerate(order) if place in records.headed},
        records.next,
        records.log_start,
        records.warnings,
    )

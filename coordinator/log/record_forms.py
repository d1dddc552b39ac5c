"""A record of an append in JSON and in ProtoJSON: its key and its value in one of their forms.

A key is `key`, base64 of any bytes, or `keyText`, plain text. A value is `value`, base64, or `text`, plain text, or
`json`, any JSON value, which is stored as it was sent but without the white space around its parts. A tombstone has no
value.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import msgspec
from msgspec import UNSET, Raw, UnsetType

from coordinator.log.columns import FEW_RECORDS, BatchRecords
from coordinator.log.headers import packed
from shared.errors import BadData

HINT_BYTES_MAX = 48
"""Keys and values up to this size are checked for a hint, because a word is short."""
_WORD = re.compile(rb"[A-Z]?[a-z]+[A-Z/]?[a-z]+/?[0-9]*|[A-Z]+")
"""Matches base64 that reads as a word or a path."""


_NOT_VALID = "the body is not a valid append request"


class Key(msgspec.Struct, forbid_unknown_fields=True):
    value: bytes


class Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: bytes | Key | UnsetType = UNSET
    value: bytes | UnsetType = UNSET
    keyText: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    json: Raw | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    contentType: str | UnsetType = UNSET
    tombstone: bool = False


class ProtoKey(msgspec.Struct, forbid_unknown_fields=True):
    value: str | None = None


class ProtoRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str | ProtoKey | None = None
    value: str | None = None
    keyText: str | None = None
    text: str | None = None
    json: Raw | UnsetType = UNSET
    headers: dict[str, str] | None = None
    contentType: str | None = None
    content_type: str | None = None
    tombstone: bool | None = None


class RecordColumns(NamedTuple):
    """Records of a body. `headers`: position in it → the headers of a record that has some (shared.log.headers)."""

    keys: list[bytes]
    values: list[bytes]
    headers: dict[int, bytes]


def columns(first: int, records: Sequence[Record]) -> RecordColumns:
    """Those records, of which the first is records[first] of the body. Raises BadData."""
    keys, values, headers = [], [], {}
    for i, record in enumerate(records, first):
        key, value = record.key, record.value
        if type(key) is not bytes or record.keyText is not UNSET:
            key = _key(record, i)
        if type(value) is not bytes or record.text is not UNSET or record.json is not UNSET or record.tombstone:
            value = _value(record, i)
        keys.append(key)
        values.append(value)
        if record.headers or record.contentType or record.tombstone:
            where = f"$.records[{i}]"
            headers[i] = packed(record.headers or {}, record.contentType or "", where, record.tombstone)
    return RecordColumns(keys, values, headers)


def plain(record: Record) -> tuple[bytes | None, bytes | None]:
    """(key, value) of a record that has one form of each and nothing else; (None, None) for any other."""
    key, value, key_text, text = record.key, record.value, record.keyText, record.text
    if record.headers or record.contentType or record.tombstone or record.json is not UNSET:
        return None, None
    if key is UNSET and type(key_text) is str:
        key = key_text.encode()
    elif type(key) is not bytes or key_text is not UNSET:
        return None, None
    if value is UNSET and type(text) is str:
        value = text.encode()
    elif type(value) is not bytes or text is not UNSET:
        return None, None
    return key, value


def _key(record: Record, i: int) -> bytes:
    key, text = record.key, record.keyText
    if isinstance(text, str):
        return text.encode() if key is UNSET else _two_keys(i)
    return key.value if isinstance(key, Key) else _no_key(i)


def _value(record: Record, i: int) -> bytes:
    forms = [form for form in (record.value, record.text, record.json) if form is not UNSET]
    if len(forms) + record.tombstone > 1:
        _two_values(i)
    if record.tombstone:
        return b""
    if not forms:
        raise BadData(
            f"{_NOT_VALID}: `$.records[{i}].value` is missing: give `value` (base64), `text` or `json`, or make the "
            "record a `tombstone`"
        )
    return forms[0].encode() if isinstance(forms[0], str) else _compact(record.json, i)


def proto_columns(first: int, records: Sequence[ProtoRecord]) -> RecordColumns:
    """As `columns`; a value that is missing is empty, as in protobuf."""
    keys, values, headers = [], [], {}
    for i, record in enumerate(records, first):
        keys.append(_proto_key(record, i))
        content_type = record.contentType or record.content_type or ""
        if own := packed(record.headers or {}, content_type, f"$.records[{i}]", bool(record.tombstone)):
            headers[i] = own
        if record.tombstone and (record.value or record.text is not None or record.json is not UNSET):
            _two_values(i)
        if record.text is None and record.json is UNSET:
            values.append(_base64(record.value or "", f"$.records[{i}].value"))
        elif record.value is not None or (record.text is not None and record.json is not UNSET):
            _two_values(i)
        elif record.text is not None:
            values.append(record.text.encode())
        else:
            values.append(_compact(record.json, i))
    return RecordColumns(keys, values, headers)


def _proto_key(record: ProtoRecord, i: int) -> bytes:
    key = record.key.value or "" if isinstance(record.key, ProtoKey) else record.key
    if record.keyText is None:
        return _no_key(i) if key is None else _base64(key, f"$.records[{i}].key")
    return record.keyText.encode() if key is None else _two_keys(i)


def _no_key(i: int) -> NoReturn:
    raise BadData(f"{_NOT_VALID}: `$.records[{i}].key` is missing: give `key` (base64) or `keyText`")


def _two_keys(i: int) -> NoReturn:
    raise BadData(f"{_NOT_VALID}: `$.records[{i}]` has `key` and `keyText`; it must have one of them")


def _two_values(i: int) -> NoReturn:
    raise BadData(
        f"{_NOT_VALID}: `$.records[{i}]` has more than one of `value`, `text`, `json` and `tombstone`; it must have "
        "one of them"
    )


def _compact(json: Raw | UnsetType, i: int) -> bytes:
    """The JSON value without white space around its parts. Numbers and texts stay as they were written."""
    assert isinstance(json, Raw)
    text = msgspec.json.format(bytes(json), indent=-1)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise BadData(f"{_NOT_VALID}: `$.records[{i}].json` is not UTF-8: {error}") from error
    return text


def _base64(text: str, where: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadData(f"`{where}` is not base64: {error}; plain text goes into `keyText` and `text`") from error


def hints(records: BatchRecords) -> list[str]:
    """Hints about base64 that may have been meant as text: the key in `{"key": "user"}` is valid base64, so other bytes
    are stored than the word. All records of a small batch are checked, and the first one of a large batch."""
    count = len(records)
    for at in range(count if count <= FEW_RECORDS else min(count, 1)):
        for form, text_form, octets in (("key", "keyText", records.key(at)), ("value", "text", records.value(at))):
            if len(octets) <= HINT_BYTES_MAX and not octets.isascii() and _reads_as_word(octets):
                source = base64.b64encode(octets).decode()
                return [
                    f"`$.records[{at}].{form}` is {source!r}, base64 of {len(octets)} bytes that are not UTF-8 "
                    f"({octets[:8].hex(' ')}{' …' if len(octets) > 8 else ''}), and these are stored; if the text "
                    f"was meant, send it as `{text_form}`"
                ]
    return []


def _reads_as_word(octets: bytes) -> bool:
    """Whether bytes that are not ASCII are not UTF-8 either, and their base64 reads as a word."""
    if _WORD.fullmatch(base64.b64encode(octets)) is None:
        return False
    try:
        octets.decode()
    except UnicodeDecodeError:
        return True
    return False

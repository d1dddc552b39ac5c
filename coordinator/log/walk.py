"""Kernels that find the records in the body of an append to the log, without an object for any of them.

They recognise what ordinary clients write and leave the rest, and anything wrong, to the general readers: they answer
`UNUSUAL` then. Every read is checked against the end of the body, since bodies come from strangers.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value, arg-type"

from __future__ import annotations

import numpy as np

from shared.kernels import kernel, types
from shared.log.blocks import KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, Octets, TableOut
from shared.protobuf_fields import field_length, past_field
from shared.xxh64 import Bytes, copy_bytes

UNUSUAL = -1

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NONE = np.uint32(1 << 24)
_DIGITS = np.full(256, _NONE, np.uint32)
_DIGITS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64, dtype=np.uint32)
# Each digit where it stands in a group of four; what is no digit sets a bit above the 24 of a group.
_FIRST, _SECOND, _THIRD = (np.where(_DIGITS < 64, _DIGITS << shift, _NONE).astype(np.uint32) for shift in (18, 12, 6))
_FOURTH = _DIGITS

_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _END, _PADDING = (ord(c) for c in '",:{}]=')
_KEY_NAME = np.frombuffer(b'"key"', np.uint8)
_VALUE_NAME = np.frombuffer(b'"value"', np.uint8)
_KEY_TEXT_NAME = np.frombuffer(b'"keyText"', np.uint8)
_TEXT_NAME = np.frombuffer(b'"text"', np.uint8)
_SPECIAL = np.ones(256, np.uint8)
_SPECIAL[[byte for byte in range(0x20, 0x80) if byte not in b'"\\']] = 0
"""Bytes at which a text is looked at closer: quotes, escapes, controls, and characters of several bytes."""

_ONE, _TWO, _THREE, _FOUR = (np.uint64(n) for n in (1, 2, 3, 4))
_KEY_OCTETS, _KEY_TEXT, _VALUE_OCTETS, _VALUE_TEXT = range(4)

_PAIR = types.UniTuple(types.int64, 2)


@kernel(types.int64(Bytes, types.int64), first=True, allocates=False)
def _space(body: np.ndarray, at: int) -> int:
    """The first position from `at` on that has no white space."""
    while at < len(body) and body[at] <= 32 and body[at] in (32, 9, 10, 13):
        at += 1
    return at


@kernel(types.int64(Bytes, types.int64, types.int64), first=True, allocates=False)
def _past(body: np.ndarray, at: int, byte: int) -> int:
    """Behind this byte and the white space around it, which begins at `at`; UNUSUAL if it is not there."""
    at = _space(body, at)
    if at >= len(body) or body[at] != byte:
        return UNUSUAL
    return _space(body, at + 1)


@kernel(types.boolean(Bytes, types.int64, Bytes), first=True, allocates=False)
def _stands(body: np.ndarray, at: int, name: np.ndarray) -> bool:
    if at + len(name) > len(body):
        return False
    same = 0
    while same < len(name) and body[at + same] == name[same]:
        same += 1
    return same == len(name)


@kernel(_PAIR(Bytes, types.int64, Octets, types.int64), first=True, allocates=False)
def _groups(body: np.ndarray, at: int, out: np.ndarray, place: int) -> tuple[int, int]:
    """Decode the groups of four base64 digits from `at` on to `out` from `place` on: (behind them, behind the octets).

    Its positions are unsigned: a signed one might count from an array's end, and the test of that for each byte took
    half of the time."""
    end = np.uint64(len(body))
    read, written = np.uint64(at), np.uint64(place)
    while read + _FOUR <= end:
        group = _FIRST[body[read]] | _SECOND[body[read + _ONE]] | _THIRD[body[read + _TWO]]
        group |= _FOURTH[body[read + _THREE]]
        if group >= _NONE:
            break
        out[written] = np.uint8(group >> np.uint32(16))
        out[written + _ONE] = np.uint8(group >> np.uint32(8))
        out[written + _TWO] = np.uint8(group)
        read += _FOUR
        written += _THREE
    return np.int64(read), np.int64(written)


@kernel(_PAIR(Bytes, types.int64, Octets, types.int64), first=True, allocates=False)
def _octets(body: np.ndarray, at: int, out: np.ndarray, place: int) -> tuple[int, int]:
    """Decode the base64 text that stands in quotes at `at` to `out` from `place` on: (behind it, behind the octets).

    Standard alphabet, padded, in its one canonical form; (UNUSUAL, …) for any other text.
    """
    end = len(body)
    if at >= end or body[at] != _QUOTE:
        return UNUSUAL, place
    at, place = _groups(body, at + 1, out, place)
    if at < end and body[at] == _QUOTE:
        return at + 1, place
    if at + 5 > end or body[at + 3] != _PADDING or body[at + 4] != _QUOTE:
        return UNUSUAL, place
    group = _FIRST[body[at]] | _SECOND[body[at + 1]]
    if body[at + 2] == _PADDING:
        if group >= _NONE or group & np.uint32(0xFFFF) != 0:
            return UNUSUAL, place
        out[place] = np.uint8(group >> np.uint32(16))
        return at + 5, place + 1
    group |= _THIRD[body[at + 2]]
    if group >= _NONE or group & np.uint32(0xFF) != 0:
        return UNUSUAL, place
    out[place] = np.uint8(group >> np.uint32(16))
    out[place + 1] = np.uint8(group >> np.uint32(8) & np.uint32(255))
    return at + 5, place + 2


@kernel(_PAIR(Bytes, types.int64, Octets, types.int64), first=True, allocates=False)
def _key(body: np.ndarray, at: int, out: np.ndarray, place: int) -> tuple[int, int]:
    """As `_octets`, for a key: text, or an object whose one member `value` is."""
    if at < len(body) and body[at] == _OPEN:
        at = _space(body, at + 1)
        if not _stands(body, at, _VALUE_NAME):
            return UNUSUAL, place
        at = _past(body, at + len(_VALUE_NAME), _COLON)
        if at < 0:
            return UNUSUAL, place
        at, place = _octets(body, at, out, place)
        if at < 0:
            return UNUSUAL, place
        at = _space(body, at)
        if at >= len(body) or body[at] != _CLOSE:
            return UNUSUAL, place
        return at + 1, place
    return _octets(body, at, out, place)


@kernel(types.int64(Bytes, types.int64), first=True, allocates=False)
def _character(body: np.ndarray, at: int) -> int:
    """The length of the character of several bytes that begins at `at`; 0 if it is not UTF-8 (RFC 3629, section 4)."""
    lead = body[at]
    if lead < 0xC2 or lead > 0xF4:
        return 0
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if at + size > len(body):
        return 0
    low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
    high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
    if body[at + 1] < low or body[at + 1] > high:
        return 0
    for i in range(at + 2, at + size):
        if body[i] & 0xC0 != 0x80:
            return 0
    return size


@kernel(_PAIR(Bytes, types.int64, Octets, types.int64), first=True, allocates=False)
def _text(body: np.ndarray, at: int, out: np.ndarray, place: int) -> tuple[int, int]:
    """As `_octets`, for plain text: (UNUSUAL, …) for one with escapes or controls, and for what is not UTF-8."""
    end = len(body)
    if at >= end or body[at] != _QUOTE:
        return UNUSUAL, place
    at += 1
    begin = at
    while at < end:
        if at + 8 <= end:
            special = _SPECIAL[body[at]] | _SPECIAL[body[at + 1]] | _SPECIAL[body[at + 2]] | _SPECIAL[body[at + 3]]
            special |= _SPECIAL[body[at + 4]] | _SPECIAL[body[at + 5]] | _SPECIAL[body[at + 6]] | _SPECIAL[body[at + 7]]
            if special == 0:
                at += 8
                continue
        while at < end and _SPECIAL[body[at]] == 0:
            at += 1
        if at >= end:
            break
        if body[at] == _QUOTE:
            copy_bytes(out, place, body, begin, at - begin)
            return at + 1, place + at - begin
        size = _character(body, at)
        if size == 0:
            break
        at += size
    return UNUSUAL, place


@kernel(_PAIR(Bytes, types.int64), first=True, allocates=False)
def _member(body: np.ndarray, at: int) -> tuple[int, int]:
    """(which member of a record begins at `at`, behind its colon); (UNUSUAL, …) for any other."""
    if _stands(body, at, _KEY_NAME):
        return _KEY_OCTETS, _past(body, at + len(_KEY_NAME), _COLON)
    if _stands(body, at, _VALUE_NAME):
        return _VALUE_OCTETS, _past(body, at + len(_VALUE_NAME), _COLON)
    if _stands(body, at, _KEY_TEXT_NAME):
        return _KEY_TEXT, _past(body, at + len(_KEY_TEXT_NAME), _COLON)
    if _stands(body, at, _TEXT_NAME):
        return _VALUE_TEXT, _past(body, at + len(_TEXT_NAME), _COLON)
    return UNUSUAL, at


@kernel(_PAIR(Bytes, types.int64, Octets, TableOut), first=True, allocates=False)
def walk_json(body: np.ndarray, at: int, out: np.ndarray, table: np.ndarray) -> tuple[int, int]:
    """The records of the array whose elements begin at `at`, behind its bracket: (how many, where its closing bracket
    stands). Keys and values are written to `out`, as long as the body, and described in `table` (shared.log.blocks).
    (UNUSUAL, …) for an empty array, one of more records than the table has room for, and any element that is not an
    object of `key` or `keyText` and `value` or `text` with ordinary texts.
    """
    place = np.int64(0)
    row = 0
    at = _space(body, at)
    while row < len(table):
        if at >= len(body) or body[at] != _OPEN:
            return UNUSUAL, at
        at = _space(body, at + 1)
        has_key = has_value = False
        for _ in range(2):
            begin = place
            member, at = _member(body, at)
            is_key = member <= _KEY_TEXT
            if member < 0 or at < 0 or (has_key if is_key else has_value):
                return UNUSUAL, at
            if member == _KEY_OCTETS:
                at, place = _key(body, at, out, place)
            elif member == _VALUE_OCTETS:
                at, place = _octets(body, at, out, place)
            else:
                at, place = _text(body, at, out, place)
            if at < 0:
                return UNUSUAL, at
            if is_key:
                table[row, KEY], table[row, KEY_LENGTH] = begin, place - begin
                has_key = True
            else:
                table[row, VALUE], table[row, VALUE_LENGTH] = begin, place - begin
                has_value = True
            at = _past(body, at, _CLOSE if has_key and has_value else _COMMA)
            if at < 0:
                return UNUSUAL, at
        row += 1
        if at < len(body) and body[at] == _END:
            return row, at
        at = _past(body, at, _COMMA)
        if at < 0:
            return UNUSUAL, at
    return UNUSUAL, at


@kernel(types.boolean(Bytes, types.int64, types.int64, types.Array(types.int64, 1, "C")), first=True, allocates=False)
def _record(body: np.ndarray, at: int, end: int, row: np.ndarray) -> bool:
    """Describe the Record message between these positions; False unless it is a key and, at most, a value behind it."""
    if at >= end or body[at] != 0x0A:
        return False
    size, at = field_length(body, at + 1, end)
    if size < 0 or at + size > end:
        return False
    row[KEY], row[KEY_LENGTH] = at, 0
    if size > 0:
        length, key = field_length(body, at + 1, at + size)
        if body[at] != 0x0A or length < 0 or key + length != at + size:
            return False
        row[KEY], row[KEY_LENGTH] = key, length
    at += size
    row[VALUE], row[VALUE_LENGTH] = at, 0
    if at < end:
        if body[at] != 0x12:
            return False
        size, at = field_length(body, at + 1, end)
        if size < 0 or at + size > end:
            return False
        row[VALUE], row[VALUE_LENGTH] = at, size
    return bool(at + row[VALUE_LENGTH] == end)


@kernel(_PAIR(Bytes, TableOut, TableOut), first=True, allocates=False)
def walk_protobuf(body: np.ndarray, table: np.ndarray, rest: np.ndarray) -> tuple[int, int]:
    """The records of an AppendRequest, described in `table` where they lie: (how many, how many spans of other fields
    there are in `rest`, int64[…, 2]). (UNUSUAL, …) for anything that is not plain."""
    at, row, spans = 0, 0, 0
    while at < len(body):
        tag = np.int64(body[at])
        if tag == 0x0A:
            size, record = field_length(body, at + 1, len(body))
            if size < 0 or record + size > len(body) or row >= len(table):
                return UNUSUAL, 0
            if not _record(body, record, record + size, table[row]):
                return UNUSUAL, 0
            row += 1
            at = record + size
            continue
        following = past_field(body, at + 1, len(body), tag & 7) if tag < 0x80 else UNUSUAL
        if following < 0 or spans >= len(rest):
            return UNUSUAL, 0
        rest[spans, 0], rest[spans, 1] = at, following
        spans += 1
        at = following
    return row, spans

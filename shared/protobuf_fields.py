"""Fields of protobuf messages as bytes: varints and lengths, for kernels that parse a body and for Python.

Encoding: https://protobuf.dev/programming-guides/encoding/. A field is a tag (a varint: number << 3 | wire type) and
its content. What a kernel does not accept, such as a length that is not in its shortest form (valid, but rare), is left
to the protobuf library, which alone decides what is an error.
"""

# In a kernel, a numpy integer and an int have the same type.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from typing import Any

import numpy as np

from shared.kernels import inlined, kernel, types
from shared.xxh64 import Bytes

VARINT, FIXED_64, DELIMITED, FIXED_32 = 0, 1, 2, 5
"""Wire types."""
VARINT_BYTES_MAX = 10
LENGTH_BYTES_MAX = 5
"""The length of a varint below 2^32, at most."""

_PAIR = types.UniTuple(types.int64, 2)
_TRIPLE = types.UniTuple(types.int64, 3)
_TABLE = types.Array(types.int64, 2, "C")


# Kernels. Those with an `end` read body[at:end] and no byte beyond; the caller has checked 0 ≤ at and end ≤ len(body).


@kernel(_PAIR(Bytes, types.int64, types.int64), first=True, allocates=False)
def field_length(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """A minimal varint of at most four bytes: (value, position after it), or (-1, at) for anything else."""
    if at < end and body[at] < 0x80:
        return np.int64(body[at]), at + 1
    value = 0
    for i in range(4):
        if at + i >= end:
            return -1, at
        byte = np.int64(body[at + i])
        if byte < 0x80:
            if byte == 0 and i > 0:
                return -1, at
            return value | byte << (7 * i), at + i + 1
        value |= (byte & 0x7F) << (7 * i)
    return -1, at


@kernel(_PAIR(Bytes, types.int64), first=True, allocates=False)
def checked_length(data: np.ndarray, at: int) -> tuple[int, int]:
    """A varint of data that has been checked, such as canonical label bytes: (value, position after it)."""
    value: Any = 0
    shift = 0
    while data[at] >= 0x80:
        value |= (np.int64(data[at]) & 0x7F) << shift
        shift += 7
        at += 1
    return value | np.int64(data[at]) << shift, at + 1


@kernel(_PAIR(Bytes, types.int64, types.int64), first=True, allocates=False)
def integer(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """A varint of up to ten bytes as an int64: (value, position after it); position -1 if it is cut off or longer."""
    value = np.uint64(0)
    for i in range(VARINT_BYTES_MAX):
        if at + i >= end:
            return 0, -1
        byte = np.uint64(body[at + i])
        value |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < np.uint64(0x80):
            return np.int64(value), at + i + 1
    return 0, -1


@kernel(_TRIPLE(Bytes, types.int64, types.int64), first=True, allocates=False)
def delimited_field(body: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """The length-delimited field at `at`: (its number, the start of its content, the end of its content); the number is
    -1 for anything else. Tag and length may have five bytes each, in any form."""
    tag, length_at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
    if length_at < 0 or tag & 7 != DELIMITED:
        return -1, at, at
    length, content = integer(body, length_at, min(end, length_at + LENGTH_BYTES_MAX))
    if content < 0 or content + length > end:
        return -1, at, at
    return tag >> 3, content, content + length


@kernel(types.int64(Bytes, types.int64, types.int64, types.int64), first=True, allocates=False)
def past_field(body: np.ndarray, at: int, end: int, wire_type: int) -> int:
    """The position after the field whose tag ends at `at`; -1 for a field that is incomplete, or of another wire
    type."""
    if wire_type == VARINT:
        _, at = integer(body, at, end)
        return at
    if wire_type == DELIMITED:
        size, at = field_length(body, at, end)
    elif wire_type == FIXED_64:
        size = 8
    elif wire_type == FIXED_32:
        size = 4
    else:
        return -1
    return at + size if 0 <= size <= end - at else -1


@inlined(allocates=False)
def put_length(out: np.ndarray, at: int, length: int) -> int:
    """Write a length in its shortest form to `out` from `at`. Returns where it ends."""
    while length >= 0x80:
        out[at] = np.uint8(length & 0x7F | 0x80)
        length >>= 7
        at += 1
    out[at] = np.uint8(length)
    return at + 1


BROKEN, SCATTERED = -1, -2
"""What `message_slices` answers, as the first of its results, for what it cannot read."""
SLICE_BEGIN, SLICE_END, SLICE_FIRST = range(3)
"""Columns of a table of slices: where it begins and ends, and how many fields of the number come before it."""


@kernel(_TRIPLE(Bytes, types.int64, types.int64, types.int64, _TABLE, _TABLE))
def message_slices(
    body: np.ndarray, number: int, most: int, slice_bytes: int, slices: np.ndarray, rest: np.ndarray
) -> tuple[int, int, int]:
    """The length-delimited fields with this number of a message: (how many, in how many slices, in how many spans the
    other fields lie).

    A slice is neighbouring fields of `slice_bytes` at most, or one field; each is a row of `slices` (int64[…, 3]).
    Of the fields beyond `most` only the number is told. `rest` (int64[…, 2]) gets the spans of all other fields.
    (BROKEN, …) where a field is not whole, SCATTERED where either table has no room.
    """
    at, end, count, made, spans = 0, len(body), 0, 0, 0
    wanted = number << 3 | DELIMITED
    while at < end:
        tag, content = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
        if content < 0 or tag < 8:
            return BROKEN, at, 0
        if tag & 7 == DELIMITED:
            length, content = integer(body, content, min(end, content + LENGTH_BYTES_MAX))
            following = content + length if content >= 0 and length <= end - content else BROKEN
        else:
            following = past_field(body, content, end, tag & 7)
        if following < 0:
            return BROKEN, at, 0
        if tag == wanted:
            if count < most:
                last = slices[max(made - 1, 0)]
                if made == 0 or last[SLICE_END] != at or following - last[SLICE_BEGIN] > slice_bytes:
                    if made == len(slices):
                        return SCATTERED, at, 0
                    slices[made, SLICE_BEGIN], slices[made, SLICE_FIRST] = at, count
                    made += 1
                slices[made - 1, SLICE_END] = following
            count += 1
        elif spans > 0 and rest[spans - 1, 1] == at:
            rest[spans - 1, 1] = following
        else:
            if spans == len(rest):
                return SCATTERED, at, 0
            rest[spans, 0], rest[spans, 1] = at, following
            spans += 1
        at = following
    return count, made, spans


# Python


def varint(number: int) -> bytes:
    """The shortest form of a number ≥ 0."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, the position after it). Raises IndexError if the data ends within it."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7


def delimited_head(number: int, length: int) -> bytes:
    """The tag and the length that come before the content of a length-delimited field."""
    return varint(number << 3 | DELIMITED) + varint(length)

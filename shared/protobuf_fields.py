"""Fields of protobuf messages as bytes: varints and lengths, for kernels that parse a body and for Python.

Encoding: https://protobuf.dev/programming-guides/encoding/. A field is a tag (a varint: number << 3 | wire type) and
its content. Input that a kernel does not accept, such as a length that is not in its shortest form (valid, but rare),
goes to the protobuf library, which alone decides what is an error.
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
"""The most bytes of a varint below 2^32."""

_PAIR = types.UniTuple(types.int64, 2)
_TRIPLE = types.UniTuple(types.int64, 3)
_TABLE = types.Array(types.int64, 2, "C")


# Kernels. Those with an `end` read only body[at:end]; the caller has checked 0 ≤ at and end ≤ len(body).


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
    """A varint in valid data, such as canonical label bytes: (value, position after it)."""
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
    """Write a length in its shortest form to `out` at `at`. Returns the position after it."""
    while length >= 0x80:
        out[at] = np.uint8(length & 0x7F | 0x80)
        length >>= 7
        at += 1
    out[at] = np.uint8(length)
    return at + 1


BROKEN, SCATTERED = -1, -2
"""First results of `message_slices` for messages that it cannot read."""
SLICE_BEGIN, SLICE_END, SLICE_FIRST = range(3)
"""Columns of a table of slices: begin, end, and how many fields with the number come before the slice."""


@kernel(_TRIPLE(Bytes, types.int64, types.int64, types.int64, _TABLE, _TABLE))
def message_slices(
    body: np.ndarray, number: int, most: int, slice_bytes: int, slices: np.ndarray, other_spans: np.ndarray
) -> tuple[int, int, int]:
    """Divide the length-delimited fields of a message that have this number into slices: (number of fields, of slices,
    of spans of other fields).

    A slice is a run of adjacent fields of at most `slice_bytes`, or one field; each is a row of `slices` (int64[…, 3]).
    Fields beyond `most` are only counted. `other_spans` (int64[…, 2]) gets the spans of all other fields. The first
    result is BROKEN if a field is incomplete, SCATTERED if either table is too small; the second is the position.
    """
    at, end, count, slice_count, spans = 0, len(body), 0, 0, 0
    wanted_tag = number << 3 | DELIMITED
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
        if tag == wanted_tag:
            if count < most:
                last = slices[max(slice_count - 1, 0)]
                if slice_count == 0 or last[SLICE_END] != at or following - last[SLICE_BEGIN] > slice_bytes:
                    if slice_count == len(slices):
                        return SCATTERED, at, 0
                    slices[slice_count, SLICE_BEGIN], slices[slice_count, SLICE_FIRST] = at, count
                    slice_count += 1
                slices[slice_count - 1, SLICE_END] = following
            count += 1
        elif spans > 0 and other_spans[spans - 1, 1] == at:
            other_spans[spans - 1, 1] = following
        else:
            if spans == len(other_spans):
                return SCATTERED, at, 0
            other_spans[spans, 0], other_spans[spans, 1] = at, following
            spans += 1
        at = following
    return count, slice_count, spans


# Python


def varint(number: int) -> bytes:
    """The shortest encoding of a number ≥ 0."""
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

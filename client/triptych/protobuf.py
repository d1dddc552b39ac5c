"""The part of protobuf's wire format that requests and answers need, without generated modules, whose names collide
with others (https:

protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


def varint(number: int) -> bytes:
    """The varint of an integer from -2^63 to 2^64 - 1. Raises ValueError."""
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{number} has more than 64 bits")
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def delimited(field: int, content: bytes) -> bytes:
    """A field that is a text, bytes or a message."""
    return b"%b%b%b" % (varint(field << 3 | DELIMITED), varint(len(content)), content)


def whole(field: int, number: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(number)


def double(field: int, number: float) -> bytes:
    return varint(field << 3 | FIXED64) + struct.pack("<d", number)


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and content of each field: an integer for a varint, otherwise bytes. Raises ValueError if the message ends
    within a field."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            number, at = _varint(message, at)
            yield tag >> 3, number
            continue
        if kind == DELIMITED:
            length, at = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {kind}, which is none")
        if at + length > end:
            raise ValueError(f"the message ends within field {tag >> 3}")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    number = shift = 0
    while at < len(message) and shift < 64:
        octet = message[at]
        at += 1
        number |= (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at
        shift += 7
    raise ValueError("the message ends within a number")

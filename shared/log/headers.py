"""Headers of a record: small named texts and a content type, stored in front of its value.

A stored value with headers is the length of the headers (uint32, little-endian), the headers, and the value. The
headers are a `RecordHeaders` message (proto/log.proto). A tombstone's message begins with the field `tombstone`,
although its number is the highest, so one byte distinguishes it from all others. Where values are in columns, the
highest bit of a value's length says that the stored value begins with headers, so records without headers cost nothing.
"""

from __future__ import annotations

HEADED = 1 << 31
LENGTH_MASK = HEADED - 1
_LENGTH_BYTES = 4

TOMBSTONE = b"\x18\x01"
"""The field `tombstone`; no other field begins with its first byte."""
TOMBSTONE_AT = _LENGTH_BYTES
"""The offset of that field in a stored value."""


class HeadedValue(bytes):
    """The value of a record with headers. The bytes do not include the headers."""

    headers: bytes


def size_of(value: bytes) -> int:
    """The size of a value and its headers in bytes."""
    return len(value) + (len(value.headers) if isinstance(value, HeadedValue) else 0)


def joined(headers: bytes, value: bytes) -> bytes:
    """Combine a value and its headers into a stored value."""
    return b"".join((len(headers).to_bytes(_LENGTH_BYTES, "little"), headers, value))


def split(stored: bytes) -> HeadedValue:
    """Separate value and headers of a stored value that begins with headers. Raises ValueError if it is too short."""
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "little")
    if len(stored) < end:
        raise ValueError(f"a stored value of {len(stored)} bytes is said to begin with {end} bytes of headers")
    value = HeadedValue(stored[end:])
    value.headers = stored[_LENGTH_BYTES:end]
    return value

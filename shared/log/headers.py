"""Headers of a record: small named texts and a content type, stored in front of its value.

A stored value with headers is the length of the headers (uint32, little-endian), the headers, and the value. The
headers are a `RecordHeaders` message (proto/log.proto). That of a tombstone begins with the field that says so, though
its number is the highest: one byte tells it from all others. Where values are columns, the highest bit of a value's
length says that the stored value begins with headers; so records without headers cost nothing.
"""

from __future__ import annotations

HEADED = 1 << 31
LENGTH_MASK = HEADED - 1
_LENGTH_BYTES = 4

TOMBSTONE = b"\x18\x01"
"""The field `tombstone`; no other field begins with its first byte."""
TOMBSTONE_AT = _LENGTH_BYTES
"""Where it stands in a stored value."""


class HeadedValue(bytes):
    """A record's value that has headers; it does not contain them."""

    headers: bytes


def size_of(value: bytes) -> int:
    """Bytes of a value and of its headers."""
    return len(value) + (len(value.headers) if isinstance(value, HeadedValue) else 0)


def joined(headers: bytes, value: bytes) -> bytes:
    """The stored value of a value and its headers."""
    return b"".join((len(headers).to_bytes(_LENGTH_BYTES, "little"), headers, value))


def split(stored: bytes) -> HeadedValue:
    """The value and the headers of a stored value that begins with headers. Raises ValueError if it does not."""
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "little")
    if len(stored) < end:
        raise ValueError(f"a stored value of {len(stored)} bytes is said to begin with {end} bytes of headers")
    value = HeadedValue(stored[end:])
    value.headers = stored[_LENGTH_BYTES:end]
    return value

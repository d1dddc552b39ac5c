"""Several pieces of bytes as one input: each behind its length (two bytes, little-endian)."""

from __future__ import annotations

from collections.abc import Iterable

_LENGTH_BYTES = 2


def joined(pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
    return b"".join(len(plain).to_bytes(_LENGTH_BYTES, "little") + plain for plain in map(bytes, pieces))


def split(data: bytes, most: int = 64) -> list[bytes]:
    """Any bytes as pieces: the inverse of `joined` for what it made."""
    pieces: list[bytes] = []
    at = 0
    while at < len(data) and len(pieces) < most:
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        pieces.append(data[at + _LENGTH_BYTES : end])
        at = end
    return pieces

"""A document beside the log's state: a checksum, and JSON that says its format."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec
import xxhash

_CHECKSUM_BYTES = 8


class _Formatted(Protocol):
    @property
    def format(self) -> int: ...


T = TypeVar("T", bound=_Formatted)


def decode(content: bytes, kind: type[T], format: int) -> T:
    """The document, a struct of this kind, in a file. Raises ValueError that says what is wrong."""
    checksum, payload = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if xxhash.xxh64_digest(payload) != checksum:
        raise ValueError("its checksum does not match")
    try:
        document = msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if document.format != format:
        raise ValueError(f"it has format {document.format}, this program reads {format}")
    return document


def encode(document: _Formatted) -> bytes:
    payload = msgspec.json.encode(document)
    return xxhash.xxh64_digest(payload) + payload

"""The format of the log's small documents: a checksum, and then JSON with the number of its format."""

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
    """The document in the content of a file, as a struct of this kind. Raises ValueError that says what is wrong."""
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

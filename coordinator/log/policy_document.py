"""The document of the log's policies, beside the sequencer's state: a checksum, and the policies as JSON."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import xxhash

NAME = "policies"
FORMAT = 1
TOMBSTONE_AGE_MS = 86_400_000
"""How long a tombstone stays by default: readers that follow a key have this time to see it."""
_CHECKSUM_BYTES = 8


class Policy(msgspec.Struct, frozen=True):
    """Of each key with `prefix`, the `keep_newest` newest records are kept (0: all), as long as they are not older than
    `max_age_ms` (0: for ever). With `keep_newest`, a key's tombstone makes all older records go, and goes itself after
    `tombstone_age_ms` if it is still the newest."""

    name: str
    prefix: bytes
    keep_newest: int = 0
    max_age_ms: int = 0
    tombstone_age_ms: int = TOMBSTONE_AGE_MS


class _Document(msgspec.Struct, frozen=True):
    format: int
    policies: list[Policy]


def decode(content: bytes) -> list[Policy]:
    """The policies in the file. Raises ValueError that says what is wrong."""
    checksum, payload = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    if xxhash.xxh64_digest(payload) != checksum:
        raise ValueError("its checksum does not match")
    try:
        document = msgspec.json.decode(payload, type=_Document)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if document.format != FORMAT:
        raise ValueError(f"it has format {document.format}, this program reads {FORMAT}")
    return document.policies


def encode(policies: Iterable[Policy]) -> bytes:
    payload = msgspec.json.encode(_Document(FORMAT, list(policies)))
    return xxhash.xxh64_digest(payload) + payload

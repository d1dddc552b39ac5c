"""The document of the log's policies, beside the sequencer's state."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coordinator.log import checked_json

NAME = "policies"
FORMAT = 1
TOMBSTONE_AGE_MS = 86_400_000
"""How long a tombstone stays by default: readers that follow a key have this time to see it."""


class Policy(msgspec.Struct, frozen=True):
    """Of each key with `prefix`, the `keep_newest` newest records are kept (0: all), as long as they are not older than
    `max_age_ms` (0: for ever). With `keep_newest`, a key's tombstone removes all older records, and is itself removed
    after `tombstone_age_ms` if it is still the newest record."""

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
    return checked_json.decode(content, _Document, FORMAT).policies


def encode(policies: Iterable[Policy]) -> bytes:
    return checked_json.encode(_Document(FORMAT, list(policies)))

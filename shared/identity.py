"""The identity of the directory of a shard or a log: a small document in it that names its cluster, kind and number.

The service refuses to start with a directory that was swapped with another or comes from another cluster, because
results would be wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import xxhash

from shared.control import Control
from shared.errors import ConfigError
from shared.telemetry import event

NAME = "identity"
SHARD, LOG = "shard", "write-ahead log"


def encode(cluster_id: str, kind: str, number: int) -> bytes:
    """The document: a checksum and the identity."""
    text = f"{cluster_id} {kind} {number}"
    return f"{xxhash.xxh3_64_hexdigest(text.encode())} {text}\n".encode()


def decode(content: bytes) -> tuple[str, str, int]:
    """The (cluster id, kind, number) in a document. Raises ValueError if it is damaged."""
    checksum, _, text = content.rstrip(b"\n").partition(b" ")
    if xxhash.xxh3_64_hexdigest(text).encode() != checksum or content != checksum + b" " + text + b"\n":
        raise ValueError("its checksum does not match its content")
    cluster_id, _, kind_and_number = text.decode().partition(" ")
    kind, _, number = kind_and_number.rpartition(" ")
    return cluster_id, kind, int(number)


def read(control: Control) -> tuple[str, str, int] | None:
    """The identity in the directory's document, or None if there is no document. Raises ValueError if it is damaged,
    OSError."""
    try:
        return decode(control.read(NAME))
    except FileNotFoundError:
        return None


def verify(directories: Mapping[int, Control], cluster_id: str, kind: str) -> None:
    """Check the identities of `directories` (number → directory). Raises ConfigError if one of them has another
    identity, OSError."""
    for number, control in directories.items():
        _is_claimed(control, cluster_id, kind, number)


def claim(directories: Mapping[int, Control], cluster_id: str, kind: str) -> None:
    """Check as `verify` does, and write the identities that are missing or damaged. They are on disk when this
    returns."""
    for number, control in directories.items():
        if not _is_claimed(control, cluster_id, kind, number):
            control.replace(NAME, encode(cluster_id, kind, number))


def _is_claimed(control: Control, cluster_id: str, kind: str, number: int) -> bool:
    """Whether the directory has this identity. False if it has none or a damaged one. Raises ConfigError if it has
    another one."""
    try:
        actual = read(control)
    except ValueError as error:
        file = control.location(NAME)
        event(logging.ERROR, "an identity is damaged and is rewritten", file=file, reason=str(error))
        return False
    if actual is None:
        return False
    expected = cluster_id, kind, number
    if actual != expected:
        raise ConfigError(
            f"{control.location()} is {_described(*actual)}, and lies where {_described(*expected)} belongs; put each "
            "directory back where it was, or restore them together from a copy of the data directory"
        )
    return True


def _described(cluster_id: str, kind: str, number: int) -> str:
    return f"{kind} {number} of cluster {cluster_id}"

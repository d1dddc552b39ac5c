"""To which cluster a directory of its data belongs, and as what: a small document in it. A directory that was exchanged
for another, or comes from another cluster's data, would answer wrongly; the start refuses it."""

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
    text = f"{cluster_id} {kind} {number}"
    return f"{xxhash.xxh3_64_hexdigest(text.encode())} {text}\n".encode()


def decode(content: bytes) -> tuple[str, str, int]:
    """(cluster id, kind, number). Raises ValueError when it is damaged."""
    checksum, _, text = content.rstrip(b"\n").partition(b" ")
    if xxhash.xxh3_64_hexdigest(text).encode() != checksum or content != checksum + b" " + text + b"\n":
        raise ValueError("its checksum does not match its content")
    cluster_id, _, rest = text.decode().partition(" ")
    kind, _, number = rest.rpartition(" ")
    return cluster_id, kind, int(number)


def read(control: Control) -> tuple[str, str, int] | None:
    """What the directory says; None when it does not. Raises ValueError when that is damaged, OSError."""
    try:
        return decode(control.read(NAME))
    except FileNotFoundError:
        return None


def verify(directories: Mapping[int, Control], cluster_id: str, kind: str) -> None:
    """`directories` by number. Raises ConfigError when one of them says that it is another one; OSError."""
    for number, control in directories.items():
        _is_claimed(control, cluster_id, kind, number)


def claim(directories: Mapping[int, Control], cluster_id: str, kind: str) -> None:
    """The same, and have all of them say it, on the disk when this returns."""
    for number, control in directories.items():
        if not _is_claimed(control, cluster_id, kind, number):
            control.replace(NAME, encode(cluster_id, kind, number))


def _is_claimed(control: Control, cluster_id: str, kind: str, number: int) -> bool:
    try:
        found = read(control)
    except ValueError as error:
        file = control.location(NAME)
        event(logging.ERROR, "an identity is damaged and is written anew", file=file, reason=str(error))
        return False
    if found is None:
        return False
    wanted = cluster_id, kind, number
    if found != wanted:
        raise ConfigError(
            f"{control.location()} is {_told(*found)}, and lies where {_told(*wanted)} belongs; put each directory "
            "back where it was, or restore them together from a copy of the data directory"
        )
    return True


def _told(cluster_id: str, kind: str, number: int) -> str:
    return f"{kind} {number} of cluster {cluster_id}"

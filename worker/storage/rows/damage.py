"""What is wrong with a store's files, as errors that name the file."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec

from shared.errors import Unavailable

DECODING_ERRORS = (struct.error, IndexError, KeyError, TypeError, ValueError, msgspec.MsgspecError)
"""What reading a row's bytes raises when they are not what was written."""

_LOCKED = ("IO error: While lock file: ", "IO error: lock hold by current process")
_DAMAGED = ("Corruption: ", "IO error: No such file or directory")
_FAILED = "IO error: "
_FAILED_OUTSIDE = re.compile(r"\(os error \d+\)$")
"""How errors end of the library's own file beside RocksDB's, which it writes whenever it opens a store."""


class StoreLocked(OSError):
    """The store's directory has another owner."""


class StoreDamaged(Unavailable, OSError):
    """The store's files are not what was written; the message names the store, and the file where that is known. The
    shard refuses from then on: what a damaged store answers may be too little, or belong to something else."""


def of_reading(path: Path, error: Exception) -> Unavailable:
    """The error to raise for one that the library raised while it read the store."""
    text = str(error)
    if text.startswith(_DAMAGED):
        return StoreDamaged(f"the store {path} is damaged: {text}")
    return Unavailable(f"the store {path} could not be read: {text}")


def of_opening(path: Path, error: Exception) -> OSError:
    """The error to raise for one that the library raised when it opened the store. A disk that fails or is full is no
    damage: the store may be opened later."""
    text = str(error)
    if text.startswith(_LOCKED):
        return StoreLocked(text)
    is_of_disk = text.startswith(_FAILED) and not text.startswith(_DAMAGED)
    if is_of_disk or _FAILED_OUTSIDE.search(text):
        return OSError(f"the store {path} could not be opened: {text}")
    return StoreDamaged(f"the store {path} cannot be opened: {text}")


def of_writing(path: Path, error: Exception) -> Unavailable:
    """The error to raise for one that the library raised when it wrote to the store. It remembers what its own
    compactions found, and refuses writes because of it."""
    text = str(error)
    if text.startswith(_DAMAGED):
        return StoreDamaged(f"the store {path} is damaged: {text}")
    return Unavailable(f"the store {path} refused a write: {text}")

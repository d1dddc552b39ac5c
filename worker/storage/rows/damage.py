"""Errors of a store: exceptions that say whether it is locked, damaged or failing, derived from the library's texts."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec

from shared.errors import Unavailable

DECODING_ERRORS = (
    struct.error,
    IndexError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""The exceptions that a decoder raises if a row's bytes are not what was written."""

_LOCKED = ("IO error: While lock file: ", "IO error: lock hold by current process")
_DAMAGED = ("Corruption: ", "IO error: No such file or directory")
_FAILED = "IO error: "
_FAILED_OUTSIDE = re.compile(r"\(os error \d+\)$")
"""The end of an error about the settings file that the library, rocksdict, writes whenever it opens a store."""


class StoreLocked(OSError):
    """The store's directory has another owner."""


class StoreDamaged(Unavailable, OSError):
    """The store's files are not what was written; the message names the store and, if known, the file. The shard
    refuses all requests from then on, because a damaged store may return too few rows, or wrong ones."""


def of_reading(path: Path, error: Exception) -> Unavailable:
    """The exception to raise after the library has raised `error` while reading the store."""
    text = str(error)
    if text.startswith(_DAMAGED):
        return StoreDamaged(f"the store {path} is damaged: {text}")
    return Unavailable(f"the store {path} could not be read: {text}")


def of_opening(path: Path, error: Exception) -> OSError:
    """The exception to raise after the library has raised `error` while opening the store. A failing or full disk is
    not damage: the store may be opened later."""
    text = str(error)
    if text.startswith(_LOCKED):
        return StoreLocked(text)
    is_disk_error = text.startswith(_FAILED) and not text.startswith(_DAMAGED)
    if is_disk_error or _FAILED_OUTSIDE.search(text):
        return OSError(f"the store {path} could not be opened: {text}")
    return StoreDamaged(f"the store {path} cannot be opened: {text}")


def of_writing(path: Path, error: Exception) -> Unavailable:
    """The exception to raise after the library has raised `error` while writing to the store. RocksDB also refuses
    writes after one of its compactions has met damage."""
    text = str(error)
    if text.startswith(_DAMAGED):
        return StoreDamaged(f"the store {path} is damaged: {text}")
    return Unavailable(f"the store {path} refused a write: {text}")

"""The supervisor's report about the workers: a small document next to their sockets, for the coordinator.

It is a file, so that it is available even if workers are not running. It is not synced: after a loss of power, none of
the processes in it exists any more.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shared.durable import DIRECTORY_MODE, FILE_MODE

DIRECTORY, NAME = "run", "supervisor.json"
BYTES_MAX = 1 << 20
"""The most bytes that are read. The report has about 100 bytes for each worker."""


class Exits(msgspec.Struct):
    """The unexpected exits of one worker's processes: how many there were, and the reason (a signal or an exit code)
    and Unix time of the last one."""

    count: int = 0
    reason: str = ""
    at: float = 0.0


class Supervision(msgspec.Struct):
    """`started_at`: the Unix time when the supervisor started. `workers`: worker name → its exits. `pid`: the
    supervisor's."""

    started_at: float
    workers: dict[str, Exits]
    pid: int = 0


def write(data: Path, supervision: Supervision) -> None:
    """Replace the document in the data directory `data`. Raises OSError."""
    path = _path(data)
    path.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.encode(supervision))
    os.replace(temporary, path)


def read(data: Path) -> Supervision | None:
    """The document; None if there is none or it cannot be read. A supervisor that ends in order removes it."""
    try:
        with open(_path(data), "rb") as file:
            return msgspec.json.decode(file.read(BYTES_MAX), type=Supervision)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def remove(data: Path) -> None:
    """Remove the document if it exists. Raises OSError."""
    _path(data).unlink(missing_ok=True)


def _path(data: Path) -> Path:
    return data / DIRECTORY / NAME

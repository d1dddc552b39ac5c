"""What the supervisor of the workers says about them: a small document beside their sockets, for the coordinator.

It is a file because it must be there while a worker is not, or all of them are not. It is not synced: after a loss of
power no process of it is left.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shared.durable import DIRECTORY_MODE, FILE_MODE

DIRECTORY, NAME = "run", "supervisor.json"
BYTES_MAX = 1 << 20
"""More is not read: a worker has some 100 bytes."""


class Exits(msgspec.Struct):
    """Of one worker's processes: how many have ended that were not told to, and of the last one the reason (a signal or
    a code) and the Unix time."""

    count: int = 0
    reason: str = ""
    at: float = 0.0


class Supervision(msgspec.Struct):
    """`started_at`: when the supervisor started, in Unix time. `workers`: by name. `pid`: of the supervisor."""

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
    """The document; None if there is none, or none that can be read: a supervisor that ends in order removes it."""
    try:
        with open(_path(data), "rb") as file:
            return msgspec.json.decode(file.read(BYTES_MAX), type=Supervision)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def remove(data: Path) -> None:
    """Raises OSError."""
    _path(data).unlink(missing_ok=True)


def _path(data: Path) -> Path:
    return data / DIRECTORY / NAME

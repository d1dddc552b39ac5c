"""What keeps the data of this process from other users of the machine: modes of files, and no copies of its memory."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import stat
from pathlib import Path

from shared.config import Settings
from shared.durable import DIRECTORY_MODE
from shared.manifest import HOLDS_DATA, NAME
from shared.telemetry import event

PR_SET_DUMPABLE = 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS = 0o077
"""What the mode of a file or directory gives to users other than its owner."""


def confine(settings: Settings) -> None:
    """Apply all of it. Call this at the start of a process, before it opens a file."""
    if not settings.core_dumps:
        forbid_core_dumps()
    close_to_others(settings.data)


def forbid_core_dumps() -> None:
    """A crash leaves no copy of the memory on disk, and no other process of this user can read it, as a debugger does.
    Forked processes inherit this. Programs that this process starts have only the first limit."""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    except (OSError, ValueError) as error:
        event(logging.WARNING, "the limit of core files cannot be set", why=error)
    # The limit does not hold where the kernel gives core files to a program, such as systemd-coredump.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        event(logging.WARNING, "core files cannot be forbidden", why=os.strerror(ctypes.get_errno()))


def close_to_others(data: Path) -> None:
    """Make the data directory, and the directories in it that hold data, accessible to this user only, whatever modes
    they had: a copy or a restore may have widened them. What is below them is closed with them.

    The directory itself is left alone, with a line in the log, if it is not ours alone: if another user owns it, if it
    is sticky as /tmp is, or if it is neither empty nor a data directory yet.
    """
    try:
        names = set(os.listdir(data))
    except OSError:
        return  # it does not exist yet, or the start fails and says why
    is_ours = NAME in names or not names
    _close(data.resolve(), may_change=is_ours and not data.stat().st_mode & stat.S_ISVTX)
    for name in sorted(names & {*HOLDS_DATA, "run"}):
        _close(data / name, may_change=True)


def _close(path: Path, *, may_change: bool) -> None:
    """Close one directory of this user, or say in the log that it is open. A link is not followed below the data
    directory: it may lead to a directory of somebody else."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        seen = {"directory": path, "mode": f"{stat.S_IMODE(status.st_mode):04o}"}
        if not status.st_mode & OTHERS:
            return
        if may_change and status.st_uid == os.geteuid():
            os.fchmod(descriptor, DIRECTORY_MODE)
            event(logging.WARNING, "a directory was open to other users and is closed now", **seen)
        else:
            event(logging.WARNING, "other users can enter a directory", **seen)
    except OSError as error:  # a disk that is not mounted for writing
        event(logging.WARNING, "other users can enter a directory", directory=path, why=error)
    finally:
        os.close(descriptor)

"""Protects this process's data from other users of the machine: file modes, and no core dumps."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import stat
from pathlib import Path

from shared.durable import DIRECTORY_MODE
from shared.manifest import HOLDS_DATA, NAME
from shared.settings import Settings
from shared.telemetry import event

PR_SET_DUMPABLE = 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OTHERS = 0o077
"""The mode bits that give access to users other than the owner."""


def confine(settings: Settings) -> None:
    """Apply all protections. Call this at the start of a process, before it opens a file."""
    if not settings.core_dumps:
        forbid_core_dumps()
    close_to_others(settings.data)


def forbid_core_dumps() -> None:
    """Prevent a crash from writing the memory to disk, and other processes of this user, such as debuggers, from
    reading it. Forked processes inherit both. Programs that this process executes inherit only the first limit."""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    except (OSError, ValueError) as error:
        event(logging.WARNING, "the limit of core files cannot be set", why=error)
    # The limit has no effect if the kernel pipes core files to a program such as systemd-coredump.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        event(logging.WARNING, "core files cannot be forbidden", why=os.strerror(ctypes.get_errno()))


def close_to_others(data: Path) -> None:
    """Make the data directory, and the directories in it that hold data, accessible to this user only, whatever modes
    they had: a copy or a restore may have widened them. This also protects everything below them.

    The data directory itself is left unchanged, with a line in the log, if it may be shared: if another user owns it,
    if it has the sticky bit as /tmp does, or if it is neither empty nor a data directory yet.
    """
    try:
        names = set(os.listdir(data))
    except OSError:
        return  # it does not exist yet, or the start fails later and reports why
    is_ours = NAME in names or not names
    _close(data.resolve(), may_change=is_ours and not data.stat().st_mode & stat.S_ISVTX)
    for name in sorted(names & {*HOLDS_DATA, "run"}):
        _close(data / name, may_change=True)


def _close(path: Path, *, may_change: bool) -> None:
    """Close one directory of this user, or log that it is open. Symbolic links below the data directory are not
    followed: they may lead to another user's directory."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        log_fields = {"directory": path, "mode": f"{stat.S_IMODE(status.st_mode):04o}"}
        if not status.st_mode & OTHERS:
            return
        if may_change and status.st_uid == os.geteuid():
            os.fchmod(descriptor, DIRECTORY_MODE)
            event(logging.WARNING, "a directory was open to other users and is closed now", **log_fields)
        else:
            event(logging.WARNING, "other users can enter a directory", **log_fields)
    except OSError as error:  # for example a disk mounted read-only
        event(logging.WARNING, "other users can enter a directory", directory=path, why=error)
    finally:
        os.close(descriptor)

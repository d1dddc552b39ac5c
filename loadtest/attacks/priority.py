"""Priorities of processes, so that other work on the machine is not measured.

Linux divides processors among sessions first (autogroups, see sched(7)), and by niceness only within each of them: so
both are set. Only root may raise them; without the right to, everything stays as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")


@contextmanager
def raised(niceness: int) -> Iterator[None]:
    """For this process and those that it starts meanwhile; for the other processes of its session as well."""
    process, session = os.getpriority(os.PRIO_PROCESS, 0), _session_niceness()
    prefer(niceness)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, process)
        if session is not None:
            _prefer_session(session)


def prefer(niceness: int) -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    _prefer_session(niceness)


def _session_niceness() -> int | None:
    """None where the kernel has no autogroups."""
    try:
        found = re.search(r"nice (-?\d+)", AUTOGROUP.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


def _prefer_session(niceness: int) -> None:
    with suppress(OSError):
        AUTOGROUP.write_text(str(niceness))

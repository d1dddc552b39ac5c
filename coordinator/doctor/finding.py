"""The result of one check of the doctor."""

from __future__ import annotations

import msgspec

OK, WARNING, PROBLEM = "ok", "warning", "problem"
"""No fault; a fault that is likely to cause trouble; a fault that keeps the service from working or endangers data."""
REFUSED = "correct what the message names; until then, the service refuses to start"
"""What to do about a setting or a file that a start refuses with this message."""


class Finding(msgspec.Struct, frozen=True):
    """`about`: machine, settings, data or cluster. `name`: what was checked. `seen`: the value found. `right`: the
    right value and how to get it, as an instruction; empty if there is no fault."""

    level: str
    about: str
    name: str
    seen: str
    right: str = ""


def ok(about: str, name: str, seen: str) -> Finding:
    return Finding(OK, about, name, seen)


def warning(about: str, name: str, seen: str, right: str) -> Finding:
    return Finding(WARNING, about, name, seen, right)


def problem(about: str, name: str, seen: str, right: str) -> Finding:
    return Finding(PROBLEM, about, name, seen, right)


def size(count: float) -> str:
    """A number of bytes as text for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"

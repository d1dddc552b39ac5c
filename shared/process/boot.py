"""Identifies the current boot of the system. Within one boot, written data survives the death of a process, even if it
was not synced."""

from __future__ import annotations

import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """16 bytes unique to this boot; empty if the system does not report them."""
    try:
        return uuid.UUID(BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return b""

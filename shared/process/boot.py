"""Identifies the current boot of the system: what processes have written since it began survives their death, synced or
not."""

from __future__ import annotations

import uuid
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """16 bytes that no other boot has; empty if the system does not tell."""
    try:
        return uuid.UUID(BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return b""

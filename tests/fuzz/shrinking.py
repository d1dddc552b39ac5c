"""Makes a failing input smaller, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable

PLAIN = 0x30  # "0"
"""The byte that stands for bytes that do not matter."""


def shrunk(data: bytes, fails: Callable[[bytes], bool], seconds: float) -> bytes:
    """The smallest input found within `seconds` for which `fails` holds: without pieces of it, from halves down to
    single bytes, and with plain bytes in the place of others."""
    give_up = time.monotonic() + seconds
    size = max(1, len(data) // 2)
    while True:
        at, is_smaller = 0, False
        while at < len(data) and time.monotonic() < give_up:
            candidate = data[:at] + data[at + size :]
            if fails(candidate):
                data, is_smaller = candidate, True
            else:
                at += size
        if time.monotonic() >= give_up or (size == 1 and not is_smaller):
            break
        size = max(1, size // 2)
    for at in range(len(data)):
        if time.monotonic() >= give_up:
            break
        candidate = data[:at] + bytes([PLAIN]) + data[at + 1 :]
        if data[at] != PLAIN and fails(candidate):
            data = candidate
    return data

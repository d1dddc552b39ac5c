"""Waiting for the last owner of a directory to let go of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shared.errors import Unavailable

LOCK_WAIT_S = 15.0
"""How long a new owner waits: a killed worker's successor may start before the kernel has released the lock, an orderly
stop takes up to 5 s."""
LOCK_POLL_S = 0.1

T = TypeVar("T")


def when_free(directory: Path, take: Callable[[], T], refused: type[OSError]) -> T:
    """What `take` returns, tried again while it raises `refused`. Raises Unavailable if the directory stays locked."""
    give_up = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return take()
        except refused as error:
            if time.monotonic() > give_up:
                raise Unavailable(f"{directory} is locked by another process: {error}") from error
            time.sleep(LOCK_POLL_S)

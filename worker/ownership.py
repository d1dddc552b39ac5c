"""Waiting until the last owner of a directory releases it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from shared.errors import Unavailable

LOCK_WAIT_S = 15.0
"""How long a new owner waits. The successor of a killed worker may start before the kernel has released the lock, and
an orderly stop takes up to 5 s."""
LOCK_POLL_S = 0.1

T = TypeVar("T")


def when_free(directory: Path, take: Callable[[], T], refused: type[OSError]) -> T:
    """The result of `take`, which is called again as long as it raises `refused`. Raises Unavailable if the directory
    stays locked for LOCK_WAIT_S."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return take()
        except refused as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"{directory} is locked by another process: {error}") from error
            time.sleep(LOCK_POLL_S)

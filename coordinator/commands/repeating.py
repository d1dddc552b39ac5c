"""Retries of requests that are safe to repeat, while the cluster is down."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from coordinator.command_client import Away

BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 0.1, 5.0
"""The wait before a retry, in seconds; it doubles each time."""
PATIENCE_S = 60.0
"""The time within which a cluster restarts, and after which a write gives up."""

T = TypeVar("T")


def until_answered(send: Callable[[], T], *, patience_s: float = math.inf, going_on: str = "resuming") -> T:
    """Calls `send` until it does not raise Away, and returns its result. Shows the message of the first Away.

    `going_on`: the message for when the cluster is back. Raises the last Away after `patience_s` seconds.
    """
    give_up = time.monotonic() + patience_s
    back_off_s = 0.0
    while True:
        try:
            answer = send()
        except Away as error:
            if time.monotonic() >= give_up:
                raise
            if not back_off_s:
                sys.stderr.write(f"triptych: {error}; trying again\n")
            back_off_s = min(BACK_OFF_MAX_S, 2 * back_off_s) or BACK_OFF_FIRST_S
            time.sleep(back_off_s)
            continue
        if back_off_s:
            sys.stderr.write(f"triptych: {going_on}\n")
        return answer

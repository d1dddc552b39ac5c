"""Requests that are safe to repeat, sent again while the cluster is away."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from coordinator.command_client import Away

BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 0.1, 5.0
"""The wait before a request is sent again: twice as long each time."""
PATIENCE_S = 60.0
"""A cluster restarts within this time; a write gives up after it."""

T = TypeVar("T")


def until_answered(send: Callable[[], T], *, patience_s: float = math.inf, going_on: str = "going on") -> T:
    """What `send` returns; it is called again after Away, whose message is shown the first time.

    `going_on`: what is shown when the cluster is back. Raises the last Away after `patience_s` seconds.
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

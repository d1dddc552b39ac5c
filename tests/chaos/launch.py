"""Starts `coordinator` or `worker` as `python -m` would, with messages between them lost and late as the control file
says. The product's code knows nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from coordinator.fanout.links import Links
from coordinator.fanout.membership import Membership
from shared import wire
from tests.chaos.control import Control


class Faults:
    """Whether a message is lost, and how late it comes. Those of one direction of one worker stay in order, as on a
    connection: a late one holds up what follows."""

    def __init__(self, control: Control, chance: random.Random) -> None:
        self._control, self._chance = control, chance
        self._free_at: dict[tuple[str, bytes], float] = {}

    def pass_on(self, direction: str, worker: bytes, pass_now: Callable[[], None]) -> None:
        control, drawn = self._control, self._chance.random() * 1000
        if drawn < control.drop_permille:
            control.count_message()
            return
        now = time.monotonic()
        due = max(now, self._free_at.get((direction, worker), 0.0))
        if drawn < control.drop_permille + control.hold_permille:
            control.count_message()
            due = max(due, now + self._chance.random() * control.hold_ms_max / 1000)
        if due <= now:
            pass_now()
            return
        # Later messages come after this one also when their timers end in the same instant.
        self._free_at[direction, worker] = due + 1e-4
        asyncio.get_running_loop().call_later(due - now, _pass_late, pass_now)


def _pass_late(pass_now: Callable[[], None]) -> None:
    with contextlib.suppress(zmq.ZMQError):  # the worker has gone meanwhile
        pass_now()


def lose_and_hold_messages(faults: Faults) -> None:
    """Both directions pass here: what the coordinator sends, and what comes to it (replies and heartbeats)."""
    send, deliver, register = wire.send, Links._deliver, Membership.register

    def send_maybe(socket: zmq.Socket[bytes], frames: Sequence[wire.Frame]) -> None:
        faults.pass_on("out", bytes(frames[0]), lambda: send(socket, frames))

    def deliver_maybe(links: Links, identity: bytes, message: Any) -> None:
        faults.pass_on("in", identity, lambda: deliver(links, identity, message))

    def register_maybe(members: Membership, identity: bytes, message: Any) -> None:
        faults.pass_on("in", identity, lambda: register(members, identity, message))

    wire.send = send_maybe
    Links._deliver = deliver_maybe  # type: ignore[method-assign, assignment]
    Membership.register = register_maybe  # type: ignore[method-assign, assignment]


def start(module: str) -> None:
    """Be the coordinator or the supervisor, until it ends."""
    if module == "coordinator":
        control = Control(Path(os.environ["CHAOS_CONTROL"]), create=False)
        lose_and_hold_messages(Faults(control, random.Random(os.environ["CHAOS_SEED"])))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)

"""Starts `coordinator` or `worker` as `python -m` would, with messages between them lost and late as the control file
says: `python -m tests.chaos.launch coordinator`. The product's code knows nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from coordinator.links import Links
from shared import wire
from tests.chaos.control import Control


def lose_and_hold_messages(control: Control, chance: random.Random) -> None:
    """Both directions pass here: what the coordinator sends, and what comes to it (replies and heartbeats)."""
    send, deliver, register = wire.send, Links._deliver, Links._register

    def fate() -> float | None:
        """None: lost; otherwise how many seconds late."""
        drawn = chance.random() * 1000
        if drawn < control.drop_permille:
            control.count_message()
            return None
        if drawn < control.drop_permille + control.hold_permille:
            control.count_message()
            return chance.random() * control.hold_ms_max / 1000
        return 0.0

    def send_late(socket: zmq.Socket[bytes], frames: Sequence[wire.Frame]) -> None:
        with contextlib.suppress(zmq.ZMQError):
            send(socket, frames)

    def send_maybe(socket: zmq.Socket[bytes], frames: Sequence[wire.Frame]) -> None:
        late_s = fate()
        if late_s == 0.0:
            send(socket, frames)
        elif late_s is not None:
            asyncio.get_running_loop().call_later(late_s, send_late, socket, list(frames))

    def deliver_maybe(links: Links, identity: bytes, message: Any) -> None:
        late_s = fate()
        if late_s == 0.0:
            deliver(links, identity, message)
        elif late_s is not None:
            asyncio.get_running_loop().call_later(late_s, deliver, links, identity, message)

    def register_maybe(links: Links, identity: bytes, message: Any) -> None:
        if fate() is not None:  # a late heartbeat is as good as the next one
            register(links, identity, message)

    wire.send = send_maybe
    Links._deliver = deliver_maybe
    Links._register = register_maybe


def main() -> None:
    module = sys.argv[1]
    if module == "coordinator":
        control = Control(Path(os.environ["CHAOS_CONTROL"]), create=False)
        lose_and_hold_messages(control, random.Random(os.environ["CHAOS_SEED"]))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""Reads of the log that may take a worker long: each waits for its turn at the gate of queries.

While no heavy slot is free, such a read has the CPU time of a light query: its page ends when the time is used up, and
a count or a list of keys, which has no pages, waits for a heavy slot. So a client with many long reads delays neither
queries nor other clients' reads for long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from coordinator.fanout.calls import WorkerReply
from coordinator.fanout.links import Links
from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.queries.gate import Gate, Place


class Turns:
    """For the event loop's thread only."""

    def __init__(self, links: Links, gate: Gate) -> None:
        self._links = links
        self._gate = gate

    async def call(self, method: str, *, shards: Iterable[int], body: bytes, timeout_s: float) -> list[WorkerReply]:
        """As `Links.call`, when there is a place for it. The time that it waits counts towards `timeout_s`. Raises
        Overloaded if too many wait, or if it has waited too long."""
        deadline = time.monotonic() + timeout_s

        async def attempt(place: Place) -> list[WorkerReply]:
            left_s = max(0.0, deadline - time.monotonic())
            return await self._links.call(
                method, shards=shards, body=body, timeout_s=left_s, processor_s=place.processor_s
            )

        return await self._gate.run(CURRENT_CLIENT.get(), hash((method, body)), deadline, attempt)

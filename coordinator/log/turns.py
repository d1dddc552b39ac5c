"""Reads of the log that may take a worker long: each waits for its turn at the gate of queries.

While no heavy slot is free, such a read has the CPU time of a light query: its page ends when the time is used up, and
a count or a list of keys, which has no pages, waits for a heavy slot. So a client with many long reads delays neither
queries nor other clients' reads for long.

Short pages would take more CPU time for the same records. If only pages of groups have the heavy slots, a few more of
them run beside these, because each of them ends soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from coordinator.fanout.calls import WorkerReply
from coordinator.fanout.links import Links
from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.queries.gate import Gate, Place

GROUP_PAGE = "log.group_read"
BESIDE_MAX = 4
"""Pages of groups that run beside those in heavy slots. A query that then takes a slot waits for these in the workers,
half of them at a time."""


class Turns:
    """For the event loop's thread only."""

    def __init__(self, links: Links, gate: Gate) -> None:
        self._links = links
        self._gate = gate
        self._pages_in_slots = self._pages_beside = 0

    async def call(self, method: str, *, shards: Iterable[int], body: bytes, timeout_s: float) -> list[WorkerReply]:
        """As `Links.call`, when there is a place for it. The time that it waits counts towards `timeout_s`. Raises
        Overloaded if too many wait, or if it has waited too long."""
        deadline = time.monotonic() + timeout_s
        is_group_page = method == GROUP_PAGE

        async def attempt(place: Place) -> list[WorkerReply]:
            left_s = max(0.0, deadline - time.monotonic())
            is_counted = is_group_page and not place.is_light
            self._pages_in_slots += is_counted
            try:
                return await self._links.call(
                    method, shards=shards, body=body, timeout_s=left_s, processor_s=place.processor_s
                )
            finally:
                self._pages_in_slots -= is_counted

        if not is_group_page or not self._may_be_beside():
            return await self._gate.run(CURRENT_CLIENT.get(), hash((method, body)), deadline, attempt)
        self._pages_beside += 1
        try:
            return await self._links.call(method, shards=shards, body=body, timeout_s=timeout_s)
        finally:
            self._pages_beside -= 1

    def _may_be_beside(self) -> bool:
        """Whether only pages of groups have the heavy slots, nothing waits for one, and one more page may run."""
        gate = self._gate
        return self._pages_in_slots == gate.heavy_places and not gate.heavy.waiting and self._pages_beside < BESIDE_MAX

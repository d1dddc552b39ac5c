"""Members of groups that wait for new records, and are woken by the append of one that may be theirs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.log.columns import BatchRecords
from coordinator.log.frontier import Group as AppendedGroup
from shared.errors import Overloaded
from shared.log.slots import slot_of

LOOKED_AT_MAX = 64
"""A batch with more records than this wakes every member that waits for its prefix: most of them have one of the
records."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A member that waits. `is_owned`: bool[slots]."""

    is_owned: NDArray[np.bool_]
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Waiters:
    """For the event loop's thread only."""

    def __init__(self, waiters_max: int, shards: int) -> None:
        self._max = waiters_max
        self._shards = shards
        self._by_prefix: defaultdict[bytes, set[Waiter]] = defaultdict(set)
        self.count = 0

    @contextmanager
    def waiting(self, prefix: bytes, is_owned: NDArray[np.bool_]) -> Iterator[Waiter]:
        """A waiter for as long as the context lasts. Raises Overloaded at the limit."""
        if self.count >= self._max:
            raise Overloaded(
                f"{self.count} members of groups wait for records, the limit is {self._max} "
                "(TRIPTYCH_LOG_FOLLOWERS_MAX); try again later"
            ).because("followers")
        waiter = Waiter(is_owned)
        self._by_prefix[prefix].add(waiter)
        self.count += 1
        try:
            yield waiter
        finally:
            self.count -= 1
            self._by_prefix[prefix].discard(waiter)
            if not self._by_prefix[prefix]:
                del self._by_prefix[prefix]

    def publish(self, group: AppendedGroup) -> None:
        """Wake the members whose slots may have one of the records, which have become visible."""
        for prefix, waiters in self._by_prefix.items():
            for _, records in group.batches:
                self._publish(records, prefix, waiters)

    def _publish(self, records: BatchRecords, prefix: bytes, waiters: set[Waiter]) -> None:
        asleep = [waiter for waiter in waiters if not waiter.woken.is_set()]
        places = records.having(prefix) if asleep else ()
        if not places:
            return
        slots = [slot_of(records.key(at), self._shards) for at in places[:LOOKED_AT_MAX]]
        for waiter in asleep:
            if len(places) > LOOKED_AT_MAX or waiter.is_owned[slots].any():
                waiter.woken.set()

    def publish_gap(self) -> None:
        """Wake all members: records have become visible that were in no published group."""
        for waiters in self._by_prefix.values():
            for waiter in waiters:
                waiter.woken.set()

"""Slots: the parts into which consumer groups divide the keys of the log.

A key's hash determines its slot. All keys of a slot are on one shard, and the slots of a shard have consecutive
numbers, so that a group member, which owns a few ranges of slots, reads from few shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.hashing import hash64

SLOTS = 1024
"""The approximate number of slots of the whole log. If there are more shards than this, each shard is one slot."""
NOT_OWNED = (1 << 64) - 1
"""Stands for a slot's first sequence number if none of its records is selected."""


def slots_per_shard(shards: int) -> int:
    return max(1, SLOTS // shards)


def slot_count(shards: int) -> int:
    return shards * slots_per_shard(shards)


def slot_of(key: bytes, shards: int) -> int:
    digest = hash64(key)
    return digest % shards * slots_per_shard(shards) + digest // shards % slots_per_shard(shards)


def slots_of(hashes: NDArray[np.uint64], shards: int) -> NDArray[np.int64]:
    """int64[n]: the slots of the keys with these hashes (`shared.hashing`)."""
    per_shard, count = np.uint64(slots_per_shard(shards)), np.uint64(shards)
    return (hashes % count * per_shard + hashes // count % per_shard).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SlotFilter:
    """Selects the records of some slots, from a sequence number onwards. `starts`: uint64[slots], the first sequence
    number of each slot, or NOT_OWNED."""

    starts: NDArray[np.uint64]
    shards: int

    def first_of_keys(self, keys: Sequence[bytes]) -> NDArray[np.uint64]:
        """uint64[n]: the first selected sequence number of each key."""
        return self.first_of(np.fromiter(map(hash64, keys), np.uint64, len(keys)))

    def first_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """As `first_of_keys`, given the hashes of the keys."""
        return self.starts[slots_of(hashes, self.shards)]

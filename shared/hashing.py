"""The hash that assigns data to shards: xxh64 with seed 0 of the item's key bytes, modulo the number of shards.

The key bytes are: for a series its canonical label bytes (`shared.labels.encode`), for a log record its key, for a
vector its id in UTF-8.
"""

from __future__ import annotations

import xxhash


def hash64(key: bytes) -> int:
    """The xxh64 hash of `key`, seed 0."""
    return xxhash.xxh64_intdigest(key)


def shard_of(key: bytes, shards: int) -> int:
    """The shard, 0 ≤ shard < `shards`, that holds `key`."""
    return hash64(key) % shards

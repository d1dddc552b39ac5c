"""Ids by the shard that they belong to."""

from __future__ import annotations

from collections.abc import Sequence

from shared.hashing import shard_of
from shared.messages.vectors import pack_blobs

THREAD_IDS_MIN = 1000
"""So many ids are placed in a thread: they take a microsecond each."""


def places(ids: Sequence[bytes], shards: int) -> dict[int, list[int]]:
    """Shard → the positions in `ids` of the ids that belong to it."""
    by_shard: dict[int, list[int]] = {}
    for place, name in enumerate(ids):
        by_shard.setdefault(shard_of(name, shards), []).append(place)
    return by_shard


def id_parts(ids: Sequence[bytes], shards: int) -> dict[int, tuple[bytes, bytes]]:
    """Shard → its distinct ids as two frames."""
    distinct_ids = list(dict.fromkeys(ids))
    return {
        shard: pack_blobs([distinct_ids[place] for place in shard_places])
        for shard, shard_places in places(distinct_ids, shards).items()
    }

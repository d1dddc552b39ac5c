"""Opens the newest blocks of a shard after a start, so that the first queries find their directories and chunks in the
cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from worker.series.blocks.block import Block

CACHE_SHARE = 4
"""The part of the cache that may be filled: the rest is for what queries ask for."""
OPENING_S_MAX = 5.0
"""How long it may take: a query that comes later is served without it."""


def open_newest(blocks: Iterable[Block], bytes_max: int, is_over: Callable[[], bool]) -> int:
    """Open the chunks of these blocks, the newest block first, until they take `bytes_max` or `is_over()`. Returns
    their size in bytes. Raises CorruptBlock, Unavailable."""
    give_up = time.monotonic() + OPENING_S_MAX
    opened_bytes = 0
    for block in sorted(blocks, key=lambda block: block.row.latest_ms, reverse=True):
        directory = block.directory()
        opened_bytes += directory.size_bytes
        for number in range(len(directory.chunk_hashes)):
            if opened_bytes >= bytes_max or time.monotonic() > give_up or is_over():
                return opened_bytes
            opened_bytes += block.opened(directory, number).nbytes
    return opened_bytes

"""Opens the newest blocks of a shard after a start, so that the first queries find their directories and chunks in the
cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from worker.series.blocks.block import Block

CACHE_SHARE = 4
"""The part of the cache that may be filled: the rest is for what queries ask for."""
OPENING_S_MAX = 5.0
"""How long it may take: a query that comes later is served without it."""


def open_newest(blocks: Iterable[Block], bytes_max: int, is_over: Callable[[], bool]) -> int:
    """Open the chunks of these blocks, the newest block first, until they take `bytes_max` or `is_over()`. Returns
    their size in bytes. Raises CorruptBlock, Unavailable."""
    give_up = time.monotonic() + OPENING_S_MAX
    sizes, opened_bytes = _opened(blocks), 0
    while opened_bytes < bytes_max and time.monotonic() < give_up and not is_over():
        size = next(sizes, None)
        if size is None:
            break
        opened_bytes += size
    return opened_bytes


def _opened(blocks: Iterable[Block]) -> Iterator[int]:
    """Open the directories and chunks of these blocks one by one, the newest block first. Yields their sizes."""
    for block in sorted(blocks, key=lambda block: block.row.latest_ms, reverse=True):
        directory = block.directory()
        yield directory.size_bytes
        for number in range(len(directory.chunk_hashes)):
            yield block.opened(directory, number).nbytes

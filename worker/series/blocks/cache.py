"""A cache of the decoded directories and chunks of blocks, with a bound on its size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any


class DecodedCache:
    """Drops the least recently used items first, so that all items together stay within `bytes_max`. Safe to use from
    many threads. Items are shared and must not be written to."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self.hits = self.misses = 0
        """How often `get` found an item, and how often it did not."""

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    def get(self, key: Hashable) -> Any | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, item: Any, size_bytes: int) -> None:
        """Store `item`, unless it alone is over the bound."""
        if size_bytes > self._bytes_max:
            return
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._bytes += size_bytes - (replaced[1] if replaced else 0)
            self._entries[key] = (item, size_bytes)
            while self._bytes > self._bytes_max:
                self._bytes -= self._entries.popitem(last=False)[1][1]

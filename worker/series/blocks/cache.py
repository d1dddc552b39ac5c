"""Decoded pieces of blocks, kept while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any


class DecodedCache:
    """The least recently used is forgotten first, so that all together stay within `bytes_max`. Safe to use from many
    threads; what it gives is shared and must not be written to."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, key: Hashable) -> Any | None:
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, item: Any, size_bytes: int) -> None:
        """Keep `item`, unless it alone is over the bound."""
        if size_bytes > self._bytes_max:
            return
        with self._lock:
            before = self._held.pop(key, None)
            self._bytes += size_bytes - (before[1] if before else 0)
            self._held[key] = (item, size_bytes)
            while self._bytes > self._bytes_max:
                self._bytes -= self._held.popitem(last=False)[1][1]

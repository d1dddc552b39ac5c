"""A cache of the directories and chunks of blocks, with a bound on its size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any, Protocol


class Borrower(Protocol):
    """An item that holds extra data, which it can recreate, while the cache has room for it."""

    def give_back(self) -> None:
        """Free the extra data. Must not block or call the cache."""
        ...


class DecodedCache:
    """Drops the least recently used items first, so that all items together stay within `bytes_max`. Room that items do
    not need is lent, and taken back before any item is dropped. Safe to use from many threads. Items are shared and
    must not be written to."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loans: OrderedDict[Borrower, int] = OrderedDict()
        self._bytes = self._lent_bytes = 0  # of items and loans together, and of the loans
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
            self._evict()

    def shrink(self, bytes_max: int) -> None:
        """Lower the bound to `bytes_max`, and drop items if necessary."""
        with self._lock:
            assert bytes_max <= self._bytes_max, "items that alone were over the bound would be missing"
            self._bytes_max = bytes_max
            self._evict()

    def _evict(self) -> None:
        """End loans and drop items until the bound is met. The caller holds the lock."""
        self._take_back()
        while self._bytes > self._bytes_max:
            self._bytes -= self._entries.popitem(last=False)[1][1]

    def lend(self, borrower: Borrower, size_bytes: int) -> bool:
        """Whether `borrower` may hold `size_bytes` of extra data until `give_back` is called. A borrower has at most
        one loan. The least recently used loans end to make room, but no item is dropped."""
        with self._lock:
            if borrower in self._loans:
                return True
            if self._bytes - self._lent_bytes + size_bytes > self._bytes_max:
                return False
            self._bytes += size_bytes
            self._take_back()
            self._loans[borrower] = size_bytes
            self._lent_bytes += size_bytes
            return True

    def used(self, borrower: Borrower) -> None:
        """Note that the loan of `borrower`, if it has one, was used again."""
        with self._lock:
            if borrower in self._loans:
                self._loans.move_to_end(borrower)

    def _take_back(self) -> None:
        """End loans until the bound is met. The caller holds the lock."""
        while self._bytes > self._bytes_max and self._loans:
            borrower, size_bytes = self._loans.popitem(last=False)
            self._bytes -= size_bytes
            self._lent_bytes -= size_bytes
            borrower.give_back()

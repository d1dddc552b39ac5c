"""Which rows satisfy the latest filters: users send the same filter with many queries."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import msgspec

from shared.messages.vectors import Condition
from worker.vectors.row_filter import Bits

MASKS_MAX = 64
"""A mask takes a bit for each row, or two."""
KEY_BYTES_MAX = 1024
"""The masks of longer conditions are not kept."""


class MaskCache:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._masks: OrderedDict[bytes, Bits] = OrderedDict()
        self._lock = Lock()

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return sum(mask.memory_bytes for mask in self._masks.values())

    @staticmethod
    def key(condition: Condition) -> bytes:
        """A key that tells all conditions apart. Python's own comparison would not: 1 and True are equal."""
        return msgspec.msgpack.encode(condition)

    def get(self, key: bytes) -> Bits | None:
        """The mask of the condition with this key, None if it is not kept."""
        with self._lock:
            mask = self._masks.get(key)
            if mask is not None:
                self._masks.move_to_end(key)
            return mask

    def put(self, key: bytes, mask: Bits) -> None:
        """Keep a mask, instead of the least recently used one if there are too many."""
        if len(key) > KEY_BYTES_MAX:
            return
        with self._lock:
            self._masks[key] = mask
            self._masks.move_to_end(key)
            while len(self._masks) > MASKS_MAX:
                self._masks.popitem(last=False)

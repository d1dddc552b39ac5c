"""A cache of values derived from one value that is used again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shared.process.array_memory import uncounted

V = TypeVar("V")


class Derived:
    """Values derived from one value, at most `bytes_max` together. Thread-safe: if two threads derive the same value,
    one result is kept. Derived values must not be changed."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = self._bytes_left = bytes_max
        self._derived: dict[object, Any] = {}

    def get(self, kind: object, derive: Callable[[], V], size_of: Callable[[V], int]) -> V:
        """The cached value of this `kind`, or else the result of `derive`. It counts in no query's memory account, and
        is cached if its size in bytes, from `size_of`, still fits."""
        value: V | None = self._derived.get(kind)
        if value is None:
            with uncounted():
                value = derive()
            bytes_left = self._bytes_left - size_of(value)
            if bytes_left >= 0:
                self._derived[kind], self._bytes_left = value, bytes_left
        return value

    def part(self, kind: object, share: int = 2) -> Derived:
        """The cache of values derived from a part of the value. Its bound is 1 / `share` of this one's; if that much no
        longer fits, it is not kept."""
        return self.get(kind, lambda: Derived(self.bytes_max // share), lambda part: part.bytes_max)

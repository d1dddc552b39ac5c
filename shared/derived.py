"""What is made from a value that is asked for again and again, kept beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from shared.process.array_memory import uncounted

Made = TypeVar("Made")


class Derived:
    """What functions have made from one value, `bytes_max` in all at most. For several threads: two may make the same,
    and one is kept. Nobody changes what was made."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = self._bytes_left = bytes_max
        self._made: dict[object, Any] = {}

    def get(self, kind: object, make: Callable[[], Made], size_of: Callable[[Made], int]) -> Made:
        """What `make` returns, or returned before for this `kind`. It is in the account of no query, and is kept if its
        `size_of` in bytes still fits."""
        made: Made | None = self._made.get(kind)
        if made is None:
            with uncounted():
                made = make()
            left = self._bytes_left - size_of(made)
            if left >= 0:
                self._made[kind], self._bytes_left = made, left
        return made

    def part(self, kind: object, share: int = 2) -> Derived:
        """Where to keep what is made from a part of the value: has half of the room (1 / `share`), if there is so much
        left."""
        return self.get(kind, lambda: Derived(self.bytes_max // share), lambda part: part.bytes_max)

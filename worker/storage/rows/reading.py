"""Reads a store without changing it, for the offline checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rocksdict import Rdict, ReadOptions

from worker.storage.rows import damage as store_damage
from worker.storage.rows import iteration as store_rows


class StoreReader:
    """The rows of a store that is open for reading only. `writes`: the number of logged writes that the store has
    counted. `get` and `scan` raise StoreDamaged if a row cannot be read."""

    def __init__(self, path: Path, db: Rdict, families: list[str], writes: int) -> None:
        self.path = path
        self.writes = writes
        self._families: dict[str, Any] = {name: db.get_column_family(name) for name in families}

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value; None if there is no such row or family. A first start that was killed leaves families missing."""
        if family not in self._families:
            return None
        try:
            return self._families[family].get(key)
        except Exception as error:  # the library raises plain Exception
            raise store_damage.of_reading(self.path, error) from error

    def scan(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) with start ≤ key < end (None: to the last key), ascending; none if there is no such family."""
        if family not in self._families:
            return iter(())
        options = ReadOptions()
        options.set_verify_checksums(True)
        if end is not None:
            options.set_iterate_upper_bound(end)
        check = partial(store_rows.check_end, self.path)
        return store_rows.ascending(self._families[family].snapshot(), start, options, check)

"""A store as it is on the disk, for those who only look at it: nothing of it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocksdict import Rdict, RdictIter, ReadOptions

from worker.storage.rows import damage as store_damage
from worker.storage.rows import iteration as store_rows


class StoreReader:
    """Reads as `store.Store` does. Raises StoreDamaged where a row cannot be read."""

    def __init__(self, path: Path, db: Rdict, families: list[str], writes: int) -> None:
        self.path = path
        self.writes = writes
        """How many the store says it has had."""
        self._families: dict[str, Any] = {name: db.get_column_family(name) for name in families}

    def get(self, family: str, key: bytes) -> bytes | None:
        """None also where there is no such family: a first start that is killed has not made all of them."""
        if family not in self._families:
            return None
        try:
            return self._families[family].get(key)
        except Exception as error:  # the library raises plain Exception
            raise store_damage.of_reading(self.path, error) from error

    def scan(self, family: str, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """(key, value) with start ≤ key < end (None: to the last key), ascending."""
        if family not in self._families:
            return iter(())
        options = ReadOptions()
        options.set_verify_checksums(True)
        if end is not None:
            options.set_iterate_upper_bound(end)
        return store_rows.ascending(self._families[family].snapshot(), start, options, self._ended)

    def _ended(self, reader: RdictIter) -> None:
        try:
            reader.status()
        except Exception as error:  # the library raises plain Exception
            raise store_damage.of_reading(self.path, error) from error

"""The storage of a worker as files of the data directory: the path of each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shared import identity
from shared.control import LocalControl
from shared.manifest import shard_directory
from worker.ownership import when_free
from worker.storage.objects import LocalObjects
from worker.storage.rows import known_damage
from worker.storage.rows.damage import StoreDamaged, StoreLocked
from worker.storage.rows.store import Store
from worker.storage.wal import layout
from worker.storage.wal.log import WriteAheadLog


def local_journal(data: Path, worker: int) -> WriteAheadLog:
    """The write-ahead log of a worker in the data directory, not open yet. `worker`: its lowest shard."""
    base = data / layout.NAME
    return WriteAheadLog(layout.directory_of(base, worker), former=base)


class LocalStorage:
    """See `worker.storage.faces.Storage`. `check` reads a whole store and returns a text for each defect; it is called
    before a store that was found damaged is opened again."""

    def __init__(self, data: Path, check: Callable[[Path], list[str]]) -> None:
        self._data = data
        self._check = check
        self.control = LocalControl(data)
        self.snapshots = LocalObjects(data / "vector-index")

    def blocks(self, shard: int) -> LocalObjects:
        return LocalObjects(shard_directory(self._data, shard) / "blocks")

    def rows(self, shard: int) -> Store:
        directory = shard_directory(self._data, shard)
        return when_free(directory, lambda: self._open_store(directory / "store"), StoreLocked)

    def _open_store(self, path: Path) -> Store:
        identity_path = path.with_name(identity.NAME)
        if identity_path.exists() and not path.exists():
            raise StoreDamaged(
                f"the store {path} is missing; restore it from a copy of the data directory, or accept the loss and "
                f"have it begin anew: rm {identity_path}"
            )
        known_damage.verify(path, self._check)
        return Store(path)

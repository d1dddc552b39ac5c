"""Which collections there are: a file in the data directory that only the coordinator writes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from shared.durable import make_directory, write_atomically
from shared.errors import BadData, ConfigError, NotFound
from shared.messages.vectors import DIMENSION_MAX, METRICS, STORAGES, Collection

DEFAULT = "default"
COLLECTIONS_MAX = 1000
TEXT_FIELDS_MAX = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class _File(msgspec.Struct):
    next_id: int
    collections: list[Collection]


class Catalogue:
    """The collections by name. Changes are on the disk before the method returns; one caller at a time changes it."""

    def __init__(self, data: Path) -> None:
        self._directory = data / "vector"
        self._path = self._directory / "collections.json"
        self._next_id = 1
        self._collections: dict[str, Collection] = {}

    def load(self) -> None:
        """Raises ConfigError when the file cannot be used: without it nobody knows what the shards hold."""
        if not self._path.exists():
            return
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}") from error
        self._next_id = content.next_id
        self._collections = {collection.name: collection for collection in content.collections}

    def find(self, name: str) -> Collection | None:
        return self._collections.get(name or DEFAULT)

    def get(self, name: str) -> Collection:
        """Raises NotFound."""
        found = self.find(name)
        if found is None:
            raise NotFound(f"there is no collection {name or DEFAULT!r}")
        return found

    def all(self) -> list[Collection]:
        return sorted(self._collections.values(), key=lambda collection: collection.name)

    def create(self, name: str, dimension: int, metric: str, storage: str, text: tuple[str, ...]) -> Collection:
        """Add one; the same again is the one there is. Raises BadData for settings that are wrong or differ."""
        check(name, dimension, metric, storage, text)
        there = self._collections.get(name)
        if there is not None:
            asked = Collection(there.id, name, dimension, metric, storage, text)
            if asked != there:
                raise BadData(
                    f"the collection {name!r} exists with {describe(there)}; it cannot become {describe(asked)}"
                )
            return there
        if len(self._collections) >= COLLECTIONS_MAX:
            raise BadData(f"there are {COLLECTIONS_MAX} collections, which is the limit")
        made = Collection(self._next_id, name, dimension, metric, storage, text)
        self._next_id += 1
        self._write({**self._collections, name: made})
        return made

    def remove(self, name: str) -> None:
        self._write({other: entry for other, entry in self._collections.items() if other != name})

    def _write(self, collections: dict[str, Collection]) -> None:
        """Replace the file in one step, fsynced. Raises OSError, and then nothing has changed."""
        make_directory(self._directory)
        write_atomically(self._path, msgspec.json.encode(_File(self._next_id, list(collections.values()))))
        self._collections = collections


def describe(collection: Collection) -> str:
    text = f" and text fields {', '.join(collection.text)}" if collection.text else ""
    return f"dimension {collection.dimension}, metric {collection.metric}, storage {collection.storage}{text}"


def check(name: str, dimension: int, metric: str, storage: str, text: tuple[str, ...]) -> None:
    if not _NAME.fullmatch(name):
        raise BadData(f"collection is {name!r}; a name has 1 to 64 letters, digits, '_', '-' and '.'")
    if not 1 <= dimension <= DIMENSION_MAX:
        raise BadData(f"dimension is {dimension}; it must be 1 to {DIMENSION_MAX}")
    if metric not in METRICS:
        raise BadData(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}")
    if storage not in STORAGES:
        raise BadData(f"storage is {storage!r}; it must be one of {', '.join(STORAGES)}")
    if storage == "i8" and metric != "cosine":
        raise BadData(f"storage is 'i8' and metric is {metric!r}; i8 holds unit vectors, so the metric must be cosine")
    if len(set(text)) != len(text) or len(text) > TEXT_FIELDS_MAX or not all(text):
        raise BadData(f"textFields is {list(text)}; it must be at most {TEXT_FIELDS_MAX} different names")

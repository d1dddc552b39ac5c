"""The list of collections: two copies of a document that only the coordinator writes."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from coordinator.vectors import text_settings
from shared import catalogue_file
from shared.catalogue_file import NAMES, CatalogueContent, Lost, copies_in, newest
from shared.control import Control
from shared.errors import BadData, ConfigError, NotFound, Unavailable
from shared.messages.vectors import (
    COSINE_STORAGES,
    DIMENSION_MAX,
    INDEXES,
    METRICS,
    STORAGES,
    Collection,
    ShardCollections,
    usual_index,
)
from shared.telemetry import event

DEFAULT = "default"
COLLECTIONS_MAX = 1000
DROPPED_MAX = 1000
"""The limit on collections that were dropped while shards were missing, and that these shards still have."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Catalogue:
    """The collections by name. Changes are on the disk, in both files, before memory has them and the method returns;
    one caller at a time changes it. After OSError nothing has changed, unless the disk has kept the write nevertheless:
    while that is in doubt, the next change or `settle` writes the content of memory once more."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._content = CatalogueContent(1, [])
        self._generation = 0
        self._by_name: dict[str, Collection] = {}
        self.is_known = False
        """Whether the files existed, or have been rebuilt from what the shards have."""
        self.in_doubt = False

    def load(self) -> None:
        """Read the newer copy and mend the other. Without a whole one, the shards must be asked: `rebuild`.

        Raises ConfigError when a file is there and cannot be read.
        """
        try:
            copies = copies_in(self._control)
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        content = newest(copies)
        if content is None:
            return
        self._take(content)
        self.is_known = True
        for name, copy in copies.items():
            if isinstance(copy, Lost):
                file = self._control.location(name)
                event(logging.WARNING, "one list of collections is mended from the other", file=file, why=copy.why)
        if any(copy != content for copy in copies.values()):
            self.in_doubt = True
            try:
                self.settle()
            except OSError as error:
                event(logging.ERROR, "the list of collections cannot be written", why=error)

    def rebuild(self, shards: Sequence[ShardCollections]) -> None:
        """Make the list from what all shards have; if several collections have one name, from the newest. Raises
        OSError."""
        dropped = {number for shard in shards for number in shard.dropped}
        stored = {collection.id: collection for shard in shards for collection in shard.collections}
        remaining = [stored[number] for number in sorted(stored) if number not in dropped]
        by_name = {collection.name: collection for collection in remaining}
        is_lost = bool(stored or dropped)
        for name in NAMES if is_lost else ():
            if self._control.exists(name):
                self._control.set_aside(name)
        if is_lost and not self.warnings():
            self._control.prepare()
            self._control.put_aside(NAMES[0], b"both lists of collections were missing\n")
        waiting = [stored[number] for number in sorted(dropped & stored.keys())]
        self._write(max([*dropped, *stored], default=0) + 1, list(by_name.values()), waiting)
        self.is_known = True
        if is_lost:
            names = ", ".join(sorted(by_name)) or "none"
            event(logging.ERROR, "the list of collections was lost; it is made from the shards", collections=names)

    def warnings(self) -> list[str]:
        """What the list may lack: a text for as long as the damaged files that were set aside are there."""
        return [
            f"{self._control.location(name)} was set aside as damaged: collections that had no vector then may be "
            "missing from the list; remove the file to accept that"
            for name in self._control.set_aside_names()
        ]

    def find(self, name: str) -> Collection | None:
        return self._by_name.get(name or DEFAULT)

    def get(self, name: str) -> Collection:
        """Raises NotFound."""
        collection = self.find(name)
        if collection is None:
            raise NotFound(f"there is no collection {name or DEFAULT!r}")
        return collection

    def all(self) -> list[Collection]:
        return sorted(self._by_name.values(), key=lambda collection: collection.name)

    @property
    def next_id(self) -> int:
        """A number above every id ever given."""
        return self._content.next_id

    @property
    def generation(self) -> int:
        """A number that is different after every change."""
        return self._content.generation

    @property
    def dropped(self) -> list[Collection]:
        """Dropped collections that some shard may still have."""
        return self._content.dropped

    def create(self, wanted: Collection) -> Collection:
        """Add a collection with these settings, which gets an id here. If it exists with the same settings, returns it.
        Raises BadData for wrong or different settings, OSError."""
        wanted = checked(wanted)
        existing = self._by_name.get(wanted.name)
        if existing is not None:
            if replace(wanted, id=existing.id) != existing:
                raise BadData(
                    f"the collection {wanted.name!r} exists with {describe(existing)}; "
                    f"it cannot become {describe(wanted)}"
                )
            return existing
        if len(self._by_name) >= COLLECTIONS_MAX:
            raise BadData(f"there are {COLLECTIONS_MAX} collections, which is the limit")
        created = replace(wanted, id=self.next_id)
        self._change(next_id=self.next_id + 1, collections=[*self._content.collections, created])
        return created

    def remove(self, name: str) -> Collection:
        """Drop a collection from the list. The shards follow, and are waited for in `dropped`. Raises NotFound,
        Unavailable when too many are waited for already, OSError."""
        dropped_collection = self.get(name)
        if len(self.dropped) >= DROPPED_MAX:
            raise Unavailable(
                f"{DROPPED_MAX} dropped collections wait for shards that are away; bring those back first"
            )
        others = [collection for collection in self._content.collections if collection != dropped_collection]
        self._change(collections=others, dropped=[*self.dropped, dropped_collection])
        return dropped_collection

    def confirm_dropped(self, gone: Collection) -> None:
        """Note that no shard has this collection any more. Raises OSError."""
        self._change(dropped=[collection for collection in self.dropped if collection.id != gone.id])

    def give_above(self, number: int) -> None:
        """Never give this id, or a lower one, again. Raises OSError."""
        self._change(next_id=max(number + 1, self.next_id))

    def reconcile(self, half: Sequence[Collection], strays: Sequence[Collection], generation: int) -> None:
        """Drop collections that some shard has dropped, and take in those that shards have and this list never had: of
        one name the newest, and none whose name is taken.

        Raises Unavailable when the list is no more of the generation that was compared, OSError.
        """
        if generation != self.generation:
            raise Unavailable("the list of collections has changed while it was compared with the shards")
        half_dropped_ids = {collection.id for collection in half}
        remaining = [collection for collection in self._content.collections if collection.id not in half_dropped_ids]
        names = {collection.name for collection in remaining}
        newest_of = {one.name: one for one in sorted(strays, key=lambda one: one.id) if one.name not in names}
        waiting = [collection for collection in self.dropped if collection.id not in half_dropped_ids]
        self._change(collections=[*remaining, *newest_of.values()], dropped=[*waiting, *half])

    def settle(self) -> None:
        """Write the content of memory to the disk. Raises OSError."""
        if self.in_doubt:
            self._change()

    def _change(self, **fields: Any) -> None:
        content = msgspec.structs.replace(self._content, **fields)
        self._write(content.next_id, content.collections, content.dropped)

    def _write(self, next_id: int, collections: list[Collection], dropped: list[Collection]) -> None:
        self._generation += 1
        content = CatalogueContent(next_id, collections, dropped, self._generation)
        try:
            catalogue_file.write(self._control, content)
        except OSError:
            self.in_doubt = self.in_doubt or self._disk_differs()
            raise
        self._take(content)
        self.in_doubt = False

    def _disk_differs(self) -> bool:
        try:
            return any(copy != self._content for copy in copies_in(self._control).values())
        except OSError:
            return True

    def _take(self, content: CatalogueContent) -> None:
        self._content = catalogue_file.decode(content.encode())
        self._generation = max(self._generation, content.generation)
        self._by_name = {collection.name: collection for collection in content.collections}


def describe(collection: Collection) -> str:
    text = f" and text fields {text_settings.described(collection.text)}" if collection.text else ""
    settings = f"dimension {collection.dimension}, metric {collection.metric}, storage {collection.storage}"
    return f"{settings}, index {collection.kind_of_index}{text}"


def checked(wanted: Collection) -> Collection:
    """The collection with its settings in the form in which they are stored. Raises BadData for a wrong setting."""
    name, dimension, metric, storage = wanted.name, wanted.dimension, wanted.metric, wanted.storage
    if not _NAME.fullmatch(name):
        raise BadData(f"collection is {name!r}; a name has 1 to 64 letters, digits, '_', '-' and '.'")
    if not 1 <= dimension <= DIMENSION_MAX:
        raise BadData(f"dimension is {dimension}; it must be 1 to {DIMENSION_MAX}")
    if metric not in METRICS:
        raise BadData(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}")
    if storage not in STORAGES:
        raise BadData(f"storage is {storage!r}; it must be one of {', '.join(STORAGES)}")
    if storage in COSINE_STORAGES and metric != "cosine":
        raise BadData(
            f"storage is {storage!r} and metric is {metric!r}; "
            f"{storage} holds unit vectors, so the metric must be cosine"
        )
    return replace(wanted, text=text_settings.checked(wanted.text), index=_checked_index(wanted.index, storage))


def _checked_index(index: str | msgspec.UnsetType, storage: str) -> str | msgspec.UnsetType:
    """The index setting as it is stored: left out if it is the usual one. Raises BadData for a setting that is wrong,
    or not possible with this storage."""
    usual = usual_index(storage)
    if index is msgspec.UNSET or index == usual:
        return msgspec.UNSET
    if index not in INDEXES:
        raise BadData(f"index is {index!r}; it must be one of {', '.join(INDEXES)}")
    if storage == "b1":
        raise BadData(f"index is {index!r} and storage is 'b1'; of signs, the index must be {usual}")
    return index

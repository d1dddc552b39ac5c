"""Checks the vectors' files of a data directory that no process has open. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from shared.catalogue_file import DIRECTORY, NAMES, Lost, copies_in, newest
from shared.control import LocalControl
from shared.durable import DAMAGED
from shared.messages.vectors import Collection
from worker.storage.objects import LocalObjects
from worker.storage.rows.reading import StoreReader
from worker.vectors import part, snapshot, stored_rows

CHECK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged file, what is wrong with it, and what depends on it. `costs_data` is False if the file is repaired or
    written anew without a loss."""

    path: Path
    what: str
    depends: str
    costs_data: bool


def check(data: Path) -> list[Finding]:
    """The damage in `vector-index/` and in the list of collections of the data directory `data`. The stores' rows are
    checked by `check_rows`."""
    return [*check_collections(data), *check_index(data / "vector-index")]


def check_index(index: Path) -> Iterator[Finding]:
    """The damage in the snapshots of all collections, `index/COLLECTION/SHARD/`."""
    depends = "nothing but time: the index is built anew from the stores at the next start"
    for path in sorted(path for path in index.glob("*/*") if path.is_dir()):
        saved = LocalObjects(path)
        try:
            snapshot.shards_of(saved)
        except (OSError, ValueError) as error:
            yield Finding(path / snapshot.SHARDS, str(error), depends, costs_data=False)
            continue
        try:
            snapshot.verify_vectors(saved, snapshot.verified(saved))
        except (OSError, ValueError) as error:
            yield Finding(_named(path, error), str(error), depends, costs_data=False)


def _named(directory: Path, error: Exception) -> Path:
    """The file of a snapshot that an error names; the list of rows if it names none."""
    if isinstance(error, OSError) and error.filename:
        return Path(error.filename)
    return next(
        (path for path in sorted(directory.iterdir()) if path.name in str(error).split()), directory / snapshot.ROWS
    )


def check_rows(reader: StoreReader, listed: set[int] | None) -> Iterator[str]:
    """A text for each thing that is wrong with a store's vectors. `listed`: ids of the collections in the list of
    collections, None if the list is lost. Raises StoreDamaged if a row cannot be read."""
    known: dict[int, Collection] = {}
    for key, value in reader.scan(stored_rows.META, part.KNOWN, part.KNOWN + b"\xff"):
        try:
            collection = msgspec.msgpack.decode(value, type=Collection)
            if part.KNOWN + str(collection.id).encode() != key:
                raise ValueError(f"it says collection {collection.id}")
            known[collection.id] = collection
        except (msgspec.MsgspecError, ValueError) as error:
            yield f"the row {key!r} of 'meta' is invalid: {error}"
    unlisted = sorted(known.keys() - listed) if listed is not None else []
    if unlisted:
        names = ", ".join(repr(known[collection_id].name) for collection_id in unlisted)
        yield f"the collections {names} are not in the list of collections"
    start = b""
    while (row := next(reader.scan(stored_rows.FAMILY, start), None)) is not None:
        collection_id = int.from_bytes(row[0][:4], "big")
        start = stored_rows.prefix(collection_id + 1)
        yield from _check_collection(reader, collection_id, known.get(collection_id))


def _check_collection(reader: StoreReader, collection_id: int, collection: Collection | None) -> Iterator[str]:
    rows = reader.scan(stored_rows.FAMILY, stored_rows.prefix(collection_id), stored_rows.prefix(collection_id + 1))
    if collection is None:
        yield f"{sum(1 for _ in rows)} vectors are of collection {collection_id}, which the shard does not know"
        return
    wrong: dict[bytes, str] = {}
    highest = 0
    while batch := [(key[4:], value) for key, value in islice(rows, CHECK_ROWS)]:
        undamaged, damaged = stored_rows.checked(batch, collection.dimension)
        wrong.update(damaged)
        highest = max([highest, *undamaged.versions.tolist()])
    if wrong:
        vector_id, why = next(iter(wrong.items()))
        yield f"{len(wrong)} vectors of {collection.name!r} are damaged, such as {vector_id!r}: {why}"
    stored = reader.get(stored_rows.META, stored_rows.HIGHEST + str(collection_id).encode())
    stored_highest = 0 if stored is None else int.from_bytes(stored, "little")
    if stored_highest < highest:
        yield f"the highest version of {collection.name!r} is {stored_highest}, and a vector has {highest}"


def check_collections(data: Path) -> Iterator[Finding]:
    """The damage in both copies of the list of collections, and the copies that were set aside."""
    directory = data / DIRECTORY
    copies = copies_in(LocalControl(directory))
    has_undamaged = newest(copies) is not None
    is_new = not any((directory / name).exists() for name in NAMES)
    for name, content in copies.items():
        if isinstance(content, Lost) and not is_new:
            depends = "nothing: the other copy is whole, and the next start writes this one anew"
            if not has_undamaged:
                depends = "collections without a vector; the others are found in the shards at the next start"
            yield Finding(directory / name, content.why, depends, costs_data=not has_undamaged)
    for path in sorted(directory.glob(f"*{DAMAGED}*")):
        depends = "collections that had no vector then may be missing; remove the file to accept that"
        yield Finding(path, "it was damaged and is set aside", depends, costs_data=True)

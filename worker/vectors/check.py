"""What is damaged in the vectors' files of a data directory that no process has open; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.catalogue_file import DIRECTORY, NAMES, Lost, copies_in, newest
from shared.durable import DAMAGED
from worker.vectors import snapshot


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged file, what is wrong with it, and what depends on it. `costs_data` is False when it is repaired or made
    anew without a loss."""

    path: Path
    what: str
    depends: str
    costs_data: bool


def check(data: Path) -> list[Finding]:
    """Of `vector-index/` and of the list of collections. The stores' rows are not looked at here."""
    return [*check_collections(data), *check_index(data / "vector-index")]


def check_index(index: Path) -> Iterator[Finding]:
    """Of the snapshots of all collections: `index/COLLECTION/SHARD/`."""
    for path in sorted(index.glob("*/*")):
        try:
            snapshot.verified(path)
        except (OSError, ValueError) as error:
            depends = "nothing but time: the index is built anew from the stores at the next start"
            yield Finding(path / snapshot.ROWS, str(error), depends, costs_data=False)


def check_collections(data: Path) -> Iterator[Finding]:
    """Of both copies of the list of collections, and of what was set aside."""
    directory = data / DIRECTORY
    copies = copies_in(directory)
    is_whole = newest(copies) is not None
    is_new = not any((directory / name).exists() for name in NAMES)
    for path, content in copies.items():
        if isinstance(content, Lost) and not is_new:
            depends = "nothing: the other copy is whole, and the next start writes this one anew"
            if not is_whole:
                depends = "collections without a vector; the others are found in the shards at the next start"
            yield Finding(path, content.why, depends, costs_data=not is_whole)
    for path in sorted(directory.glob(f"*{DAMAGED}*")):
        depends = "collections that had no vector then may be missing; remove the file to accept that"
        yield Finding(path, "it was damaged and is set aside", depends, costs_data=True)

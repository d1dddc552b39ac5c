"""The list of vector collections on disk: two documents with the same content, written one after the other.

A change is complete when both documents are on disk. If one of them is damaged or lost, the other has every
acknowledged change. If they differ, a change was interrupted, and the newer document counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import xxhash

from shared.control import Control
from shared.messages.vectors import Collection

DIRECTORY = "vector"
NAMES = ("collections.json", "collections.copy.json")
FORMAT = 1


class CatalogueContent(msgspec.Struct, frozen=True):
    """The list. `next_id` is above every id ever assigned. `dropped`: collections that some shard may still have
    because it was unavailable when they were dropped."""

    next_id: int
    collections: list[Collection]
    dropped: list[Collection] = []
    generation: int = 0
    format: int = FORMAT
    checksum: str = ""

    def encode(self) -> bytes:
        """The document, with a checksum of its own content."""
        checksum = xxhash.xxh3_64_hexdigest(msgspec.json.encode(msgspec.structs.replace(self, checksum="")))
        return msgspec.json.encode(msgspec.structs.replace(self, checksum=checksum))


@dataclass(frozen=True, slots=True)
class Lost:
    """A copy that cannot be used, and the reason."""

    why: str


def decode(content: bytes) -> CatalogueContent:
    """Decode a document. Raises ValueError, which says what is wrong with it."""
    try:
        catalogue = msgspec.json.decode(content, type=CatalogueContent)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if catalogue.format != FORMAT:
        raise ValueError(f"it has format {catalogue.format}, and this program reads format {FORMAT}")
    if catalogue.encode() != content:
        raise ValueError("its checksum does not match its content")
    ids = [collection.id for collection in (*catalogue.collections, *catalogue.dropped)]
    if len(set(ids)) != len(ids) or max(ids, default=0) >= catalogue.next_id:
        raise ValueError(f"it has the ids {sorted(ids)}, and {catalogue.next_id} as the next one")
    return catalogue


def copies_in(control: Control) -> dict[str, CatalogueContent | Lost]:
    """Both copies on disk, by name. Raises OSError if a copy exists and cannot be read."""
    copies: dict[str, CatalogueContent | Lost] = {}
    for name in NAMES:
        try:
            copies[name] = decode(control.read(name))
        except FileNotFoundError:
            copies[name] = Lost("it is missing")
        except ValueError as error:
            copies[name] = Lost(str(error))
    return copies


def newest(copies: Mapping[str, CatalogueContent | Lost]) -> CatalogueContent | None:
    """The newest usable content; None if neither copy is usable."""
    usable = [content for content in copies.values() if not isinstance(content, Lost)]
    return max(usable, key=lambda content: content.generation, default=None)


def write(control: Control, content: CatalogueContent) -> None:
    """Replace both copies. When this returns, they are on disk. Raises OSError; then each copy is either the old or the
    new one."""
    control.prepare()
    for name in NAMES:
        control.replace(name, content.encode())

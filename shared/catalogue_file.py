"""The list of vector collections on disk: two documents of the same content, written one after the other.

A change is made when both are on the disk. If one of them is damaged or lost, the other has every change that was
acknowledged; if they differ, a change was under way, and the newer one counts.
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
    """`next_id` is above every id ever given. `dropped` are collections that some shard may still have: those that were
    away when it was dropped."""

    next_id: int
    collections: list[Collection]
    dropped: list[Collection] = []
    generation: int = 0
    format: int = FORMAT
    checksum: str = ""

    def encode(self) -> bytes:
        checksum = xxhash.xxh3_64_hexdigest(msgspec.json.encode(msgspec.structs.replace(self, checksum="")))
        return msgspec.json.encode(msgspec.structs.replace(self, checksum=checksum))


@dataclass(frozen=True, slots=True)
class Lost:
    """A copy that cannot be used."""

    why: str


def decode(content: bytes) -> CatalogueContent:
    """Raises ValueError that says what is wrong."""
    try:
        found = msgspec.json.decode(content, type=CatalogueContent)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if found.format != FORMAT:
        raise ValueError(f"it has format {found.format}, and this program reads format {FORMAT}")
    if found.encode() != content:
        raise ValueError("its checksum does not match its content")
    given = [collection.id for collection in (*found.collections, *found.dropped)]
    if len(set(given)) != len(given) or max(given, default=0) >= found.next_id:
        raise ValueError(f"it has the ids {sorted(given)}, and {found.next_id} as the next one")
    return found


def copies_in(control: Control) -> dict[str, CatalogueContent | Lost]:
    """Both copies as they are on the disk, by name. Raises OSError when one is there and cannot be read."""
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
    """The content that counts; None when no copy can be used."""
    whole = [content for content in copies.values() if not isinstance(content, Lost)]
    return max(whole, key=lambda content: content.generation, default=None)


def write(control: Control, content: CatalogueContent) -> None:
    """Replace both copies; on the disk when this returns. Raises OSError, and then each is the old or the new one."""
    control.prepare()
    for name in NAMES:
        control.replace(name, content.encode())

"""What a backup consists of: its inventory, which names every file and the object that has its content.

A place of backups has objects, each named by a hash of its content, and inventories. Equal files of several backups
share an object. A backup exists once its inventory does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
import xxhash

FORMAT = 1
INVENTORIES, OBJECTS = "backups/", "objects/"
"""Prefixes of names in a place of backups."""
SUFFIX = ".json"
DIGEST_BYTES = 16
_NUMBER = re.compile(rb'"number":(\d{1,15})\b')
_OBJECT = re.compile(rf"{OBJECTS}([0-9a-f]{{2}})/\1[0-9a-f]{{30}}-\d+")


class BackupError(Exception):
    """An error that is shown as one line."""


class InventoryFile(msgspec.Struct, frozen=True, array_like=True):
    """One file. `path`: in the data directory. `digest`: xxh3-128 of the content, in hex. `changed_ns` and `inode` are
    of the file that was copied: the next backup does not read it again if they are the same."""

    path: str
    size: int
    digest: str
    changed_ns: int
    inode: int

    @property
    def object(self) -> str:
        return object_name(self.digest, self.size)


class Inventory(msgspec.Struct, frozen=True):
    """One backup. `number`: grows from backup to backup of a place, whatever the clock does. `name`: of the backup,
    which begins with its moment in UTC. `data_format`: the format of the data
    directory (`shared.manifest.FORMAT`). `warnings`: what was damaged already."""

    format: int
    number: int
    name: str
    moment_ms: int
    cluster_id: str
    shards: int
    data_format: int
    warnings: list[str]
    files: list[InventoryFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)

    def encode(self) -> bytes:
        """A checksum, a line break, and the inventory as JSON."""
        content = msgspec.json.encode(self)
        return xxhash.xxh3_128_hexdigest(content).encode() + b"\n" + content

    @staticmethod
    def decode(content: bytes) -> Inventory:
        """Raises ValueError that says what is wrong."""
        checksum, _, body = content.partition(b"\n")
        if xxhash.xxh3_128_hexdigest(body).encode() != checksum:
            raise ValueError("its checksum does not match its content")
        try:
            inventory = msgspec.json.decode(body, type=Inventory)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error
        if inventory.format > FORMAT:
            raise ValueError(f"it has format {inventory.format}, and this program reads format {FORMAT}")
        for entry in inventory.files:
            if entry.path.startswith("/") or ".." in entry.path.split("/") or not entry.path:
                raise ValueError(f"it names the file {entry.path!r}, which is not in a data directory")
            bytes.fromhex(entry.digest)
        return inventory


@dataclass(frozen=True, slots=True)
class Unusable:
    """An inventory that is damaged, or of a later release. `name`: of its backup. `number`: as far as it can be read,
    otherwise 0. `why` names its file, too."""

    name: str
    number: int
    why: str


def number_in(content: bytes) -> int:
    """The number of the backup in an inventory that cannot be used; 0 if it cannot be read."""
    match = _NUMBER.search(content)
    return 0 if match is None else int(match[1])


def is_object(name: str) -> bool:
    """Whether this can be the name of an object. Other files may be in the same place, which are of somebody else."""
    return _OBJECT.fullmatch(name) is not None


def object_name(digest: str, size: int) -> str:
    """The object with this content. The size is part of the name, so that a list of names tells which are cut short."""
    return f"{OBJECTS}{digest[:2]}/{digest}-{size}"


def size_of(name: str) -> int:
    """The size that the name of an object gives."""
    return int(name.rpartition("-")[2])

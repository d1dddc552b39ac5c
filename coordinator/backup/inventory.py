"""What a backup consists of: its inventory, which names every file and the object with its content.

A place of backups has objects, each named by a hash of its content, and inventories. Identical files of several backups
share an object. A backup exists once its inventory exists.
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
    those of the copied file: the next backup does not read a file again if they are unchanged."""

    path: str
    size: int
    digest: str
    changed_ns: int
    inode: int

    @property
    def object(self) -> str:
        return object_name(self.digest, self.size)


class Inventory(msgspec.Struct, frozen=True):
    """One backup. `number`: rises from backup to backup of a place, whatever the clock does. `name`: begins with the
    backup's moment in UTC. `data_format`: the format of the data directory (`shared.manifest.FORMAT`). `warnings`: what
    was already damaged in the cluster."""

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
        """Raises ValueError, which names the defect."""
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
class UnusableInventory:
    """An inventory that is damaged, or from a later release. `name`: of its backup. `number`: 0 if it cannot be read.
    `why` also names its file."""

    name: str
    number: int
    why: str


def number_in(content: bytes) -> int:
    """The number of the backup in an unusable inventory; 0 if it cannot be read."""
    match = _NUMBER.search(content)
    return 0 if match is None else int(match[1])


def is_object(name: str) -> bool:
    """Whether this can be the name of an object. The place may also contain files that do not belong to backups."""
    return _OBJECT.fullmatch(name) is not None


def object_name(digest: str, size: int) -> str:
    """The name of the object with this content. It includes the size, so that a listing shows which objects are cut
    short."""
    return f"{OBJECTS}{digest[:2]}/{digest}-{size}"


def size_of(name: str) -> int:
    """The size of an object according to its name."""
    return int(name.rpartition("-")[2])

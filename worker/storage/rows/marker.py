"""The marker of a store: a small file beside it that says how many writes the store must contain. It is written after
each logged write to the store, and read before the store is opened.

RocksDB replays its log up to the first incomplete record, and cannot tell a write that a crash has torn from damage to
acknowledged writes. Nor does it notice that the end of its manifest is missing. The marker reveals both:

- *Synced* writes must always be in the store, and the manifest must have at least its synced size.
- All *written* writes must be in the store if the power was not lost since. That is known if the marker is the same
  file (device, inode) on the same boot of the system: then the marker and the store are read from the same page cache.

The marker itself is synced only when it is created. After a loss of power it may therefore be an older one, which
demands fewer writes. A damaged marker demands nothing.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shared.durable import sync_directory
from shared.process.boot import boot_id
from shared.telemetry import event

WRITES = b"writes"
"""A row of the library's default family: the number of logged batches that were written."""
MAGIC = b"TRPMARK1"
_CLAIM = struct.Struct("<8sQQQQ16sQQ")
"""Magic, number of the last synced write, number of the last write, number and synced size of the manifest, boot,
device, inode. The xxh64 of all these fields follows."""
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a store must contain: `writes`, the number of writes, and the first `manifest_bytes` of the manifest with
    the number `manifest`; 0 if the marker demands nothing. `after_power`: the power may have been lost since."""

    writes: int = 0
    manifest: int = 0
    manifest_bytes: int = 0
    after_power: bool = False


class Marker:
    """The marker of one store; `read` it before `open`. Not safe for concurrent use."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".mark")
        self._descriptor = -1
        self._file_identity = (b"", 0, 0)
        self.manifest = (0, 0)

    def read(self) -> Claim | None:
        """What the store must contain; None if there is no marker. Raises OSError if the marker cannot be read or
        another release wrote it."""
        try:
            with open(self.path, "rb") as file:
                data, status = file.read(_CLAIM.size + _CHECKSUM.size), os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        claim, checksum = data[: _CLAIM.size], data[_CLAIM.size :]
        if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != xxhash.xxh64_intdigest(claim):
            event(logging.WARNING, "store marker is damaged, a new one is written", path=str(self.path))
            return Claim()
        magic, synced, written, manifest, manifest_bytes, *file_identity = _CLAIM.unpack(claim)
        if magic != MAGIC:
            raise OSError(f"{self.path} is of a release that this one does not know: it begins with {magic!r}")
        if tuple(file_identity) != (_boot(), status.st_dev, status.st_ino):
            return Claim(synced, manifest, manifest_bytes, after_power=True)
        return Claim(max(synced, written), manifest, manifest_bytes)

    def defect(self) -> str:
        """Why the marker is damaged and therefore demands nothing; empty if it is whole or missing. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ""
        claim, checksum = data[: _CLAIM.size], data[_CLAIM.size :]
        if len(data) != _CLAIM.size + _CHECKSUM.size:
            return f"it has {len(data)} bytes instead of {_CLAIM.size + _CHECKSUM.size}"
        return "" if _CHECKSUM.unpack(checksum)[0] == xxhash.xxh64_intdigest(claim) else "its checksum does not match"

    def open(self, writes: int, manifest: tuple[int, int]) -> None:
        """Begin to write the marker of an open store. `writes`: number of the store's writes that are on the disk;
        `manifest`: (number, size in bytes on the disk). The marker is on the disk when this returns. Raises OSError."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        status = os.fstat(self._descriptor)
        self._file_identity = (_boot(), status.st_dev, status.st_ino)
        self.manifest = manifest
        self.write(writes, writes)
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)

    def write(self, synced: int, written: int) -> None:
        """Write the numbers of the last synced and the last written write, and `manifest`. Raises OSError. Then the
        marker keeps its old content, or is damaged and demands nothing."""
        claim = _CLAIM.pack(MAGIC, synced, written, *self.manifest, *self._file_identity)
        os.pwrite(self._descriptor, claim + _CHECKSUM.pack(xxhash.xxh64_intdigest(claim)), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _boot() -> bytes:
    return boot_id() or os.urandom(16)  # an unknown boot equals no other, so only synced writes are demanded

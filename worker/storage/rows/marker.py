"""How far a store must have come: a small file beside it that is written after the store, and read before it.

RocksDB replays its log up to the first record that is not whole, and cannot tell a write that a crash has cut off from
damage in what it had acknowledged. Nor does it notice that the end of its manifest is gone. The marker can tell:

- what was *synced* must be there whatever happened, and of the manifest the size that was;
- what was *written* must be there as long as no power was lost since. That is known when the marker is the same file
  (device, inode) on the same boot of the system: both are then read from the memory of the system that took them.

The marker itself is not synced, except when it is made: after a loss of power it may be an older one, which asks for
less. One that is damaged asks for nothing.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shared.boot import boot_id
from shared.durable import sync_directory
from shared.telemetry import event

WRITES = b"writes"
"""Row of the library's own family: how many batches were written with the log."""
MAGIC = b"TRPMARK1"
_CLAIM = struct.Struct("<8sQQQQ16sQQ")
"""Magic, number of the last write that was synced, of the last one, number and synced size of the manifest, boot,
device, inode; xxh64 of them follows."""
_CHECK = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Claim:
    """What a store must have: so many writes, and this size of this manifest, 0 where the marker asks for nothing.
    `after_power`: power may have been lost since."""

    writes: int = 0
    manifest: int = 0
    manifest_bytes: int = 0
    after_power: bool = False


class Marker:
    """The file of one store. Not safe for concurrent use, except that `read` may be called before `open`."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + ".mark")
        self._descriptor = -1
        self._place = (b"", 0, 0)
        self.manifest = (0, 0)

    def read(self) -> Claim | None:
        """What the store must have; None when there never was a marker. Raises OSError when it cannot be read."""
        try:
            with open(self.path, "rb") as file:
                data, status = file.read(_CLAIM.size + _CHECK.size), os.fstat(file.fileno())
        except FileNotFoundError:
            return None
        claim, check = data[: _CLAIM.size], data[_CLAIM.size :]
        if len(check) < _CHECK.size or _CHECK.unpack(check)[0] != xxhash.xxh64_intdigest(claim):
            event(logging.WARNING, "store marker is damaged, and made anew", path=str(self.path))
            return Claim()
        magic, synced, written, manifest, manifest_bytes, *place = _CLAIM.unpack(claim)
        if magic != MAGIC:
            raise OSError(f"{self.path} is of a release that this one does not know: it begins with {magic!r}")
        if tuple(place) != (_boot(), status.st_dev, status.st_ino):
            return Claim(synced, manifest, manifest_bytes, after_power=True)
        return Claim(max(synced, written), manifest, manifest_bytes)

    def defect(self) -> str:
        """Why the file that is there asks for nothing; empty when it is whole or missing. Raises OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ""
        claim, check = data[: _CLAIM.size], data[_CLAIM.size :]
        if len(data) != _CLAIM.size + _CHECK.size:
            return f"it has {len(data)} bytes instead of {_CLAIM.size + _CHECK.size}"
        return "" if _CHECK.unpack(check)[0] == xxhash.xxh64_intdigest(claim) else "its checksum does not match"

    def open(self, writes: int, manifest: tuple[int, int]) -> None:
        """Begin to write it; the store has so many writes, durably, and has this manifest (number, bytes). Raises
        OSError."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        status = os.fstat(self._descriptor)
        self._place = (_boot(), status.st_dev, status.st_ino)
        self.manifest = manifest
        self.write(writes, writes)
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)

    def write(self, synced: int, written: int) -> None:
        """Say how far the store has come. Raises OSError, and then says what it said before, or nothing."""
        claim = _CLAIM.pack(MAGIC, synced, written, *self.manifest, *self._place)
        os.pwrite(self._descriptor, claim + _CHECK.pack(xxhash.xxh64_intdigest(claim)), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _boot() -> bytes:
    return boot_id() or os.urandom(16)  # unknown is never the same: only what was synced is asked for

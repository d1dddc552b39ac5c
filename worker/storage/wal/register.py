"""The list of the files of a write-ahead log that are in use. A file that is not listed is not needed; a listed file
that does not exist is lost.

The list is stored twice in one file, each copy with a checksum. A change writes and syncs one copy after the other, in
place: a crash leaves at least one whole copy, and a full disk cannot refuse the change.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal

import xxhash

from shared.durable import write_atomically
from shared.errors import ConfigError
from shared.process.boot import boot_id

NAME = "files"
VERSION = 1
MAGIC = b"TRPTYLST"
COPY_BYTES = 1 << 16
_HEAD = struct.Struct("<8sIIQ")
"""Magic, version, number of entries, number of earlier changes. A checksum of these fields and the entries precedes
them. The first entry, which is not counted, is the highest number and the boot."""
_ENTRY = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<Q")
FILES_MAX = (COPY_BYTES - _CHECKSUM.size - _HEAD.size - _ENTRY.size) // _ENTRY.size
"""4,093 files, which hold 128 GB at 32 MB each. A log with this many files in use takes no more records."""

Power = Literal["kept", "lost", "unknown"]


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of the list. `highest`: the highest file number ever given. `ends`: number of a file in use → offset
    at which its records end, 0 if that is not known. `changes`: number of changes so far. `boot`: the system's boot
    during which the records without a known end were written, 0 if that is not known, as in the copy of a backup.
    `is_whole`: both copies were good."""

    highest: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    changes: int = 0
    boot: int = 0
    is_whole: bool = True

    @property
    def power(self) -> Power:
        """Whether the power was lost since the records without a known end were written. If it was, any part of the
        data that was not synced may be on the disk."""
        if not self.boot:
            return "unknown"
        return "kept" if self.boot == this_boot() else "lost"

    def encode(self) -> bytes:
        """One copy of the list, without padding."""
        head = _HEAD.pack(MAGIC, VERSION, len(self.ends), self.changes)
        entries = b"".join(_ENTRY.pack(*entry) for entry in sorted(self.ends.items()))
        content = head + _ENTRY.pack(self.highest, self.boot) + entries
        return _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content)) + content


def read(path: Path) -> Listing | None:
    """The newest whole copy of the list; None if the file does not exist. Raises ValueError if neither copy is good,
    ConfigError if a newer release wrote it, OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    copies = [_decode(content[offset : offset + COPY_BYTES]) for offset in (0, COPY_BYTES)]
    whole_copies = [copy for copy in copies if copy is not None]
    if not whole_copies:
        raise ValueError("neither copy of the list of files is whole")
    newest = max(whole_copies, key=lambda listing: listing.changes)
    return dataclasses.replace(newest, is_whole=len(whole_copies) == len(copies))


def this_boot() -> int:
    """A number that identifies the current boot of the system. If the system does not report its boot, the number is a
    new one each time, so the log is read as after a loss of power: otherwise records could count although records
    before them have been lost."""
    return xxhash.xxh64_intdigest(boot_id() or os.urandom(16))


def _decode(copy: bytes) -> Listing | None:
    if len(copy) < _CHECKSUM.size + _HEAD.size:
        return None
    magic, version, count, changes = _HEAD.unpack_from(copy, _CHECKSUM.size)
    size = _HEAD.size + _ENTRY.size * (count + 1)
    content = copy[_CHECKSUM.size : _CHECKSUM.size + size]
    if magic != MAGIC or len(content) < size:
        return None
    if _CHECKSUM.unpack_from(copy)[0] != xxhash.xxh3_64_intdigest(content):
        return None
    if version > VERSION:
        raise ConfigError(f"the write-ahead log's list of files has version {version}; this program reads {VERSION}")
    (highest, boot), *entries = _ENTRY.iter_unpack(content[_HEAD.size :])
    return Listing(highest, dict(entries), changes, boot)


class Register:
    """The list of one directory, which the owner has locked. Safe to use from many threads."""

    def __init__(self, directory: Path, listing: Listing) -> None:
        """Write this list; it is on the disk when this returns. Raises OSError."""
        self._lock = Lock()
        self._ends = dict(listing.ends)
        self._highest = listing.highest
        self._changes = listing.changes + 1
        self._boot = listing.boot
        self._is_dirty = False
        """The list on the disk differs from memory, or may differ: after a note, and after a change that failed."""
        path = directory / NAME
        write_atomically(path, 2 * self._encoded().ljust(COPY_BYTES, b"\0"))
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def change(
        self,
        *,
        added: int | None = None,
        removed: tuple[int, ...] = (),
        ends: dict[int, int] | None = None,
        boot: int | None = None,
    ) -> None:
        """Change the list: add a file without a known end, remove files, set known ends, set the boot. When this
        returns, the change is on the disk, with every `note` before it. Raises OSError. Then nothing has changed in
        memory, and whether the disk has the change is unknown until the next change or `catch_up`."""
        with self._lock:
            previous = dict(self._ends), self._highest, self._boot
            assert added not in self._ends, f"file {added} is listed already"
            self._ends.update(ends or {})
            self._boot = self._boot if boot is None else boot
            for number in removed:
                self._ends.pop(number, None)
            if added is not None:
                self._ends[added] = 0
                self._highest = max(self._highest, added)
            try:
                self._save()
            except OSError:
                self._ends, self._highest, self._boot = previous
                raise

    def note(self, number: int, end: int) -> None:
        """The file takes no more records: they end at offset `end`. The next change writes that to the disk."""
        with self._lock:
            if number in self._ends:
                self._ends[number] = end
                self._is_dirty = True

    def catch_up(self) -> None:
        """Write the list to the disk if it may differ there from memory. Raises OSError."""
        with self._lock:
            if self._is_dirty:
                self._save()

    def close(self) -> None:
        """Close the file; changes fail with OSError from now on."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def frozen(self, numbers: Collection[int], ends: dict[int, int]) -> bytes:
        """The content of a list with the files `numbers` only; `ends` gives the ends of some of them. It names no boot,
        because a copy of the log is read as after a loss of power."""
        with self._lock:
            copied_ends = {number: end for number, end in {**self._ends, **ends}.items() if number in numbers}
            listing = Listing(self._highest, copied_ends, self._changes)
        return 2 * listing.encode().ljust(COPY_BYTES, b"\0")

    def _encoded(self) -> bytes:
        return Listing(self._highest, self._ends, self._changes, self._boot).encode()

    def _save(self) -> None:
        if len(self._ends) > FILES_MAX:
            raise OSError(errno.EFBIG, f"more than {FILES_MAX} files are in use")
        self._changes += 1
        content = self._encoded()
        assert len(content) <= COPY_BYTES, "the first copy would reach into the second"
        self._is_dirty = True
        for offset in (0, COPY_BYTES):
            written = os.pwrite(self._descriptor, content, offset)
            if written != len(content):
                raise OSError(errno.EIO, "the list of files was written in part")
            os.fdatasync(self._descriptor)
        self._is_dirty = False

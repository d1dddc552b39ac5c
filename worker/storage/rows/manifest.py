"""The manifest of a store: RocksDB's list of its own files, a log to which each change of the list is appended.

RocksDB's log format (https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format): blocks of 32 KiB; records
of checksum (4 bytes, masked CRC-32C of type and data), length (2), type (1), data. If a length reaches past the end of
the file, RocksDB assumes a write that a crash has torn, and ignores this record and all that follow. That is wrong if a
bit of the length is damaged: then the data is in the file and matches the checksum (`damaged_length`).

RocksDB syncs each change before it relies on the change. A loss of power may leave the end of an unsynced change
without its beginning. RocksDB reports that as damage; `torn_at` says where to cut it off.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C, bits reversed."""
_PREFIX = "MANIFEST-"


def path_of(store: Path, number: int) -> Path:
    return store / f"{_PREFIX}{number:06d}"


def current(store: Path) -> tuple[int, int]:
    """(number, size in bytes) of the manifest that the store uses. Raises OSError, ValueError."""
    directory = os.fspath(store)  # every sync of a store calls this, and Path objects take three times as long
    with open(f"{directory}/CURRENT", "rb", buffering=0) as file:
        name = file.read().decode(errors="replace").strip()
    number = name.removeprefix(_PREFIX)
    if not name.startswith(_PREFIX) or not number.isdigit():
        raise ValueError(f"CURRENT names {name!r}, not a manifest")
    try:
        return int(number), os.stat(f"{directory}/{name}").st_size
    except FileNotFoundError:
        raise ValueError(f"CURRENT names {name}, which is not there") from None


def synced(store: Path, known: tuple[int, int]) -> tuple[int, int]:
    """As `current`; when this returns, the manifest is on the disk up to the returned size. `known`: the previous
    result, whose bytes are on the disk already. The fsync is needed because RocksDB may not have synced its last change
    yet. Raises OSError, ValueError."""
    manifest = current(store)
    if manifest != known:
        descriptor = os.open(path_of(store, manifest[0]), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return manifest


def torn_at(file: Path, synced_bytes: int) -> int | None:
    """The offset of the first incomplete record, if it is at or above `synced_bytes`; None if it is below, or if all
    records are whole. Raises OSError."""
    first = synced_bytes // BLOCK_BYTES * BLOCK_BYTES
    with open(file, "rb") as manifest:
        manifest.seek(first)
        data = manifest.read()
    for block_start in range(0, len(data), BLOCK_BYTES):
        torn = _torn_at(data[block_start : block_start + BLOCK_BYTES])
        if torn is not None:
            offset = first + block_start + torn
            return offset if offset >= synced_bytes else None
    return None


def cut(file: Path, size: int) -> None:
    """Truncate the file to `size` bytes; the new size is on the disk when this returns. Raises OSError."""
    with open(file, "r+b") as manifest:
        manifest.truncate(size)
        os.fsync(manifest.fileno())


def damaged_length(block: bytes) -> int | None:
    """The offset, in a file's last block, of a record with a damaged length: the length reaches past the end, but some
    shorter data matches the checksum. None if there is none."""
    offset = 0
    while offset + _HEADER.size <= len(block):
        checksum, length, kind = _HEADER.unpack_from(block, offset)
        if offset + _HEADER.size + length > len(block):
            return offset if _begins_whole(block[offset + _HEADER.size :], kind, checksum) else None
        offset += _HEADER.size + length
    return None


def _torn_at(block: bytes) -> int | None:
    """The offset of the first incomplete record of a block; None if there is none. The last bytes of a block, where no
    header fits, are unused."""
    offset = 0
    while offset < len(block) and offset + _HEADER.size <= BLOCK_BYTES:
        data = block[offset + _HEADER.size :]
        if offset + _HEADER.size > len(block):
            return offset
        checksum, length, kind = _HEADER.unpack_from(block, offset)
        if length > len(data) or _crc(data[:length], kind) != _unmasked(checksum):
            return offset
        offset += _HEADER.size + length
    return None


def _begins_whole(data: bytes, kind: int, checksum: int) -> bool:
    """Whether a prefix of `data`, of any length, matches the checksum."""
    target = _unmasked(checksum)
    table = _table()
    crc = _crc(b"", kind)
    if crc == target:
        return True
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        if crc == target:
            return True
    return False


def _crc(data: bytes, kind: int) -> int:
    """CRC-32C of type and data, without the final inversion."""
    table = _table()
    crc = table[(0xFFFFFFFF ^ kind) & 0xFF] ^ 0x00FFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def _unmasked(checksum: int) -> int:
    """The value of `_crc` that belongs to a masked checksum of RocksDB."""
    rotated = (checksum - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    """The CRC of each byte, for `_crc`."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table

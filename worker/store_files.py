"""What a store's files show before RocksDB reads them: whether some are missing, and whether its manifest ends where
it was cut off or where it is damaged.

RocksDB's log format (https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format), which its manifest has
too: blocks of 32 KiB; records of checksum (4 bytes, masked CRC-32C of type and data), length (2), type (1), data. A
length that reaches past the end of the file is taken for a write that a crash has cut off, and this and all that
follows is left out. If one bit of the length is damaged, that is wrong: the data is there, and the checksum says so.
"""

from __future__ import annotations

import fcntl
import os
import struct
from functools import cache
from pathlib import Path

from worker.store_damage import StoreDamaged
from worker.store_marker import Claim

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, bits reversed."""
_PREFIX = "MANIFEST-"


def manifest_of(path: Path) -> tuple[int, int]:
    """(number, size in bytes) of the manifest that the store uses. Raises OSError, ValueError."""
    name = (path / "CURRENT").read_bytes().decode(errors="replace").strip()
    number = name.removeprefix(_PREFIX)
    if not name.startswith(_PREFIX) or not number.isdigit():
        raise ValueError(f"CURRENT names {name!r}, not a manifest")
    if not (path / name).exists():
        raise ValueError(f"CURRENT names {name}, which is not there")
    return int(number), os.stat(path / name).st_size


def verify(path: Path, claim: Claim | None) -> None:
    """Raise StoreDamaged where the files are not all there, or the manifest does not end as a crash leaves it. What
    RocksDB itself finds is left to it."""
    if not (path / "CURRENT").exists():
        if claim is not None or _has_data(path):
            raise StoreDamaged(f"the store {path} is damaged: its file CURRENT is missing")
        return
    try:
        number, size = manifest_of(path)
    except (OSError, ValueError) as error:
        raise StoreDamaged(f"the store {path} is damaged: {error}") from error
    file = path / f"{_PREFIX}{number:06d}"
    if claim is not None and claim.manifest == number and size < claim.manifest_bytes:
        text = f"{file} has {size} bytes, and had {claim.manifest_bytes}"
        raise StoreDamaged(f"the store {path} is damaged: {text}")
    with open(file, "rb") as manifest:
        manifest.seek(size // BLOCK_BYTES * BLOCK_BYTES)
        damaged = damaged_length(manifest.read())
    if damaged is not None:
        text = f"{file} has a wrong length at {size // BLOCK_BYTES * BLOCK_BYTES + damaged}"
        raise StoreDamaged(f"the store {path} is damaged: {text}")


def is_locked(path: Path) -> bool:
    """Whether a process has the store open. Not for the process that has it: the question lets go of its lock."""
    try:
        descriptor = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def damaged_length(block: bytes) -> int | None:
    """The place of the record in a file's last block whose length reaches past the end though its data does not."""
    at = 0
    while at + _HEADER.size <= len(block):
        checksum, length, kind = _HEADER.unpack_from(block, at)
        if at + _HEADER.size + length > len(block):
            return at if _begins_whole(block[at + _HEADER.size :], kind, checksum) else None
        at += _HEADER.size + length
    return None


def _begins_whole(data: bytes, kind: int, checksum: int) -> bool:
    """Whether the first bytes of `data`, some or all, are those the checksum was made of."""
    rotated = (checksum - _MASK_DELTA) & 0xFFFFFFFF
    wanted = (rotated >> 17 | rotated << 15) & 0xFFFFFFFF ^ 0xFFFFFFFF
    table = _table()
    crc = table[(0xFFFFFFFF ^ kind) & 0xFF] ^ 0x00FFFFFF
    if crc == wanted:
        return True
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        if crc == wanted:
            return True
    return False


@cache
def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


def _has_data(path: Path) -> bool:
    """A first start that was killed leaves a manifest without CURRENT, but no data."""
    with os.scandir(path) as files:
        return any(file.name.endswith((".sst", ".log")) and file.stat().st_size for file in files)

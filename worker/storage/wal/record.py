"""The format of records in a file of the write-ahead log.

A file is a header and records, all aligned to 8 bytes. A record is a header of 32 bytes and the payload, padded with
zeros. The header contains: magic, checksum of the bytes after it, number of the file, length of the payload in bytes,
checksum of the payload, shard, area, and the offset up to which the file was synced, divided by 8. Files are reused, so
the bytes after the last record may be a record from an earlier use of the file; the file number in the header tells
them apart.

The synced offset tells damage from a write that a crash has torn: an incomplete record below that offset had been
acknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from shared.wire import Frame

_HEAD = struct.Struct("<IIIIQHHI")
_CHECKED = 8
_FILE = struct.Struct("<8sIII")
"""Magic, version, number of the file, minimum size of the file in units of `SIZE_UNIT` bytes."""
_LENGTH = struct.Struct("<I")
"""The last field of `_FILE`. `begins_header` knows the values of the fields before it."""
MAGIC = 0x4C415754
FILE_MAGIC = b"TRPTYWAL"
VERSION = 1
FILE_HEADER_BYTES = 64
SIZE_UNIT = 1024
HEADER_BYTES = _HEAD.size
ALIGNMENT = 8
_PADDING = tuple(bytes(n) for n in range(ALIGNMENT))
assert HEADER_BYTES % ALIGNMENT == FILE_HEADER_BYTES % ALIGNMENT == 0
assert _FILE.size + _LENGTH.size <= FILE_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The header of the record at `offset`, in bytes. The payload is [start, start + length) of the file. `is_whole`:
    the payload matches its checksum."""

    offset: int
    shard: int
    area: int
    start: int
    length: int
    is_whole: bool
    synced: int
    """The offset up to which the file was on the disk when the record was written."""

    @property
    def end(self) -> int:
        """The offset at which the next record begins."""
        return self.start + self.length + -self.length % ALIGNMENT


@dataclass(frozen=True, slots=True)
class Damage:
    """The bytes [offset, end) are not a record, and a record of this file follows them."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The content of the first bytes of a file. `is_empty`: they are zeros, as before a file is begun and after it is
    released. `is_sound`: they are a header, of any version; otherwise `version`, `number` and `least_bytes` are 0."""

    is_empty: bool
    is_sound: bool
    version: int
    number: int
    least_bytes: int = 0
    """The file has at least this many bytes, unless it was truncated; 0 if that is not known."""


def frames(number: int, shard: int, area: int, payload: Sequence[Frame], synced: int) -> tuple[list[Frame], int]:
    """(the pieces of the record for one vectored write, their size in bytes). `synced`: see `RecordHeader`."""
    assert synced >= FILE_HEADER_BYTES and synced % ALIGNMENT == 0
    digest, length = _digest(payload)
    checked = _HEAD.pack(0, 0, number, length, digest, shard, area, synced // ALIGNMENT)[_CHECKED:]
    head = struct.pack("<II", MAGIC, xxhash.xxh32_intdigest(checked)) + checked
    padding = -length % ALIGNMENT
    size = HEADER_BYTES + length + padding
    assert len(head) == HEADER_BYTES and size % ALIGNMENT == 0
    return [head, *payload, _PADDING[padding]], size


def _digest(payload: Sequence[Frame]) -> tuple[int, int]:
    """(checksum, length in bytes) of these pieces, concatenated."""
    if len(payload) == 1:  # the usual case, and faster than the general one
        return xxhash.xxh3_64_intdigest(payload[0]), memoryview(payload[0]).nbytes
    digest, length = xxhash.xxh3_64(), 0
    for piece in payload:
        digest.update(piece)
        length += memoryview(piece).nbytes
    return digest.intdigest(), length


def file_header(number: int, version: int = VERSION, *, least_bytes: int = 0) -> bytes:
    """The header of a file, `FILE_HEADER_BYTES` long; `least_bytes` is rounded down to a multiple of `SIZE_UNIT`."""
    content = _FILE.pack(FILE_MAGIC, version, number, least_bytes // SIZE_UNIT)
    return (content + struct.pack("<I", xxhash.xxh32_intdigest(content))).ljust(FILE_HEADER_BYTES, b"\0")


def begins_header(number: int, data: Frame) -> bool:
    """Whether `data` is a header of this file, with any minimum size, whose last bytes may still be zeros."""
    known_bytes = _FILE.size - _LENGTH.size
    content = bytes(data)
    units = int.from_bytes(content[known_bytes : _FILE.size], "little")
    return file_header(number, least_bytes=units * SIZE_UNIT).startswith(content.rstrip(b"\0"))


def read_header(data: Frame) -> FileHeader:
    """Decode the first bytes of a file."""
    content = bytes(data[:FILE_HEADER_BYTES])
    if not any(content):
        return FileHeader(True, False, 0, 0)
    if len(content) == FILE_HEADER_BYTES:
        _, version, number, units = _FILE.unpack_from(content)
        if content == file_header(number, version, least_bytes=units * SIZE_UNIT):
            return FileHeader(False, True, version, number, units * SIZE_UNIT)
    return FileHeader(False, False, 0, 0)


def scan(number: int, data: memoryview) -> Iterator[RecordHeader | Damage]:
    """The records of a file in order. Bytes that are not a record yield a `Damage` if a record of this file follows
    them; otherwise the scan ends there."""
    offset = FILE_HEADER_BYTES
    while True:
        header = _read_record(number, data, offset)
        if header is None:
            next_offset = _next_offset(number, data, offset)
            if next_offset is None:
                return
            yield Damage(offset, next_offset)
            offset = next_offset
            continue
        yield header
        offset = header.end


def _read_record(number: int, data: memoryview, offset: int) -> RecordHeader | None:
    if offset + HEADER_BYTES > len(data):
        return None
    magic, header_checksum, file_number, length, digest, shard, area, synced = _HEAD.unpack_from(data, offset)
    if magic != MAGIC or file_number != number:
        return None
    if header_checksum != xxhash.xxh32_intdigest(data[offset + _CHECKED : offset + HEADER_BYTES]):
        return None
    start = offset + HEADER_BYTES
    is_whole = start + length <= len(data) and xxhash.xxh3_64_intdigest(data[start : start + length]) == digest
    return RecordHeader(offset, shard, area, start, length, is_whole, synced * ALIGNMENT)


def _next_offset(number: int, data: memoryview, previous: int) -> int | None:
    """The offset of the next record of this file, greater than `previous`; None if no record follows."""
    usable = max(0, (len(data) - previous) // 4 * 4)
    if not usable:
        return None
    words = np.frombuffer(data[previous : previous + usable], dtype="<u4")
    for word in np.flatnonzero(words[:: ALIGNMENT // 4] == MAGIC).tolist():
        offset = previous + word * ALIGNMENT
        if offset > previous and _read_record(number, data, offset) is not None:
            return offset
    return None

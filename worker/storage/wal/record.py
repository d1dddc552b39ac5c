"""How a record lies in a file of the write-ahead log.

A file is a header and records, all at multiples of 8 bytes. A record is 32 bytes (magic, checksum of the rest of these
bytes, number of its file, length, checksum of the payload, shard, area, up to where its file was synced) and the
payload, padded with zeros. Files are used again, so what lies behind the last record may be a record of the file's
former life: the file's number tells.

Up to where the file was synced when a record was written tells damage from a write that a crash has cut: what is not
whole below that place had been acknowledged.
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
_LENGTH = struct.Struct("<I")
"""The last of these: what is known without it is the header's beginning."""
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
    """A record: its payload is [start, start + length) of the file; `whole` is whether its checksum is right."""

    offset: int
    shard: int
    area: int
    start: int
    length: int
    whole: bool
    synced: int
    """Up to here the file was on the disk when the record was written."""

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.start + self.length + -self.length % ALIGNMENT


@dataclass(frozen=True, slots=True)
class Damage:
    """[offset, end) is no record, and there are records of this file behind it."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """`is_empty`: all zeros, as before a file is begun and when it is released. Not `is_sound`: something else than a
    header, of whatever version; `version` and `number` are 0 then."""

    is_empty: bool
    is_sound: bool
    version: int
    number: int
    least_bytes: int = 0
    """The file has so many at least, unless it was cut off."""


def frames(number: int, shard: int, area: int, payload: Sequence[Frame], synced: int) -> tuple[list[Frame], int]:
    """The record's bytes, as pieces for one gathering write, and how many they are. `synced`: see `RecordHeader`."""
    assert synced >= FILE_HEADER_BYTES and synced % ALIGNMENT == 0
    digest = xxhash.xxh3_64()
    length = 0
    for piece in payload:
        digest.update(piece)
        length += memoryview(piece).nbytes
    rest = _HEAD.pack(0, 0, number, length, digest.intdigest(), shard, area, synced // ALIGNMENT)[_CHECKED:]
    head = struct.pack("<II", MAGIC, xxhash.xxh32_intdigest(rest)) + rest
    padding = -length % ALIGNMENT
    size = HEADER_BYTES + length + padding
    assert len(head) == HEADER_BYTES and size % ALIGNMENT == 0
    return [head, *payload, _PADDING[padding]], size


def file_header(number: int, version: int = VERSION, *, least_bytes: int = 0) -> bytes:
    content = _FILE.pack(FILE_MAGIC, version, number, least_bytes // SIZE_UNIT)
    return (content + struct.pack("<I", xxhash.xxh32_intdigest(content))).ljust(FILE_HEADER_BYTES, b"\0")


def begins_header(number: int, data: Frame) -> bool:
    """Whether these are the first bytes, some or all, of a header of this file, and zeros: whatever length it says."""
    known = _FILE.size - _LENGTH.size
    content = bytes(data)
    units = int.from_bytes(content[known : _FILE.size], "little")
    return file_header(number, least_bytes=units * SIZE_UNIT).startswith(content.rstrip(b"\0"))


def read_header(data: Frame) -> FileHeader:
    """What the first bytes of a file say."""
    content = bytes(data[:FILE_HEADER_BYTES])
    if not any(content):
        return FileHeader(True, False, 0, 0)
    if len(content) == FILE_HEADER_BYTES:
        _, version, number, units = _FILE.unpack_from(content)
        if content == file_header(number, version, least_bytes=units * SIZE_UNIT):
            return FileHeader(False, True, version, number, units * SIZE_UNIT)
    return FileHeader(False, False, 0, 0)


def scan(number: int, data: memoryview) -> Iterator[RecordHeader | Damage]:
    """What is in a file, in order. After bytes that are no record it goes on with the next one of this file."""
    at = FILE_HEADER_BYTES
    while True:
        found = _read(number, data, at)
        if found is None:
            following = _next(number, data, at)
            if following is None:
                return
            yield Damage(at, following)
            at = following
            continue
        yield found
        at = found.end


def _read(number: int, data: memoryview, at: int) -> RecordHeader | None:
    if at + HEADER_BYTES > len(data):
        return None
    magic, check, own, length, digest, shard, area, synced = _HEAD.unpack_from(data, at)
    if magic != MAGIC or own != number:
        return None
    if check != xxhash.xxh32_intdigest(data[at + _CHECKED : at + HEADER_BYTES]):
        return None
    start = at + HEADER_BYTES
    whole = start + length <= len(data) and xxhash.xxh3_64_intdigest(data[start : start + length]) == digest
    return RecordHeader(at, shard, area, start, length, whole, synced * ALIGNMENT)


def _next(number: int, data: memoryview, after: int) -> int | None:
    """Where the next record of this file begins, behind `after`."""
    usable = max(0, (len(data) - after) // 4 * 4)
    if not usable:
        return None
    words = np.frombuffer(data[after : after + usable], dtype="<u4")
    for place in np.flatnonzero(words[:: ALIGNMENT // 4] == MAGIC).tolist():
        at = after + place * ALIGNMENT
        if at > after and _read(number, data, at) is not None:
            return at
    return None

"""How a record lies in a file of the write-ahead log.

A file is a header and records, all at multiples of 8 bytes. A record is 32 bytes (magic, checksum of the rest of these
bytes, number of its file, length, checksum of the payload, shard, area) and the payload, padded with zeros. Files are
used again, so what lies behind the last record may be a record of the file's former life: the file's number tells.
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
MAGIC = 0x4C415754
FILE_MAGIC = b"TRPTYWAL"
VERSION = 1
FILE_HEADER_BYTES = 64
HEADER_BYTES = _HEAD.size
ALIGNMENT = 8
_PADDING = tuple(bytes(n) for n in range(ALIGNMENT))


@dataclass(frozen=True, slots=True)
class Found:
    """A record: its payload is [start, start + length) of the file; `whole` is whether its checksum is right."""

    offset: int
    shard: int
    area: int
    start: int
    length: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """[offset, end) is no record, and there are records of this file behind it."""

    offset: int
    end: int


def frames(number: int, shard: int, area: int, payload: Sequence[Frame]) -> tuple[list[Frame], int]:
    """The record's bytes, as pieces for one gathering write, and how many they are."""
    digest = xxhash.xxh3_64()
    length = 0
    for piece in payload:
        digest.update(piece)
        length += memoryview(piece).nbytes
    rest = _HEAD.pack(0, 0, number, length, digest.intdigest(), shard, area, 0)[_CHECKED:]
    head = struct.pack("<II", MAGIC, xxhash.xxh32_intdigest(rest)) + rest
    padding = -length % ALIGNMENT
    return [head, *payload, _PADDING[padding]], HEADER_BYTES + length + padding


def file_header(number: int) -> bytes:
    content = _FILE.pack(FILE_MAGIC, VERSION, number, 0)
    return (content + struct.pack("<I", xxhash.xxh32_intdigest(content))).ljust(FILE_HEADER_BYTES, b"\0")


def is_file_of(number: int, data: Frame) -> bool:
    """Whether the file has been begun under this number: one prepared, or left over, has another."""
    return bytes(data[:FILE_HEADER_BYTES]) == file_header(number)


def scan(number: int, data: memoryview) -> Iterator[Found | Damage]:
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
        at = found.start + found.length + -found.length % ALIGNMENT


def _read(number: int, data: memoryview, at: int) -> Found | None:
    if at + HEADER_BYTES > len(data):
        return None
    magic, check, own, length, digest, shard, area, _ = _HEAD.unpack_from(data, at)
    if magic != MAGIC or own != number:
        return None
    if check != xxhash.xxh32_intdigest(data[at + _CHECKED : at + HEADER_BYTES]):
        return None
    start = at + HEADER_BYTES
    whole = start + length <= len(data) and xxhash.xxh3_64_intdigest(data[start : start + length]) == digest
    return Found(at, shard, area, start, length, whole)


def _next(number: int, data: memoryview, after: int) -> int | None:
    """Where the next record of this file begins, behind `after`."""
    usable = (len(data) - after) // 4 * 4
    words = np.frombuffer(data[after : after + usable], dtype="<u4")
    for place in np.flatnonzero(words[:: ALIGNMENT // 4] == MAGIC).tolist():
        at = after + place * ALIGNMENT
        if at > after and _read(number, data, at) is not None:
            return at
    return None

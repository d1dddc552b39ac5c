"""Damage to files of a stopped cluster: a flipped byte, a file cut short, a file that is gone; by kind of file."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.storage.wal import record


@dataclass(frozen=True, slots=True)
class Harm:
    """What was done to a file. `records`: (area, payload) of the records of the write-ahead log that it hit;
    `is_silent`: the log cannot tell it from a write that a crash has cut (docs/internals/storage.md#torn-or-damaged);
    `loses_file`: what the file has may be left out as a whole, with a warning."""

    text: str
    records: tuple[tuple[int, bytes], ...] = ()
    is_silent: bool = False
    loses_file: bool = False


@dataclass(frozen=True, slots=True)
class FileKind:
    """`pattern`: a glob below the data directory. `part`: which bytes of such a file, [start, end)."""

    name: str
    pattern: str
    part: Callable[[bytes], tuple[int, int]]


def _all(content: bytes) -> tuple[int, int]:
    return 0, len(content)


def _wal_header(content: bytes) -> tuple[int, int]:
    return 0, 20 if content.rstrip(b"\0") else 0


def _found(content: bytes) -> list[record.RecordHeader]:
    """The records of a file that are whole, in order."""
    number = record.read_header(content).number
    return [
        item
        for item in record.scan(number, memoryview(content))
        if isinstance(item, record.RecordHeader) and item.is_whole
    ]


def _last(content: bytes) -> int:
    """Where the last record begins: as the system goes on running, all before it is known to have been whole."""
    found = _found(content)
    return found[-1].offset if found else record.FILE_HEADER_BYTES


def _wal_records(content: bytes) -> tuple[int, int]:
    return record.FILE_HEADER_BYTES, _last(content)


def _wal_tail(content: bytes) -> tuple[int, int]:
    found = _found(content)
    return (found[-1].offset, found[-1].end) if found else (0, 0)


KINDS = {
    kind.name: kind
    for kind in (
        FileKind("manifest", "manifest.json", _all),
        FileKind("identity", "*/*/identity", _all),
        FileKind("wal-workers", "wal/workers", _all),
        FileKind("wal-header", "wal/*/*.wal", _wal_header),
        FileKind("wal-record", "wal/*/*.wal", _wal_records),
        FileKind("wal-tail", "wal/*/*.wal", _wal_tail),
        FileKind("store-sst", "shards/*/store/*.sst", _all),
        FileKind("store-log", "shards/*/store/*.log", _all),
        FileKind("store-manifest", "shards/*/store/MANIFEST-*", _all),
        FileKind("store-current", "shards/*/store/CURRENT", _all),
        FileKind("store-options", "shards/*/store/OPTIONS-*", _all),
        FileKind("block", "shards/*/blocks/*", _all),
        FileKind("sequencer", "sequencer/state*", _all),
        FileKind("collections", "vector/collections.json", _all),
        FileKind("vector-index", "vector-index/**/*", _all),
    )
}


def _places(data: Path, kind: FileKind) -> list[tuple[Path, int, int]]:
    """(file, start, end) of every file of the kind that has such a part."""
    places = []
    for path in sorted(data.glob(kind.pattern)):
        if path.is_file():
            start, end = kind.part(path.read_bytes())
            if end > start:
                places.append((path, start, end))
    return places


def _hit(path: Path, start: int, end: int) -> tuple[tuple[tuple[int, bytes], ...], bool]:
    """(the log's records with a byte in [start, end), whether one of them is the last that was written)."""
    if path.suffix != ".wal":
        return (), False
    content = path.read_bytes()
    hit = [item for item in _found(content) if item.offset < end and item.end > start]
    # The others were left in order: all of it is known. One that is only prepared has no records.
    is_written = not any(_found(other.read_bytes()) for other in path.parent.glob("*.wal") if other > path)
    payloads = tuple((item.area, content[item.start : item.start + item.length]) for item in hit)
    return payloads, is_written and any(item.offset == _last(content) for item in hit)


def flip(data: Path, kind: FileKind, chance: random.Random) -> Harm | None:
    """One bit becomes another; None when there is no such file."""
    places = _places(data, kind)
    if not places:
        return None
    path, start, end = chance.choice(places)
    offset, mask = chance.randrange(start, end), 1 << chance.randrange(8)
    records, is_silent = _hit(path, offset, offset + 1)
    with open(path, "r+b") as file:
        file.seek(offset)
        before = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([before ^ mask]))
    size = path.stat().st_size
    text = f"{path.relative_to(data)}: byte {offset} of {size} is {before ^ mask:#04x}, was {before:#04x}"
    return Harm(text, records, is_silent, loses_file=kind.name == "block")


def cut(data: Path, kind: FileKind, chance: random.Random) -> Harm | None:
    """A file ends earlier."""
    places = _places(data, kind)
    if not places:
        return None
    path, start, end = chance.choice(places)
    size = chance.randrange(start, end)
    before = path.stat().st_size
    records, _ = _hit(path, size, before)
    os.truncate(path, size)
    return Harm(f"{path.relative_to(data)}: cut to {size} of {before} bytes", records, loses_file=True)


def remove(data: Path, kind: FileKind, chance: random.Random) -> Harm | None:
    places = _places(data, kind)
    if not places:
        return None
    path = chance.choice(places)[0]
    path.unlink()
    return Harm(f"{path.relative_to(data)} is gone", loses_file=True)

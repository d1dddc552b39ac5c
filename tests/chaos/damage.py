"""Damage to files of a stopped cluster: a flipped byte, a file cut short, a file that is gone; by kind of file."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WAL_HEADER_BYTES = 64
"""Of a file of the write-ahead log; the records follow (worker/wal/record.py)."""


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


def _wal_records(content: bytes) -> tuple[int, int]:
    """Without the last one."""
    last = content.rfind(b"TWAL")
    return WAL_HEADER_BYTES, max(WAL_HEADER_BYTES, last)


def _wal_tail(content: bytes) -> tuple[int, int]:
    """The last record."""
    last = content.rfind(b"TWAL")
    return (last, len(content.rstrip(b"\0"))) if last > 0 else (0, 0)


KINDS = {
    kind.name: kind
    for kind in (
        FileKind("manifest", "manifest.json", _all),
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


def flip(data: Path, kind: FileKind, chance: random.Random) -> str | None:
    """One byte becomes another; None when there is no such file."""
    places = _places(data, kind)
    if not places:
        return None
    path, start, end = chance.choice(places)
    offset, mask = chance.randrange(start, end), 1 << chance.randrange(8)
    with open(path, "r+b") as file:
        file.seek(offset)
        before = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([before ^ mask]))
    return (
        f"{path.relative_to(data)}: byte {offset} of {path.stat().st_size} is {before ^ mask:#04x}, was {before:#04x}"
    )


def cut(data: Path, kind: FileKind, chance: random.Random) -> str | None:
    """A file ends earlier."""
    places = _places(data, kind)
    if not places:
        return None
    path, start, end = chance.choice(places)
    size = chance.randrange(start, end)
    before = path.stat().st_size
    os.truncate(path, size)
    return f"{path.relative_to(data)}: cut to {size} of {before} bytes"


def remove(data: Path, kind: FileKind, chance: random.Random) -> str | None:
    places = _places(data, kind)
    if not places:
        return None
    path = chance.choice(places)[0]
    path.unlink()
    return f"{path.relative_to(data)} is gone"

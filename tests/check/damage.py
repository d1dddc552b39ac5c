"""Damage at places that a seed chooses, and where a flipped byte is of no consequence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.data_files import NOTES, files_in, kind_of
from worker.storage.wal import record, register


@dataclass(frozen=True, slots=True)
class Place:
    path: str
    offset: int
    mask: int

    def __str__(self) -> str:
        return f"{self.path}, byte {self.offset} ^ {self.mask:#04x}"


def kinds(data: Path) -> dict[str, list[str]]:
    """Kind, finer than those of the check → files that are not empty."""
    found: dict[str, list[str]] = {}
    for path in files_in(data):
        if (data / path).is_file() and (data / path).stat().st_size:
            kind = kind_of(path)
            suffix = "" if kind in NOTES else Path(path).suffix or Path(path).name.split("-")[0]
            found.setdefault(f"{kind} {suffix}".strip(), []).append(path)
    return found


def places(data: Path, count: int, seed: int) -> Iterator[Place]:
    """Every kind of file in turn; of its files any, and of the bytes that it uses any."""
    chance = random.Random(seed)
    by_kind = sorted(kinds(data).items())
    for number in range(count):
        _, paths = by_kind[number % len(by_kind)]
        path = chance.choice(paths)
        size = used(data / path)
        yield Place(path, chance.randrange(size), chance.randrange(1, 256))


def used(path: Path) -> int:
    """Files of the write-ahead log are mostly zeros: how far to flip."""
    content = path.read_bytes()
    return min(len(content), len(content.rstrip(b"\0")) + 64) if path.suffix == ".wal" else len(content)


@contextmanager
def flipped(data: Path, place: Place) -> Iterator[None]:
    """In place, since the store's marker knows a copy for one."""
    with open(data / place.path, "r+b") as file:
        file.seek(place.offset)
        [before] = file.read(1)
        try:
            file.seek(place.offset)
            file.write(bytes([before ^ place.mask]))
            file.flush()
            yield
        finally:
            file.seek(place.offset)
            file.write(bytes([before]))


@contextmanager
def cut(data: Path, path: str, size: int) -> Iterator[None]:
    content = (data / path).read_bytes()
    try:
        with open(data / path, "r+b") as file:
            file.truncate(size)
        yield
    finally:
        with open(data / path, "r+b") as file:
            file.write(content)


@contextmanager
def missing(data: Path, path: str) -> Iterator[None]:
    away = data.parent / "away"
    (data / path).rename(away)
    try:
        yield
    finally:
        away.rename(data / path)


def why_harmless(data: Path, place: Place) -> str:
    """Why nothing depends on the byte; empty when something does."""
    path = data / place.path
    kind = kind_of(place.path)
    if kind in NOTES:
        return f"{kind}: nobody reads what is in the file"
    if path.name == register.NAME and kind == "write-ahead log":
        listing = register.read(path)
        assert listing is not None
        used = len(listing.encode())
        return "behind the end of the list of files" if place.offset % register.COPY_BYTES >= used else ""
    if path.suffix == ".wal":
        return _why_harmless_in_log(path, place.offset)
    return ""


def _why_harmless_in_log(path: Path, offset: int) -> str:
    listing = register.read(path.with_name(register.NAME))
    assert listing is not None
    end = listing.ends.get(int(path.stem))
    if end is None:
        return "" if offset < record.FILE_HEADER_BYTES else "a spare file of the write-ahead log"
    if offset >= end:
        return "behind the last record"
    for item in record.scan(int(path.stem), memoryview(path.read_bytes())):
        assert isinstance(item, record.RecordHeader)
        if item.start + item.length <= offset < item.end:
            return "between two records"
    return ""

"""What the files of a data directory are, by their paths, and what a check of them has found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

UNKNOWN = "unknown"
SET_ASIDE = "set aside"
LEFT_OVER = "left over"
NOTES = ("locks", "socket", "store notes", LEFT_OVER, UNKNOWN)
"""Kinds whose content nothing depends on."""

_KINDS = {
    SET_ASIDE: r".*\.damaged(-\d+)?",
    LEFT_OVER: r".*\.new|wal\.(new|old)/.*|.*\.writing",
    "manifest": r"(shards/)?manifest\.json",
    "identities": r"(shards|wal)/\d+/identity",
    "locks": r"(coordinator|workers|manifest)\.lock|wal/\d+/lock|shards/\d+/store/LOCK",
    "socket": r"run/.*",
    "log's state": r"sequencer/state",
    "collections": r"vector/collections(\.copy)?\.json",
    "write-ahead log": r"wal/workers|wal/\d+/(files|\d+\.wal)|wal/\d+|wal",
    "store markers": r"shards/\d+/store\.mark",
    "store notes": r"shards/\d+/store/(OPTIONS-.*|LOG(\..*)?|IDENTITY|rocksdict-config\.json|.*\.dbtmp)",
    "stores": r"shards/\d+/store(/.*)?|shards/\d+|shards",
    "blocks": r"shards/\d+/blocks(/[^/]*\.block)?",
    "vector index": r"vector-index/[^/]+/\d+(/(rows|shards|\d+\.(index|attributes)))?",
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _KINDS.items()}


class Finding(msgspec.Struct, frozen=True):
    """One thing about one file or directory: `path` is relative to the data directory. `depends`: what is missing or
    wrong because of it. `remedy`: what to do. `good`: what of the file can still be read. Without `is_damage` it is
    only worth knowing."""

    path: str
    what: str
    depends: str
    remedy: str = ""
    good: str = ""
    is_damage: bool = True

    @property
    def kind(self) -> str:
        return kind_of(self.path)


class LogFacts(msgspec.Struct, frozen=True):
    """What one shard holds of the log: all its records are below `above`, and in these segments; segments below
    `dropped` have been dropped. `records`: of the store and the write-ahead log together."""

    shard: int
    above: int = 0
    segments: tuple[int, ...] = ()
    dropped: int = 0
    records: int = 0


class WorkersReport(msgspec.Struct, frozen=True):
    """What the workers' part of a check says to the coordinator's. `log` lacks shards that could not be read."""

    findings: list[Finding]
    log: list[LogFacts]


def kind_of(path: str) -> str:
    """The kind of the file or directory with this path in the data directory."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(path)), UNKNOWN)


def numbered(folder: Path) -> list[Path]:
    """The directories in it whose names are numbers, those of shards and of logs, in order."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit() and path.is_dir())


def files_in(data: Path) -> Iterator[str]:
    """Paths of all that is not a directory, in order. Raises OSError."""
    for path in sorted(data.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(data).as_posix()

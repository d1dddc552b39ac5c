"""The kinds of files in a data directory, by their paths, and the results of a check of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shared.durable import fail

UNKNOWN = "unknown"
SET_ASIDE = "set aside"
LEFT_OVER = "left over"
NOTES = ("locks", "socket", "store notes", LEFT_OVER, UNKNOWN)
"""Kinds of files whose content does not matter."""

_KINDS = {
    "snapshots": r"(snapshots|backup\.staging)/.*",
    SET_ASIDE: r".*\.damaged(-\d+)?",
    LEFT_OVER: r".*\.new|wal\.(new|old)/.*|.*\.writing",
    "manifest": r"(shards/)?manifest\.json",
    "identities": r"(shards|wal)/\d+/identity",
    "locks": r"(coordinator|workers|manifest)\.lock|wal/\d+/lock|shards/\d+/store/LOCK",
    "socket": r"run/.*",
    "log's state": r"sequencer/state",
    "log's policies": r"sequencer/policies",
    "collections": r"vector/collections(\.copy)?\.json",
    "write-ahead log": r"wal/workers|wal/\d+/(files|\d+\.wal)|wal/\d+|wal",
    "store markers": r"shards/\d+/store\.mark",
    "store notes": r"shards/\d+/store/(OPTIONS-.*|LOG(\..*)?|IDENTITY|rocksdict-config\.json|.*\.dbtmp)",
    "stores": r"shards/\d+/store(/.*)?|shards/\d+|shards",
    "blocks": r"shards/\d+/blocks(/[^/]*\.block)?",
    "vector index": r"vector-index/[^/]+/\d+(/(rows|shards|\d+\.(index|attributes|vectors)))?",
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _KINDS.items()}


class Finding(msgspec.Struct, frozen=True):
    """One finding about a file or directory. `path` is relative to the data directory. `depends`: what is missing or
    wrong because of it. `remedy`: what to do. `good`: what can still be read of the file. Unless `is_damage`, it is for
    information only."""

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
    """The part of the log that one shard has. All its records have numbers below `above` and are in `segments`;
    segments below `dropped` have been dropped. `records`: the number of records in the store and the write-ahead log
    together."""

    shard: int
    above: int = 0
    segments: tuple[int, ...] = ()
    dropped: int = 0
    records: int = 0


class WorkersReport(msgspec.Struct, frozen=True):
    """What the workers' part of a check reports to the coordinator's. `log` has no entries for shards that could not be
    read."""

    findings: list[Finding]
    log: list[LogFacts]


def kind_of(path: str) -> str:
    """The kind of the file or directory with this path in the data directory."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.fullmatch(path)), UNKNOWN)


def numbered(folder: Path) -> list[Path]:
    """The directories in `folder` whose names are numbers (those of shards or logs), in order."""
    return sorted(path for path in folder.glob("*") if path.name.isdigit() and path.is_dir())


def files_in(data: Path) -> Iterator[str]:
    """The relative paths of everything that is not a directory, in order. Raises OSError."""
    for path in sorted(files_below(data)):
        yield path.relative_to(data).as_posix()


def files_below(directory: Path) -> Iterator[Path]:
    """Yield everything below a directory that is not a directory itself, in no particular order. Links are not
    followed. Raises OSError, also for a directory that cannot be listed, which `os.walk` would treat as empty."""
    for folder, folders, names in os.walk(directory, onerror=fail):
        for name in names:
            yield Path(folder, name)
        for name in folders:
            path = Path(folder, name)
            if path.is_symlink():
                yield path

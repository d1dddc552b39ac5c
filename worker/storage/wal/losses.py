"""What a write-ahead log has lost, and the files beside the log that record it until an operator deletes them.

Such a file, `NNNNNNNN.wal.damaged`, contains one line (checksum, JSON: what was lost, of which shards and areas)
followed by the damaged bytes. A file that does not belong to the log is renamed in the same way, and is itself the
record of the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from shared.durable import DAMAGED, damaged_name, write_atomically
from shared.wire import Frame

StreamKey = tuple[int, int]
"""(shard, area)."""


class Loss(msgspec.Struct, frozen=True):
    """The bytes [offset, end) of a file are damaged or missing. `file`: its path below the directory of all logs, or
    the name under which records are set aside. `streams`: the streams whose records are lost; None if that is unknown,
    so that it may be any stream; empty if no record is missing."""

    file: str
    offset: int
    end: int
    what: str
    streams: tuple[StreamKey, ...] | None = None

    def text(self) -> str:
        return f"write-ahead log {self.file}: {self.what}"

    def concerns(self, shard: int, area: int) -> bool:
        return self.streams is None or (shard, area) in self.streams


@dataclass(frozen=True, slots=True)
class SetAside:
    """A file that was set aside, and the losses that it records."""

    path: Path
    losses: tuple[Loss, ...]


def name_of(path: Path) -> str:
    """The name of a log file in messages: its path below the directory of all logs."""
    return f"{path.parent.name}/{path.name}"


def known(directory: Path) -> Iterator[SetAside]:
    """The files that were set aside in this directory, ascending; an operator accepts a loss by deleting its file.
    Raises OSError."""
    for path in sorted(directory.glob(f"*{DAMAGED}*")):
        if path.name.endswith(".new"):
            continue
        with path.open("rb") as file:
            checksum, _, line = file.readline().rstrip(b"\n").partition(b" ")
        try:
            if xxhash.xxh3_64_hexdigest(line).encode() != checksum:
                raise ValueError("it is no list of losses")
            losses = msgspec.json.decode(line, type=tuple[Loss, ...])
        except (ValueError, RecursionError, msgspec.MsgspecError):
            what = "the file was set aside as a whole, what it held is not known"
            losses = (Loss(name_of(path), 0, path.stat().st_size, what),)
        yield SetAside(path, losses)


def remember(path: Path, losses: Sequence[Loss], data: Iterable[Frame]) -> None:
    """Write a file that records the losses of the log's file `path`, with the damaged bytes `data`, unless one records
    the same losses already. The new file is on the disk when this returns. Raises OSError."""
    if any(recorded.losses == tuple(losses) for recorded in known(path.parent)):
        return
    line = msgspec.json.encode(tuple(losses))
    assert b"\n" not in line, "the damaged bytes begin after the first line"
    content = b"".join([xxhash.xxh3_64_hexdigest(line).encode(), b" ", line, b"\n", *data])
    write_atomically(damaged_name(path), content)

"""What a write-ahead log has lost, and how that is remembered: a file beside the log, until an operator deletes it.

Such a file, `NNNNNNNN.wal.damaged`, is one line (checksum, JSON: what was lost, of which shards and areas) and, behind
it, the damaged bytes. A file that is damaged as a whole is renamed so, and is its own record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from shared.durable import DAMAGED, damaged_name, write_atomically
from shared.wire import Frame

Key = tuple[int, int]
"""(shard, area)."""


class Loss(msgspec.Struct, frozen=True):
    """Bytes [offset, end) of a file. `streams`: of which records are lost; None when that cannot be told, so that it
    may be any; empty when nothing is missing. `file` is named from the directory of all logs on."""

    file: str
    offset: int
    end: int
    what: str
    streams: tuple[Key, ...] | None = None

    def text(self) -> str:
        return f"write-ahead log {self.file}: {self.what}"

    def concerns(self, shard: int, area: int) -> bool:
        return self.streams is None or (shard, area) in self.streams


@dataclass(frozen=True, slots=True)
class SetAside:
    path: Path
    losses: tuple[Loss, ...]


def name_of(path: Path) -> str:
    """How a file of a log is named in texts."""
    return f"{path.parent.name}/{path.name}"


def known(directory: Path) -> Iterator[SetAside]:
    """What has been set aside in this directory and not been accepted as lost."""
    for path in sorted(directory.glob(f"*{DAMAGED}*")):
        if path.name.endswith(".new"):
            continue
        with path.open("rb") as file:
            checksum, _, line = file.readline().rstrip(b"\n").partition(b" ")
        try:
            if xxhash.xxh3_64_hexdigest(line).encode() != checksum:
                raise ValueError("it is no list of losses")
            losses = msgspec.json.decode(line, type=tuple[Loss, ...])
        except (ValueError, msgspec.MsgspecError):
            what = "the file was set aside as a whole, what it held is not known"
            losses = (Loss(name_of(path), 0, path.stat().st_size, what),)
        yield SetAside(path, losses)


def remember(path: Path, losses: Sequence[Loss], data: Iterable[Frame]) -> None:
    """Keep what was lost of the log's file `path`, with the damaged bytes, unless it is known. On the disk when this
    returns. Raises OSError."""
    if any(own.losses == tuple(losses) for own in known(path.parent)):
        return
    line = msgspec.json.encode(tuple(losses))
    assert b"\n" not in line, "the damaged bytes begin behind the first line"
    content = b"".join([xxhash.xxh3_64_hexdigest(line).encode(), b" ", line, b"\n", *data])
    write_atomically(damaged_name(path), content)

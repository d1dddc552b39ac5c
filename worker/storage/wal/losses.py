"""What a write-ahead log has lost, and the files beside the log that record it until an operator deletes them.

Such a file, `NNNNNNNN.wal.damaged`, contains one line (checksum, JSON: what was lost, of which shards and areas)
followed by the damaged bytes. A file that does not belong to the log is renamed in the same way, and is itself the
record of the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import msgspec
import xxhash

from shared.durable import DAMAGED, damaged_name, write_atomically
from shared.telemetry import event
from shared.wire import Frame

ASIDE_BYTES_MAX = 64 << 20
"""Records set aside in one call are copied up to about this size; the report counts the bytes of all of them."""

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


class KnownLosses:
    """The losses of one log that no operator has accepted yet. Safe to use from many threads once `load` has
    returned."""

    def __init__(self, directory: Path, former: Path | None) -> None:
        """`former`: the directory with the records of damage that was found while the logs were laid out anew."""
        self._directory = directory
        self._former = former
        self._lock = Lock()
        self._losses: list[Loss] = []

    def load(self) -> None:
        """Read the losses that are recorded beside the log, and log them. Raises OSError."""
        directories = [self._directory, *([self._former] if self._former else [])]
        self._losses = [loss for directory in directories for aside in known(directory) for loss in aside.losses]
        for loss in self._losses:
            event(logging.ERROR, "write-ahead log damaged", what=loss.text())

    def of(self, shard: int, areas: Sequence[int]) -> list[tuple[int, str]]:
        """(area, what is missing) for each loss that concerns one of these areas of the shard."""
        return [(area, loss.text()) for loss in self._losses for area in areas if loss.concerns(shard, area)]

    def set_aside(self, key: StreamKey, payloads: Sequence[Frame], what: str) -> str:
        """Keep a copy of records that a stream's area could not decode. Each start reports the loss until the copy is
        deleted, even after the records have been released. Returns the text of the report. Raises nothing: a failure
        to store the copy is logged."""
        # The name depends on the newest record only, because older ones are released first and positions change at a
        # start.
        name = f"records-{xxhash.xxh3_64_hexdigest(payloads[-1])}"
        for known_loss in self._losses:
            if known_loss.file == name and key in (known_loss.streams or ()):
                return known_loss.text()
        loss = Loss(name, 0, sum(memoryview(payload).nbytes for payload in payloads), what, (key,))
        with self._lock:
            self._losses = [*self._losses, loss]
        try:
            remember(self._directory / name, [loss], _up_to_size(payloads, ASIDE_BYTES_MAX))
        except OSError as error:
            event(logging.ERROR, "damage is not remembered", what=loss.text(), reason=error.strerror)
        return loss.text()


def _up_to_size(payloads: Sequence[Frame], size_bytes: int) -> Iterator[Frame]:
    """The first payloads, up to and including the one that takes their total size above `size_bytes`."""
    for payload in payloads:
        yield payload
        size_bytes -= memoryview(payload).nbytes
        if size_bytes < 0:
            return

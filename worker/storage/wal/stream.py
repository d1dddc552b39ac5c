"""One area's records of one shard in a write-ahead log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from shared.wire import Frame
from worker.storage.faces import WorkerJournal
from worker.storage.wal.losses import StreamKey


class StreamLog(WorkerJournal, Protocol):
    """The methods of the log that a stream calls; see `worker.storage.faces.JournalStream`."""

    def set_aside(self, key: StreamKey, payloads: Sequence[Frame], what: str) -> str: ...

    def release(self, stream: Stream, position: int) -> None: ...

    def is_behind(self, stream: Stream) -> bool: ...


class Stream:
    """See `worker.storage.faces.JournalStream`. `held`: (position, payload) of the records that the log contained when
    it was opened, until `replayed`."""

    def __init__(self, log: StreamLog, shard: int, area: int) -> None:
        self.log = log
        self.shard = shard
        self.area = area
        self.key: StreamKey = shard, area
        self.held: list[tuple[int, memoryview]] = []

    def records(self) -> Iterator[tuple[int, memoryview]]:
        return iter(self.held)

    def replayed(self) -> None:
        self.held = []

    def write(self, payload: Sequence[Frame]) -> int:
        return self.log.write([(self, payload)])[0]

    def set_aside(self, payloads: Sequence[Frame], what: str) -> str:
        return self.log.set_aside(self.key, payloads, what)

    def sync(self) -> None:
        self.log.sync()

    def release(self, position: int) -> None:
        self.log.release(self, position)

    def is_behind(self) -> bool:
        return self.log.is_behind(self)

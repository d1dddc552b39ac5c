"""One shard's log over a store and a write-ahead log of its own, for tests: groups that come, crashes, restarts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import SEQUENCE_MAX, Batch, Range
from worker.logs import key_lists, reading, writing
from worker.logs.keeper import Keeper
from worker.logs.messages import Message
from worker.logs.part import LogPart
from worker.storage.rows.store import Store
from worker.storage.wal.log import LOG, WriteAheadLog

Record = tuple[bytes, bytes]

COPIES_MAX = 20


class OneShard:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open()

    def _open(self) -> None:
        self.store = Store(self.directory / "store")
        self.log = WriteAheadLog(self.directory / "wal").open()
        self.part = LogPart(self.store, Keeper(self.log), self.log.stream(0, LOG))
        self.part.load()

    def close(self) -> None:
        self.part.close()
        self.store.close()
        self.log.close()

    def restart(self) -> None:
        self.close()
        self._open()

    def crashed_into(self, directory: Path) -> OneShard:
        """What a crash of the process at this moment leaves, opened elsewhere."""
        for _ in range(COPIES_MAX):
            with contextlib.suppress(OSError):  # the store removes files by itself
                before = self._files()
                shutil.copytree(self.directory, directory)
                if self._files() == before:
                    break
            shutil.rmtree(directory, ignore_errors=True)
        for lock in (directory / "store" / "LOCK", directory / "wal" / "lock"):
            lock.unlink()
        return OneShard(directory)

    def _files(self) -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_size) for path in (self.directory / "store").iterdir())

    def append(
        self,
        group: int,
        *batches: Sequence[Record],
        segment: int = 0,
        closed: int | None = None,
        producer: str = "",
        time_ms: int = 0,
        life: int = SEQUENCE_MAX,
    ) -> dict[int, str]:
        """A group of batches one after another from number `group` on; everything before it is decided unless told."""
        start, named, blocks = group, [], []
        for records in batches:
            named.append(Batch(start, len(records), (0,), producer, start, time_ms))
            blocks.append(block_of((hash64(key), at, key, value) for at, (key, value) in enumerate(records)))
            start += len(records)
        upto = group if closed is None else closed
        message = Message(segment, group, upto, 0, tuple(named), b"".join(blocks))
        return writing.append({0: (self.part, message)}, durable=True, life=life)

    def append_numbered(self, group: int, seq: int, *, producer: str) -> None:
        """A group of one batch of one record, which the producer numbers so; everything before it is decided."""
        block = block_of([(hash64(b"k"), 0, b"k", b"%d" % seq)])
        message = Message(0, group, group, 0, (Batch(group, 1, (0,), producer, seq),), block)
        assert not writing.append({0: (self.part, message)}, durable=True)

    def read(self, prefix: bytes = b"", last_segment: int = 99) -> list[tuple[int, bytes, bytes]]:
        """(number, key, value) of everything there is; read by prefix, and checked against reads by key."""
        span = Range(0, last_segment, 0, SEQUENCE_MAX)
        found: list[tuple[int, bytes, bytes]] = []
        done = False
        while not done:
            records, span.start, done = reading.merge(self.part, span, prefix, 1000, lambda: None)
            found += zip(records.sequences.tolist(), records.key_list(), records.value_list(), strict=True)
        span.start = 0
        names = key_lists.keys(self.part, span, prefix, None, 1 << 30, lambda: None)
        assert names == sorted({key for _, key, _ in found})
        for name in names:
            own, _, _ = reading.scan(self.part, span, name, 1 << 30, False)
            assert [(n, name, v) for n, v in zip(own.sequences.tolist(), own.value_list(), strict=True)] == [
                row for row in found if row[1] == name
            ]
        assert reading.count_prefix(self.part, span, prefix, lambda: None) == len(found)
        return found


def named(count: int, key: bytes = b"k", start: int = 0) -> list[Record]:
    return [(key + b"%d" % (i % 3), b"%d" % (start + i)) for i in range(count)]

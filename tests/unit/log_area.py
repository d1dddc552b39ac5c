"""A log area over shards in this process, for tests: batches, reads, and a coordinator that can crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coordinator.log.area import LogArea
from coordinator.log.columns import columns_of
from coordinator.log.follow import rows_of
from coordinator.log.reads import KeySelection
from coordinator.log.records import Append
from coordinator.queries.gate import Gate
from shared.control import LocalControl
from shared.hashing import shard_of
from shared.messages.log import SEQUENCE_MAX
from shared.settings import Settings
from tests.unit.log_links import LogShards

SHARDS = 3
EVERYTHING = KeySelection(None, b"")
Record = tuple[int, bytes, bytes]


def batch(*records: tuple[bytes, bytes], durable: bool = False, producer: str = "", seq: int = 0) -> Append:
    return Append(columns_of([k for k, _ in records], [v for _, v in records]), durable, producer, seq)


def key_on(shard: int, name: str = "key") -> bytes:
    return next(k for i in range(1000) if shard_of(k := f"{name}-{i}".encode(), SHARDS) == shard)


async def read(area: LogArea, selection: KeySelection = EVERYTHING, start: int = 0) -> list[Record]:
    rows: list[Record] = []
    async for page in area.reader.pages(selection, start, SEQUENCE_MAX, 1_000_000):
        rows += [row[:3] for row in rows_of(page.records, selection)]
    return rows


async def values(area: LogArea, selection: KeySelection = EVERYTHING) -> list[bytes]:
    return [value for _, _, value in await read(area, selection)]


async def eventually(holds: Callable[[], bool | Awaitable[bool]], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            result = holds()
            if await result if isinstance(result, Awaitable) else result:
                return
            await asyncio.sleep(0.01)


class Log:
    """A log area whose coordinator can crash and start again over the same shards."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.settings = Settings(**{"data": directory, "shards": SHARDS, "write_timeout_ms": 2000, **options})
        self.links = LogShards(directory / "shards", SHARDS)

    @asynccontextmanager
    async def running(self, *, crash: bool = False) -> AsyncIterator[LogArea]:
        control = LocalControl(self.settings.data / "sequencer")
        area = LogArea(self.settings, self.links, control, Gate(2))  # type: ignore[arg-type]
        await area.start()
        try:
            yield area
        finally:
            if crash:
                # Threads of a dead process write nothing any more.
                area.sequencer._write = lambda *_, **__: None  # type: ignore[method-assign]
                with area.sequencer._lock:
                    pass
                for task in [*area._tasks, *area._appender._tasks]:
                    task.cancel()
                await asyncio.gather(*area._tasks, *area._appender._tasks, return_exceptions=True)
            else:
                await area.stop()

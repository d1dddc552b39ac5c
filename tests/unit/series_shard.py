"""One shard's series over a store and a write-ahead log of its own, for tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, Series, body
from shared.labels import Labels, Symbols
from shared.promql.ast import Matcher
from shared.settings import Settings
from worker.queries.source import ShardSource
from worker.series.head import NEVER
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog

EVERYTHING = (-(1 << 60), 1 << 60)
TIMEOUT_S = 5.0


class Shard:
    """A part with its store, to be opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.store = Store(self.path)
        self.log = WriteAheadLog(self.path / "wal").open()
        self.symbols = TextTable()
        services = SeriesServices(Settings(), self.symbols)
        self.part = SeriesPart(self.store, services, LocalObjects(self.path / "blocks"), self.log.stream(0, SERIES))
        self.part.load()

    def close(self) -> None:
        self.part.close()
        self.store.close()
        self.log.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def write(self, series: list[Series]) -> int:
        split_request = remote_write.split(body(series), 1, UNLIMITED)
        return write_to(self.part, split_request.parts[0], TIMEOUT_S)

    def samples(self, *matchers: Matcher, window: tuple[int, int] = EVERYTHING) -> dict[Labels, list]:
        selection = ShardSource([self.part]).select(matchers, *window, Symbols(self.symbols))
        found = selection.read(0, selection.labels.size)
        answer = {}
        for row in range(selection.labels.size):
            own = slice(found.offsets[row], found.offsets[row + 1])
            pairs = zip(found.timestamps_ms[own].tolist(), found.values[own].tolist(), strict=True)
            answer[selection.labels.labels(row)] = list(pairs)
        return answer


def m(**labels: str) -> dict[str, str]:
    return {"__name__": "m", **labels}


A, B = (("__name__", "m"), ("job", "a")), (("__name__", "m"), ("job", "b"))

WINDOW_MS = 1000
FAR_MS = 1 << 60


class Quiet(Shard):
    """A shard whose background work is done when the test says so."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, path: Path, symbols: TextTable | None = None) -> None:
        self.given_symbols = symbols
        super().__init__(path)

    def open(self) -> None:
        self.store = Store(self.path / "store")
        self.log = WriteAheadLog(self.path / "wal").open()
        self.symbols = TextTable() if self.given_symbols is None else self.given_symbols
        own = dataclasses.replace(Settings(), block_window_ms=WINDOW_MS, shards=1, workers=1, **self.options)
        self.part = SeriesPart(
            self.store,
            SeriesServices(own, self.symbols),
            LocalObjects(self.path / "blocks"),
            self.log.stream(0, SERIES),
        )
        self.part._upkeep.sealing.tick = lambda now_ms: None  # type: ignore[method-assign]
        self.part._upkeep.blocks.tend = lambda now_ms: None  # type: ignore[method-assign]
        self.part._upkeep.open_newest = lambda: 0  # type: ignore[method-assign]
        self.part.load()

    def seal(self, before_ms: int = NEVER) -> None:
        self.part._upkeep.sealing._seal(before_ms)

    def seal_each(self, *points: tuple[int, float]) -> None:
        """A block for each point."""
        for point in points:
            self.write([(m(job="a"), [point])])
            self.seal()

    def compact(self, now_ms: int = FAR_MS) -> int:
        done = 0
        while self.part._upkeep.blocks._compact(now_ms):
            done += 1
        self.part._upkeep.blocks._bury()
        return done

    def journal(self) -> int:
        return len(self.part.journal._sequences)

    def files_of_log(self) -> list[Path]:
        return sorted((self.path / "wal").glob("*.wal"))

    def files(self) -> list[Path]:
        return sorted((self.path / "blocks").iterdir())

"""What the shards of one worker process share. The process builds it and passes it to each shard."""

from __future__ import annotations

from dataclasses import dataclass

from shared.settings import Settings
from worker.background import Background
from worker.logs.keeper import Keeper
from worker.series.index.texts import TextTable
from worker.series.services import SeriesServices
from worker.shard_check import check_store
from worker.storage.faces import Storage, WorkerJournal
from worker.storage.local import LocalStorage
from worker.vectors.engine import Engine


@dataclass(frozen=True, slots=True)
class Services:
    """`log`: the write-ahead log of all shards and areas. `keeper`: the background work on the log area's part of it.
    `engine`: the vector collections over all shards. `storage`: all other durable data. `background`: whether work that
    can wait is paused."""

    settings: Settings
    storage: Storage
    log: WorkerJournal
    series: SeriesServices
    keeper: Keeper
    engine: Engine
    background: Background

    @classmethod
    def build(cls, settings: Settings, log: WorkerJournal) -> Services:
        """The services of one process. Starts no thread yet."""
        storage = LocalStorage(settings.data, check_store)
        background = Background()
        series = SeriesServices(settings, TextTable(), background)
        engine = Engine(settings, storage.snapshots, background)
        return cls(settings, storage, log, series, Keeper(log), engine, background)

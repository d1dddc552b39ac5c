"""What the shards of one worker process share. The process builds it and hands it down to each shard."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import Settings
from shared.control import Control, LocalControl
from worker.logs.keeper import Keeper
from worker.series.index.texts import TextTable
from worker.series.services import SeriesServices
from worker.storage.objects import LocalObjects
from worker.storage.wal.log import WriteAheadLog
from worker.vectors.engine import Engine


@dataclass(frozen=True, slots=True)
class Services:
    """`log`: the write-ahead log of all shards and areas. `keeper`: the background work on the log area's part of it.
    `engine`: the vector collections over all shards. `control`: the documents of the data directory."""

    settings: Settings
    control: Control
    log: WriteAheadLog
    series: SeriesServices
    keeper: Keeper
    engine: Engine

    @classmethod
    def build(cls, settings: Settings, log: WriteAheadLog) -> Services:
        """For one process; starts no thread yet."""
        control, snapshots = LocalControl(settings.data), LocalObjects(settings.data / "vector-index")
        series = SeriesServices(settings, TextTable())
        return cls(settings, control, log, series, Keeper(log), Engine(settings, snapshots))

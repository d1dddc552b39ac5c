"""A shard: a directory, a store and the three areas' parts of it."""

from __future__ import annotations

import logging
import time

from shared.manifest import shard_control
from shared.telemetry import event
from worker.damage import Area, DamageReport
from worker.logs.part import LogPart
from worker.series.part import SeriesPart
from worker.services import Services
from worker.storage.rows.damage import DECODING_ERRORS, StoreDamaged
from worker.storage.wal import log as wal
from worker.vectors.part import VectorPart

_AREAS: dict[int, Area] = {wal.SERIES: "series", wal.LOG: "log"}


class Shard:
    """An open shard. The constructor opens the store (waiting for its lock) and replays every area.

    Raises StoreDamaged if the store's files or rows are invalid or incomplete; OSError or Unavailable if the disk is
    full or failing, or if another process keeps the directory locked. Then nothing is left open, and the process's log
    still has the shard's records, so that the constructor can be called again.
    """

    def __init__(self, number: int, services: Services) -> None:
        self.id = number
        self.damage = DamageReport()
        storage, log = services.storage, services.log
        started = time.monotonic()
        log.open()
        for area, text in log.losses_of(number):
            self.damage.add(_AREAS[area], text)
        self.store = storage.rows(number)
        streams = [log.stream(number, area) for area in (wal.SERIES, wal.LOG)]
        self.series = SeriesPart(self.store, services.series, storage.blocks(number), streams[0], self.damage)
        self.logs = LogPart(self.store, services.keeper, streams[1], self.damage)
        self.vectors = VectorPart(self.store, services.engine, number, self.damage)
        loaded: list[SeriesPart | LogPart] = []
        try:
            for part in (self.series, self.logs):
                part.load()
                loaded.append(part)
            self.vectors.load()
        except Exception as error:
            self.vectors.unload()
            for part in loaded:
                part.close()
            self.store.close()
            if isinstance(error, DECODING_ERRORS):
                where = shard_control(storage.control, number).location()
                raise StoreDamaged(f"the shard {where} is damaged: {type(error).__name__}: {error}") from error
            raise
        for stream in streams:
            stream.replayed()
        event(
            logging.INFO, "shard loaded", shard=number, ms=round((time.monotonic() - started) * 1000), **self.counts()
        )

    def counts(self) -> dict[str, int]:
        """For status pages: items held, items received since the start, bytes of memory, number of damages. Cheap;
        never blocks."""
        counts: dict[str, int] = {}
        for part in (self.series, self.logs, self.vectors):
            counts.update(part.counts())
        return counts | {
            "head_bytes": self.series.contents.unsealed_bytes(),
            "index_bytes": self.series.contents.index.size_bytes,
            "log_bytes": self.logs.memory_bytes(),
            "records_in": self.logs.records_in,
            "vectors_in": self.vectors.engine.written(self.id),
            "damaged": sum(self.damage.counts().values()) + len(self.series.contents.layers.broken),
        }

    def close(self) -> None:
        for part in (self.series, self.logs, self.vectors):
            part.close()
        self.store.close()

"""The metrics of one worker, collected when the coordinator requests them. The counters are kept by the code that they
count.

This runs in the thread that sends heartbeats, so it holds no lock for longer than a copy takes and never waits for a
disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from shared.measurements import Values
from shared.process.measurements import ProcessMeasurements
from worker.services import Services
from worker.shard import Shard


class WorkerMeasurements:
    """The metrics of one worker process."""

    def __init__(self, name: str, services: Services) -> None:
        self._name = name
        self._services = services
        self._process = ProcessMeasurements(name)

    def put(self, values: Values, shards: Mapping[int, Shard]) -> None:
        """Add the current values. `shards`: the open ones."""
        self._process.put(values)
        self._put_journal(values)
        self._put_commits(values)
        self._put_vectors(values)
        values.put("triptych_background_paused", self._services.background.is_paused(), self._name)
        values.put("triptych_log_keeper_failures_total", self._services.keeper.failures, self._name)
        values.put("triptych_log_cleaner_failures_total", self._services.keeper.cleaner.failures, self._name)
        for number, shard in sorted(shards.items()):
            _put_series(values, str(number), shard)
            _put_log(values, str(number), shard)
            _put_rows(values, str(number), shard)
            for area in ("series", "log", "vector"):
                values.put("triptych_damaged", shard.damage.counts().get(area, 0), str(number), area)
        self._put_memory(values, shards)

    def _put_journal(self, values: Values) -> None:
        name, state = self._name, self._services.log.state()
        age_s = 0.0 if state.oldest_at is None else max(0.0, time.time() - state.oldest_at)
        values.put("triptych_wal_written_bytes_total", state.written_bytes, name)
        values.put("triptych_wal_files", state.files, name)
        values.put("triptych_wal_bytes", state.file_bytes, name)
        values.put("triptych_wal_oldest_seconds", age_s, name)
        values.put("triptych_wal_failed", state.has_failed, name)
        values.put("triptych_wal_fsync_seconds", state.syncs, name)

    def _put_commits(self, values: Values) -> None:
        name, rounds = self._name, self._services.series.rounds
        waiting, oldest_s = rounds.waiting()
        values.put("triptych_commit_seconds", rounds.latencies, name)
        values.put("triptych_commit_requests_total", rounds.requests, name)
        values.put("triptych_commit_failures_total", rounds.failures, name)
        values.put("triptych_commit_waiting", waiting, name)
        values.put("triptych_commit_oldest_seconds", oldest_s, name)

    def _put_vectors(self, values: Values) -> None:
        name, engine = self._name, self._services.engine
        stats = engine.stats()
        values.put("triptych_vector_rows", sum(collection.vectors for collection in stats), name)
        values.put("triptych_vector_rows_dead", sum(collection.dead for collection in stats), name)
        values.put("triptych_vector_index_failures_total", engine.failures, name)
        values.put("triptych_memory_bytes", sum(collection.memory_bytes for collection in stats), name, "vectors")

    def _put_memory(self, values: Values, shards: Mapping[int, Shard]) -> None:
        name, parts = self._name, list(shards.values())
        caches = [shard.series.archive.cache for shard in parts]
        heads = [shard.series.contents.head_times()[0] + _frozen_bytes(shard) for shard in parts]
        index = self._services.series.symbols.size_bytes + sum(shard.series.contents.index_bytes() for shard in parts)
        values.put("triptych_memory_bytes", index, name, "index")
        values.put("triptych_memory_bytes", sum(heads), name, "head")
        values.put(
            "triptych_memory_bytes", sum(shard.series.exemplars.size_bytes for shard in parts), name, "exemplars"
        )
        values.put("triptych_memory_bytes", sum(cache.size_bytes for cache in caches), name, "block_cache")
        values.put("triptych_memory_bytes", sum(shard.logs.memory_bytes() for shard in parts), name, "log")
        values.put("triptych_memory_bytes", sum(shard.store.state().memory_bytes for shard in parts), name, "rows")
        values.put("triptych_block_cache_hits_total", sum(cache.hits for cache in caches), name)
        values.put("triptych_block_cache_misses_total", sum(cache.misses for cache in caches), name)
        values.put("triptych_block_cache_bytes_max", sum(cache.bytes_max for cache in caches), name)


def _frozen_bytes(shard: Shard) -> int:
    frozen = shard.series.contents.layers.frozen
    return 0 if frozen is None else frozen.size_bytes


def _put_series(values: Values, number: str, shard: Shard) -> None:
    series, layers, upkeep = shard.series, shard.series.contents.layers, shard.series.upkeep
    counts = series.counts()
    values.put("triptych_series", counts["series"], number)
    values.put("triptych_samples_stored_total", counts["samples_in"], number)
    exemplars = series.exemplars
    values.put("triptych_exemplars", len(exemplars), number)
    for result, count in exemplars.counts().items():
        values.put("triptych_exemplars_arrived_total", count, number, result)
    values.put("triptych_head_samples", counts["head_samples"], number)
    values.put("triptych_head_bytes", series.contents.unsealed_bytes(), number)
    values.put("triptych_blocks", counts["blocks"], number)
    values.put("triptych_block_bytes", counts["block_bytes"], number)
    values.put("triptych_blocks_broken", len(layers.broken), number)
    values.put("triptych_blocks_dropped_total", upkeep.blocks.dropped_blocks, number)
    values.put("triptych_upkeep_failures_total", upkeep.failures, number)
    for kind, latencies in (("seal", upkeep.sealing.seals), ("merge", upkeep.blocks.merges)):
        values.put("triptych_upkeep_runs_total", sum(latencies.counts), number, kind)
        values.put("triptych_upkeep_seconds_total", latencies.seconds, number, kind)
    for reason, count in upkeep.sealing.seals_for.items():
        values.put("triptych_seals_total", count, number, reason)


def _put_log(values: Values, number: str, shard: Shard) -> None:
    gatherings = shard.logs.gatherings
    values.put("triptych_log_records", shard.logs.counts()["records"], number)
    values.put("triptych_log_key_starts", len(shard.logs.starts), number)
    values.put("triptych_log_gatherings_total", sum(gatherings.counts), number)
    values.put("triptych_log_gathering_seconds_total", gatherings.seconds, number)
    values.put("triptych_vectors_to_index", shard.vectors.counts()["vectors_to_index"], number)


def _put_rows(values: Values, number: str, shard: Shard) -> None:
    state = shard.store.state()
    values.put("triptych_rows_file_bytes", state.file_bytes, number)
    values.put("triptych_rows_compaction_pending_bytes", state.pending_bytes, number)
    values.put("triptych_rows_stopped", state.is_stopped, number)
    values.put("triptych_rows_failed", state.has_failed, number)
    values.put("triptych_rows_fsyncs_total", sum(state.syncs.counts), number)
    values.put("triptych_rows_fsync_seconds_total", state.syncs.seconds, number)

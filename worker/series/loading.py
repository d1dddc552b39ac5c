"""Builds a shard's series when it starts, from the labels in the store and the samples in the journal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.errors import Unavailable
from shared.telemetry import event
from shared.wire import Frame
from shared.xxh64 import hash_slices
from worker.series.blocks.archive import Archive
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.layers import Layers
from worker.series.exemplar_record import ExemplarRecord
from worker.series.exemplars import Exemplars, taken
from worker.series.growing_array import GrowingArray
from worker.series.head import Head
from worker.series.index.index import Index
from worker.series.index.postings import Ids
from worker.series.index.registry import Registry
from worker.series.journal import Deletion, Journal
from worker.storage.faces import Rows
from worker.storage.rows.damage import StoreDamaged


@dataclass(slots=True)
class Replayed:
    """The result of a replay. `deletions`: the journal's deletions, which may concern blocks too. The other fields are
    about series that the store does not have: their highest id, the number of their samples, which includes exemplars,
    and the records with these samples."""

    unknown_id: int = -1
    unknown_samples: int = 0
    unknown_records: list[Frame] = field(default_factory=list)
    deletions: list[Tombstone] = field(default_factory=list)


def restore_series(journal: Journal, store: Rows) -> None:
    """Write to the store the series that it has lost with the power. It is not synced when series are new, but their
    records in the journal are, before any reply. Each record is compared with the rows, because the store may have rows
    of later series: it has several files, and any of them may lose its end. The rows are not synced here either: the
    journal keeps the records until a seal has synced the store. Call this after `journal.load` and before the rows of
    series are read. Raises StoreDamaged, Unavailable."""
    registry = Registry(store)
    if registry.has_rows_from(registry.given()):
        return  # the rows contradict each other, which the power does not do: `load_labels` refuses them
    restored = sum(map(registry.restore, journal.new_series()))
    if restored:
        event(logging.INFO, "series restored from the journal", series=restored)


def load_labels(registry: Registry, index: Index, permanent: GrowingArray, lock: Lock) -> None:
    """Fill the index and the permanent ids from the store. Raises StoreDamaged if the rows contradict each other."""
    for ids, data, offsets in registry.load():
        hashes = hash_slices(data, offsets)
        with lock:
            index.resolve(data, offsets[:-1], offsets[1:], hashes)
            index.register()
            index.drop_label_bytes(len(index))
            permanent.extend(ids)
            if len(index) != len(permanent):
                raise StoreDamaged(f"a store is damaged: a series below id {registry.next_id} is twice in it")


def replay(journal: Journal, head: Head, exemplars: Exemplars, known_ids: NDArray[np.int64], lock: Lock) -> Replayed:
    """Build the head and the exemplars from the journal, without those of series that are not among the `known_ids`
    (permanent ids, int64[n], ascending). The caller applies the deletions to the blocks."""
    replayed = Replayed()
    for sequence, record, payload in journal.records():
        numbers = numbers_of(known_ids, record.series)
        is_known = numbers >= 0
        # The rows of exemplars include the effect of earlier records.
        is_after_rows = sequence >= journal.sealed.sequence
        if not is_known.all():
            replayed.unknown_id = max(replayed.unknown_id, int(record.series[~is_known].max()))
            replayed.unknown_records.append(payload)
        if isinstance(record, ExemplarRecord):
            replayed.unknown_samples += int(np.count_nonzero(~is_known))
            if is_after_rows:
                exemplars.add(taken(record.of(numbers), np.flatnonzero(is_known)))
            continue
        if isinstance(record, Deletion) and is_after_rows:
            exemplars.delete(numbers[is_known], record.start_ms, record.end_ms)
        with lock:
            if isinstance(record, Deletion):
                replayed.deletions.append(Tombstone.of(sequence, record.series, record.start_ms, record.end_ms))
                head.delete(numbers[is_known], record.start_ms, record.end_ms)
                continue
            written = record.of(numbers)
            if not is_known.all():
                has_series = written.rows() >= 0
                replayed.unknown_samples += len(has_series) - int(np.count_nonzero(has_series))
                written = written.only(has_series)
            head.append(
                written.rows(), written.times_ms, written.values, written.start_timestamps_ms, written.histograms
            )
    return replayed


def carry_out(
    deletions: Sequence[Tombstone], layers: Layers, archive: Archive, store: Rows, *, durable: bool
) -> Layers:
    """The layers with tombstones for those deletions of the journal that have none yet. A deletion that a crash or a
    full disk interrupted is only in the journal: without a tombstone, deleted samples of blocks would reappear. Raises
    StoreDamaged."""
    carried_out = {stone.sequence for stone in layers.tombstones}
    missing = tuple(stone for stone in deletions if stone.sequence not in carried_out and layers.needs(stone))
    if not missing:
        return layers
    batch = store.batch()
    for tombstone in missing:
        archive.put_tombstone(batch, tombstone)
    try:
        store.write(batch, durable=durable)
    except StoreDamaged:
        raise
    except Unavailable as error:
        # The store refuses writes until it is opened again, and the journal is not released before then.
        event(logging.WARNING, "deletions are not in the store yet", reason=str(error))
    return replace(layers, tombstones=(*layers.tombstones, *missing))


def numbers_of(known_ids: NDArray[np.int64], permanent: NDArray[np.int64]) -> Ids:
    """int64[n]: the numbers of the series with these permanent ids, -1 for unknown ids."""
    if not len(known_ids):
        return np.full(len(permanent), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known_ids, permanent), len(known_ids) - 1)
    return np.where(known_ids[at] == permanent, at, -1)

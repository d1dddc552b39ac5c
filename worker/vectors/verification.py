"""Compares a store's rows with the table after a start that has not read them all (`loading`).

The snapshot and the records of changes are made so that both always agree. They may still disagree if a file of the
store is damaged or an earlier release has written to it. The comparison finds such rows and corrects the table: the
store is right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence

import numpy as np

from shared.telemetry import event
from worker.storage.rows.damage import StoreDamaged
from worker.vectors import stored_rows
from worker.vectors.collection import WorkerCollection
from worker.vectors.loading import next_rows
from worker.vectors.stored_rows import FAMILY, READ_AT_ONCE

ROWS = 512
"""Rows to compare at once: they take one or two milliseconds, for which searches may wait."""


def verify(collection: WorkerCollection, shard: int) -> Generator[None, None, None]:
    """Read all rows of a shard's store, and correct the table where it differs; yields between slices, and holds
    nothing of the store then. The caller must not replace the collection's table before this ends. Raises
    Unavailable."""
    with collection.lock:
        view, store, table = collection.view(), collection.stores.get(shard), collection.table
        if store is None:
            return
        # The view itself is not kept: a write may copy the vectors, and the view would keep the old copy until the end.
        shard_rows = view.alive[: view.size] & (view.shards[: view.size] == shard)
        del view
    was_read = np.zeros_like(shard_rows)
    differing, damaged, start = 0, 0, collection.prefix

    def is_same_loading() -> bool:
        """Whether the shard has not been removed, and perhaps loaded anew."""
        is_waiting = shard in collection.loading.unverified
        return is_waiting and collection.stores.get(shard) is store and collection.table is table

    try:
        while rows := next_rows(store.scan(FAMILY, start, collection.end), ROWS):
            start = collection.prefix + rows[-1][0] + b"\0"
            undamaged, wrong = stored_rows.checked(rows, collection.collection.dimension)
            with collection.lock:
                table_rows = table.rows_of(undamaged.ids)
                is_same = (table_rows >= 0) & (table.view.versions[table_rows] == undamaged.versions)
            was_read[table_rows[(table_rows >= 0) & (table_rows < len(was_read))]] = True
            suspects = [undamaged.ids[place] for place in np.flatnonzero(~is_same).tolist()]
            damaged += len(wrong)
            differing += _correct(collection, shard, [*wrong, *suspects], is_same_loading)
            yield
            if not is_same_loading():
                return
        unread = np.flatnonzero(shard_rows & ~was_read)
        differing += _correct(collection, shard, table.view.ids.take(unread), is_same_loading)
    except StoreDamaged:
        pass  # the shard has begun to refuse all requests
    with collection.lock:
        if not is_same_loading():
            return
        collection.loading.unverified.remove(shard)
        if differing or damaged:
            collection.saved_rows = 0  # so that a snapshot without them is written
    if differing:
        event(
            logging.ERROR,
            "vectors differed from their store after a start and were corrected",
            collection=collection.collection.name,
            shard=shard,
            vectors=differing,
        )


def _correct(collection: WorkerCollection, shard: int, ids: Sequence[bytes], is_wanted: Callable[[], bool]) -> int:
    """Bring these vectors of the table to the state that the store has now, for as long as `is_wanted()`, which is
    called with the lock held. Returns how many differed. Raises StoreDamaged, Unavailable."""
    differing = 0
    for start in range(0, len(ids), READ_AT_ONCE):
        with collection.lock:
            if not is_wanted():
                break
            differing += _correct_some(collection, shard, ids[start : start + READ_AT_ONCE])
    return differing


def _correct_some(collection: WorkerCollection, shard: int, ids: Sequence[bytes]) -> int:
    present = stored_rows.of_ids(collection.stores[shard], collection.collection.id, ids)
    undamaged, wrong = stored_rows.checked(present, collection.collection.dimension)
    table_rows = collection.table.rows_of(undamaged.ids)
    is_different = (table_rows < 0) | (collection.view().versions[table_rows] != undamaged.versions)
    stored_ids = {vector_id for vector_id, _ in present}
    absent = collection.table.rows_of([vector_id for vector_id in ids if vector_id not in stored_ids])
    surplus = np.concatenate([absent, table_rows[is_different]])
    surplus = surplus[surplus >= 0]
    collection.report(shard, wrong)
    collection.table.kill(surplus.tolist())
    collection.add_count(shard, -len(surplus))
    different_ids = {undamaged.ids[place] for place in np.flatnonzero(is_different).tolist()}
    rows = [row for row in present if row[0] in different_ids]
    collection.loading.load_batch(shard, stored_rows.checked(rows, collection.collection.dimension)[0])
    return len(different_ids) + int((absent >= 0).sum())

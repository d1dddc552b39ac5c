"""The vectors of a collection that satisfy a filter, in the shards of a request."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Condition
from worker.vectors.attribute_column import Where
from worker.vectors.attribute_strings import Mask
from worker.vectors.collection import WorkerCollection
from worker.vectors.stored_rows import FAMILY, prefix
from worker.vectors.table import TableView

WALK_IDS_MIN, WALK_IDS_MAX = 64, 1024
"""Ids that a walk reads from a store at once: more each time."""
WALK_COST = 20
"""Reading the next id from a store and looking it up costs as much as this many ids at hand."""

Also = Callable[[TableView, Where], Mask]
"""A further condition: which of these rows satisfy it."""


def no_check() -> None:
    """The `check` of work that nothing ends early."""


class Selection:
    """For one thread. `check` is called between pieces of work, and raises to end it early."""

    def __init__(
        self,
        collection: WorkerCollection,
        shards: Iterable[int],
        condition: Condition | None,
        check: Callable[[], None] = no_check,
    ) -> None:
        self.collection = collection
        self.shards = tuple(shards)
        self.condition = condition
        self.check = check
        self.fields: set[str] = set()
        """Fields beside those of the filter that vectors should have."""

    def unknown(self) -> tuple[str, ...]:
        """The fields that the filter compares, and `fields`, which no vector of this worker ever had."""
        attributes = self.collection.view().attributes
        unknown = {name for name in self.fields if attributes.column(name) is None}
        if self.condition is not None:
            unknown |= attributes.unknown(self.condition)
        return tuple(sorted(unknown))

    def mask(self, view: TableView) -> Mask:
        """Which rows of the view are selected, bool[view.size]."""
        mask = view.allowed()
        foreign = self.collection.foreign(view, self.shards)
        if foreign is not None:
            mask = mask & foreign
        if self.condition is not None:
            mask = mask & view.attributes.mask(self.condition, view.size)
        return mask

    def holds(self, view: TableView, rows: NDArray[np.int64]) -> Mask:
        """Which of these rows are selected, one for each row."""
        mask = view.alive[rows]
        if not self.collection.stores.keys() <= set(self.shards):
            mask &= np.isin(view.shards[rows], self.shards)
        if self.condition is not None:
            mask &= view.attributes.compared(self.condition, rows)
        return mask

    def first_ids(self, after: bytes, limit: int, also: Also | None = None) -> list[bytes]:
        """The first `limit` selected ids above `after`, ascending; with `also`, of rows that satisfy it too.

        A few selected ids are sorted; for many, the stores are walked in the order of their keys, from `after` on. The
        cheaper way is taken, so a page costs O(√(limit · vectors)) steps, and no order of all ids has to be kept in
        memory. Raises StoreDamaged, Unavailable.
        """
        view = self.collection.view()
        mask = self.mask(view)
        if also is not None:
            mask = mask & also(view, slice(0, view.size))
        count = int(np.count_nonzero(mask))
        if count * count > WALK_COST * limit * max(1, view.size - view.dead):
            return list(islice(heapq.merge(*(self._walk(shard, after, also) for shard in self.shards)), limit))
        ids = view.ids
        names = [name for row in np.flatnonzero(mask).tolist() if (name := ids[row]) > after]
        return sorted(names)[:limit] if len(names) < 8 * limit else heapq.nsmallest(limit, names)

    def _walk(self, shard: int, after: bytes, also: Also | None) -> Iterator[bytes]:
        """The selected ids of a shard above `after`, ascending, as its store and table have them when they are read."""
        collection_id = self.collection.collection.id
        store = self.collection.stores.get(shard)
        if store is None:
            return
        start = prefix(collection_id)
        keys = store.keys(FAMILY, start + after + b"\0", prefix(collection_id + 1))
        step = WALK_IDS_MIN
        while names := [key[len(start) :] for key in islice(keys, step)]:
            self.check()
            step = min(WALK_IDS_MAX, 2 * step)
            yield from self.present(names, also)[0]

    def present(self, names: Sequence[bytes], also: Also | None = None) -> tuple[list[bytes], NDArray[np.int64]]:
        """(those of these ids that are selected now, the shard of each). A vector that is being replaced counts once,
        as it was before or as it is after."""
        view = self.collection.view()
        rows = view.ids.latest(names)
        if rows.max(initial=-1) >= view.size:  # rows that were written since, which a view has when the writer is done
            with self.collection.lock:
                view = self.collection.view()
                rows = view.ids.latest(names)
        places = np.flatnonzero(rows >= 0)
        rows = rows[places]
        mask = self.holds(view, rows)
        if also is not None and len(rows):
            mask &= also(view, rows)
        return [names[place] for place in places[mask].tolist()], view.shards[rows[mask]].astype(np.int64)

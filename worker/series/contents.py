"""The series of a shard: their index, the samples in memory, and the layers below."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.labels import METRIC_NAME
from shared.telemetry import event
from worker.series.blocks.block import Block
from worker.series.blocks.layers import Layers
from worker.series.growing_array import GrowingArray
from worker.series.head import Head
from worker.series.index.index import Index
from worker.series.index.lookup import Lookup
from worker.series.index.newcomers import Newcomers
from worker.series.index.patterns import Patterns
from worker.series.index.postings import Ids
from worker.series.index.texts import TextTable


class Contents:
    """`lock` guards everything here. A thread holds it for one kernel call or registration at a time, never while
    waiting for the disk. `permanent`: the permanent id of each series, ascending."""

    def __init__(self, symbols: TextTable) -> None:
        self.lock = Lock()
        self.index = Index(symbols, Patterns())
        self.permanent = GrowingArray(np.int64)
        self.head = Head()
        self.layers = Layers()
        self.opened_at = time.time()
        """Series that were added after this time (Unix seconds) are known to be new."""
        self._newcomers = Newcomers()

    def permanent_of(self, ids: Ids) -> Ids:
        """The permanent ids of these series."""
        with self.lock:
            permanent = self.permanent.rows()
        return permanent[ids]

    def extend(self, series: int, permanent_offset: int) -> None:
        """Make room for the new series of the index, up to number `series` - 1. The permanent id of new series i is
        i + `permanent_offset`. The caller holds the lock."""
        known_series = len(self.permanent)
        self._newcomers.came(known_series)
        self.head.extend(series)
        self.permanent.extend(np.arange(known_series, series) + permanent_offset)

    def newcomers(self, age_s: float) -> tuple[Lookup, int]:
        """(the current index, the lowest number of the series that were added within `age_s` (an hour at most) and
        since `opened_at`)."""
        with self.lock:
            lookup = self.index.lookup()
            return lookup, self._newcomers.first(age_s, lookup.size)

    def change(self, change: Callable[[Layers], Layers]) -> Layers:
        """Replace the layers for all readers at once. Returns the new layers."""
        with self.lock:
            self.layers = change(self.layers)
            return self.layers

    def now(self) -> tuple[Head, Layers]:
        """(the head, the layers below it), for counting. Takes no lock. While a head is frozen, it is in the layers
        only."""
        head, layers = self.head, self.layers
        return (Head() if layers.frozen is head else head), layers

    def head_times(self) -> tuple[int, int]:
        """(bytes, earliest time in ms) of the samples in the head and the slab below it."""
        with self.lock:
            size, earliest = self.head.size_bytes, self.head.times()[0]
            layers = self.layers
        if layers.slab is not None:
            size += layers.slab.size_bytes
            earliest = min(earliest, int(layers.slab.samples.timestamps_ms.min(initial=earliest)))
        return size, earliest

    def unsealed_bytes(self) -> int:
        """Memory of the samples that are not in blocks yet. Takes no lock."""
        head, layers = self.now()
        return sum(part.size_bytes for part in (head, layers.frozen, layers.slab) if part is not None)

    def head_chunks(self) -> tuple[int, int, int]:
        """(chunks, earliest time, latest time in ms) of the samples in memory; a slab has no chunks. Without samples,
        the times are (NEVER, BEFORE)."""
        with self.lock:
            heads = [self.head] if self.layers.frozen is None else [self.head, self.layers.frozen]
            slab = self.layers.slab
            times = [head.times() for head in heads]
        if slab is not None and len(slab.samples.timestamps_ms):
            times.append((int(slab.samples.timestamps_ms.min()), int(slab.samples.timestamps_ms.max())))
        earliest, latest = zip(*times, strict=True)
        return sum(head.chunks for head in heads), min(earliest), max(latest)

    def index_bytes(self) -> int:
        """Memory of the index, without the texts that all shards share."""
        with self.lock:
            return self.index.size_bytes + self.permanent.size_bytes

    def late_bytes(self, before_ms: int) -> int:
        """The approximate size of the samples with t < before_ms in the head and the slab below it."""
        with self.lock:
            late_bytes = self.head.late_bytes(before_ms)
            layers = self.layers
        if layers.slab is not None:
            times_ms = layers.slab.samples.timestamps_ms
            late_bytes += layers.slab.size_bytes * int((times_ms < before_ms).sum()) // max(len(times_ms), 1)
        return late_bytes

    def freeze(self, generation: int) -> Layers:
        """Replace the head with an empty one; the old head becomes a layer. The caller holds the journal's turn, and
        `generation` is the journal's next sequence."""
        with self.lock:
            assert self.layers.frozen is None
            head = Head()
            head.extend(self.head.series)
            self.layers = replace(self.layers, frozen=self.head, frozen_generation=generation)
            self.head = head
            return self.layers

    def set_aside(self, block: Block, reason: str) -> None:
        """Stop reading this block. Its file stays, so that an operator can repair it."""
        with self.lock:
            layers = self.layers
            if block in layers.blocks:
                intact = tuple(other for other in layers.blocks if other is not block)
                self.layers = replace(layers, blocks=intact, broken=(*layers.broken, (block, reason)))
                event(logging.ERROR, "block set aside", file=block.location, reason=reason)

    def in_block_order(self, ids: Ids) -> tuple[Ids, NDArray[np.int64]]:
        """(the series sorted by metric name and then by appearance, their permanent ids). In a block, neighbours then
        have the same name and mostly the same target: their samples are similar, and queries read them together."""
        with self.lock:
            lookup, permanent = self.index.lookup(), self.permanent.rows()
        ordered = ids[np.argsort(lookup.column(ids, METRIC_NAME), kind="stable")]
        return ordered, permanent[ordered]

    def series_of(self, permanent: NDArray[np.int64]) -> Ids:
        """Numbers of the series with these permanent ids (ascending); unknown ids are left out."""
        permanent_ids = self.permanent.rows()
        at = np.minimum(np.searchsorted(permanent_ids, permanent), max(len(permanent_ids) - 1, 0))
        return at[permanent_ids[at] == permanent] if len(permanent_ids) else at[:0]

"""Seals the head of a shard: moves the samples in memory to blocks, and cuts the journal.

Sealing replaces the head in one step, works on data that no longer changes, and in another step replaces this data with
the blocks.
"""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event

import numpy as np

from shared.measurements import LONG_S, Latencies
from shared.process.allocator import TRIM_PAUSE_S, trim
from shared.promql.model import Samples
from worker.series.block_writing import TIME_MAX, TIME_MIN, TURN_WAIT_S, BlockWriting, log_blocks
from worker.series.blocks.archive import Archive
from worker.series.blocks.layers import Layers, reading_order
from worker.series.blocks.seal import even_shares, slab_of, slices
from worker.series.contents import Contents
from worker.series.exemplars import Exemplars
from worker.series.head import NEVER
from worker.series.ingest import Turn
from worker.series.journal import Journal
from worker.series.pieces import join
from worker.series.sealing_rules import REASONS, HeadState, SealingRules
from worker.series.services import SeriesServices
from worker.storage.faces import Rows


class Sealing:
    """The sealing of one shard's head."""

    def __init__(
        self,
        contents: Contents,
        journal: Journal,
        archive: Archive,
        exemplars: Exemplars,
        turn: Turn,
        store: Rows,
        services: SeriesServices,
        stopping: Event,
    ) -> None:
        """`stopping`: when this is set, work in progress is abandoned."""
        self._contents = contents
        self._journal = journal
        self._archive = archive
        self._exemplars = exemplars
        self._turn = turn
        self._store = store
        self._stopping = stopping
        self._writing = BlockWriting(archive, stopping)
        settings = services.settings
        self._window_ms = settings.block_window_ms
        self._head_bytes_max = settings.head_bytes // settings.shard_count()
        self._rules = SealingRules(self._head_bytes_max, self._window_ms)
        self.seals = Latencies(LONG_S)
        self.seals_for = dict.fromkeys(REASONS, 0)

    def begin(self) -> None:
        """Begin to judge the head. Call this when the part is loaded."""
        self._rules.begin(self._head_state(), int(time.time() * 1000))

    def tick(self, now_ms: int) -> None:
        """Seal the head if it is due."""
        if self._stopping.is_set():
            return
        blocks = self._contents.layers.blocks
        due = self._rules.due(self._head_state(), now_ms)
        if due is not None:
            self._seal(due.before_ms)
            self._rules.sealed(due)
            self.seals_for[due.reason] += 1
        if self._contents.layers.blocks is not blocks:
            trim(TRIM_PAUSE_S)

    def _head_state(self) -> HeadState:
        size, earliest_ms = self._contents.head_times()
        layers = self._contents.layers
        samples = self._contents.head.samples + (0 if layers.slab is None else len(layers.slab.samples.values))
        is_frozen = layers.frozen is not None
        return HeadState(samples, size, earliest_ms, self._journal.is_behind(), is_frozen, self._contents.late_bytes)

    def _seal(self, before_ms: int) -> None:
        """Move the samples in memory with t < before_ms to blocks, and cut the journal. Histograms of a slab take up to
        8 times as much as in a head: if the slab would take more than a full head, all samples are moved.

        A single batch writes the rows of the blocks and exemplars, and cuts the journal. So a crash leaves either the
        journal unchanged and files without rows, or the rows and a journal that begins where they end.
        """
        started = time.monotonic()
        with self._turn.exclusive(TURN_WAIT_S):
            layers = self._contents.layers
            if layers.frozen is None:
                layers = self._contents.freeze(self._journal.next_sequence)
        assert layers.frozen is not None
        generation = layers.frozen_generation
        ids, permanent = self._contents.in_block_order(np.arange(layers.frozen.series))
        slab_samples, slab_bytes = (
            (0, 0) if layers.slab is None else (len(layers.slab.samples.values), layers.slab.size_bytes)
        )
        size_bytes, head_bytes = layers.frozen.read_bytes + slab_bytes, layers.frozen.size_bytes
        young_bytes = size_bytes * (head_bytes - layers.frozen.late_bytes(before_ms)) // max(head_bytes, 1)
        if young_bytes > self._head_bytes_max:
            before_ms = NEVER  # otherwise their size would make them due next, and writes would wait for that seal
        parts = slices(even_shares(len(ids), layers.frozen.samples + slab_samples, size_bytes))

        def read(part: slice) -> Samples:
            pieces = layers.unsealed(ids[part], permanent[part], TIME_MIN, TIME_MAX)
            return join(pieces, part.stop - part.start)

        rows, young = self._writing.write(generation, read, permanent, parts, self._window_ms, before_ms)
        with self._archive.given_up_on_failure(rows):
            slab = slab_of(young, ids, layers.frozen.series)
            if not rows:  # otherwise announcing their names has synced the store
                self._store.sync()  # no row may say that series are sealed whose own rows the power can still take
            batch = self._store.batch()
            self._archive.put(batch, rows)
            sealed = self._journal.seal(batch, generation, before_ms)
            self._exemplars.save(batch, self._contents.permanent)
            self._store.write(batch, durable=True)
        self._exemplars.saved()
        self._archive.changed(rows, ())
        blocks = [self._archive.block(row) for row in rows]

        def sealed_layers(current: Layers) -> Layers:
            ordered = reading_order([*current.blocks, *blocks])
            return replace(
                current, blocks=ordered, slab=slab, slab_generation=generation, frozen=None, frozen_generation=0
            )

        self._contents.change(sealed_layers)
        self._journal.sealed_to(sealed)
        self.seals.add(time.monotonic() - started)
        log_blocks("samples sealed", rows, started, **({} if before_ms == NEVER else {"before_ms": before_ms}))

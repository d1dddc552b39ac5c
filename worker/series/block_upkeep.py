"""Merges, splits and drops the blocks of a shard, and removes the tombstones that no block needs any more.

A merge begins only while no head is being sealed; blocks that are sealed later have a higher generation than any block
that it merges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Event

import msgspec
import numpy as np

from shared.measurements import LONG_S, Latencies
from shared.process.allocator import TRIM_PAUSE_S, trim
from shared.promql.model import Samples
from shared.telemetry import event
from shared.wall_clock import WallClock
from worker.series import sweeping
from worker.series.block_writing import TIME_MAX, TIME_MIN, TURN_WAIT_S, BlockWriting, log_blocks
from worker.series.blocks import compaction, retention
from worker.series.blocks.archive import Archive
from worker.series.blocks.block import Block, BlockRow, CorruptBlock
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.layers import Layers, reading_order
from worker.series.blocks.seal import slices
from worker.series.contents import Contents
from worker.series.head import NEVER
from worker.series.ingest import Turn
from worker.series.journal import Journal
from worker.series.pieces import join
from worker.series.services import SeriesServices
from worker.storage.faces import Rows

DROP_EVERY_S = 60.0
"""Seconds between two checks for blocks to drop. Each check drops expired blocks of at most one window."""


class BlockUpkeep:
    """The upkeep of one shard's blocks."""

    def __init__(
        self,
        contents: Contents,
        journal: Journal,
        archive: Archive,
        turn: Turn,
        store: Rows,
        services: SeriesServices,
        stopping: Event,
    ) -> None:
        """`stopping`: when this is set, work in progress is abandoned."""
        self._contents = contents
        self._journal = journal
        self._archive = archive
        self._turn = turn
        self._store = store
        self._background = services.background
        self._stopping = stopping
        self._writing = BlockWriting(archive, stopping)
        self._settings = settings = services.settings
        self._window_ms = settings.block_window_ms
        self._blocks_bytes_max = -(-settings.retention_bytes // settings.shard_count())
        self._clock = WallClock()
        self._next_drop_s = 0.0
        self.merges = Latencies(LONG_S)
        self.dropped_blocks = 0

    def tend(self, now_ms: int) -> None:
        """Drop expired blocks, remove tombstones and rows of left-over files that are no longer needed, and merge."""
        now_s = time.monotonic()
        is_clock_trusted = self._clock.believed(now_ms, int(now_s * 1000))
        if now_s >= self._next_drop_s:
            self._next_drop_s = now_s + DROP_EVERY_S
            self._drop(now_ms if is_clock_trusted else None)
        self._bury()
        self._archive.forget()
        has_merged = False
        while not self._background.is_paused() and self._compact(now_ms):
            has_merged = True
            if self._stopping.is_set():
                return
        if has_merged:
            trim(TRIM_PAUSE_S)

    def _compact(self, now_ms: int) -> bool:
        """Rewrite some blocks as one, without deleted samples. Returns False if there is nothing to rewrite."""
        started = time.monotonic()
        if not compaction.choose(self._contents.layers, self._window_ms, now_ms):
            return False
        with self._turn.exclusive(TURN_WAIT_S):
            layers = self._contents.layers
            if layers.frozen is not None:
                return False
            cleaned = self._journal.claim()
        chosen = compaction.choose(layers, self._window_ms, now_ms)
        if not chosen:
            return False
        if len(chosen) == 1 and not layers.delete_from(chosen[0]):
            self._note_cleaned(chosen[0], cleaned)
            return True
        rows = self._rewrite(chosen, layers.tombstones, cleaned)
        self._replace(chosen, rows)
        self.merges.add(time.monotonic() - started)
        log_blocks("blocks merged", rows, started, merged=len(chosen))
        return True

    def _note_cleaned(self, block: Block, cleaned: int) -> None:
        """Note that no deletion before `cleaned` concerns a sample of the block, which is therefore not rewritten."""
        row = msgspec.structs.replace(block.row, cleaned=cleaned)
        batch = self._store.batch()
        self._archive.put(batch, [row])
        self._journal.remember(batch)
        self._store.write(batch, durable=True)
        block.row = row  # correct for readers too: the tombstones that they skip now delete nothing in this block

    def _rewrite(
        self,
        chosen: Sequence[Block],
        tombstones: tuple[Tombstone, ...],
        cleaned: int,
        first_ms: int = TIME_MIN,
        last_ms: int = TIME_MAX,
    ) -> list[BlockRow]:
        """Write one block with the samples of these blocks that have first ≤ t ≤ last and are not deleted. Returns its
        row, or [] if there are none. `tombstones`: those of all deletions before the sequence `cleaned` of the
        journal."""
        try:
            source = Layers(blocks=compaction.sources(chosen, self._archive), tombstones=tombstones)
            series_ids = np.unique(np.concatenate([block.directory().ids for block in source.blocks]))
            ids, permanent = self._contents.in_block_order(self._contents.series_of(series_ids.astype(np.int64)))

            def read(part: slice) -> Samples:
                return join(source.pieces(ids[part], permanent[part], first_ms, last_ms), part.stop - part.start)

            generation = max(block.row.generation for block in chosen)
            shares = np.sum([block.directory().chunk_shares(permanent) for block in source.blocks], axis=0)
            return self._writing.write(generation, read, permanent, slices(shares), None, NEVER, cleaned)[0]
        except CorruptBlock as error:
            [served_block] = [block for block in chosen if block.row.name == error.block.row.name]
            raise CorruptBlock(served_block, error.reason) from error

    def _drop(self, now_ms: int | None) -> None:
        """Drop the blocks that exceed the retention size, or else the expired blocks of one window. `now_ms` is None if
        the wall clock is not trusted."""
        age_ms = self._settings.retention_ms
        served = self._contents.layers.known_blocks
        dropped = retention.surplus(served, self._blocks_bytes_max)
        if not dropped and age_ms and now_ms is not None:
            dropped = retention.expired(served, now_ms - age_ms, self._window_ms)
            may_split = not dropped and not self._background.is_paused()
            if may_split and self._split(*retention.to_split(served, now_ms - age_ms, self._window_ms)):
                dropped = retention.expired(self._contents.layers.known_blocks, now_ms - age_ms, self._window_ms)
        if dropped:
            self._replace(dropped, [])
            self.dropped_blocks += len(dropped)
            event(
                logging.INFO,
                "blocks dropped",
                blocks=len(dropped),
                samples=sum(block.row.samples for block in dropped),
                latest_ms=max(block.row.latest_ms for block in dropped),
            )

    def _split(self, wide: Sequence[Block], from_ms: int) -> bool:
        """Rewrite each of these blocks as two: one with its samples before `from_ms`, and one with the others. Blocks
        that are set aside stay as they are. Returns whether any block was rewritten."""
        intact = [block for block in wide if block in self._contents.layers.blocks]
        for block in intact:
            started = time.monotonic()
            with self._turn.exclusive(TURN_WAIT_S):
                tombstones, cleaned = self._contents.layers.tombstones, self._journal.claim()
            rows: list[BlockRow] = []
            with self._archive.given_up_on_failure(rows):
                for first_ms, last_ms in ((TIME_MIN, from_ms - 1), (from_ms, TIME_MAX)):
                    rows += self._rewrite([block], tombstones, cleaned, first_ms, last_ms)
            self._replace([block], rows)
            log_blocks("block split", rows, started, from_ms=from_ms)
        return bool(intact)

    def _replace(self, old: Sequence[Block], rows: Sequence[BlockRow]) -> None:
        """Replace the old blocks with the blocks of `rows`. The old files are deleted once no reader uses them."""
        batch = self._store.batch()
        with self._archive.given_up_on_failure(rows):
            self._archive.put(batch, rows)
            self._archive.delete(batch, old)
            self._journal.remember(batch)
            sweeping.ask_for(batch)
            self._store.write(batch, durable=True)
        self._archive.changed(rows, old)
        new = [self._archive.block(row) for row in rows]

        def replaced(current: Layers) -> Layers:
            others = [block for block in current.blocks if block not in old]
            broken = tuple(entry for entry in current.broken if entry[0] not in old)
            return replace(current, blocks=reading_order([*others, *new]), broken=broken)

        self._contents.change(replaced)
        for block in old:
            block.condemn()

    def _bury(self) -> None:
        """Remove the tombstones that no layer needs."""
        layers = self._contents.layers
        obsolete = [stone for stone in layers.tombstones if not layers.needs(stone)]
        if obsolete:
            batch = self._store.batch()
            self._archive.delete_tombstones(batch, obsolete)
            self._store.write(batch)
            removed = {stone.sequence for stone in obsolete}

            def without_removed(current: Layers) -> Layers:
                kept = tuple(stone for stone in current.tombstones if stone.sequence not in removed)
                return replace(current, tombstones=kept)

            self._contents.change(without_removed)

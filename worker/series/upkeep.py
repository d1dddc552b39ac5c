"""Background work on a shard's samples: seals, merges, splits and drops blocks.

A shard has two threads with low priority: one seals, and one merges and drops. A process seals one shard and merges one
shard at a time. So a seal waits only for other seals, whose time is bounded, and never for a merge, whose time is not.
Neither thread holds a lock of the shard while it compresses or writes: sealing replaces the head in one step, works on
data that no longer changes, and in another step replaces this data with the blocks.

A merge begins only while no head is being sealed; blocks that are sealed later have a higher generation than any block
that it merges.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event, Lock, Thread, get_native_id

import msgspec
import numpy as np

from shared.errors import TriptychError
from shared.measurements import LONG_S, Latencies
from shared.process.allocator import trim
from shared.promql.model import Samples
from shared.telemetry import event
from shared.wall_clock import WallClock
from worker.series import sweeping
from worker.series.blocks import compaction, retention
from worker.series.blocks.archive import Archive
from worker.series.blocks.block import Block, BlockRow, CorruptBlock
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.layers import Layers, reading_order
from worker.series.blocks.seal import Ids, Stopped, even_shares, slab_of, slices, write_blocks
from worker.series.contents import Contents
from worker.series.exemplars import Exemplars
from worker.series.head import BEFORE, NEVER
from worker.series.ingest import Turn
from worker.series.journal import Journal
from worker.series.pieces import join
from worker.series.sealing_rules import REASONS, HeadState, SealingRules
from worker.series.services import SeriesServices
from worker.storage.faces import Rows

TICK_S = 1.0
RETRY_S = 10.0
"""Pause after a failure, such as a full disk."""
TURN_WAIT_S = 10.0
DROP_EVERY_S = 60.0
"""Seconds between two checks for blocks to drop. Each check drops expired blocks of at most one window."""
NICENESS = 10

_TIME_MIN, _TIME_MAX = BEFORE + 1, NEVER - 1


class Upkeep:
    """The background work of one shard."""

    def __init__(
        self,
        contents: Contents,
        journal: Journal,
        archive: Archive,
        exemplars: Exemplars,
        turn: Turn,
        store: Rows,
        services: SeriesServices,
    ) -> None:
        self._contents = contents
        self._journal = journal
        self._archive = archive
        self._exemplars = exemplars
        self._turn = turn
        self._store = store
        self._settings = settings = services.settings
        self._head_bytes_max = settings.head_bytes // settings.shard_count()
        self._rules = SealingRules(self._head_bytes_max, settings.block_window_ms)
        self._blocks_bytes_max = -(-settings.retention_bytes // settings.shard_count())
        self._window_ms = settings.block_window_ms
        self._background = services.background
        self._wake = Event()
        self._stopping = Event()
        self._clock = WallClock()
        self._next_drop_s = 0.0
        self.seals, self.merges = Latencies(LONG_S), Latencies(LONG_S)
        self.seals_for = dict.fromkeys(REASONS, 0)
        self.failures = self.dropped_blocks = 0
        threads = (
            ("seal", lambda now_ms: self._tick(now_ms), services.sealing, self._wake),
            ("merge", lambda now_ms: self._tend(now_ms), services.merging, self._stopping),
        )
        self._threads = [Thread(target=self._run, args=args, name=name, daemon=True) for name, *args in threads]

    def start(self) -> None:
        """Start the threads. Call this when the part is loaded."""
        self._rules.begin(self._head_state(), int(time.time() * 1000))
        trim()
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Check now whether to seal, because the head is over its bound."""
        self._wake.set()

    def stop(self) -> None:
        """Abandon the work in progress, and return when the threads have ended."""
        self._stopping.set()
        self._wake.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, step: Callable[[int], None], process_lock: Lock, wake: Event) -> None:
        """The loop of a thread: call `step` with the time in Unix ms every TICK_S seconds, or earlier if `wake` is
        set."""
        with suppress(OSError):  # the process may already have a lower priority, which it then keeps
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
        while not self._stopping.is_set():
            wake.wait(TICK_S)
            if wake is not self._stopping:
                wake.clear()
            try:
                with process_lock:
                    step(int(time.time() * 1000))
            except Stopped:
                return
            except (OSError, TriptychError) as error:
                self.failures += 1
                event(logging.ERROR, "upkeep failed, trying again", reason=str(error), in_s=RETRY_S)
                self._stopping.wait(RETRY_S)
            except CorruptBlock as error:
                self._contents.set_aside(error.block, error.reason)
            except Exception:
                # After any error, the samples are still in the journal and in memory, so the shard goes on serving.
                self.failures += 1
                event(logging.ERROR, "upkeep failed", trace=True, in_s=RETRY_S)
                self._stopping.wait(RETRY_S)

    def _tick(self, now_ms: int) -> None:
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
            trim()

    def _head_state(self) -> HeadState:
        size, earliest_ms = self._contents.head_times()
        layers = self._contents.layers
        samples = self._contents.head.samples + (0 if layers.slab is None else len(layers.slab.samples.values))
        is_frozen = layers.frozen is not None
        return HeadState(samples, size, earliest_ms, self._journal.is_behind(), is_frozen, self._contents.late_bytes)

    def _tend(self, now_ms: int) -> None:
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
            trim()

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
            pieces = layers.unsealed(ids[part], permanent[part], _TIME_MIN, _TIME_MAX)
            return join(pieces, part.stop - part.start)

        rows, young = self._write(generation, read, permanent, parts, self._window_ms, before_ms)
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
        self._log("samples sealed", rows, started, **({} if before_ms == NEVER else {"before_ms": before_ms}))

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
        self._log("blocks merged", rows, started, merged=len(chosen))
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
        first_ms: int = _TIME_MIN,
        last_ms: int = _TIME_MAX,
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
            return self._write(generation, read, permanent, slices(shares), None, NEVER, cleaned)[0]
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
                for first_ms, last_ms in ((_TIME_MIN, from_ms - 1), (from_ms, _TIME_MAX)):
                    rows += self._rewrite([block], tombstones, cleaned, first_ms, last_ms)
            self._replace([block], rows)
            self._log("block split", rows, started, from_ms=from_ms)
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

    def _write(
        self,
        generation: int,
        read: Callable[[slice], Samples],
        permanent: Ids,
        parts: Sequence[slice],
        window_ms: int | None,
        before_ms: int,
        cleaned: int = 0,
    ) -> tuple[list[BlockRow], list[tuple[slice, Samples]]]:
        """Call `write_blocks` for this shard. If it raises, the announced names are given up first."""
        announced = list[str]()

        def announce(names: Sequence[str]) -> None:
            announced.extend(names)
            self._archive.announce(names)

        try:
            return write_blocks(
                self._archive.objects,
                generation,
                read,
                permanent,
                parts,
                window_ms=window_ms,
                before_ms=before_ms,
                cleaned=cleaned,
                announce=announce,
                stopped=self._stopping.is_set,
            )
        except BaseException:
            self._archive.give_up(announced)
            raise

    def _log(self, event_name: str, rows: Sequence[BlockRow], started: float, **fields: int) -> None:
        samples, size = sum(row.samples for row in rows), sum(row.size_bytes for row in rows)
        ms = round((time.monotonic() - started) * 1000)
        event(logging.INFO, event_name, blocks=len(rows), samples=samples, bytes=size, ms=ms, **fields)

"""The time series of one shard: index and head in memory, labels in the store, samples in the journal and in blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from shared.errors import DeadlineExceeded, Internal, Unavailable
from shared.labels import Symbols
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
from shared.reference_frames import ReferenceColumns, new_epoch
from worker.damage import DamageReport
from worker.series.arrivals import Arrival, Columns, accepted, joined, numbered
from worker.series.blocks.archive import Archive
from worker.series.blocks.block import CorruptBlock
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.extracts import Extracts
from worker.series.contents import Contents
from worker.series.exemplar_record import ExemplarRecord
from worker.series.exemplars import Exemplars
from worker.series.index.lookup import Lookup
from worker.series.index.postings import Ids
from worker.series.index.registry import Registry
from worker.series.ingest import Turn
from worker.series.journal import Deletion, Journal, PendingRecord, Staged
from worker.series.loading import carry_out, load_labels, replay
from worker.series.metadata import Metadata
from worker.series.numbered_samples import NumberedSamples
from worker.series.pieces import Piece, join
from worker.series.services import SeriesServices
from worker.series.sweeping import sweep
from worker.series.upkeep import Upkeep
from worker.storage.faces import JournalStream, Objects, Rows

T = TypeVar("T")

HEAD_OVERRUN_MAX = 4
"""Writes are refused when the samples in memory take this many times as much as a head that is due to be sealed."""
HOLD_UP_POLL_S = 0.01
"""The pause between two checks of whether a head has been sealed."""


class SeriesPart:
    """The series of one shard. Safe to use from many threads.

    There are two locks. `turn` serialises changes of the journal, and is held while the store writes and syncs. The
    lock of `contents` guards index, head and the choice of layers, and is never held while waiting for the disk;
    readers need only this one.
    """

    def __init__(
        self,
        store: Rows,
        services: SeriesServices,
        blocks: Objects,
        wal: JournalStream,
        damage: DamageReport | None = None,
    ) -> None:
        self.epoch = new_epoch()
        """Of the numbers that the index gives to series (`shared.reference_frames`)."""
        self._damage = DamageReport() if damage is None else damage
        self._store = store
        self.services = services
        self._settings = settings = services.settings
        self.contents = Contents(services.symbols)
        self._head_bytes_max = settings.head_bytes // settings.shard_count()
        self._may_be_overrun = True
        """Whether the head may be far over its bound: not after a write that left it below."""
        self._samples_in = 0
        self._registry = Registry(store)
        self._series_saved = self._series_staged = 0
        self.metadata = Metadata(store)
        self.exemplars = Exemplars(store, settings)
        self.journal = Journal(store, wal, self._damage)
        self.archive = Archive(store, settings, blocks)
        self.turn = Turn()
        self._upkeep = Upkeep(self.contents, self.journal, self.archive, self.exemplars, self.turn, store, services)

    @property
    def commit_delay_s(self) -> float:
        return self._settings.commit_delay_ms / 1000

    @property
    def series(self) -> int:
        """How many series the index has. It keeps all that it ever had, with their numbers."""
        return len(self.contents.index)

    @property
    def symbols(self) -> Symbols:
        """The symbol table of the process, with the codes of this part's labels."""
        return self.services.symbols

    @property
    def upkeep(self) -> Upkeep:
        """The background work of the part."""
        return self._upkeep

    def load(self) -> None:
        """Open the blocks, and rebuild the index from the store and the head from the journal. Raises StoreDamaged when
        the store's rows make no sense."""
        contents = self.contents
        self.metadata.load()
        self.journal.load()
        contents.layers = layers = self.archive.load()
        for location in self.archive.set_aside:
            self._damage.add(
                "series", f"{location} is a block file that no row names; it is set aside, and its samples are missing"
            )
        blocks = layers.known_blocks
        newest = [block.row.deletions_from for block in blocks] + [stone.sequence + 1 for stone in layers.tombstones]
        self.journal.next_sequence = max([self.journal.next_sequence, *newest])
        sweep(self._store, self._registry, self.archive, self.journal, blocks, self.exemplars.load())
        load_labels(self._registry, contents.index, contents.permanent, contents.lock)
        self._series_saved = self._series_staged = len(contents.index)
        with contents.lock:
            contents.head.extend(len(contents.index))
        known = contents.permanent.rows()
        self.exemplars.restore(known)
        replayed = replay(self.journal, contents.head, self.exemplars, known, contents.lock)
        self.exemplars.begin_counting()
        if replayed.unknown_samples:
            self.journal.set_aside(
                replayed.unknown_records,
                f"the journal has {replayed.unknown_samples} samples of series the store does not have, ids up to "
                f"{replayed.unknown_id}: they are missing",
            )
        contents.layers = carry_out(replayed.deletions, layers, self.archive, self._store, durable=self.is_synced)
        self._registry.next_id = max(self._registry.next_id, replayed.unknown_id + 1)
        self._upkeep.start()

    def counts(self) -> dict[str, int]:
        """Counters for the status. `samples_in`: samples accepted since the start; `samples`: samples stored now;
        `head_samples`: those that no block has yet, which are in memory and in the journal only."""
        contents = self.contents
        head, layers = contents.now()
        return {
            "series": len(contents.index),
            "samples": layers.samples + head.samples,
            "samples_in": self._samples_in,
            "head_samples": layers.unsealed_samples + head.samples,
            "blocks": len(layers.blocks),
            "block_bytes": sum(block.row.size_bytes for block in layers.blocks),
        }

    def close(self) -> None:
        """End the background work. Nothing else is left to do, because every write is journaled before it is
        answered."""
        self._upkeep.stop()

    def delete(self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, timeout_s: float) -> None:
        """Delete the samples and exemplars with start ≤ t ≤ end of the series that any selector matches. No sample of a
        block is read for this.

        When this returns, the deletion is in the journal, durably unless the durability is "buffered"; samples that are
        written later stay. Raises BadData for an expression that RE2 refuses, DeadlineExceeded if selecting the series
        takes too long or the store is busy too long, and Unavailable if the head grows faster than it is sealed or the
        store refuses writes.
        """
        contents = self.contents
        give_up_s = time.monotonic() + timeout_s
        selectors = list(selectors)

        def check() -> None:
            if time.monotonic() > give_up_s:
                raise DeadlineExceeded(f"selecting the series to delete from took longer than {timeout_s:.1f} s")

        lookup, ids = self.select(selectors, start_ms, end_ms, check)
        if self.damage(start_ms, end_ms):
            # A block that is set aside may come back with samples of any series.
            ids = lookup.select_any(selectors, check)
        if len(self.exemplars):
            with_exemplars = self.exemplars.having(lookup.select_any(selectors, check), start_ms, end_ms)
            ids = np.union1d(ids, with_exemplars)
        if not len(ids):
            return
        check()
        with self.turn.exclusive(timeout_s):
            self._refuse_overrun()  # a deletion rewrites the remaining samples of a series, which makes the head grow
            permanent = contents.permanent.data[ids]
            sequence = self.journal.write(Deletion(permanent, start_ms, end_ms), durable=self.is_synced)
            tombstone = Tombstone.of(sequence, permanent, start_ms, end_ms)
            is_needed = contents.layers.needs(tombstone)
            if is_needed:
                batch = self._store.batch()
                self.archive.put_tombstone(batch, tombstone)
                self._store.write(batch, durable=self.is_synced)
            with contents.lock:
                if is_needed:
                    tombstones = (*contents.layers.tombstones, tombstone)
                    contents.layers = replace(contents.layers, tombstones=tombstones)
                contents.head.delete(ids, start_ms, end_ms)
            self._may_be_overrun = True  # the remaining samples were written again
            self.exemplars.delete(ids, start_ms, end_ms)

    def select(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int,
        end_ms: int,
        check: Callable[[], None] = unchecked,
    ) -> tuple[Lookup, Ids]:
        """(the current index, ascending ids of the series that match any selector and may have samples with
        start ≤ t ≤ end). A selector without matchers matches every series. `check` is called repeatedly and may raise.
        Raises BadData for an expression that RE2 refuses, NotExecutable for one that is too costly."""
        lookup = self.lookup()
        return lookup, self.may_have(lookup.select_any(selectors, check), start_ms, end_ms)

    def lookup(self) -> Lookup:
        """The index as it is now."""
        with self.contents.lock:
            return self.contents.index.lookup()

    def may_have(self, ids: Ids, start_ms: int, end_ms: int) -> Ids:
        """Those of these series that may have samples with start ≤ t ≤ end; the same array if all of them may."""
        contents = self.contents

        def may_have() -> Ids:
            with contents.lock:
                if contents.head.all_overlap(ids, start_ms, end_ms):
                    return ids
                is_selected = contents.head.overlapping(ids, start_ms, end_ms)
                layers, permanent = contents.layers, contents.permanent.rows()
            undecided = ids[~is_selected]
            is_selected[~is_selected] = layers.may_have(undecided, permanent[undecided], start_ms, end_ms)
            return ids if is_selected.all() else ids[is_selected]

        return self._around_damage(may_have)

    def having(
        self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> tuple[Lookup, Ids]:
        """As `select`, but only the series that really have samples with start ≤ t ≤ end. `check` is called repeatedly
        and may raise."""
        contents = self.contents
        lookup = self.lookup()
        ids = lookup.select_any(selectors, check)
        if not len(ids):
            return lookup, ids

        def having() -> Ids:
            with contents.lock:
                is_selected = contents.head.having(ids, start_ms, end_ms)
                layers, permanent = contents.layers, contents.permanent.rows()
            if is_selected.all():
                return ids
            undecided = ids[~is_selected]
            is_selected[~is_selected] = layers.having(undecided, permanent[undecided], start_ms, end_ms, check)
            return ids[is_selected]

        return lookup, self._around_damage(having)

    def find_exemplars(
        self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> tuple[Lookup, ExemplarRecord]:
        """(the current index, the exemplars with start ≤ t ≤ end of the series that any selector matches: by series,
        and those of a series in the order of time). `check` is called repeatedly and may raise."""
        lookup = self.lookup()
        ids = lookup.select_any(selectors, check)
        return lookup, self.exemplars.find(ids, start_ms, end_ms)

    def read(self, ids: Ids, start_ms: int, end_ms: int, extracts: Extracts | None = None) -> Samples:
        """Samples of these distinct series with start ≤ t ≤ end from blocks and head; among equal times the last one
        written counts. Damaged blocks are left out: see `damage`. `extracts`: those of the reader."""
        contents = self.contents

        def read() -> Samples:
            with contents.lock:
                copied = contents.head.copied(ids, start_ms, end_ms)
                layers, permanent = contents.layers, contents.permanent.rows()
            recent = copied.samples()
            below = [] if layers.are_empty else layers.pieces(ids, permanent[ids], start_ms, end_ms, extracts)
            if not below:
                return recent
            return join([*below, Piece.of(recent)] if len(recent.values) else below, len(ids))

        return self._around_damage(read)

    def is_stale(self, columns: Columns) -> bool:
        """Whether a frame has numbers of series that an earlier opening of this shard gave. Raises Internal for numbers
        that this one has not given."""
        if not isinstance(columns, ReferenceColumns):
            return False
        if columns.epoch != self.epoch:
            return True
        if columns.number_max >= self.series:
            raise Internal(f"a frame for series.write has a series {columns.number_max}; the shard has {self.series}")
        return False

    @property
    def is_damaged(self) -> bool:
        """Whether blocks are set aside."""
        return bool(self.contents.layers.broken)

    def damage(self, start_ms: int, end_ms: int) -> list[str]:
        """What answers about start ≤ t ≤ end lack: one text for each damaged block."""
        return self.contents.layers.damage(start_ms, end_ms)

    def _around_damage(self, work: Callable[[], T]) -> T:
        """Call `work`. If it finds a damaged block, set the block aside and call `work` again."""
        while True:
            try:
                return work()
            except CorruptBlock as error:
                self.contents.set_aside(error.block, error.reason)

    def hold_up(self, give_up_s: float) -> None:
        """Wait until a head over its bound has been sealed, or until `time.monotonic()` reaches `give_up_s`."""
        while self._is_overrun() and time.monotonic() < give_up_s:
            self._upkeep.wake()
            time.sleep(HOLD_UP_POLL_S)

    def _is_overrun(self) -> bool:
        """Whether the samples in memory are over their bound. Those being sealed count: they stay if that fails."""
        return self._may_be_overrun and self.contents.unsealed_bytes() > HEAD_OVERRUN_MAX * self._head_bytes_max

    def _refuse_overrun(self) -> None:
        if self._is_overrun():
            size, size_max = self.contents.unsealed_bytes(), HEAD_OVERRUN_MAX * self._head_bytes_max
            raise Unavailable(f"{size} bytes of samples wait to be sealed, and {size_max} may; try again later")

    # The methods that `Rounds` calls: see `Committed`.

    @property
    def is_synced(self) -> bool:
        return self._settings.durability == "synced"

    @property
    def has_new_series(self) -> bool:
        return self._series_staged > self._series_saved

    def stage(self, arrivals: Sequence[Arrival]) -> tuple[Staged, list[PendingRecord]]:
        """(samples and exemplars, their records). `Rounds` then writes and syncs the records and makes the samples
        visible, in this order. So visible samples are durable, and among equal times the last one in the journal
        counts. Raises Unavailable if the head grows faster than it is sealed, or the store refuses writes.

        New series are registered first; they are invisible as long as they have no samples. If the store fails, the
        next commit saves them. Arrivals with series that get no ids are not stored: see `accepted`.
        """
        contents = self.contents
        self._refuse_overrun()
        known = numbered(arrivals)
        if known is not None and self.series == self._series_saved:  # there is nothing to register
            samples = NumberedSamples.of(known, contents.permanent.data)
            return Staged(samples, None), [self.journal.entry(samples)]
        with contents.lock:
            series_max = self._series_saved + self._registry.room
            for arrival in arrivals:
                arrival.resolve(contents.index, series_max)
            contents.index.register()
            series = len(contents.index)
            if series > len(contents.permanent):
                contents.extend(series, self._registry.next_id - self._series_saved)
            new = contents.index.label_bytes(self._series_saved) if series > self._series_saved else None
        if new is not None:
            batch = self._store.batch()
            self._registry.put(batch, *new)
            self._store.write(batch)
            self._series_staged = series
        permanent = contents.permanent.data
        written, exemplars = joined(arrivals if series < series_max else accepted(arrivals, self._registry.full))
        parts = [part for part in (written, exemplars) if part is not None]
        records = [self.journal.entry(part.of(permanent[part.series])) for part in parts]
        assert records, "a write has samples or exemplars"
        return Staged(written, exemplars), records

    def sync(self) -> None:
        """Make new series durable before a record refers to them, whatever the durability of samples is. Otherwise a
        loss of power could destroy a series and leave its samples, and the next new series would get its id."""
        self._store.sync()
        self._registry.next_id += self._series_staged - self._series_saved
        self._series_saved = self._series_staged
        with self.contents.lock:
            self.contents.index.drop_label_bytes(self._series_saved)

    def journaled(self, entry: PendingRecord, position: int) -> None:
        self.journal.written(entry, position)

    def show(self, staged: Staged) -> None:
        if staged.exemplars is not None:
            self.exemplars.add(staged.exemplars)
        written, contents = staged.written, self.contents
        if written is None:
            return
        rows = written.rows()
        with contents.lock:
            contents.head.append(
                rows, written.times_ms, written.values, written.start_timestamps_ms, written.histograms
            )
            head_bytes = contents.head.size_bytes
        self._samples_in += len(rows)
        self._may_be_overrun = contents.unsealed_bytes() > HEAD_OVERRUN_MAX * self._head_bytes_max
        if head_bytes > self._head_bytes_max:
            self._upkeep.wake()

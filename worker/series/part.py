"""The time series of one shard: index and head in memory, labels in the store, samples in the journal and in blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from shared.errors import DeadlineExceeded, Internal, Unavailable
from shared.frames.references import ReferenceColumns, new_epoch
from shared.labels import Symbols
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
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
from worker.series.loading import carry_out, load_labels, replay, restore_series
from worker.series.metadata import Metadata
from worker.series.numbered_samples import NumberedSamples
from worker.series.pieces import Piece, join
from worker.series.series_record import SeriesRecord
from worker.series.services import SeriesServices
from worker.series.sweeping import sweep
from worker.series.upkeep import Upkeep
from worker.storage.faces import JournalStream, Objects, Rows

T = TypeVar("T")

HEAD_OVERRUN_MAX = 4
"""Writes are refused when the samples in memory take more than this many times the size at which a head is sealed."""
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
        """The epoch of the numbers that the index gives to series (`shared.frames.references`)."""
        self._damage = DamageReport() if damage is None else damage
        self._store = store
        self.services = services
        self._settings = settings = services.settings
        self.contents = Contents(services.symbols)
        self._head_bytes_max = settings.head_bytes // settings.shard_count()
        self._may_be_overrun = True
        """False after a write that left the head within its bound; the next write then need not check."""
        self._samples_in = 0
        self._registry = Registry(store)
        self._series_saved = 0
        """How many series of the index are in the store and, until they are synced there, in the journal."""
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
        """The number of series in the index, which never removes a series or changes its number."""
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
        the store's rows are invalid."""
        contents = self.contents
        self.metadata.load()
        self.journal.load()
        restore_series(self.journal, self._store)
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
        self._series_saved = len(contents.index)
        with contents.lock:
            contents.head.extend(len(contents.index))
        permanent = contents.permanent.rows()
        self.exemplars.restore(permanent)
        replayed = replay(self.journal, contents.head, self.exemplars, permanent, contents.lock)
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
        `head_samples`: those that no block has yet: they are only in memory and in the journal."""
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
        """Stop the background work. Nothing else needs to be done, because every write is journaled before its
        reply."""
        self._upkeep.stop()

    def delete(self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, timeout_s: float) -> None:
        """Delete the samples and exemplars with start ≤ t ≤ end of the series that any selector matches. Reads no
        samples of blocks.

        When this returns, the deletion is in the journal, durably unless the durability is "buffered"; samples that are
        written later stay. Raises BadData for an expression that RE2 refuses, DeadlineExceeded if selecting the series
        takes too long or the store is busy too long, and Unavailable if the head grows faster than it is sealed or the
        store refuses writes.
        """
        contents = self.contents
        deadline_s = time.monotonic() + timeout_s
        selectors = list(selectors)

        def check() -> None:
            if time.monotonic() > deadline_s:
                raise DeadlineExceeded(f"selecting the series to delete from took longer than {timeout_s:.1f} s")

        lookup, ids = self.select(selectors, start_ms, end_ms, check)
        if self.damage(start_ms, end_ms):
            # A block that is set aside may be restored, with samples of any series, but not of one that a commit has
            # failed to save: no record may name that one, since its labels may be nowhere.
            ids = lookup.select_any(selectors, check)
            ids = ids[ids < self._series_saved]
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
        """The series among `ids` that may have samples with start ≤ t ≤ end; `ids` itself if all of them may."""
        contents = self.contents

        def filtered() -> Ids:
            with contents.lock:
                if contents.head.all_overlap(ids, start_ms, end_ms):
                    return ids
                is_selected = contents.head.overlapping(ids, start_ms, end_ms)
                layers, permanent = contents.layers, contents.permanent.rows()
            undecided = ids[~is_selected]
            is_selected[~is_selected] = layers.may_have(undecided, permanent[undecided], start_ms, end_ms)
            return ids if is_selected.all() else ids[is_selected]

        return self._without_damaged_blocks(filtered)

    def having(
        self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> tuple[Lookup, Ids]:
        """As `select`, but only the series that do have samples with start ≤ t ≤ end. `check` is called repeatedly and
        may raise."""
        contents = self.contents
        lookup = self.lookup()
        ids = lookup.select_any(selectors, check)
        if not len(ids):
            return lookup, ids

        def filtered() -> Ids:
            with contents.lock:
                is_selected = contents.head.having(ids, start_ms, end_ms)
                layers, permanent = contents.layers, contents.permanent.rows()
            if is_selected.all():
                return ids
            undecided = ids[~is_selected]
            is_selected[~is_selected] = layers.having(undecided, permanent[undecided], start_ms, end_ms, check)
            return ids[is_selected]

        return lookup, self._without_damaged_blocks(filtered)

    def find_exemplars(
        self, selectors: Iterable[Sequence[Matcher]], start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> tuple[Lookup, ExemplarRecord]:
        """(the current index, the exemplars with start ≤ t ≤ end of the series that any selector matches, ordered by
        series and then by time). `check` is called repeatedly and may raise."""
        lookup = self.lookup()
        ids = lookup.select_any(selectors, check)
        return lookup, self.exemplars.find(ids, start_ms, end_ms)

    def read(self, ids: Ids, start_ms: int, end_ms: int, extracts: Extracts | None = None) -> Samples:
        """Samples of these distinct series with start ≤ t ≤ end from blocks and head. Among equal times, the last
        written sample wins. Damaged blocks are left out: see `damage`. `extracts`: those of the reader."""
        contents = self.contents

        def read() -> Samples:
            with contents.lock:
                copied = contents.head.copied(ids, start_ms, end_ms)
                layers, permanent = contents.layers, contents.permanent.rows()
            recent = copied.samples()
            lower_pieces = [] if layers.are_empty else layers.pieces(ids, permanent[ids], start_ms, end_ms, extracts)
            if not lower_pieces:
                return recent
            return join([*lower_pieces, Piece.of(recent)] if len(recent.values) else lower_pieces, len(ids))

        return self._without_damaged_blocks(read)

    def is_stale(self, columns: Columns) -> bool:
        """Whether a frame has series numbers from an earlier opening of this shard. Raises Internal for numbers that
        this opening has not given."""
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
        """What is missing from answers about start ≤ t ≤ end: one text for each damaged block."""
        return self.contents.layers.damage(start_ms, end_ms)

    def _without_damaged_blocks(self, work: Callable[[], T]) -> T:
        """Call `work`. If it finds a damaged block, set the block aside and call `work` again."""
        while True:
            try:
                return work()
            except CorruptBlock as error:
                self.contents.set_aside(error.block, error.reason)

    def hold_up(self, deadline_s: float) -> None:
        """Wait until a head over its bound has been sealed, or until `time.monotonic()` reaches `deadline_s`."""
        while self._is_overrun() and time.monotonic() < deadline_s:
            self._upkeep.wake()
            time.sleep(HOLD_UP_POLL_S)

    def _is_overrun(self) -> bool:
        """Whether the samples in memory are over their bound. Samples being sealed count: they stay if sealing
        fails."""
        return self._may_be_overrun and self.contents.unsealed_bytes() > HEAD_OVERRUN_MAX * self._head_bytes_max

    def _refuse_overrun(self) -> None:
        if self._is_overrun():
            size, size_max = self.contents.unsealed_bytes(), HEAD_OVERRUN_MAX * self._head_bytes_max
            raise Unavailable(f"{size} bytes of samples wait to be sealed, and {size_max} may; try again later")

    # The methods that `Rounds` calls: see `Committed`.

    @property
    def is_synced(self) -> bool:
        return self._settings.durability == "synced"

    def stage(self, arrivals: Sequence[Arrival]) -> tuple[Staged, list[PendingRecord]]:
        """(samples and exemplars, their records). `Rounds` then writes and syncs the records and makes the samples
        visible, in this order. So visible samples are durable, and among equal times the last one in the journal wins.
        Raises Unavailable if the head grows faster than it is sealed, or the store refuses writes.

        New series are registered first; they are invisible as long as they have no samples. Their rows are not synced
        before the next seal, so the first record has their labels too: a record that names a series never survives
        without them. If the store or the log fails, the next commit saves the series. Arrivals with series that get no
        ids are not stored: see `accepted`.
        """
        contents = self.contents
        self._refuse_overrun()
        numbered_frames = numbered(arrivals)
        if numbered_frames is not None and self.series == self._series_saved:  # no series to register
            samples = NumberedSamples.of(numbered_frames, contents.permanent.data)
            return Staged(samples, None), [self.journal.entry(samples)]
        with contents.lock:
            series_max = self._series_saved + self._registry.room
            for arrival in arrivals:
                arrival.resolve(contents.index, series_max)
            contents.index.register()
            series = len(contents.index)
            if series > len(contents.permanent):
                contents.extend(series, self._registry.next_id - self._series_saved)
            new_labels = contents.index.label_bytes(self._series_saved) if series > self._series_saved else None
        new_series: list[SeriesRecord] = []
        if new_labels is not None:
            batch = self._store.batch()
            new_series = [self._registry.put(batch, *new_labels)]
            self._store.write(batch)
        permanent = contents.permanent.data
        written, exemplars = joined(arrivals if series < series_max else accepted(arrivals, self._registry.full))
        parts = [part for part in (written, exemplars) if part is not None]
        assert parts, "a write has samples or exemplars"
        records = [*new_series, *(part.of(permanent[part.series]) for part in parts)]
        return Staged(written, exemplars, series), [self.journal.entry(record) for record in records]

    def journaled(self, entry: PendingRecord, position: int) -> None:
        self.journal.written(entry, position)

    def show(self, staged: Staged) -> None:
        if staged.series > self._series_saved:
            self._registry.next_id += staged.series - self._series_saved
            self._series_saved = staged.series
            with self.contents.lock:
                self.contents.index.drop_label_bytes(staged.series)
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

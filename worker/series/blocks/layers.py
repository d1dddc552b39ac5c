"""The layers below a shard's growing head: the blocks, and the samples that are being sealed or will be sealed next
time.

Layers are ordered by generation, the journal sequence up to which a layer holds what was written. Where two layers have
samples with equal times, those of the higher generation win, and a deletion applies to the layers of its own generation
and lower ones. `Layers` is immutable: readers continue with the one that they took while the shard replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shared.promql.model import Samples
from worker.series.blocks.block import Block
from worker.series.blocks.deletions import Deletions, Tombstone
from worker.series.blocks.extracts import Extracts
from worker.series.head import Head
from worker.series.pieces import Part, Piece

Ids = NDArray[np.int64]

SERIES_PER_CHECK = 1024
"""Series read between two checks of the deadline."""


@dataclass(frozen=True, slots=True)
class Slab:
    """Samples that were too recent for a block when their head was sealed, as one ragged array of all n series at that
    time: series i < n has the samples [offsets[i], offsets[i + 1])."""

    samples: Samples

    @property
    def size_bytes(self) -> int:
        samples = self.samples
        arrays = (samples.timestamps_ms, samples.values, samples.start_timestamps_ms, samples.histograms)
        return int(samples.offsets.nbytes + sum(array.nbytes for array in arrays if array is not None))

    def piece(self, ids: Ids) -> Piece:
        """The samples of series `ids` (int64[n]); row i is ids[i]."""
        rows = np.flatnonzero(ids < len(self.samples.offsets) - 1)
        series = ids[rows]
        offsets = self.samples.offsets
        return replace(Piece.of(self.samples), rows=rows, starts=offsets[series], ends=offsets[series + 1])


@dataclass(frozen=True, slots=True)
class Layers:
    """`blocks` are in the order in which their samples must be read. `slab` and `frozen` hold samples of the journal's
    records before their generations that no block has. `broken`: blocks that are set aside, with the reasons."""

    blocks: tuple[Block, ...] = ()
    slab: Slab | None = None
    slab_generation: int = 0
    frozen: Head | None = None
    frozen_generation: int = 0
    tombstones: tuple[Tombstone, ...] = ()
    broken: tuple[tuple[Block, str], ...] = ()
    _deletions_cache: list[Deletions] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def _deletions(self) -> Deletions:
        """The tombstones by series, sorted when they are first needed."""
        if not self._deletions_cache:
            self._deletions_cache.append(Deletions(self.tombstones))
        return self._deletions_cache[0]

    @property
    def are_empty(self) -> bool:
        """Whether no layer has samples that can be read."""
        return not self.blocks and self.slab is None and self.frozen is None

    @property
    def known_blocks(self) -> list[Block]:
        """All blocks, also those that are set aside."""
        return [*self.blocks, *(block for block, _ in self.broken)]

    @property
    def samples(self) -> int:
        """The number of samples; a sample that is in two layers counts twice."""
        return sum(block.row.samples for block in self.blocks) + self.unsealed_samples

    @property
    def unsealed_samples(self) -> int:
        """The number of samples in the slab and in the frozen head."""
        slab = 0 if self.slab is None else len(self.slab.samples.values)
        return slab + (0 if self.frozen is None else self.frozen.samples)

    def needs(self, tombstone: Tombstone) -> bool:
        """Whether any layer may still have samples that the tombstone deletes."""
        layers = [(b.row.deletions_from, b.row.earliest_ms, b.row.latest_ms) for b in self.known_blocks]
        if self.slab is not None:
            layers.append((self.slab_generation, tombstone.start_ms, tombstone.end_ms))
        if self.frozen is not None:
            layers.append((self.frozen_generation, tombstone.start_ms, tombstone.end_ms))
        return any(tombstone.applies(*layer) for layer in layers)

    def delete_from(self, block: Block) -> bool:
        """Whether tombstones may delete samples of this block, that is, whether a run has a series and times of a
        tombstone. Raises CorruptBlock, Unavailable."""
        directory, row = block.directory(), block.row
        series = np.unique(directory.ids).astype(np.int64)
        deletions = self._deletions.of(series, row.deletions_from, row.earliest_ms, row.latest_ms)
        return any(
            len(directory.find(series[is_affected], first_ms, last_ms)[1])
            for is_affected, first_ms, last_ms in deletions
        )

    def damage(self, start_ms: int, end_ms: int) -> list[str]:
        """One text for each set-aside block whose samples are missing from answers about start ≤ t ≤ end."""
        return [
            f"block {block.row.name} with samples from {block.row.earliest_ms} to {block.row.latest_ms} "
            f"is set aside: {reason}"
            for block, reason in self.broken
            if block.overlaps(start_ms, end_ms)
        ]

    def having(
        self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end. `check` is called before each block and each chunk,
        and may raise. Raises CorruptBlock, Unavailable."""
        has_samples = self._have_unsealed(ids, permanent, start_ms, end_ms, exactly=True)
        for block in reversed(self.blocks):
            undecided = np.flatnonzero(~has_samples)
            if not len(undecided):
                break
            if block.overlaps(start_ms, end_ms):
                check()
                has_samples[undecided] = self._have(block, permanent[undecided], start_ms, end_ms, check)
        return has_samples

    def _have_unsealed(
        self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int, *, exactly: bool
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end in the slab or in the frozen head. Unless `exactly`,
        series that merely may have samples in the frozen head count too."""
        has_samples = np.zeros(len(ids), dtype=np.bool_)
        if not len(ids):
            return has_samples
        for piece in self._slab_pieces(ids, permanent, start_ms, end_ms):
            has_samples[piece.rows[piece.counts > 0]] = True
        if self.frozen is not None:
            find_in_frozen = self.frozen.having if exactly else self.frozen.overlapping
            frozen_rows = np.flatnonzero(ids < self.frozen.series)
            frozen_rows = frozen_rows[find_in_frozen(ids[frozen_rows], start_ms, end_ms)]
            if any(stone.applies(self.frozen_generation, start_ms, end_ms) for stone in self.tombstones):
                for piece in self._frozen_pieces(ids[frozen_rows], permanent[frozen_rows], start_ms, end_ms):
                    has_samples[frozen_rows[piece.rows[piece.counts > 0]]] = True
            else:
                has_samples[frozen_rows] = True
        return has_samples

    def _have(
        self, block: Block, permanent: Ids, start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end in this block that are not deleted. Samples are read
        only of the series that a tombstone affects."""
        has_samples = np.zeros(len(permanent), dtype=np.bool_)
        is_affected = has_samples.copy()
        for is_deleted, _, _ in self._deletions.of(permanent, block.row.deletions_from, start_ms, end_ms):
            is_affected |= is_deleted
        unaffected, affected = np.flatnonzero(~is_affected), np.flatnonzero(is_affected)
        has_samples[unaffected] = block.having(permanent[unaffected], start_ms, end_ms, check)
        for first in range(0, len(affected), SERIES_PER_CHECK):
            check()
            batch = affected[first : first + SERIES_PER_CHECK]
            pieces = block.pieces(permanent[batch], start_ms, end_ms)
            for piece in self._without_deleted(pieces, block.row.deletions_from, permanent[batch], start_ms, end_ms):
                has_samples[batch[piece.rows[piece.counts > 0]]] = True
        return has_samples

    def may_have(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[n]: which series may have samples with start ≤ t ≤ end. A series whose samples lie only before and after
        this range counts too. That is enough for readers, which read the samples anyway. Raises CorruptBlock,
        Unavailable."""
        has_samples = self._have_unsealed(ids, permanent, start_ms, end_ms, exactly=False)
        for block in reversed(self.blocks):
            if block.overlaps(start_ms, end_ms):
                undecided = np.flatnonzero(~has_samples)
                if not len(undecided):
                    break
                undecided_permanent = permanent[undecided]
                deletions = self._deletions.of(undecided_permanent, block.row.deletions_from, start_ms, end_ms)
                has_samples[undecided] = block.may_have(undecided_permanent, start_ms, end_ms, deletions)
        return has_samples

    def pieces(
        self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int, extracts: Extracts | None = None
    ) -> list[Part]:
        """The samples with start ≤ t ≤ end of series `ids` (their numbers in memory; `permanent`: the permanent ids of
        the same series). `extracts`: those of the reader of these and other series. Among equal times, a later piece
        replaces an earlier one. Raises CorruptBlock, Unavailable."""
        pieces: list[Part] = []
        blocks = [block for block in self.blocks if block.overlaps(start_ms, end_ms)]
        for block in blocks:
            directory = None if extracts is None else extracts.directory(block, ids, len(blocks))
            block_pieces = block.pieces(permanent, start_ms, end_ms, directory)
            pieces += self._without_deleted(block_pieces, block.row.deletions_from, permanent, start_ms, end_ms)
        return pieces + self.unsealed(ids, permanent, start_ms, end_ms)

    def unsealed(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Part]:
        """As `pieces`, but of the slab and the frozen head only."""
        slab = self._slab_pieces(ids, permanent, start_ms, end_ms)
        return slab + self._frozen_pieces(ids, permanent, start_ms, end_ms)

    def _slab_pieces(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Part]:
        if self.slab is None:
            return []
        pieces: list[Part] = [self.slab.piece(ids).clipped(start_ms, end_ms)]
        return self._without_deleted(pieces, self.slab_generation, permanent, start_ms, end_ms)

    def _frozen_pieces(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Part]:
        if self.frozen is None:
            return []
        rows = np.flatnonzero(ids < self.frozen.series)
        pieces: list[Part] = [Piece.of(self.frozen.read(ids[rows], start_ms, end_ms), rows)]
        return self._without_deleted(pieces, self.frozen_generation, permanent, start_ms, end_ms)

    def _without_deleted(
        self, pieces: list[Part], generation: int, permanent: Ids, start_ms: int, end_ms: int
    ) -> list[Part]:
        """The pieces of a layer of this generation without the samples that tombstones delete."""
        if not pieces or not self.tombstones:
            return pieces
        for is_affected, first_ms, last_ms in self._deletions.of(permanent, generation, start_ms, end_ms):
            pieces = [piece.without(is_affected, first_ms, last_ms) for piece in pieces]
        return pieces


def reading_order(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The blocks ordered by time, so that samples are read in ascending order and need no sorting. If that would put a
    block before one of lower generation whose times overlap its own, they are ordered by generation instead."""
    by_time = sorted(blocks, key=lambda block: (block.row.earliest_ms, block.row.generation))
    latest_ms: int | None = None
    generation = 0
    for block in by_time:
        row = block.row
        if latest_ms is not None and row.earliest_ms <= latest_ms and row.generation < generation:
            return tuple(sorted(by_time, key=lambda block: (block.row.generation, block.row.earliest_ms)))
        if latest_ms is None or row.earliest_ms > latest_ms:
            latest_ms, generation = row.latest_ms, row.generation
        else:
            latest_ms, generation = max(latest_ms, row.latest_ms), max(generation, row.generation)
    return tuple(by_time)


def closure(chosen: Sequence[Block], blocks: Sequence[Block]) -> list[Block]:
    """The chosen blocks, and all blocks that must be merged with them into one block of the highest generation among
    them.

    These are the blocks whose times overlap theirs and whose generation lies between theirs, or is one of theirs:
    otherwise the merged block would wrongly take precedence over them. A block that is older or newer than all of them
    stays below or above the merged one. Blocks of one generation were cut from one head, so no series has the same time
    in two of them. Blocks that all have the same generation can therefore be merged without others.
    """
    merged = set(chosen)
    while True:
        start_ms, end_ms = min(b.row.earliest_ms for b in merged), max(b.row.latest_ms for b in merged)
        lowest, highest = min(b.row.generation for b in merged), max(b.row.generation for b in merged)
        overlapping = {
            block
            for block in blocks
            if lowest != highest and lowest <= block.row.generation <= highest and block.overlaps(start_ms, end_ms)
        }
        if overlapping <= merged:
            return [block for block in blocks if block in merged]
        merged |= overlapping

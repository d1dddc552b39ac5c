"""What lies below a shard's growing head: the blocks, and the samples that are being sealed or will be next time.

Layers are ordered by generation, the journal sequence up to which they hold what was written: of equal times the one of
the higher generation is right, and a deletion takes from the layers of its own generation and lower. Layers are values:
readers go on with the ones they took while the shard replaces them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.promql.model import Samples
from worker.series.blocks.block import ID_MAX, Block
from worker.series.head import Head
from worker.series.pieces import Piece

Ids = NDArray[np.int64]

SERIES_PER_CHECK = 1024
"""Series read between two looks at the deadline."""


@dataclass(frozen=True, slots=True)
class Slab:
    """Samples too young for a block when the head they were in was sealed, as one ragged array of all series there
    were: series i < n has [offsets[i], offsets[i + 1])."""

    samples: Samples

    @property
    def size_bytes(self) -> int:
        return 16 * len(self.samples.values) + 8 * len(self.samples.offsets)

    def piece(self, ids: Ids) -> Piece:
        rows = np.flatnonzero(ids < len(self.samples.offsets) - 1)
        series = ids[rows]
        offsets = self.samples.offsets
        return Piece(self.samples.timestamps_ms, self.samples.values, rows, offsets[series], offsets[series + 1])


class Tombstone(msgspec.Struct, frozen=True):
    """The samples with start ≤ t ≤ end of series `ids` (int32 bytes, permanent ids ascending) are gone from all layers
    of a generation up to `sequence`, the deletion's own in the journal."""

    sequence: int
    start_ms: int
    end_ms: int
    ids: bytes

    @classmethod
    def of(cls, sequence: int, series: Ids, start_ms: int, end_ms: int) -> Tombstone:
        """That of a deletion which is the journal's record `sequence`."""
        assert not len(series) or 0 <= int(series.min()) <= int(series.max()) <= ID_MAX
        assert (series[1:] > series[:-1]).all(), "permanent ids ascend"
        return cls(sequence, start_ms, end_ms, series.astype(np.int32).tobytes())

    def covers(self, permanent: Ids) -> NDArray[np.bool_]:
        """bool[n]: which series it is about."""
        return np.isin(permanent, np.frombuffer(self.ids, dtype=np.int32))

    def applies(self, generation: int, start_ms: int, end_ms: int) -> bool:
        """Whether a layer of this generation and time range may have lost samples to it."""
        return generation <= self.sequence and self.start_ms <= end_ms and self.end_ms >= start_ms


@dataclass(frozen=True, slots=True)
class Layers:
    """`blocks` are in the order in which their samples are to be read. `slab` and `frozen` hold what the journal says
    before their generations and no block has; `broken` are blocks set aside, with the reason."""

    blocks: tuple[Block, ...] = ()
    slab: Slab | None = None
    slab_generation: int = 0
    frozen: Head | None = None
    frozen_generation: int = 0
    tombstones: tuple[Tombstone, ...] = ()
    broken: tuple[tuple[Block, str], ...] = ()

    @property
    def samples(self) -> int:
        """Samples held; one that is in two layers counts twice."""
        below = sum(block.row.samples for block in self.blocks)
        slab = 0 if self.slab is None else len(self.slab.samples.values)
        return below + slab + (0 if self.frozen is None else self.frozen.samples)

    def needs(self, tombstone: Tombstone) -> bool:
        """Whether any layer may still have samples that the tombstone says are gone."""
        blocks = [*self.blocks, *(block for block, _ in self.broken)]
        below = [(block.row.deletions_from, block.row.earliest_ms, block.row.latest_ms) for block in blocks]
        if self.slab is not None:
            below.append((self.slab_generation, tombstone.start_ms, tombstone.end_ms))
        if self.frozen is not None:
            below.append((self.frozen_generation, tombstone.start_ms, tombstone.end_ms))
        return any(tombstone.applies(*layer) for layer in below)

    def damage(self, start_ms: int, end_ms: int) -> list[str]:
        """One text for each block that is missing from an answer about start ≤ t ≤ end."""
        return [
            f"block {block.row.name} with samples from {block.row.earliest_ms} to {block.row.latest_ms} "
            f"is set aside: {reason}"
            for block, reason in self.broken
            if block.overlaps(start_ms, end_ms)
        ]

    def having(
        self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end. `check` is called before a block or a chunk is
        looked at, and may raise. Raises CorruptBlock."""
        has_samples = self._have_unsealed(ids, permanent, start_ms, end_ms, exactly=True)
        for block in reversed(self.blocks):
            open_ids = np.flatnonzero(~has_samples)
            if not len(open_ids):
                break
            if block.overlaps(start_ms, end_ms):
                check()
                has_samples[open_ids] = self._have(block, permanent[open_ids], start_ms, end_ms, check)
        return has_samples

    def _have_unsealed(
        self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int, *, exactly: bool
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end in the slab or in the frozen head. Without `exactly`,
        those count too that may have some in the frozen head."""
        has_samples = np.zeros(len(ids), dtype=np.bool_)
        if not len(ids):
            return has_samples
        for piece in self._slab_pieces(ids, permanent, start_ms, end_ms):
            has_samples[piece.rows[piece.ends > piece.starts]] = True
        if self.frozen is not None:
            in_frozen = self.frozen.having if exactly else self.frozen.overlapping
            known = np.flatnonzero(ids < self.frozen.series)
            known = known[in_frozen(ids[known], start_ms, end_ms)]
            if any(stone.applies(self.frozen_generation, start_ms, end_ms) for stone in self.tombstones):
                for piece in self._frozen_pieces(ids[known], permanent[known], start_ms, end_ms):
                    has_samples[known[piece.rows[piece.ends > piece.starts]]] = True
            else:
                has_samples[known] = True
        return has_samples

    def _have(
        self, block: Block, permanent: Ids, start_ms: int, end_ms: int, check: Callable[[], None]
    ) -> NDArray[np.bool_]:
        """bool[n]: which series have samples of this block left. Only those a tombstone is about are read."""
        stones = [stone for stone in self.tombstones if stone.applies(block.row.deletions_from, start_ms, end_ms)]
        has_samples = np.zeros(len(permanent), dtype=np.bool_)
        touched = has_samples.copy()
        for stone in stones:
            touched |= stone.covers(permanent)
        whole, cut = np.flatnonzero(~touched), np.flatnonzero(touched)
        has_samples[whole] = block.having(permanent[whole], start_ms, end_ms, check)
        for first in range(0, len(cut), SERIES_PER_CHECK):
            check()
            batch = cut[first : first + SERIES_PER_CHECK]
            pieces = block.pieces(permanent[batch], start_ms, end_ms)
            for piece in self._kept(pieces, block.row.deletions_from, permanent[batch], start_ms, end_ms):
                has_samples[batch[piece.rows[piece.ends > piece.starts]]] = True
        return has_samples

    def may_have(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[n]: which series may have samples with start ≤ t ≤ end (they have some before and some after): what a
        reader asks, who sees the samples anyway. Raises CorruptBlock."""
        has_samples = self._have_unsealed(ids, permanent, start_ms, end_ms, exactly=False)
        for block in reversed(self.blocks):
            if block.overlaps(start_ms, end_ms):
                open_ids = np.flatnonzero(~has_samples)
                if not len(open_ids):
                    break
                open_permanent = permanent[open_ids]
                since = block.row.deletions_from
                stones = [stone for stone in self.tombstones if stone.applies(since, start_ms, end_ms)]
                gone = [(stone.covers(open_permanent), stone.start_ms, stone.end_ms) for stone in stones]
                has_samples[open_ids] = block.may_have(open_permanent, start_ms, end_ms, gone)
        return has_samples

    def pieces(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Piece]:
        """The samples with start ≤ t ≤ end of series `ids` (their numbers in memory, and the permanent ids of the same
        series), in the order in which a later one replaces an earlier. Raises CorruptBlock."""
        pieces: list[Piece] = []
        for block in self.blocks:
            if block.overlaps(start_ms, end_ms):
                block_pieces = block.pieces(permanent, start_ms, end_ms)
                pieces += self._kept(block_pieces, block.row.deletions_from, permanent, start_ms, end_ms)
        return pieces + self.unsealed(ids, permanent, start_ms, end_ms)

    def unsealed(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Piece]:
        """`pieces` of slab and frozen head only."""
        slab = self._slab_pieces(ids, permanent, start_ms, end_ms)
        return slab + self._frozen_pieces(ids, permanent, start_ms, end_ms)

    def _slab_pieces(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Piece]:
        if self.slab is None:
            return []
        piece = self.slab.piece(ids).clipped(start_ms, end_ms)
        return self._kept([piece], self.slab_generation, permanent, start_ms, end_ms)

    def _frozen_pieces(self, ids: Ids, permanent: Ids, start_ms: int, end_ms: int) -> list[Piece]:
        if self.frozen is None:
            return []
        rows = np.flatnonzero(ids < self.frozen.series)
        piece = Piece.of(self.frozen.read(ids[rows], start_ms, end_ms))
        piece.rows = rows
        return self._kept([piece], self.frozen_generation, permanent, start_ms, end_ms)

    def _kept(self, pieces: list[Piece], generation: int, permanent: Ids, start_ms: int, end_ms: int) -> list[Piece]:
        for tombstone in self.tombstones:
            if pieces and tombstone.applies(generation, start_ms, end_ms):
                gone = tombstone.covers(permanent)
                if gone.any():
                    pieces = [piece.without(gone, tombstone.start_ms, tombstone.end_ms) for piece in pieces]
        return pieces


def reading_order(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """By time, so that what is read ascends and needs no sorting, unless that would put a higher generation before a
    lower one with which it shares times: then by generation."""
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
    """The chosen blocks with all that must be merged with them into one block of the highest generation among them.

    That is every block that shares times with them and whose generation lies between theirs, or is one of theirs: the
    merged block would pass over it. A block older or newer than all of them stays below or above the merged one.
    Blocks of one generation share no times of any series: they were cut from one head. So those of one generation can
    be merged without the others.
    """
    inside = set(chosen)
    while True:
        start_ms, end_ms = min(b.row.earliest_ms for b in inside), max(b.row.latest_ms for b in inside)
        lowest, highest = min(b.row.generation for b in inside), max(b.row.generation for b in inside)
        more = {
            block
            for block in blocks
            if lowest != highest and lowest <= block.row.generation <= highest and block.overlaps(start_ms, end_ms)
        }
        if more <= inside:
            return [block for block in blocks if block in inside]
        inside |= more

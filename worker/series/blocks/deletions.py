"""Finds the deletions that affect some series. A shard may have thousands of tombstones of a few series each, all of
which every read of a block would otherwise have to search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from worker.series.blocks.directory import ID_MAX, TIME_MAX, TIME_MIN

PAIRS_MAX = 1 << 19
"""Pairs of a series and one of its tombstones that are processed at once, at some 50 bytes each. A shard has many more
if all of its series were deleted many times, for different hours each time."""

Deleted = tuple[NDArray[np.bool_], int, int]
"""(bool[n], which of n series are affected; the first and the last deleted time in Unix ms)."""


class Tombstone(msgspec.Struct, frozen=True):
    """A deletion: the samples with start ≤ t ≤ end of series `ids` (permanent ids, ascending, as the bytes of an int32
    array) are deleted from all layers whose generation is at most `sequence`, the deletion's own sequence in the
    journal."""

    sequence: int
    start_ms: int
    end_ms: int
    ids: bytes

    def __post_init__(self) -> None:
        """Raises ValueError if no deletion can have such a tombstone."""
        if len(self.ids) % 4:
            raise ValueError(f"a tombstone has ids of {len(self.ids)} bytes; each takes 4")
        if self.sequence > TIME_MAX or not TIME_MIN <= self.start_ms <= TIME_MAX or self.end_ms > TIME_MAX:
            raise ValueError(f"a tombstone has {self.sequence, self.start_ms, self.end_ms}; each takes 64 bits, signed")

    @classmethod
    def of(cls, sequence: int, series: NDArray[np.int64], start_ms: int, end_ms: int) -> Tombstone:
        """The tombstone of the deletion that is the journal's record `sequence`."""
        assert not len(series) or 0 <= int(series.min()) <= int(series.max()) <= ID_MAX
        assert (series[1:] > series[:-1]).all(), "permanent ids ascend"
        return cls(sequence, start_ms, end_ms, series.astype(np.int32).tobytes())

    @property
    def series(self) -> NDArray[np.int32]:
        """int32[n]: the affected series."""
        return np.frombuffer(self.ids, dtype=np.int32)

    def applies(self, generation: int, start_ms: int, end_ms: int) -> bool:
        """Whether the tombstone may delete samples of a layer with this generation and time range in ms."""
        return generation <= self.sequence and self.start_ms <= end_ms and self.end_ms >= start_ms


class Deletions:
    """Some tombstones, sorted by the series that they affect. Immutable."""

    def __init__(self, tombstones: Sequence[Tombstone]) -> None:
        self._tombstones = tombstones
        series = [stone.series for stone in tombstones]
        ids = np.concatenate([np.zeros(0, np.int32), *series])
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        # int32 as well, because many tombstones of all series have more ids than the shard has series.
        self._stones = np.repeat(np.arange(len(series), dtype=np.int32), [len(stone_ids) for stone_ids in series])[
            order
        ]
        self._sequences = np.array([stone.sequence for stone in tombstones], dtype=np.int64)
        self._starts_ms = np.array([stone.start_ms for stone in tombstones], dtype=np.int64)
        self._ends_ms = np.array([stone.end_ms for stone in tombstones], dtype=np.int64)
        first_with = dict[tuple[int, int], int]()
        self._first_with_range = np.array(
            [first_with.setdefault((stone.start_ms, stone.end_ms), i) for i, stone in enumerate(tombstones)], np.int64
        )

    def of(self, permanent: NDArray[np.int64], generation: int, start_ms: int, end_ms: int) -> Iterator[Deleted]:
        """What tombstones may delete among the samples with start ≤ t ≤ end of these series (int64[n], permanent ids)
        in a layer of this generation: one item for each distinct range of deleted times."""
        applies = (self._sequences >= generation) & (self._starts_ms <= end_ms) & (self._ends_ms >= start_ms)
        if not applies.any():
            return
        wanted_ids = permanent.astype(np.int32)  # with another type, the search would convert all ids
        firsts = np.searchsorted(self._ids, wanted_ids)
        counts = np.searchsorted(self._ids, wanted_ids, side="right") - firsts
        if int(counts.sum()) > PAIRS_MAX:
            yield from self._one_by_one(permanent, applies)
            return
        rows = np.repeat(np.arange(len(permanent)), counts)
        stones = self._stones[np.arange(len(rows)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)]
        rows, stones = rows[applies[stones]], stones[applies[stones]]
        ranges = self._first_with_range[stones]
        order = np.argsort(ranges, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(ranges[order])) + 1) if len(order) else ():
            is_affected = np.zeros(len(permanent), dtype=np.bool_)
            is_affected[rows[group]] = True
            stone = ranges[group[0]]
            yield is_affected, int(self._starts_ms[stone]), int(self._ends_ms[stone])

    def _one_by_one(self, permanent: NDArray[np.int64], applies: NDArray[np.bool_]) -> Iterator[Deleted]:
        """As `of`, but processes the tombstones that apply (bool[tombstones]) one at a time."""
        order = np.argsort(permanent)
        ascending, stones = permanent[order].astype(np.int32), np.flatnonzero(applies)
        ranges = self._first_with_range[stones]
        for first in np.unique(ranges).tolist():
            is_affected = np.zeros(len(permanent), dtype=np.bool_)
            for stone in stones[ranges == first].tolist():
                is_affected[order[_positions(ascending, self._tombstones[stone].series)]] = True
            if is_affected.any():
                yield is_affected, int(self._starts_ms[first]), int(self._ends_ms[first])


def _positions(wanted: NDArray[np.int32], series: NDArray[np.int32]) -> NDArray[np.int64]:
    """The positions in `wanted` of the ids that `series` has too; both ascend. The shorter array is looked up in the
    longer one."""
    if len(series) < len(wanted):
        positions = np.searchsorted(wanted, series)
        positions = positions[positions < len(wanted)]  # those of the first series, because both ascend
        return positions[wanted[positions] == series[: len(positions)]]
    positions = np.minimum(np.searchsorted(series, wanted), len(series) - 1)
    return np.flatnonzero(series[positions] == wanted)

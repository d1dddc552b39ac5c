"""Finds the deletions that concern some series. A shard may have thousands of tombstones, each of a few series, which
every read of a block would otherwise have to look through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from worker.series.blocks.directory import ID_MAX, TIME_MAX, TIME_MIN

PAIRS_MAX = 1 << 19
"""Pairs of a series and one of its tombstones that are looked at together, at some 50 bytes each. A shard of which all
series were deleted many times, each time of other hours, has many more."""

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
        # int32 too: many tombstones of all series have more ids than the shard has series.
        self._stones = np.repeat(np.arange(len(series), dtype=np.int32), [len(own) for own in series])[order]
        self._sequences = np.array([stone.sequence for stone in tombstones], dtype=np.int64)
        self._starts_ms = np.array([stone.start_ms for stone in tombstones], dtype=np.int64)
        self._ends_ms = np.array([stone.end_ms for stone in tombstones], dtype=np.int64)
        first_with = dict[tuple[int, int], int]()
        self._first_with_range = np.array(
            [first_with.setdefault((stone.start_ms, stone.end_ms), i) for i, stone in enumerate(tombstones)], np.int64
        )

    def of(self, permanent: NDArray[np.int64], generation: int, start_ms: int, end_ms: int) -> Iterator[Deleted]:
        """What tombstones may delete of the samples with start ≤ t ≤ end that a layer of this generation has of these
        series (int64[n], permanent ids): one item for each different range of deleted times."""
        applies = (self._sequences >= generation) & (self._starts_ms <= end_ms) & (self._ends_ms >= start_ms)
        if not applies.any():
            return
        wanted = permanent.astype(np.int32)  # a search for another type would convert all ids
        firsts = np.searchsorted(self._ids, wanted)
        counts = np.searchsorted(self._ids, wanted, side="right") - firsts
        if int(counts.sum()) > PAIRS_MAX:
            yield from self._one_by_one(permanent, applies)
            return
        rows = np.repeat(np.arange(len(permanent)), counts)
        stones = self._stones[np.arange(len(rows)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)]
        rows, stones = rows[applies[stones]], stones[applies[stones]]
        ranges = self._first_with_range[stones]
        order = np.argsort(ranges, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(ranges[order])) + 1) if len(order) else ():
            is_affected = np.zeros(len(permanent), dtype=np.bool_)
            is_affected[rows[own]] = True
            stone = ranges[own[0]]
            yield is_affected, int(self._starts_ms[stone]), int(self._ends_ms[stone])

    def _one_by_one(self, permanent: NDArray[np.int64], applies: NDArray[np.bool_]) -> Iterator[Deleted]:
        """As `of`, from one tombstone after another of those that apply (bool[tombstones])."""
        order = np.argsort(permanent)
        ascending, stones = permanent[order].astype(np.int32), np.flatnonzero(applies)
        ranges = self._first_with_range[stones]
        for first in np.unique(ranges).tolist():
            is_affected = np.zeros(len(permanent), dtype=np.bool_)
            for stone in stones[ranges == first].tolist():
                is_affected[order[_places(ascending, self._tombstones[stone].series)]] = True
            if is_affected.any():
                yield is_affected, int(self._starts_ms[first]), int(self._ends_ms[first])


def _places(wanted: NDArray[np.int32], series: NDArray[np.int32]) -> NDArray[np.int64]:
    """The places in `wanted` of the ids that are in `series` too; both ascend. The shorter is looked up in the
    longer."""
    if len(series) < len(wanted):
        places = np.searchsorted(wanted, series)
        places = places[places < len(wanted)]  # those of the first series, as these ascend
        return places[wanted[places] == series[: len(places)]]
    places = np.minimum(np.searchsorted(series, wanted), len(series) - 1)
    return np.flatnonzero(series[places] == wanted)

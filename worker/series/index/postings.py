"""Which series have a label: (name, value) → ascending series ids, as sorted runs of arrays.

A run is a table sorted by (name, value), with the ids of each pair side by side. New pairs collect in a tail, which is
sorted into a run of its own when it is long enough. Runs of similar size are merged, so that there are few, as in a
log-structured merge tree. A bitmap for each pair would be larger: most values of a wide label belong to one series, for
which a bitmap object takes 250 bytes and this table 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TAIL_PAIRS_MAX = 65_536
"""Pairs collected before the writer sorts them (4 ms). A reader sorts any number of them."""
TAIL_PAIR_BYTES = 12
"""A key and an id."""

Ids = NDArray[np.int64]
Keys = NDArray[np.int64]


def distinct(codes: NDArray[np.int32]) -> NDArray[np.int32]:
    """The distinct codes, ascending. (np.unique hashes, which takes ten times as long as sorting here.)"""
    codes = np.sort(codes)
    return codes[np.concatenate(([True], codes[1:] != codes[:-1]))] if len(codes) else codes


def key_of(name: int, code: int) -> int:
    """The key of a pair: the number of the name in the high 32 bits, the code of the value in the low ones."""
    return name << 32 | code


@dataclass(frozen=True, slots=True)
class PostingRun:
    """`keys`: int64[k] ascending and unique; pair i has the series ids[starts[i]:starts[i + 1]], int32, ascending."""

    keys: Keys
    starts: NDArray[np.int64]
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, keys: Keys, ids: NDArray[np.int32]) -> PostingRun:
        """A run of pairs: ids[i] has keys[i]. Ids must ascend among equal keys."""
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return cls(keys[first], np.append(first, len(keys)), ids[order])

    def merged(self, later: PostingRun) -> PostingRun:
        """This run merged with a later one, whose ids are all higher."""
        keys = [np.repeat(run.keys, np.diff(run.starts)) for run in (self, later)]
        return PostingRun.of(np.concatenate(keys), np.concatenate((self.ids, later.ids)))

    def span(self, name: int) -> tuple[int, int]:
        """(first, last): the keys of one name are keys[first:last]."""
        first, last = np.searchsorted(self.keys, [key_of(name, 0), key_of(name + 1, 0)])
        return int(first), int(last)


@dataclass(frozen=True, slots=True)
class PostingLists:
    """The postings at one moment, which never change."""

    runs: tuple[PostingRun, ...]

    def count(self, name: int, code: int) -> int:
        """The number of series that have the pair."""
        return sum(last - first for _, first, last in self._slices(name, code))

    def ids(self, name: int, code: int) -> Ids:
        """Ascending ids of the series that have the pair."""
        pieces = [run.ids[first:last] for run, first, last in self._slices(name, code)]
        return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, dtype=np.int64)

    def values(self, name: int) -> NDArray[np.int32]:
        """Codes of all values of a name, ascending, each once."""
        pieces = []
        for run in self.runs:
            first, last = run.span(name)
            pieces.append(run.keys[first:last] & 0xFFFFFFFF)
        if not pieces:
            return np.zeros(0, dtype=np.int32)
        codes = np.concatenate(pieces).astype(np.int32)
        return codes if len(pieces) == 1 else distinct(codes)

    def values_bound(self, name: int) -> int:
        """An upper bound of the number of `values`, without reading them."""
        return sum(last - first for first, last in (run.span(name) for run in self.runs))

    def union(self, name: int, codes: NDArray[np.int32]) -> Ids:
        """Ascending ids of the series whose `name` has one of the codes (ascending)."""
        keys = name << 32 | codes.astype(np.int64)
        pieces = []
        for run in self.runs:
            at = np.searchsorted(run.keys, keys)
            at = at[run.keys[np.minimum(at, len(run.keys) - 1)] == keys]
            starts = run.starts[at]
            sizes = run.starts[at + 1] - starts
            # The positions start, start + 1, … of every slice [start, start + size), one slice after another.
            places = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
            pieces.append(run.ids[places])
        return np.sort(np.concatenate(pieces)).astype(np.int64) if pieces else np.zeros(0, dtype=np.int64)

    def _slices(self, name: int, code: int) -> list[tuple[PostingRun, int, int]]:
        key = key_of(name, code)
        slices = []
        for run in self.runs:
            at = int(np.searchsorted(run.keys, key))
            if at < len(run.keys) and run.keys[at] == key:
                slices.append((run, int(run.starts[at]), int(run.starts[at + 1])))
        return slices


class Postings:
    """The growing postings. Not safe for concurrent use, but what `lists` returns never changes."""

    def __init__(self) -> None:
        self._runs: list[PostingRun] = []
        self._tail: list[tuple[Keys, NDArray[np.int32]]] = []
        self._tail_pairs = 0

    def add(self, names: NDArray[np.int32], codes: NDArray[np.int32], ids: NDArray[np.int32]) -> None:
        """Add pairs of series that are all newer than the series before: int32[n] each, ids ascending."""
        if len(ids):
            self._tail.append((names.astype(np.int64) << 32 | codes, ids))
            self._tail_pairs += len(ids)
            if self._tail_pairs >= TAIL_PAIRS_MAX:
                self._sort_tail()

    @property
    def size_bytes(self) -> int:
        """Memory of the pairs, sorted ones and others."""
        runs = sum(run.keys.nbytes + run.starts.nbytes + run.ids.nbytes for run in tuple(self._runs))
        return runs + TAIL_PAIR_BYTES * self._tail_pairs

    def lists(self) -> PostingLists:
        if self._tail:
            self._sort_tail()
        return PostingLists(tuple(self._runs))

    def _sort_tail(self) -> None:
        keys, ids = zip(*self._tail, strict=True)
        self._runs.append(PostingRun.of(np.concatenate(keys), np.concatenate(ids)))
        self._tail, self._tail_pairs = [], 0
        while len(self._runs) > 1 and len(self._runs[-2].ids) < 2 * len(self._runs[-1].ids):
            later = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(later)

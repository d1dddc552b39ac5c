"""Which series have a label: (name, value) → ascending series ids, as sorted runs of arrays.

A run is a table sorted by (name, value), with the ids of each pair side by side. New pairs collect in a tail, which is
sorted into a run when it is long enough. Runs of similar size are merged, so that there are few, as in a log-structured
merge tree. A bitmap for each pair would be larger: most values of a wide label belong to one series, for which a bitmap
object takes 250 bytes and this table 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, kernel, types
from shared.process.allocator import scratch

TAIL_PAIRS_MAX = 65_536
"""Pairs collected before the writer sorts them (1 ms). A reader sorts any number of them."""
TAIL_PAIR_BYTES = 12
"""A key and an id."""
DIGIT_BITS = 11
"""The size of the digits of keys in the radix sort of pairs."""

Ids = NDArray[np.int64]
Keys = NDArray[np.int64]

_KEYS = types.Array(types.int64, 1, "C")
_IDS = types.Array(types.int32, 1, "C")
_KEYS_IN = types.Array(types.int64, 1, "C", readonly=True)
_IDS_IN = types.Array(types.int32, 1, "C", readonly=True)


def distinct(codes: NDArray[np.int32]) -> NDArray[np.int32]:
    """The distinct codes, ascending. (np.unique hashes, which takes ten times as long as sorting here, and imports
    numpy's masked arrays when it is first called: 10 to 20 ms of a worker's first write.)"""
    codes = np.sort(codes)
    return codes[np.concatenate(([True], codes[1:] != codes[:-1]))] if len(codes) else codes


def joined(pieces: list[NDArray[np.int32]]) -> Ids:
    """The ids of all pieces."""
    if len(pieces) == 1:
        return pieces[0].astype(np.int64)
    return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, dtype=np.int64)


def key_of(name: int, code: int) -> int:
    """The key of a pair: the number of the name in the high 32 bits, the code of the value in the low ones."""
    return name << 32 | code


@inlined(allocates=False)
def _by_digit(
    keys: np.ndarray, ids: np.ndarray, shift: int, to_keys: np.ndarray, to_ids: np.ndarray, places: np.ndarray
) -> None:
    """Copy pairs in the order of one digit of their keys; pairs with equal digits keep their order."""
    places[:] = 0
    for i in range(len(keys)):
        places[keys[i] >> shift & len(places) - 1] += 1
    begin = 0
    for digit in range(len(places)):
        count = places[digit]
        places[digit] = begin
        begin += count
    for i in range(len(keys)):
        digit = keys[i] >> shift & len(places) - 1
        to_keys[places[digit]], to_ids[places[digit]] = keys[i], ids[i]
        places[digit] += 1


@kernel(types.boolean(_KEYS, _IDS, _KEYS, _IDS, _KEYS), first=True, allocates=False)
def _sort(keys: np.ndarray, ids: np.ndarray, other_keys: np.ndarray, other_ids: np.ndarray, places: np.ndarray) -> bool:
    """Sort pairs by their keys, in the two pairs of arrays in turn: a stable radix sort that leaves out the digits in
    which all keys agree. `places`: int64[2^DIGIT_BITS]. Returns whether the result is in the other arrays."""
    different = 0
    for i in range(len(keys)):
        different |= keys[i] ^ keys[0]
    is_in_other = False
    for shift in range(0, 63, DIGIT_BITS):
        if different >> shift & len(places) - 1:
            if is_in_other:
                _by_digit(other_keys, other_ids, shift, keys, ids, places)
            else:
                _by_digit(keys, ids, shift, other_keys, other_ids, places)
            is_in_other = not is_in_other
    return is_in_other


@kernel(types.int64(_KEYS, _KEYS), first=True, allocates=False)
def _group(keys: np.ndarray, starts: np.ndarray) -> int:
    """Keep each of the sorted keys once, and write where its pairs begin. Returns the number of distinct keys."""
    count = 0
    for i in range(len(keys)):
        if i == 0 or keys[i] != keys[count - 1]:
            keys[count], starts[count] = keys[i], i
            count += 1
    starts[count] = len(keys)
    return count


@inlined(allocates=False)
def _copy_list(starts: np.ndarray, ids: np.ndarray, i: int, to_ids: np.ndarray, place: int) -> int:
    """Copy the ids of the i-th key to to_ids[place:]. Returns the place behind them."""
    for at in range(starts[i], starts[i + 1]):
        to_ids[place] = ids[at]
        place += 1
    return place


@kernel(
    types.int64(_KEYS_IN, _KEYS_IN, _IDS_IN, _KEYS_IN, _KEYS_IN, _IDS_IN, _KEYS, _KEYS, _IDS),
    first=True,
    allocates=False,
)
def _merge(
    keys: np.ndarray,
    starts: np.ndarray,
    ids: np.ndarray,
    later_keys: np.ndarray,
    later_starts: np.ndarray,
    later_ids: np.ndarray,
    to_keys: np.ndarray,
    to_starts: np.ndarray,
    to_ids: np.ndarray,
) -> int:
    """Merge two runs; of a key of both, the ids of the later run come last. Returns the number of keys."""
    i = j = count = place = 0
    while i < len(keys) or j < len(later_keys):
        key = keys[i] if i < len(keys) else later_keys[j]
        if j < len(later_keys):
            key = min(key, later_keys[j])
        to_keys[count], to_starts[count] = key, place
        count += 1
        if i < len(keys) and keys[i] == key:
            place = _copy_list(starts, ids, i, to_ids, place)
            i += 1
        if j < len(later_keys) and later_keys[j] == key:
            place = _copy_list(later_starts, later_ids, j, to_ids, place)
            j += 1
    to_starts[count] = place
    return count


@dataclass(frozen=True, slots=True)
class PostingRun:
    """`keys`: int64[k] ascending and unique; pair i has the series ids[starts[i]:starts[i + 1]], int32, ascending."""

    keys: Keys
    starts: NDArray[np.int64]
    ids: NDArray[np.int32]

    @classmethod
    def of(cls, keys: Keys, ids: NDArray[np.int32]) -> PostingRun:
        """A run of pairs: ids[i] has keys[i]. Ids must ascend among equal keys. The arrays are written to."""
        other_keys, other_ids = np.empty_like(keys), np.empty_like(ids)
        if _sort(keys, ids, other_keys, other_ids, np.empty(1 << DIGIT_BITS, dtype=np.int64)):
            keys, ids = other_keys, other_ids
        starts = np.empty(len(keys) + 1, dtype=np.int64)
        count = _group(keys, starts)
        return cls(keys[:count].copy(), starts[: count + 1].copy(), ids)

    def merged(self, later: PostingRun) -> PostingRun:
        """This run merged with a later one, whose ids are all higher."""
        keys_max = len(self.keys) + len(later.keys)
        # These live until the next merge. Most keys of large runs have one series, so little of the room is unused.
        keys, starts = scratch((keys_max,), np.int64), scratch((keys_max + 1,), np.int64)
        ids = scratch((len(self.ids) + len(later.ids),), np.int32)
        count = _merge(self.keys, self.starts, self.ids, later.keys, later.starts, later.ids, keys, starts, ids)
        return PostingRun(keys[:count], starts[: count + 1], ids)

    def span(self, name: int) -> tuple[int, int]:
        """(first, last): the keys of one name are keys[first:last]."""
        first, last = np.searchsorted(self.keys, [key_of(name, 0), key_of(name + 1, 0)])
        return int(first), int(last)


@dataclass(frozen=True, slots=True)
class PostingLists:
    """The postings at one moment, which never change."""

    runs: tuple[PostingRun, ...]

    def pieces(self, name: int, code: int) -> list[NDArray[np.int32]]:
        """Ascending ids of the series that have the pair, in pieces."""
        key = key_of(name, code)
        pieces = []
        for run in self.runs:
            at = int(run.keys.searchsorted(key))
            if at < len(run.keys) and run.keys[at] == key:
                pieces.append(run.ids[run.starts[at] : run.starts[at + 1]])
        return pieces

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


class Postings:
    """The growing postings. Not safe for concurrent use, but what `lists` returns never changes."""

    def __init__(self) -> None:
        self._runs: list[PostingRun] = []
        self._tail: list[tuple[Keys, NDArray[np.int32]]] = []
        self._tail_pairs = 0

    def add(self, keys: Keys, ids: NDArray[np.int32]) -> None:
        """Add pairs of series that are all newer than the series before: the keys of the pairs (`key_of`), int64[n],
        and ids int32[n], ascending."""
        if len(ids):
            self._tail.append((keys, ids))
            self._tail_pairs += len(ids)
            if self._tail_pairs >= TAIL_PAIRS_MAX:
                self._sort_tail()

    @property
    def size_bytes(self) -> int:
        """Memory of the pairs, sorted or not."""
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

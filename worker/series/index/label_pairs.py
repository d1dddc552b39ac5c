"""How many series have each pair of label name and value, in codes of the process's symbol table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import NotExecutable
from shared.kernels import kernel, types
from shared.labels import Codes
from worker.series.index.lookup import Lookup
from worker.series.index.postings import Ids, key_of

LABELS_AT_ONCE = 1 << 19
"""Labels that are sorted between two checks of the deadline: some 20 ms."""
PAIRS_MAX = 1 << 25
"""Pairs that are counted at a time in each process, at some 50 bytes each."""

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_CODES_IN = types.Array(types.int32, 1, "C", readonly=True)


@kernel(types.void(_INTS_IN, _INTS_IN, _CODES_IN, _CODES_IN, _CODES_IN, _INTS))
def _gather(
    ids: np.ndarray,
    offsets: np.ndarray,
    names: np.ndarray,
    values: np.ndarray,
    name_codes: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the key of every label of the series `ids`, one series after another."""
    n = 0
    for i in range(len(ids)):
        for at in range(offsets[ids[i]], offsets[ids[i] + 1]):
            out[n] = np.int64(name_codes[names[at]]) << 32 | np.int64(values[at])
            n += 1


@dataclass(frozen=True, slots=True, eq=False)
class LabelPairs:
    """`keys`: int64[k] ascending, each once: the code of the name in the high 32 bits, that of the value in the low 32
    bits. `series`: int64[k], how many series have the pair."""

    keys: NDArray[np.int64]
    series: NDArray[np.int64]

    @property
    def values(self) -> Codes:
        """int32[k]: the codes of the values."""
        return (self.keys & 0xFFFFFFFF).astype(np.int32)

    def span(self, name: int) -> slice:
        """The positions of the pairs of a name."""
        first, last = np.searchsorted(self.keys, [key_of(name, 0), key_of(name + 1, 0)])
        return slice(int(first), int(last))

    def names(self) -> tuple[Codes, NDArray[np.int64]]:
        """(int32[n] codes of the names, int64[n] the position of the first pair of each)."""
        names = (self.keys >> 32).astype(np.int32)
        firsts = _firsts(names)
        return names[firsts], firsts


def of_all(lookup: Lookup) -> list[LabelPairs]:
    """The pairs of all series of a shard, as the postings count them, in parts that may have pairs in common. The keys
    of a part ascend for each name. Raises NotExecutable above PAIRS_MAX."""
    _require_room(sum(len(run.keys) for run in lookup.postings.runs))
    return [
        LabelPairs(
            lookup.name_codes[run.keys >> 32].astype(np.int64) << 32 | run.keys & 0xFFFFFFFF, np.diff(run.starts)
        )
        for run in lookup.postings.runs
    ]


def of_series(lookup: Lookup, ids: Ids, check: Callable[[], None]) -> list[LabelPairs]:
    """The pairs of these series of a shard, in parts that may have pairs in common. `check` is called before each part
    and may raise. Raises NotExecutable above PAIRS_MAX."""
    offsets = lookup.label_offsets
    ends = np.cumsum(offsets[ids + 1] - offsets[ids])
    parts: list[LabelPairs] = []
    first = labels = 0
    while first < len(ids):
        check()
        last = max(first + 1, int(np.searchsorted(ends, labels + LABELS_AT_ONCE, side="right")))
        keys = np.empty(int(ends[last - 1]) - labels, dtype=np.int64)
        _gather(ids[first:last], offsets, lookup.label_names, lookup.label_values, lookup.name_codes, keys)
        keys.sort()
        at = _firsts(keys)
        parts.append(LabelPairs(keys[at], np.diff(at, append=len(keys))))
        _require_room(sum(len(part.keys) for part in parts))
        first, labels = last, int(ends[last - 1])
    return parts


def joined(parts: Sequence[LabelPairs]) -> LabelPairs:
    """The parts as one. Raises NotExecutable above PAIRS_MAX."""
    _require_room(sum(len(part.keys) for part in parts))
    if not any(len(part.keys) for part in parts):
        return LabelPairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    keys = np.concatenate([part.keys for part in parts])
    order = np.argsort(keys, kind="stable")  # a stable sort merges parts that are already in order
    keys = keys[order]
    at = _firsts(keys)
    return LabelPairs(keys[at], np.add.reduceat(np.concatenate([part.series for part in parts])[order], at))


def _firsts(ascending: NDArray) -> NDArray[np.int64]:
    """The positions at which a new number begins."""
    return np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1]))) if len(ascending) else _NONE


def _require_room(pairs: int) -> None:
    if pairs > PAIRS_MAX:
        raise NotExecutable(
            f"the series have {pairs} or more different labels in one worker, and at most {PAIRS_MAX} are counted at a "
            "time; narrow them with match[]"
        )


_NONE = np.zeros(0, dtype=np.int64)

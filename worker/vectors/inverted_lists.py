"""An inverted file (IVF): each row is in the list of the centre that is nearest to it.

A list has the codes of its rows, with a byte for each component (`list_blocks`). A search finds the centres that are
nearest to the query, and compares the codes of their lists, one list after the other: a row costs a tenth of what a
distance costs in the walk through a graph, because memory is read in order. As with a graph, the result is candidates
only, which the caller compares by the exact vectors.

One thread adds at a time; searches need no lock. Additions write only behind the rows that a search knows, and replace
arrays by larger copies when they are full.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from shared.process.allocator import scratch
from worker.vectors import clustering, list_blocks, list_search
from worker.vectors.attribute_strings import Mask
from worker.vectors.codes import CODE_MAX
from worker.vectors.list_blocks import BLOCK_ROWS
from worker.vectors.list_filters import NOWHERE, ListFilters
from worker.vectors.pace import Pace
from worker.vectors.row_filter import Allowed, PackedBits
from worker.vectors.similarity import METRICS, Rows

LISTS_FACTOR = 4.0
"""The number of lists, in multiples of the square root of the number of rows: more lists are narrower, but a search
looks at all centres."""
ROWS_PER_LIST = 32
"""Lists of small tables have at least so many rows on average."""
GROWTH = 1.7
"""A table gets more lists when the number that it should have has grown by this factor, which takes three times the
rows. Each row is then coded 1.5 times on average."""
ROWS_MIN = 1024
"""Fewer rows stay in one list."""
ADDED_AT_ONCE = 4096
RENUMBERED_COMPONENTS = 1 << 20
"""Components, about, whose codes are copied between two yields: less than a millisecond."""
SLICE_ROWS, SLICE_ROWS_SEARCHED = 1024, 16
"""Rows to add at once, without and with concurrent searches."""
SLICE_COMPONENTS = 1 << 20
"""Most components of the rows to add at once, while there are no searches: 4 MB."""
EXPANSION_ROWS = 32
"""Rows that a search compares for each unit of its expansion."""
CODED_COST = 0.25
PASSED_COST = 0.05
"""The costs of comparing a row by its code, and of passing over a row that a filter does not allow, in multiples of the
cost of comparing a row exactly."""
COUNTING_SHARE = 0.5
"""A search continues until it has seen this share of the allowed rows that it expected to see."""
FILTERED_MAX = 4
"""A search never passes more than this many times the rows that it was to compare."""
SURPLUS = 1.2
SURPLUS_ROWS = 6
"""Rows that are kept beyond the wanted ones, since codes order the last ones by rounded components."""
SELECTIVE_POWER = 0.75
"""The number of rows to compare grows with this power of the number of rows for each allowed one."""
ROWS_PER_RESULT = 24
"""A search compares at least this many rows for each one that is wanted: a hundred nearest rows are spread over more
lists than ten are."""
CAPACITY_MIN = 4
BLOCK_GROWTH = 1.5
ARRAY_BYTES_MIN = 1 << 20

MAGIC = b"lists 1\n"
"""The beginning of a file."""

_NO_BITS: PackedBits = np.zeros(0, np.uint8)
_NO_FLAGS: Mask = np.zeros(0, np.bool_)


@dataclass(frozen=True, slots=True)
class _Lists:
    """The arrays of one moment, as `list_blocks.append` describes them. `counts` int64[lists] are the rows of a list
    that a search may see."""

    centres: Floats
    counts: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    following: NDArray[np.int32]
    rows: NDArray[np.int32]
    steps: Floats
    squares: NDArray[np.int32]
    codes: NDArray[np.int8]

    def with_blocks(self, blocks: int, used: int) -> _Lists:
        """A copy with room for `blocks` blocks, the first `used` of which are in use."""

        def larger(array: NDArray[Any]) -> NDArray[Any]:
            copied = scratch((blocks, *array.shape[1:]), array.dtype, ARRAY_BYTES_MIN)
            copied[:used] = array[:used]
            return copied

        blocked = {field: larger(getattr(self, field)) for field in _OF_BLOCKS}
        return replace(self, counts=self.counts.copy(), first=self.first.copy(), last=self.last.copy(), **blocked)


_OF_BLOCKS = ("following", "rows", "steps", "squares", "codes")
"""The fields of `_Lists` that have an entry for each block."""


def coded_centres(
    centres: Floats,
) -> tuple[Floats, NDArray[np.int8], NDArray[np.float64], NDArray[np.float64]]:
    """(the middle of the centres, float32[dimension]; the difference of each centre from it: int8[lists, dimension], in
    steps float64[lists], and its square float64[lists]). A search orders the lists by these codes, which are a quarter
    of the size of the centres: a wrong order of the last lists makes little difference."""
    middle = centres.mean(axis=0, dtype=np.float64).astype(np.float32)
    differences = centres.astype(np.float64) - middle
    steps = np.maximum(np.abs(differences).max(axis=1) / CODE_MAX, np.finfo(np.float32).tiny)
    return (
        middle,
        np.rint(differences / steps[:, None]).astype(np.int8),
        steps,
        np.einsum("ij,ij->i", differences, differences),
    )


def _empty(centres: Floats) -> _Lists:
    arrays = {field: np.zeros(shape, dtype) for field, dtype, shape in _layout(len(centres), 0, centres.shape[1])}
    arrays["first"][:] = arrays["last"][:] = -1
    return _Lists(**{**arrays, "centres": centres})


def lists_of(rows: int) -> int:
    """How many lists so many rows should have."""
    return max(1, min(rows // ROWS_PER_LIST, int(LISTS_FACTOR * math.sqrt(rows))))


class InvertedLists:
    """Satisfies `CandidateIndex`."""

    def __init__(self, dimension: int, metric: str, centres: Floats | None = None) -> None:
        """One list with all rows, or a list for each of `centres` float32[lists, dimension]."""
        self._dimension, self._metric = dimension, metric
        self.slice_rows = max(SLICE_ROWS_SEARCHED, min(SLICE_ROWS, SLICE_COMPONENTS // dimension))
        self.slice_rows_searched = SLICE_ROWS_SEARCHED
        self._lock = Lock()
        """Guards every change."""
        self._has_centres = centres is not None
        self._use(_empty(np.zeros((1, dimension), np.float32) if centres is None else centres), 0)

    def _use(self, lists: _Lists, used: int) -> None:
        """Use this content, of which `used` blocks are filled."""
        self._filled, self._used = lists.counts.copy(), used
        self._centres = clustering.Centres(lists.centres)
        self._centre_codes = coded_centres(lists.centres)
        self._filters = ListFilters()
        self._lists = lists

    def __len__(self) -> int:
        """The number of rows."""
        return int(self._lists.counts.sum())

    @property
    def memory_bytes(self) -> int:
        """Without spare capacity, which is never touched."""
        row_bytes = self._dimension + 12
        centres = len(self._lists.centres) * (self._dimension * 9 + 44)
        return self._used * (BLOCK_ROWS * row_bytes + 4) + centres + self._filters.memory_bytes

    def renumbered(self, numbers: Rows, table: NDArray[np.floating]) -> Generator[None, None, InvertedLists]:
        """See `CandidateIndex`: the rows keep their lists and codes."""
        old, used = self._lists, 0
        fresh = InvertedLists(self._dimension, self._metric, old.centres)
        fresh._has_centres = self._has_centres
        lists = fresh._lists.with_blocks(self._used, 0)
        filled = np.zeros(len(old.counts), np.int64)
        at_once = max(1, RENUMBERED_COMPONENTS // self._dimension)
        cuts = np.searchsorted(np.cumsum(old.counts), np.arange(at_once, len(self), at_once)) + 1
        for begin, end in pairwise([0, *cuts.tolist(), len(old.counts)]):
            used = list_blocks.renumber(
                numbers,
                begin,
                end,
                old.counts,
                old.first,
                old.following,
                old.rows,
                old.steps,
                old.squares,
                old.codes,
                used,
                filled,
                lists.first,
                lists.last,
                lists.following,
                lists.rows,
                lists.steps,
                lists.squares,
                lists.codes,
            )
            yield
        fresh._use(replace(lists, counts=filled), used)
        return fresh

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add rows int64[n] with their vectors float32[n, dimension]."""
        with self._lock:
            for start in range(0, len(rows), ADDED_AT_ONCE):
                self._add(rows[start : start + ADDED_AT_ONCE], vectors[start : start + ADDED_AT_ONCE])

    def _add(self, rows: Rows, vectors: Floats) -> None:
        if not self._has_centres and len(rows):
            # The codes of the first list are as precise as those of later lists only if its centre is near the vectors.
            self._has_centres = True
            self._use(_empty(np.median(vectors.astype(np.float64), axis=0).astype(np.float32)[None]), 0)
        lists = self._lists
        row_lists = self._centres.nearest(vectors) if len(lists.centres) > 1 else np.zeros(len(rows), np.int64)
        # Each list that gets rows may need one block more than these rows fill.
        needed = self._used + min(len(rows), len(lists.centres) + len(rows) // BLOCK_ROWS)
        if needed > len(lists.rows):
            blocks = max(CAPACITY_MIN, needed, int(BLOCK_GROWTH * len(lists.rows)))
            lists = lists.with_blocks(blocks, self._used)
        self._used = list_blocks.append(
            vectors,
            rows,
            row_lists,
            lists.centres,
            self._used,
            self._filled,
            lists.first,
            lists.last,
            lists.following,
            lists.rows,
            lists.steps,
            lists.squares,
            lists.codes,
        )
        lists.counts[row_lists] = self._filled[row_lists]
        self._lists = lists

    def exact_rows(self, k: int, fetch: int, expansion: int) -> float:
        """See `CandidateIndex`."""
        return self._compared(k, fetch, expansion) * (PASSED_COST + CODED_COST * min(1.0, k / fetch))

    def _compared(self, k: int, fetch: int, expansion: int) -> int:
        selective = max(1.0, fetch / k) ** SELECTIVE_POWER
        return math.ceil(max(ROWS_PER_RESULT * k, EXPANSION_ROWS * expansion) * selective)

    def search(self, queries: Floats, k: int, fetch: int, expansion: int, limit: int, allowed: Allowed) -> Rows:
        """See `CandidateIndex`."""
        lists = self._lists
        compared = self._compared(k, fetch, expansion)
        # If a filter allows far fewer rows near the query than elsewhere, the search continues until it has compared
        # enough of them.
        counting = 0 if allowed.is_all else int(COUNTING_SHARE * compared * min(1.0, k / fetch))
        candidates = np.empty((len(queries), math.ceil(k * SURPLUS) + SURPLUS_ROWS), np.int64)
        places = NOWHERE
        if allowed.bits is not None:
            places = self._filters.places(allowed.bits, lists.counts, lists.first, lists.following, lists.rows)
        list_search.search(
            queries,
            lists.centres,
            *self._centre_codes,
            lists.counts,
            lists.first,
            lists.following,
            lists.rows,
            lists.steps,
            lists.squares,
            lists.codes,
            METRICS[self._metric],
            compared,
            counting,
            FILTERED_MAX * compared,
            limit,
            _NO_BITS if allowed.bits is None else allowed.bits.packed,
            _NO_FLAGS if allowed.alive is None else allowed.alive,
            places.known,
            places.start,
            places.rows,
            places.places,
            candidates,
        )
        return candidates

    # Centres

    @property
    def lists(self) -> int:
        """The number of lists."""
        return len(self._lists.centres)

    def is_outgrown(self) -> bool:
        """Whether the rows should be in so many more lists that `retrained` is worthwhile."""
        rows = len(self)
        return rows >= ROWS_MIN and lists_of(rows) >= GROWTH * self.lists

    def retrained(
        self, table: NDArray[np.floating], rows: Rows, pace: Pace | None = None
    ) -> Generator[None, None, InvertedLists]:
        """Returns an index with `rows` int64[n] of `table`, float32 or float16 [≥ n, dimension], in as many lists as
        they need; yields between slices."""
        pace = pace or Pace()
        is_normal = self._metric == "cosine"
        centres = yield from clustering.train(table, rows, lists_of(len(rows)), pace, is_normal=is_normal)
        fresh = InvertedLists(self._dimension, self._metric, centres)
        for part in pace.slices(len(rows), self.slice_rows, self.slice_rows_searched):
            fresh.add(rows[part], table[rows[part]].astype(np.float32, copy=False))
            yield
        return fresh

    # Files

    def save(self, path: Path) -> None:
        """Write the index to a file without syncing it: see `Objects.put_by_path`."""
        with self._lock, path.open("wb") as file:
            lists, used = self._lists, self._used
            file.write(MAGIC + np.array([len(lists.centres), used, self._dimension], np.int64).tobytes())
            for field, _, _ in _layout(0, 0, 0):
                array: NDArray[Any] = getattr(lists, field)
                file.write((array[:used] if field in _OF_BLOCKS else array).reshape(-1).view(np.uint8).data)

    def load(self, path: Path, rows: int) -> None:
        """Replace the content by that of a file. The caller has verified the file's checksum.

        Raises ValueError if the file is not an index of this kind with at most `rows` rows.
        """
        content = np.fromfile(path, np.uint8)
        start = len(MAGIC) + 24
        if len(content) < start or content[: len(MAGIC)].tobytes() != MAGIC:
            raise ValueError(f"{path.name} is an index of another kind; earlier releases wrote graphs")
        count, blocks, dimension = content[len(MAGIC) : start].view(np.int64).tolist()
        if dimension != self._dimension:
            raise ValueError(f"{path.name} has vectors of {dimension} components; {self._dimension} are right")
        arrays: dict[str, NDArray[Any]] = {}
        for field, dtype, shape in _layout(count, blocks, dimension):
            end = start + math.prod(shape) * dtype.itemsize
            if min(count, blocks + 1) < 1 or end > len(content):
                raise ValueError(f"{path.name} has {len(content)} bytes, too few for {count} lists in {blocks} blocks")
            arrays[field] = content[start:end].view(dtype).reshape(shape)
            start = end
        lists = _Lists(**arrays)
        total = int(lists.counts.sum())
        if total > rows or (lists.counts < 0).any():
            raise ValueError(f"{path.name} has {total} rows; at most {rows} are right")
        if not _are_chains(lists) or (lists.rows < 0).any():
            raise ValueError(f"{path.name} names blocks or rows that it does not have; it has {blocks} blocks")
        with self._lock:
            self._has_centres = True
            self._use(lists, blocks)


def _are_chains(lists: _Lists) -> bool:
    """Whether each list has as many blocks as its rows need, one after the other."""
    blocks = len(lists.rows)
    if any(((end < -1) | (end >= blocks)).any() for end in (lists.first, lists.last, lists.following)):
        return False
    blocks_left, block = -(-lists.counts // BLOCK_ROWS), lists.first
    if (block[blocks_left == 0] != -1).any():
        return False
    unfinished = np.arange(len(blocks_left))
    while len(unfinished):
        unfinished = unfinished[blocks_left[unfinished] > 0]
        blocks_left[unfinished] -= 1
        if (block[unfinished] < 0).any():
            return False
        ended = unfinished[blocks_left[unfinished] == 0]
        if (lists.last[ended] != block[ended]).any():
            return False
        block = block.copy()
        block[unfinished] = lists.following[block[unfinished]]
    return True


def _layout(lists: int, blocks: int, dimension: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """The name, type and shape of each array of `_Lists`, in the order in which a file has them."""
    return [
        ("counts", np.dtype(np.int64), (lists,)),
        ("centres", np.dtype(np.float32), (lists, dimension)),
        ("first", np.dtype(np.int32), (lists,)),
        ("last", np.dtype(np.int32), (lists,)),
        ("following", np.dtype(np.int32), (blocks,)),
        ("rows", np.dtype(np.int32), (blocks, BLOCK_ROWS)),
        ("steps", np.dtype(np.float32), (blocks, BLOCK_ROWS)),
        ("squares", np.dtype(np.int32), (blocks, BLOCK_ROWS)),
        ("codes", np.dtype(np.int8), (blocks, BLOCK_ROWS, dimension)),
    ]

"""The attribute index: for each field, the rows in order of their values, or a bitmap for each value if there are few
values.

The index covers the rows below its size, which never change; the rows after them are compared in their columns until
the index is built anew. So the cost of a condition depends on the number of rows that satisfy it, not on all rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import Condition, Value
from worker.vectors.attribute_column import (
    ARRAY,
    BOOL,
    FLOAT,
    INTEGER,
    STRING,
    AttributeColumn,
)
from worker.vectors.attribute_comparison import INT64_MAX, INT64_MIN, equal_floats, equal_integers
from worker.vectors.attribute_strings import EQUALITY, Mask, divided
from worker.vectors.mask_cache import MaskCache

INSTANT = ARRAY + 1
"""The kind of the index of strings that are datetimes, in the order of their instants; a column has no such kind."""
BITMAP_VALUES_MAX = 64
"""Most distinct values for which a field has bitmaps: they then take at most 8 bytes a row."""

WIDE_SHARE = 3
"""Marking one row at a random place costs as much as comparing this many adjacent rows."""


@kernel(types.void(types.Array(types.int32, 1, "C", readonly=True), types.boolean[::1]), allocates=False)
def _mark(rows, out):  # type: ignore[no-untyped-def]
    """Set `out` bool at these rows."""
    for i in range(rows.shape[0]):
        out[rows[i]] = True


Places = slice | NDArray[np.int64]
"""Some of the values of an index: a range of them, or their places, which are distinct."""


@dataclass(frozen=True, slots=True)
class ValueIndex:
    """The rows of one field that have one kind of value, or an array with such elements.

    `values` int64[v] or float64[v] are distinct and ascending (strings by their codes). `starts` is int64[v + 1]. The
    rows with `values[i]` are `rows[starts[i]:starts[i + 1]]`, int32, or the bits of `bitmaps[i]`, uint8[v, ⌈size / 8⌉];
    one of `rows` and `bitmaps` is None. A row is there as often as its array has the value.
    """

    values: NDArray
    starts: NDArray[np.int64]
    rows: NDArray[np.int32] | None
    bitmaps: NDArray[np.uint8] | None

    @property
    def memory_bytes(self) -> int:
        arrays = (self.values, self.starts, self.rows, self.bitmaps)
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def is_wide(self) -> bool:
        """Whether the rows are marked one by one, and compared faster: instants are not in the column itself."""
        return self.bitmaps is None and self.values.dtype != np.complex128

    def count(self, places: Places) -> int:
        """The number of rows with these values; a row counts once for each element."""
        if isinstance(places, slice):
            return int(self.starts[places.stop] - self.starts[places.start])
        return int((self.starts[places + 1] - self.starts[places]).sum())

    def mark(self, places: Places, out: Mask) -> None:
        """Set the rows with these values in `out`, bool[size]."""
        if not self.count(places):
            return
        if self.bitmaps is not None:
            bits = np.bitwise_or.reduce(self.bitmaps[places], axis=0)
            out |= np.unpackbits(bits, count=len(out)).view(np.bool_)
            return
        assert self.rows is not None, "an index has rows or bitmaps"
        if isinstance(places, slice):
            _mark(self.rows[self.starts[places.start] : self.starts[places.stop]], out)
        else:
            starts, counts = self.starts[places], self.starts[places + 1] - self.starts[places]
            ends = np.cumsum(counts)
            _mark(self.rows[np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)], out)

    def places_of(self, keys: NDArray) -> NDArray[np.int64]:
        """The places of those of `keys` that are among the values."""
        keys = np.unique(keys)
        places = np.searchsorted(self.values, keys)
        is_there = places < len(self.values)
        is_there[is_there] = self.values[places[is_there]] == keys[is_there]
        return places[is_there]


def _value_index(rows: NDArray[np.int64], keys: NDArray, size: int) -> ValueIndex:
    """The index of `rows` int64[n], whose values are `keys` int64[n] or float64[n], among `size` rows."""
    order = np.argsort(keys, kind="stable")
    ordered: NDArray[np.int32] = rows[order].astype(np.int32)
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    starts = np.append(first, len(keys))
    if len(first) > BITMAP_VALUES_MAX:
        return ValueIndex(keys[first], starts, ordered, None)
    bitmaps = np.zeros((len(first), (size + 7) // 8), dtype=np.uint8)
    for place in range(len(first)):
        has_value = np.zeros(size, dtype=np.bool_)
        has_value[ordered[starts[place] : starts[place + 1]]] = True
        bitmaps[place] = np.packbits(has_value)
    return ValueIndex(keys[first], starts, None, bitmaps)


Field = Mapping[int, ValueIndex]
"""The value indexes of one field by kind."""


def _field(column: AttributeColumn, size: int) -> Field:
    kinds, bits = column.arrays(slice(0, size))
    owners, element_kinds, element_bits = column.elements(size)
    by_kind = {}
    for kind in (STRING, INTEGER, FLOAT, BOOL):
        plain, elements = np.flatnonzero(kinds == kind), np.flatnonzero(element_kinds == kind)
        rows = np.concatenate([plain, owners[elements]])
        if len(rows):
            keys = np.concatenate([bits[plain], element_bits[elements]])
            by_kind[kind] = _value_index(rows, keys.view(np.float64) if kind == FLOAT else keys, size)
            if kind == STRING:
                instants = column.instants(keys)
                is_datetime = ~np.isnan(instants)
                if is_datetime.any():
                    by_kind[INSTANT] = _value_index(rows[is_datetime], instants[is_datetime], size)
    return by_kind


@dataclass(frozen=True, slots=True)
class AttributeIndex:
    """All fields over the first `size` rows; never changed once built. `masks`: of the latest filters over them."""

    size: int = 0
    fields: Mapping[str, Field] = field(default_factory=dict)
    masks: MaskCache = field(default_factory=MaskCache)

    @property
    def memory_bytes(self) -> int:
        indexes = sum(index.memory_bytes for by_kind in self.fields.values() for index in by_kind.values())
        return indexes + self.masks.memory_bytes

    def estimate(self, condition: Condition, column: AttributeColumn) -> int:
        """The number of rows that satisfy eq, in, lt, lte, gt or gte; for arrays and for a range of
        strings, an upper bound."""
        by_kind = self.fields.get(condition.field, {})
        values, instants, text = divided(condition.op, condition.values)
        every_text = int(by_kind[STRING].starts[-1]) if text is not None and STRING in by_kind else 0
        matches = _matches(by_kind, condition.op, [*values, *instants.tolist()], column)
        return every_text + sum(index.count(places) for index, places in matches)

    def mask(self, condition: Condition, column: AttributeColumn) -> Mask | None:
        """The rows that satisfy eq, in, lt, lte, gt or gte, bool[size]; None if comparing all rows in the column is
        faster than marking these."""
        by_kind = self.fields.get(condition.field, {})
        values, instants, text = divided(condition.op, condition.values)
        matches = list(_matches(by_kind, condition.op, [*values, *instants.tolist()], column))
        if text is not None and STRING in by_kind:
            index = by_kind[STRING]
            matches.append((index, np.flatnonzero(column.compared_strings(condition.op, text)[index.values])))
        marked = sum(index.count(places) for index, places in matches if index.is_wide)
        compared = max(self.size, sum(int(by_kind[kind].starts[-1]) for kind in by_kind.keys() - {INSTANT}))
        if marked * WIDE_SHARE > compared:
            return None
        out = np.zeros(self.size, dtype=np.bool_)
        for index, places in matches:
            index.mark(places, out)
        return out


def build(columns: Mapping[str, AttributeColumn], size: int) -> AttributeIndex:
    """Index the first `size` rows of the columns."""
    return AttributeIndex(size, {name: _field(column, size) for name, column in columns.items()})


def _matches(
    by_kind: Field, op: str, values: Sequence[Value | complex], column: AttributeColumn
) -> Iterator[tuple[ValueIndex, Places]]:
    """The values that are `op` one of `values`, with the index in which they are."""
    if op in EQUALITY and len(values) > 1:
        for kind, index in by_kind.items():
            yield index, index.places_of(np.array(_keys(kind, values, column), dtype=index.values.dtype))
        return
    op = "eq" if op == "in" else op
    for value in values:
        for kind, index in by_kind.items():
            chosen = _range(kind, index, op, column.code(value) if isinstance(value, str) else value, _kinds(value))
            if chosen is not None:
                yield index, chosen


def _keys(kind: int, values: Sequence[Value | complex], column: AttributeColumn) -> Sequence[complex]:
    """The values of a kind, as they are in its index, that are equal to one of `values`."""
    if kind == INSTANT:
        return [value for value in values if isinstance(value, complex)]
    if kind == STRING:
        return [column.code(value) for value in values if isinstance(value, str)]
    if kind == BOOL:
        return [int(value) for value in values if isinstance(value, bool)]
    numbers = [value for value in values if not isinstance(value, str | bool | complex)]
    return equal_floats(numbers) if kind == FLOAT else equal_integers(numbers)


def _kinds(value: Value | complex) -> tuple[int, ...]:
    """The kinds of stored values that are comparable with `value`."""
    if isinstance(value, complex):
        return (INSTANT,)
    if isinstance(value, str):
        return (STRING,)
    return (BOOL,) if isinstance(value, bool) else (INTEGER, FLOAT)


def _range(kind: int, index: ValueIndex, op: str, value: complex, kinds: tuple[int, ...]) -> slice | None:
    """The range of the index's values that are `op` `value`; None if its kind is not one of `kinds`."""
    if kind not in kinds:
        return None
    below, upto = _cut(kind, index.values, value, after=False), _cut(kind, index.values, value, after=True)
    end = len(index.values)
    edges = {"eq": (below, upto), "lt": (0, below), "lte": (0, upto), "gt": (upto, end), "gte": (below, end)}
    return slice(*edges[op])


def _cut(kind: int, values: NDArray, value: complex, *, after: bool) -> int:
    """The number of ascending `values` that are less than `value`, or with `after`, not greater."""
    if isinstance(value, complex):
        return int(np.searchsorted(values, value, "right" if after else "left"))
    if kind == FLOAT:
        nearest = float(value)
        if nearest != value:  # an integer that no float represents
            after = nearest < value
        return int(np.searchsorted(values, nearest, "right" if after else "left"))
    if value > INT64_MAX:
        return len(values)
    if value < INT64_MIN:
        return 0
    whole = math.floor(value)
    return int(np.searchsorted(values, np.int64(whole), "right" if after or whole != value else "left"))

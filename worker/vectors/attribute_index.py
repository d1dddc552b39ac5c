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

from shared.messages.vectors import Condition, Value
from worker.vectors.attribute_column import BOOL, FLOAT, INT64_MAX, INT64_MIN, INTEGER, STRING, AttributeColumn
from worker.vectors.attribute_strings import Mask, divided

BITMAP_VALUES_MAX = 64
"""Most distinct values for which a field has bitmaps: they then take at most 8 bytes a row."""

WIDE_SHARE = 32
"""Marking one row at a random place costs as much as comparing this many adjacent rows."""


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

    def count(self, chosen: slice) -> int:
        """The number of rows with a value in this range of `values`; a row counts once for each element."""
        return int(self.starts[chosen.stop] - self.starts[chosen.start])

    def mark(self, chosen: slice, out: Mask) -> None:
        """Set the rows with a value in this range of `values` in `out`, bool[size]."""
        if chosen.start >= chosen.stop:
            return
        if self.bitmaps is not None:
            bits = np.bitwise_or.reduce(self.bitmaps[chosen], axis=0)
            out |= np.unpackbits(bits, count=len(out)).view(np.bool_)
        elif self.rows is not None:
            out[self.rows[self.starts[chosen.start] : self.starts[chosen.stop]]] = True

    def mark_some(self, chosen: Mask, out: Mask) -> None:
        """Set the rows with a value in `chosen`, bool[v], in `out`, bool[size]."""
        if self.bitmaps is not None:
            bits = np.bitwise_or.reduce(self.bitmaps[chosen], axis=0)
            out |= np.unpackbits(bits, count=len(out)).view(np.bool_)
        elif self.rows is not None:
            out[self.rows[np.repeat(chosen, np.diff(self.starts))]] = True


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
    return by_kind


@dataclass(frozen=True, slots=True)
class AttributeIndex:
    """All fields over the first `size` rows; never changed once built."""

    size: int = 0
    fields: Mapping[str, Field] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int:
        return sum(index.memory_bytes for by_kind in self.fields.values() for index in by_kind.values())

    def estimate(self, condition: Condition, column: AttributeColumn) -> int:
        """The number of rows that satisfy eq, in, lt, lte, gt or gte; for arrays, for a range of strings and for
        datetimes, an upper bound."""
        by_kind = self.fields.get(condition.field, {})
        values, texts = divided(condition.op, condition.values)
        every_text = int(by_kind[STRING].starts[-1]) if texts and STRING in by_kind else 0
        return every_text + sum(index.count(at) for index, at in _ranges(by_kind, condition.op, values, column))

    def wide(self, condition: Condition, column: AttributeColumn) -> bool:
        """Whether comparing all rows in the column is faster than marking the rows that satisfy the condition."""
        by_kind = self.fields.get(condition.field, {})
        values, texts = divided(condition.op, condition.values)
        if texts:
            return STRING in by_kind and by_kind[STRING].bitmaps is None
        ranges = _ranges(by_kind, condition.op, values, column)
        marked = sum(index.count(at) for index, at in ranges if index.bitmaps is None)
        compared = max(self.size, sum(int(index.starts[-1]) for index in by_kind.values()))
        return marked * WIDE_SHARE > compared

    def mask(self, condition: Condition, column: AttributeColumn) -> Mask:
        """The rows that satisfy eq, in, lt, lte, gt or gte, bool[size]."""
        out = np.zeros(self.size, dtype=np.bool_)
        by_kind = self.fields.get(condition.field, {})
        values, texts = divided(condition.op, condition.values)
        if texts and STRING in by_kind:
            strings = by_kind[STRING]
            strings.mark_some(column.chosen(condition.op, texts)[strings.values], out)
        for index, at in _ranges(by_kind, condition.op, values, column):
            index.mark(at, out)
        return out


def build(columns: Mapping[str, AttributeColumn], size: int) -> AttributeIndex:
    """Index the first `size` rows of the columns."""
    return AttributeIndex(size, {name: _field(column, size) for name, column in columns.items()})


def _ranges(
    by_kind: Field, op: str, values: Sequence[Value], column: AttributeColumn
) -> Iterator[tuple[ValueIndex, slice]]:
    """The ranges of values that are `op` one of `values`, each with its index."""
    op = "eq" if op == "in" else op
    for value in values:
        for kind, index in by_kind.items():
            chosen = _range(kind, index, op, column.code(value) if isinstance(value, str) else value, _kinds(value))
            if chosen is not None:
                yield index, chosen


def _kinds(value: Value) -> tuple[int, ...]:
    """The kinds of stored values that are comparable with `value`."""
    if isinstance(value, str):
        return (STRING,)
    return (BOOL,) if isinstance(value, bool) else (INTEGER, FLOAT)


def _range(kind: int, index: ValueIndex, op: str, value: float, kinds: tuple[int, ...]) -> slice | None:
    """The range of the index's values that are `op` `value`; None if its kind is not one of `kinds`."""
    if kind not in kinds:
        return None
    below, upto = _cut(kind, index.values, value, after=False), _cut(kind, index.values, value, after=True)
    end = len(index.values)
    edges = {"eq": (below, upto), "lt": (0, below), "lte": (0, upto), "gt": (upto, end), "gte": (below, end)}
    return slice(*edges[op])


def _cut(kind: int, values: NDArray, value: float, *, after: bool) -> int:
    """The number of ascending `values` that are less than `value`, or with `after`, not greater."""
    if kind == FLOAT:
        return int(np.searchsorted(values, float(value), "right" if after else "left"))
    if value > INT64_MAX:
        return len(values)
    if value < INT64_MIN:
        return 0
    whole = math.floor(value)
    return int(np.searchsorted(values, np.int64(whole), "right" if after or whole != value else "left"))

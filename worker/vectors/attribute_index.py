"""The attribute index: for each field, its rows in order of value, or a bitmap for each value where there are few.

It covers the rows up to some number, which never change once written; the rows after it are compared in their columns
until it is built anew. So a condition costs what it finds, not what there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Condition, Value
from worker.vectors.attribute_column import BOOL, FLOAT, INT64_MAX, INT64_MIN, INTEGER, STRING, AttributeColumn, Mask

BITMAP_VALUES_MAX = 64
"""With so many values or fewer, bitmaps take no more than 8 bytes a row, and one is read at 8 rows a byte."""

WIDE_SHARE = 32  # marking a row at a random place costs as much as comparing so many side by side


@dataclass(frozen=True, slots=True)
class ValueIndex:
    """The rows of one field that hold one kind of value.

    `values` int64[v] or float64[v] are distinct and ascending (strings by their code); the rows with `values[i]` are
    `rows[starts[i]:starts[i + 1]]`, int32, or the bits of `bitmaps[i]`, uint8[v, ⌈size / 8⌉].
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
        return int(self.starts[chosen.stop] - self.starts[chosen.start])

    def mark(self, chosen: slice, out: Mask) -> None:
        """Set the rows of a range of values in `out`, bool[size]."""
        if chosen.start >= chosen.stop:
            return
        if self.bitmaps is not None:
            bits = np.bitwise_or.reduce(self.bitmaps[chosen], axis=0)
            out |= np.unpackbits(bits, count=len(out)).view(np.bool_)
        elif self.rows is not None:
            out[self.rows[self.starts[chosen.start] : self.starts[chosen.stop]]] = True

    def mark_some(self, chosen: Mask, out: Mask) -> None:
        """Set the rows of the values that `chosen`, bool[values], says."""
        if self.bitmaps is not None:
            bits = np.bitwise_or.reduce(self.bitmaps[chosen], axis=0)
            out |= np.unpackbits(bits, count=len(out)).view(np.bool_)
        elif self.rows is not None:
            out[self.rows[np.repeat(chosen, np.diff(self.starts))]] = True


def _value_index(rows: NDArray[np.int64], keys: NDArray, size: int) -> ValueIndex:
    order = np.argsort(keys, kind="stable")
    ordered: NDArray[np.int32] = rows[order].astype(np.int32)
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    starts = np.append(first, len(keys))
    if len(first) > BITMAP_VALUES_MAX:
        return ValueIndex(keys[first], starts, ordered, None)
    bitmaps = np.zeros((len(first), (size + 7) // 8), dtype=np.uint8)
    for place in range(len(first)):
        holds = np.zeros(size, dtype=np.bool_)
        holds[ordered[starts[place] : starts[place + 1]]] = True
        bitmaps[place] = np.packbits(holds)
    return ValueIndex(keys[first], starts, None, bitmaps)


Field = Mapping[int, ValueIndex]
"""The value indexes of one field by kind."""


def _field(column: AttributeColumn, size: int) -> Field:
    kinds, bits = column.arrays(slice(0, size))
    by_kind = {}
    for kind in (STRING, INTEGER, FLOAT, BOOL):
        rows = np.flatnonzero(kinds == kind)
        if len(rows):
            keys = bits[rows]
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
        """How many rows satisfy eq, in, lt, lte, gt or gte: exact, but for ranges of strings, where it is at most."""
        by_kind = self.fields.get(condition.field, {})
        if condition.op not in ("eq", "in") and isinstance(condition.values[0], str):
            return int(by_kind[STRING].starts[-1]) if STRING in by_kind else 0
        return sum(index.count(chosen) for index, chosen in _ranges(by_kind, condition, column))

    def wide(self, condition: Condition, column: AttributeColumn) -> bool:
        """Whether so many rows would be marked one by one that comparing all of them in the column is quicker."""
        by_kind = self.fields.get(condition.field, {})
        if condition.op not in ("eq", "in") and isinstance(condition.values[0], str):
            return STRING in by_kind and by_kind[STRING].bitmaps is None
        marked = sum(index.count(at) for index, at in _ranges(by_kind, condition, column) if index.bitmaps is None)
        return marked * WIDE_SHARE > self.size

    def mask(self, condition: Condition, column: AttributeColumn) -> Mask:
        """The rows that satisfy eq, in, lt, lte, gt or gte, bool[size]."""
        out = np.zeros(self.size, dtype=np.bool_)
        by_kind = self.fields.get(condition.field, {})
        value = condition.values[0]
        if condition.op not in ("eq", "in") and isinstance(value, str):
            if STRING in by_kind:
                index = by_kind[STRING]
                index.mark_some(column.codes(condition.op, value)[index.values], out)
            return out
        for index, chosen in _ranges(by_kind, condition, column):
            index.mark(chosen, out)
        return out


def build(columns: Mapping[str, AttributeColumn], size: int) -> AttributeIndex:
    return AttributeIndex(size, {name: _field(column, size) for name, column in columns.items()})


def _ranges(by_kind: Field, condition: Condition, column: AttributeColumn) -> Iterator[tuple[ValueIndex, slice]]:
    op = "eq" if condition.op == "in" else condition.op
    for value in condition.values:
        for kind, index in by_kind.items():
            chosen = _range(kind, index, op, column.code(value) if isinstance(value, str) else value, _kinds(value))
            if chosen is not None:
                yield index, chosen


def _kinds(value: Value) -> tuple[int, ...]:
    if isinstance(value, str):
        return (STRING,)
    return (BOOL,) if isinstance(value, bool) else (INTEGER, FLOAT)


def _range(kind: int, index: ValueIndex, op: str, value: float, kinds: tuple[int, ...]) -> slice | None:
    """Which of its values are `op` `value`; None where it is of another kind, so not comparable."""
    if kind not in kinds:
        return None
    below, upto = _cut(kind, index.values, value, after=False), _cut(kind, index.values, value, after=True)
    end = len(index.values)
    edges = {"eq": (below, upto), "lt": (0, below), "lte": (0, upto), "gt": (upto, end), "gte": (below, end)}
    return slice(*edges[op])


def _cut(kind: int, values: NDArray, value: float, *, after: bool) -> int:
    """How many values are less than `value`, or (`after`) not greater."""
    if kind == FLOAT:
        return int(np.searchsorted(values, float(value), "right" if after else "left"))
    if value > INT64_MAX:
        return len(values)
    if value < INT64_MIN:
        return 0
    whole = math.floor(value)
    return int(np.searchsorted(values, np.int64(whole), "right" if after or whole != value else "left"))

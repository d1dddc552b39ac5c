"""The attributes of a table's rows and filters over them: columns for all rows, and an index of most rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Attribute, Condition
from worker.vectors import attribute_index
from worker.vectors.attribute_column import AttributeColumn, ColumnState, Where
from worker.vectors.attribute_strings import Mask
from worker.vectors.row_filter import Bits

COMPARED = ("eq", "in", "lt", "lte", "gt", "gte")
INDEX_ROWS_MIN = 4096
"""Fewer rows are compared in some microseconds, without an index."""
INDEX_GROWTH = 1.25
"""The index is built anew when the table has this many times the indexed rows: while a table grows, each row is sorted
five times on average."""
COMPARED_CHARS, COMPARED_NAMES, COMPARED_UNKNOWN_NAMES = 32, 128, 4
"""Comparing two names of so many characters takes up to 60 µs, so finding the nearest names takes 30 ms at most."""
NARROW_SHARE = 16
"""If the narrowest condition of an `and` leaves at most 1 in this many rows, the others compare those rows only."""

HEAD_GROWTH = 1.0625
"""A filter's bits become their own head (`Bits.head`) when the rows have grown by this factor: what is remembered for
the head does not cover the rows behind it."""
COMPARED_COST = 4
"""Comparing a row at a random place costs as much as marking this many rows."""


class Attributes:
    """The columns of one table. One writer at a time; readers read rows below the size of their view."""

    def __init__(self, columns: Mapping[str, AttributeColumn] | None = None) -> None:
        self._columns: dict[str, AttributeColumn] = dict(columns or {})
        self._index = attribute_index.AttributeIndex()

    @property
    def memory_bytes(self) -> int:
        return sum(column.memory_bytes for column in list(self._columns.values())) + self._index.memory_bytes

    def append(self, first: int, packed: Sequence[bytes]) -> None:
        """Set the attributes of the rows from `first` on: for each row a msgpack map of names to values, or empty
        bytes."""
        rows: dict[str, list[int]] = {}
        values: dict[str, list[Attribute]] = {}
        for row, entry in enumerate(packed, first):
            if entry:
                for name, value in msgspec.msgpack.decode(entry).items():
                    rows.setdefault(name, []).append(row)
                    values.setdefault(name, []).append(value)
        for name, field_rows in rows.items():
            column = self._columns.get(name)
            if column is None:
                column = AttributeColumn()
                column.put(field_rows, values[name])
                self._columns[name] = column
            else:
                column.put(field_rows, values[name])

    def append_copies(self, first: int, other: Attributes, rows: NDArray[np.int64]) -> None:
        """Set the attributes of the rows from `first` on to those that `rows` int64[n], ascending, have in `other`."""
        for name, other_column in list(other._columns.items()):
            column = self._columns.get(name) or AttributeColumn()
            if column.put_copies(first, other_column, rows):
                self._columns[name] = column

    def save(self, size: int) -> bytes:
        """The columns of the first `size` rows as bytes, for a snapshot."""
        return msgspec.msgpack.encode({name: column.state(size) for name, column in list(self._columns.items())})

    @classmethod
    def restore(cls, saved: bytes, size: int) -> Attributes:
        """Inverse of `save` for the same `size`. Raises ValueError if `saved` is not a result of `save`."""
        try:
            states = msgspec.msgpack.decode(saved, type=dict[str, ColumnState])
        except msgspec.MsgspecError as error:
            raise ValueError(f"the columns cannot be read: {error}") from error
        return cls({name: AttributeColumn.from_state(state, size) for name, state in states.items()})

    def index_due(self, size: int) -> bool:
        """Whether the index should be built anew for a table of `size` rows."""
        return bool(self._columns) and size >= max(INDEX_ROWS_MIN, INDEX_GROWTH * self._index.size)

    def build_index(self, size: int) -> None:
        """Index the first `size` rows; one thread at a time, beside the writer and readers."""
        self._index = attribute_index.build(dict(self._columns), size)

    def unknown(self, condition: Condition) -> set[str]:
        """The fields that `condition` compares although no row ever had them. An `exists` condition compares nothing,
        so its field is not among them."""
        unknown_fields = {name for child in condition.children for name in self.unknown(child)}
        if condition.field and condition.op != "exists" and condition.field not in self._columns:
            unknown_fields.add(condition.field)
        return unknown_fields

    def nearest(self, unknown: Sequence[str]) -> dict[str, str]:
        """Unknown field → the most similar name of a column, for those of the first few that have one."""
        if not unknown:
            return {}
        names = {name[:COMPARED_CHARS]: name for name in islice(list(self._columns), COMPARED_NAMES)}
        similar = {
            name: get_close_matches(name[:COMPARED_CHARS], names, n=1) for name in unknown[:COMPARED_UNKNOWN_NAMES]
        }
        return {name: names[matches[0]] for name, matches in similar.items() if matches}

    def mask(self, condition: Condition, size: int) -> Mask:
        """Which of the first `size` rows satisfy `condition`, bool[size]. Of all comparisons, a row without the field
        satisfies neq only."""
        return self.bits(condition, size).mask(0, size)

    def bits(self, condition: Condition, size: int) -> Bits:
        """As `mask`, in bits, for the first `size` rows at least."""
        index = self._index
        if not index.size:
            return Bits.of(self._compared(condition, slice(0, size)))
        key = index.masks.key(condition)
        cached = bits = index.masks.get(key)
        if bits is None:
            bits = Bits.of(self._indexed(condition, index))
        if bits.size < size:
            bits = bits.extended(self._compared(condition, slice(bits.size, size)))
            if bits.size > HEAD_GROWTH * bits.head.size:
                bits = Bits(bits.packed, bits.size, bits.count)
        if bits is not cached:
            index.masks.put(key, bits)
        return bits

    def column(self, name: str) -> AttributeColumn | None:
        """The column of a field; None if no row ever had it."""
        return self._columns.get(name)

    def names(self) -> list[str]:
        """The names of all attributes that a row ever had, in the order of their first use."""
        return list(self._columns)

    def compared(self, condition: Condition, rows: NDArray[np.int64]) -> Mask:
        """Which of these rows satisfy `condition`, one for each, without the index: for a few rows."""
        return self._compared(condition, rows)

    def _compared(self, condition: Condition, where: Where) -> Mask:
        """Which of these rows satisfy `condition`, by comparing their columns: bool, one for each row of `where`."""
        op, children = condition.op, condition.children
        if op == "and":
            return np.logical_and.reduce([self._compared(child, where) for child in children])
        if op == "or":
            return np.logical_or.reduce([self._compared(child, where) for child in children])
        if op == "not":
            return ~self._compared(children[0], where)
        column = self._columns.get(condition.field)
        if column is None:
            return np.full(where.stop - where.start if isinstance(where, slice) else len(where), op == "neq")
        if op == "exists":
            return column.present(where)
        if op == "neq":
            return ~column.equal(condition.values[0], where)
        if op == "has":
            return column.has(condition.values, where)
        if op == "within":
            return column.within(condition.values, where)
        if op in ("eq", "in"):
            return column.equal_any(condition.values, where)
        return column.compare(op, condition.values[0], where)

    def _indexed(self, condition: Condition, index: attribute_index.AttributeIndex) -> Mask:
        """Which of the indexed rows satisfy `condition`, bool[index.size]."""
        op, children = condition.op, condition.children
        if op == "and":
            return self._all_of(children, index)
        if op == "or":
            return np.logical_or.reduce([self._indexed(child, index) for child in children])
        if op == "not":
            return ~self._indexed(children[0], index)
        column = self._columns.get(condition.field)
        if column is None:
            return np.full(index.size, op == "neq")
        if op == "neq":
            return ~self._indexed(Condition("eq", condition.field, condition.values), index)
        if op == "has":
            return self._has(condition, index)
        mask = index.mask(condition, column) if op in COMPARED else None
        return self._compared(condition, slice(0, index.size)) if mask is None else mask

    def _has(self, condition: Condition, index: attribute_index.AttributeIndex) -> Mask:
        """As `_indexed`, for `has`: the index finds the rows with an equal value, and their texts are then compared."""
        mask = self._indexed(Condition("in", condition.field, condition.values), index)
        rows = np.flatnonzero(mask)
        mask[rows] = self._compared(condition, rows)
        return mask

    def _all_of(self, conditions: Sequence[Condition], index: attribute_index.AttributeIndex) -> Mask:
        """Which of the indexed rows satisfy all `conditions`, bool[index.size]. The narrowest condition comes first; if
        it leaves few rows, the others compare those rows only."""
        estimates = [self._estimate(condition, index) for condition in conditions]
        order = np.argsort(estimates, kind="stable").tolist()
        mask = self._indexed(conditions[order[0]], index)
        if estimates[order[0]] * NARROW_SHARE > index.size:
            for place in order[1:]:
                mask &= self._indexed(conditions[place], index)
            return mask
        rows = np.flatnonzero(mask)
        for place in order[1:]:
            if len(rows) * COMPARED_COST > estimates[place]:
                rows = rows[self._indexed(conditions[place], index)[rows]]
            else:
                rows = rows[self._compared(conditions[place], rows)]
        mask = np.zeros(index.size, dtype=np.bool_)
        mask[rows] = True
        return mask

    def _estimate(self, condition: Condition, index: attribute_index.AttributeIndex) -> int:
        """An upper bound of the number of indexed rows that satisfy `condition`."""
        if condition.op == "and":
            return min(self._estimate(child, index) for child in condition.children)
        if condition.op == "or":
            return min(index.size, sum(self._estimate(child, index) for child in condition.children))
        if condition.op not in COMPARED:
            return index.size
        column = self._columns.get(condition.field)
        return 0 if column is None else index.estimate(condition, column)

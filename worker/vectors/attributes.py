"""The attributes of a table's rows as columns, and filters over them.

A column has, for each row, a kind and 64 bits: the code of a string in the column's dictionary, an integer, the bits
of a float, or a bool. Numbers compare by value, integers with floats too; a string is never equal to a number, nor a
bool to either. Strings are in order of their code points.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Condition, Value

Mask = NDArray[np.bool_]

ABSENT, STRING, INTEGER, FLOAT, BOOL = range(5)
CAPACITY_LEAST = 64
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class Column:
    """One attribute over all rows. Rows are set once, in any order."""

    def __init__(self) -> None:
        self._kinds = np.zeros(CAPACITY_LEAST, dtype=np.uint8)
        self._bits = np.zeros(CAPACITY_LEAST, dtype=np.int64)
        self._codes: dict[str, int] = {}
        self._sorted: list[str] = []
        self._ranks = np.zeros(0, dtype=np.int64)

    @property
    def memory_bytes(self) -> int:
        return self._kinds.nbytes + self._bits.nbytes + 160 * len(self._codes)

    def put(self, rows: Sequence[int], values: Sequence[Value]) -> None:
        kinds, bits = zip(*(self._encode(value) for value in values), strict=True)
        self._reserve(rows[-1] + 1)
        index = np.asarray(rows, dtype=np.int64)
        # Bits before kinds: a row of kind ABSENT is one no reader looks further into.
        self._bits[index] = np.array(bits, dtype=np.int64)
        self._kinds[index] = np.array(kinds, dtype=np.uint8)

    def _encode(self, value: Value) -> tuple[int, int]:
        if isinstance(value, str):
            return STRING, self._codes.setdefault(value, len(self._codes))
        if isinstance(value, bool):
            return BOOL, int(value)
        if isinstance(value, int):
            return INTEGER, value
        return FLOAT, int(np.float64(value).view(np.int64))

    def _reserve(self, rows: int) -> None:
        if rows > len(self._kinds):
            capacity = max(rows, len(self._kinds) * 3 // 2)
            bits = np.zeros(capacity, dtype=np.int64)
            bits[: len(self._bits)] = self._bits
            kinds = np.zeros(capacity, dtype=np.uint8)
            kinds[: len(self._kinds)] = self._kinds
            self._bits, self._kinds = bits, kinds

    def _arrays(self, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Kinds and bits of exactly `size` rows; a column not yet grown to there is absent from the rest."""
        kinds, bits = self._kinds, self._bits
        if len(kinds) < size:
            kinds = np.concatenate([kinds, np.zeros(size - len(kinds), dtype=np.uint8)])
        if len(bits) < size:
            bits = np.concatenate([bits, np.zeros(size - len(bits), dtype=np.int64)])
        return kinds[:size], bits[:size]

    def present(self, size: int) -> Mask:
        return self._arrays(size)[0] != ABSENT

    def equal(self, value: Value, size: int) -> Mask:
        if isinstance(value, str):
            code = self._codes.get(value)
            if code is None:
                return np.zeros(size, dtype=np.bool_)
            kinds, bits = self._arrays(size)
            return (bits == code) & (kinds == STRING)
        kinds, bits = self._arrays(size)
        if isinstance(value, bool):
            return (bits == int(value)) & (kinds == BOOL)
        matches = (bits.view(np.float64) == float(value)) & (kinds == FLOAT)
        if float(value).is_integer() and INT64_MIN <= value <= INT64_MAX:
            matches |= (bits == int(value)) & (kinds == INTEGER)
        return matches

    def compare(self, op: str, value: Value, size: int) -> Mask:
        """Rows whose value is lt, lte, gt or gte `value`; values of another kind are not comparable, so never match."""
        if isinstance(value, str):
            return self._compare_text(op, value, size)
        kinds, bits = self._arrays(size)
        if isinstance(value, bool):
            return _ordered(op, bits, int(value)) & (kinds == BOOL)
        matches = _ordered(op, bits.view(np.float64), float(value)) & (kinds == FLOAT)
        return matches | (_ordered_integers(op, bits, value) & (kinds == INTEGER))

    def _compare_text(self, op: str, value: str, size: int) -> Mask:
        kinds, bits = self._arrays(size)
        texts, ranks = self._order()
        edge = bisect_left(texts, value) if op in ("lt", "gte") else bisect_right(texts, value)
        strings = kinds == STRING
        known = strings & (bits < len(ranks))
        rank = ranks[np.where(known, bits, 0)] if len(ranks) else np.zeros(size, dtype=np.int64)
        return known & (rank < edge if op in ("lt", "lte") else rank >= edge)

    def _order(self) -> tuple[list[str], NDArray[np.int64]]:
        """The dictionary's texts in order, and each code's place among them."""
        if len(self._ranks) != len(self._codes):
            codes = dict(self._codes)
            texts = sorted(codes)
            ranks = np.empty(len(texts), dtype=np.int64)
            ranks[np.fromiter((codes[text] for text in texts), dtype=np.int64, count=len(texts))] = np.arange(
                len(texts)
            )
            self._sorted, self._ranks = texts, ranks
            return texts, ranks
        return self._sorted, self._ranks


def _ordered(op: str, values: NDArray, edge: float | int) -> Mask:
    with np.errstate(invalid="ignore"):
        if op == "lt":
            return values < edge
        if op == "lte":
            return values <= edge
        return values > edge if op == "gt" else values >= edge


def _ordered_integers(op: str, values: NDArray[np.int64], edge: float | int) -> Mask:
    """Integers against a bound that may be a float, or an integer no int64 holds, without rounding either."""
    if isinstance(edge, float) and not math.isinf(edge):
        edge = math.ceil(edge) if op in ("lt", "gte") else math.floor(edge)
    if edge > INT64_MAX:
        return np.full(len(values), op in ("lt", "lte"))
    if edge < INT64_MIN:
        return np.full(len(values), op in ("gt", "gte"))
    return _ordered(op, values, int(edge))


class Attributes:
    """The columns of one table. One writer at a time; readers ask for rows below their view's size."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}

    @property
    def memory_bytes(self) -> int:
        return sum(column.memory_bytes for column in list(self._columns.values()))

    def put(self, row: int, packed: bytes) -> None:
        self.append(row, [packed])

    def append(self, first: int, packed: Sequence[bytes]) -> None:
        """Rows from `first` on: each a msgpack map of names to values, or nothing at all."""
        rows: dict[str, list[int]] = {}
        values: dict[str, list[Value]] = {}
        for row, entry in enumerate(packed, first):
            if entry:
                for name, value in msgspec.msgpack.decode(entry).items():
                    rows.setdefault(name, []).append(row)
                    values.setdefault(name, []).append(value)
        for name, places in rows.items():
            column = self._columns.get(name)
            if column is None:
                column = Column()
                column.put(places, values[name])
                self._columns[name] = column
            else:
                column.put(places, values[name])

    def unknown(self, condition: Condition) -> set[str]:
        """Fields that `condition` compares and no row ever had; asking whether a field exists needs no such field."""
        found = {name for child in condition.children for name in self.unknown(child)}
        if condition.field and condition.op != "exists" and condition.field not in self._columns:
            found.add(condition.field)
        return found

    def mask(self, condition: Condition, size: int) -> Mask:
        """The first `size` rows that satisfy `condition`. A row without the field satisfies neq, and nothing else."""
        op, children = condition.op, condition.children
        if op == "and":
            return np.logical_and.reduce([self.mask(child, size) for child in children])
        if op == "or":
            return np.logical_or.reduce([self.mask(child, size) for child in children])
        if op == "not":
            return ~self.mask(children[0], size)
        column = self._columns.get(condition.field)
        if column is None:
            return np.full(size, op == "neq")
        if op == "exists":
            return column.present(size)
        if op == "neq":
            return ~column.equal(condition.values[0], size)
        if op in ("eq", "in"):
            return np.logical_or.reduce([column.equal(value, size) for value in condition.values])
        return column.compare(op, condition.values[0], size)

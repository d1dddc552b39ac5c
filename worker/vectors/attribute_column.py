"""One attribute of a table's rows, as a column.

A column has a kind and 64 bits for each row: the code of a string in the column's dictionary, an integer, the bits of a
float, or a bool. Numbers are compared by value, also an integer with a float; a string is never equal to a number, and
a bool never equal to either. Strings are ordered by their code points.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Value

Mask = NDArray[np.bool_]
Where = slice | NDArray[np.integer]
"""The rows of a comparison: a range of rows, or an array of row numbers."""

ABSENT, STRING, INTEGER, FLOAT, BOOL = range(5)
CAPACITY_MIN = 64
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
STRING_BYTES = 160
"""Bytes of a distinct string: the object, without its text, and its entries in the dictionary and in the order."""


class AttributeColumn:
    """Rows are set once, by one writer at a time; readers ask only for rows below the size of their view."""

    def __init__(self) -> None:
        self._kinds = np.zeros(CAPACITY_MIN, dtype=np.uint8)
        self._bits = np.zeros(CAPACITY_MIN, dtype=np.int64)
        self._codes: dict[str, int] = {}
        self._ordered: tuple[list[str], NDArray[np.int64]] = ([], np.zeros(0, dtype=np.int64))

    @property
    def memory_bytes(self) -> int:
        return self._kinds.nbytes + self._bits.nbytes + STRING_BYTES * len(self._codes)

    # Saving

    def state(self, size: int) -> tuple[bytes, bytes, list[str]]:
        """The first `size` rows: kinds as uint8[size] bytes, bits as int64[size] bytes, and the strings by code."""
        kinds, bits = self.arrays(slice(0, size))
        return kinds.tobytes(), bits.tobytes(), list(self._codes)

    @classmethod
    def from_state(cls, kinds: bytes, bits: bytes, texts: list[str], size: int) -> AttributeColumn:
        """Inverse of `state`. Raises ValueError if the arguments are not a result of `state`."""
        column = cls()
        column._kinds = np.frombuffer(kinds, dtype=np.uint8)
        column._bits = np.frombuffer(bits, dtype=np.int64)
        column._codes = {text: code for code, text in enumerate(texts)}
        if not len(column._kinds) == len(column._bits) == size or len(column._codes) != len(texts):
            raise ValueError(f"a column has {len(kinds)} kinds and {len(bits)} bytes of bits; it must have {size} rows")
        codes = column._bits[column._kinds == STRING]
        if column._kinds.max(initial=0) > BOOL or not ((codes >= 0) & (codes < len(texts))).all():
            raise ValueError("a column has a value of an unknown kind, or a string that is not in its dictionary")
        return column

    # Writing

    def put(self, rows: Sequence[int], values: Sequence[Value]) -> None:
        """Set the values of these rows, which are ascending and not empty."""
        kinds, bits = self._encode(values)
        self._reserve(rows[-1] + 1)
        index = np.asarray(rows, dtype=np.int64)
        # Bits before kinds: readers ignore the bits of a row of kind ABSENT.
        self._bits[index] = bits
        self._kinds[index] = kinds

    def _encode(self, values: Sequence[Value]) -> tuple[NDArray[np.uint8] | int, NDArray[np.int64]]:
        types = set(map(type, values))
        if len(types) > 1:
            pairs = [self._encode([value]) for value in values]
            return np.array([kind for kind, _ in pairs], np.uint8), np.concatenate([bits for _, bits in pairs])
        kind = types.pop()
        if kind is str:
            codes = self._codes
            return STRING, np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int64)  # type: ignore[arg-type]
        if kind is float:
            return FLOAT, np.array(values, dtype=np.float64).view(np.int64)
        return BOOL if kind is bool else INTEGER, np.array(values, dtype=np.int64)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._kinds):
            capacity = max(rows, len(self._kinds) * 3 // 2)
            bits = np.zeros(capacity, dtype=np.int64)
            bits[: len(self._bits)] = self._bits
            kinds = np.zeros(capacity, dtype=np.uint8)
            kinds[: len(self._kinds)] = self._kinds
            self._bits, self._kinds = bits, kinds

    # Reading

    def arrays(self, where: Where) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Kinds uint8[n] and bits int64[n] of these rows; ABSENT for rows behind the end of the column."""
        kinds, bits = self._kinds, self._bits
        end = where.stop if isinstance(where, slice) else int(where.max(initial=-1)) + 1
        if len(kinds) < end:
            kinds = np.concatenate([kinds, np.zeros(end - len(kinds), dtype=np.uint8)])
        if len(bits) < end:
            bits = np.concatenate([bits, np.zeros(end - len(bits), dtype=np.int64)])
        return kinds[where], bits[where]

    def code(self, text: str) -> int:
        """The code of a string; −1 if the column never had it."""
        return self._codes.get(text, -1)

    def present(self, where: Where) -> Mask:
        """Which of these rows have a value."""
        return self.arrays(where)[0] != ABSENT

    def equal(self, value: Value, where: Where) -> Mask:
        """Which of these rows are equal to `value`."""
        kinds, bits = self.arrays(where)
        if isinstance(value, str):
            return (bits == self.code(value)) & (kinds == STRING)
        if isinstance(value, bool):
            return (bits == int(value)) & (kinds == BOOL)
        # An integer that no float represents is equal to no float.
        matches = (bits.view(np.float64) == float(value)) & (kinds == FLOAT) & (float(value) == value)
        if float(value).is_integer() and INT64_MIN <= value <= INT64_MAX:
            matches |= (bits == int(value)) & (kinds == INTEGER)
        return matches

    def compare(self, op: str, value: Value, where: Where) -> Mask:
        """Which of these rows are lt, lte, gt or gte `value`; values of another kind are not comparable, so they never
        match."""
        kinds, bits = self.arrays(where)
        if isinstance(value, str):
            chosen = self.codes(op, value)
            known = (kinds == STRING) & (bits < len(chosen))
            return known & chosen[np.where(known, bits, 0)] if len(chosen) else known
        if isinstance(value, bool):
            return _ordered(op, bits, int(value)) & (kinds == BOOL)
        matches = _ordered_floats(op, bits.view(np.float64), value) & (kinds == FLOAT)
        return matches | (_ordered_integers(op, bits, value) & (kinds == INTEGER))

    def codes(self, op: str, value: str) -> Mask:
        """Which strings of the dictionary are lt, lte, gt or gte `value`, bool[codes]."""
        texts, ranks = self._order()
        edge = bisect_left(texts, value) if op in ("lt", "gte") else bisect_right(texts, value)
        return ranks < edge if op in ("lt", "lte") else ranks >= edge

    def _order(self) -> tuple[list[str], NDArray[np.int64]]:
        """(the dictionary's strings in ascending order, the rank of each code in this order, int64[codes])."""
        texts, ranks = self._ordered
        if len(ranks) != len(self._codes):
            codes = dict(self._codes)
            # Sorting the ordered strings and the new ones together only merges them.
            texts = sorted([*texts, *list(codes)[len(texts) :]])
            ranks = np.empty(len(texts), dtype=np.int64)
            ranks[np.fromiter((codes[text] for text in texts), dtype=np.int64, count=len(texts))] = np.arange(
                len(texts)
            )
            self._ordered = texts, ranks
        return texts, ranks


def _ordered(op: str, values: NDArray, edge: float | int) -> Mask:
    with np.errstate(invalid="ignore"):
        if op == "lt":
            return values < edge
        if op == "lte":
            return values <= edge
        return values > edge if op == "gt" else values >= edge


def _ordered_floats(op: str, values: NDArray[np.float64], edge: float | int) -> Mask:
    """Compare floats with `edge` exactly, even if it is an integer that no float represents."""
    nearest = float(edge)
    if nearest < edge:
        op = {"lt": "lte", "gte": "gt"}.get(op, op)
    elif nearest > edge:
        op = {"lte": "lt", "gt": "gte"}.get(op, op)
    return _ordered(op, values, nearest)


def _ordered_integers(op: str, values: NDArray[np.int64], edge: float | int) -> Mask:
    """Compare integers with `edge` exactly, even if it is a float, or an integer that no int64 represents."""
    if isinstance(edge, float) and not math.isinf(edge):
        edge = math.ceil(edge) if op in ("lt", "gte") else math.floor(edge)
    if edge > INT64_MAX:
        return np.full(len(values), op in ("lt", "lte"))
    if edge < INT64_MIN:
        return np.full(len(values), op in ("gt", "gte"))
    return _ordered(op, values, int(edge))

"""One attribute of a table's rows, as a column.

A column has a kind and 64 bits for each row: the code of a string in the column's dictionary, an integer, the bits of a
float, or a bool. Numbers are compared by value, also an integer with a float; a string is never equal to a number, and
a bool never equal to either. How strings compare is described in `attribute_strings`.

A row may have an array of such values instead: its elements are in columns of their own, one array after the other, in
the order of the rows. A row with an array satisfies a comparison if one of its elements does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.vectors import Attribute, Value
from worker.vectors.attribute_comparison import (
    Bits,
    Kinds,
    Test,
    any_of,
    equal_floats,
    equal_integers,
    fits,
    ordered_floats,
    ordered_integers,
)
from worker.vectors.attribute_strings import EQUALITY, AttributeStrings, Mask, divided
from worker.vectors.instants import Instants

Where = slice | NDArray[np.integer]
"""The rows of a comparison: a range of rows, or an array of row numbers."""

ABSENT, STRING, INTEGER, FLOAT, BOOL, ARRAY = range(6)
TYPES = ("absent", "string", "integer", "float", "bool", "array")
"""The names of the kinds."""
CAPACITY_MIN = 64
NO_ROWS = 1 << 62, -1
"""(the first row with a value, the last one) of a column without values."""
NO_OWNER = (1 << 31) - 1
"""Fills the spare capacity behind the owners of the elements. It is above every row, so the owners stay ascending."""


class ColumnState(msgspec.Struct, array_like=True):
    """A saved column: kinds as uint8[rows] bytes, bits as int64[rows] bytes, and the strings by code; the kinds and
    bits of all elements of arrays, and the row of each as int32 bytes. Columns saved before arrays existed have no
    elements."""

    kinds: bytes
    bits: bytes
    texts: list[str]
    element_kinds: bytes = b""
    element_bits: bytes = b""
    owners: bytes = b""


class Cells:
    """Kinds and bits of numbered cells, ABSENT until they are set."""

    def __init__(self, kinds: Kinds, bits: Bits) -> None:
        self._kinds, self._bits = kinds, bits

    @classmethod
    def empty(cls, capacity: int) -> Cells:
        return cls(np.zeros(capacity, dtype=np.uint8), np.zeros(capacity, dtype=np.int64))

    @property
    def memory_bytes(self) -> int:
        return self._kinds.nbytes + self._bits.nbytes

    def put(self, places: NDArray[np.int64], kinds: Kinds, bits: Bits) -> None:
        """Set the cells at `places`, which are ascending and not empty."""
        self._bits, self._kinds = _with_room(self._bits, int(places[-1]) + 1), _with_room(self._kinds, places[-1] + 1)
        # Bits before kinds: readers ignore the bits of a cell of kind ABSENT.
        self._bits[places] = bits
        self._kinds[places] = kinds

    def arrays(self, where: Where) -> tuple[Kinds, Bits]:
        """Kinds uint8[n] and bits int64[n] of these cells; ABSENT for cells behind the last."""
        kinds, bits = self._kinds, self._bits
        end = where.stop if isinstance(where, slice) else int(where.max(initial=-1)) + 1
        if len(kinds) < end:
            kinds = np.concatenate([kinds, np.zeros(end - len(kinds), dtype=np.uint8)])
        if len(bits) < end:
            bits = np.concatenate([bits, np.zeros(end - len(bits), dtype=np.int64)])
        return kinds[where], bits[where]


class AttributeColumn:
    """Rows are set once, in ascending order, by one writer at a time; readers ask only for rows below the size of their
    view."""

    def __init__(self) -> None:
        self._strings = AttributeStrings()
        self._rows = Cells.empty(CAPACITY_MIN)
        self._span = NO_ROWS
        self._elements = Cells.empty(0)
        self._element_count = 0
        self._owners = np.zeros(0, dtype=np.int32)

    @property
    def memory_bytes(self) -> int:
        return self._rows.memory_bytes + self._elements.memory_bytes + self._owners.nbytes + self._strings.memory_bytes

    # Saving

    def state(self, size: int) -> ColumnState:
        """The first `size` rows."""
        kinds, bits = self._rows.arrays(slice(0, size))
        owners, element_kinds, element_bits = self.elements(size)
        return ColumnState(
            kinds.tobytes(),
            bits.tobytes(),
            self._strings.texts(),
            element_kinds.tobytes(),
            element_bits.tobytes(),
            owners.tobytes(),
        )

    @classmethod
    def from_state(cls, state: ColumnState, size: int) -> AttributeColumn:
        """Inverse of `state`. Raises ValueError if the arguments are not a result of `state`."""
        column = cls()
        column._strings = AttributeStrings(state.texts)
        kinds, element_kinds = np.frombuffer(state.kinds, np.uint8), np.frombuffer(state.element_kinds, np.uint8)
        bits, element_bits = np.frombuffer(state.bits, np.int64), np.frombuffer(state.element_bits, np.int64)
        owners = np.frombuffer(state.owners, np.int32)
        column._rows, column._elements = Cells(kinds, bits), Cells(element_kinds, element_bits)
        column._owners, column._element_count = owners, len(owners)
        present = kinds != ABSENT
        if present.any():
            column._span = int(present.argmax()), len(present) - 1 - int(present[::-1].argmax())
        if not len(kinds) == len(bits) == size or len(column._strings) != len(state.texts):
            raise ValueError(
                f"a column has {len(kinds)} kinds and {len(bits)} values of 64 bits; it must have {size} rows"
            )
        for some_kinds, some_bits, highest in ((kinds, bits, ARRAY), (element_kinds, element_bits, BOOL)):
            codes = some_bits[some_kinds == STRING] if len(some_kinds) == len(some_bits) else np.array([-1])
            if some_kinds.max(initial=0) > highest or not ((codes >= 0) & (codes < len(state.texts))).all():
                raise ValueError("a column has a value of an unknown kind, or a string that is not in its dictionary")
        if len(owners) != len(element_kinds) or not _are_owners(owners, kinds) or not element_kinds.all():
            raise ValueError("a column has elements of arrays that are in no row with an array")
        return column

    # Writing

    def put(self, rows: Sequence[int], values: Sequence[Attribute]) -> None:
        """Set the values of these rows, which are ascending and not empty."""
        types = set(map(type, values))
        if list in types:
            arrays = [(row, value) for row, value in zip(rows, values, strict=True) if isinstance(value, list)]
            self._put_elements([row for row, _ in arrays], [value for _, value in arrays])
        self._put_rows(np.asarray(rows, dtype=np.int64), *self._encode(values, types))

    def _put_rows(self, rows: NDArray[np.int64], kinds: Kinds, bits: Bits) -> None:
        """Set these rows, which are ascending and not empty, behind those that are set."""
        self._rows.put(rows, kinds, bits)
        self._span = min(self._span[0], int(rows[0])), int(rows[-1])

    def put_copies(self, first: int, other: AttributeColumn, rows: NDArray[np.int64]) -> bool:
        """Set the rows from `first` on to the values that `rows` int64[n], ascending, have in another column. Returns
        whether there were any."""
        first_with, last_with = other._span
        if rows[-1] < first_with or rows[0] > last_with:
            return False
        kinds, bits = other.arrays(rows)
        places = np.flatnonzero(kinds != ABSENT)
        if not len(places):
            return False
        elements, of = other._elements_of(rows)
        element_kinds, element_bits = other._elements.arrays(elements)
        if len(element_kinds):
            self._put_cells(first + of, element_kinds, self._recoded(other, element_kinds, element_bits))
        kinds = kinds[places]
        self._put_rows(first + places, kinds, self._recoded(other, kinds, bits[places]))
        return True

    def _recoded(self, other: AttributeColumn, kinds: Kinds, bits: Bits) -> Bits:
        """Values of another column, with the codes that their strings have in this one."""
        are_strings = kinds == STRING
        if are_strings.any():
            codes, inverse = np.unique(bits[are_strings], return_inverse=True)
            bits[are_strings] = self._strings.add(other._strings.take(codes))[inverse]
        return bits

    def _put_elements(self, rows: list[int], arrays: list[list[Value]]) -> None:
        """Add the elements of these rows' arrays. They are added before the rows themselves, so that no reader sees an
        array without its elements."""
        values = list(chain.from_iterable(arrays))
        if not values:
            return
        owners = np.repeat(np.asarray(rows, dtype=np.int64), list(map(len, arrays)))
        self._put_cells(owners, *self._encode(values, set(map(type, values))))

    def _put_cells(self, of: NDArray[np.integer], kinds: Kinds, bits: Bits) -> None:
        """Add elements of the rows `of` int64[n ≥ 1], ascending."""
        first, end = self._element_count, self._element_count + len(of)
        self._elements.put(np.arange(first, end), kinds, bits)
        owners = _with_room(self._owners, end, NO_OWNER)
        owners[first:end] = of
        self._owners, self._element_count = owners, end

    def _encode(self, values: Sequence[Attribute], types: set[type]) -> tuple[Kinds, Bits]:
        """Kinds and bits of `values`, which are of these types."""
        if len(types) == 1:
            kind, bits = self._encode_one_type(values, next(iter(types)))
            return np.full(len(values), kind, dtype=np.uint8), bits
        kinds, every_bits = np.empty(len(values), dtype=np.uint8), np.empty(len(values), dtype=np.int64)
        for one in types:
            places = [place for place, value in enumerate(values) if type(value) is one]
            kinds[places], every_bits[places] = self._encode_one_type([values[place] for place in places], one)
        return kinds, every_bits

    def _encode_one_type(self, values: Sequence[Attribute], kind: type) -> tuple[int, Bits]:
        if kind is str:
            return STRING, self._strings.add(values)  # type: ignore[arg-type]
        if kind is float:
            return FLOAT, np.array(values, dtype=np.float64).view(np.int64)
        if kind is list:
            return ARRAY, np.zeros(len(values), dtype=np.int64)
        return BOOL if kind is bool else INTEGER, np.array(values, dtype=np.int64)

    # Reading

    def arrays(self, where: Where) -> tuple[Kinds, Bits]:
        """Kinds uint8[n] and bits int64[n] of these rows; ABSENT for rows behind the end of the column."""
        return self._rows.arrays(where)

    def elements(self, size: int) -> tuple[NDArray[np.int32], Kinds, Bits]:
        """(the row, the kind, the bits) of each element of the arrays in the first `size` rows, in the order of the
        rows."""
        owners = self._owners
        owners = owners[: np.searchsorted(owners, np.int32(size))]
        return owners, *self._elements.arrays(slice(0, len(owners)))

    def first_values(self, rows: NDArray[np.int64], chars_max: int) -> list[Value | None]:
        """The value of each row: of an array its first element, of a string at most `chars_max` characters; None where
        there is none."""
        kinds, bits = self._rows.arrays(rows)
        owners = self._owners
        elements = np.searchsorted(owners, rows.astype(np.int32))
        has_element = (kinds == ARRAY) & (elements < len(owners))
        has_element[has_element] = owners[elements[has_element]] == rows[has_element]
        kinds[kinds == ARRAY] = ABSENT
        kinds[has_element], bits[has_element] = self._elements.arrays(elements[has_element])
        strings = np.flatnonzero(kinds == STRING)
        texts = dict(zip(strings.tolist(), self._strings.take(bits[strings]), strict=True))
        values: list[Value | None] = [None] * len(rows)
        for place in np.flatnonzero(kinds != ABSENT).tolist():
            kind, number = kinds[place], bits[place]
            if kind == STRING:
                values[place] = texts[place][:chars_max]
            elif kind == FLOAT:
                values[place] = float(number.view(np.float64))
            else:
                values[place] = bool(number) if kind == BOOL else int(number)
        return values

    def type_counts(self, rows: Where) -> dict[str, int]:
        """How many of these rows have a value of each of TYPES, those without one left out."""
        counts = np.bincount(self._rows.arrays(rows)[0], minlength=len(TYPES)).tolist()
        return {name: count for name, count in zip(TYPES[1:], counts[1:], strict=True) if count}

    def code(self, text: str) -> int:
        """The code of a string; −1 if the column never had it."""
        return self._strings.code(text)

    def instants(self, codes: Bits) -> Instants:
        """The instants of strings, complex128[n], by their codes, int64[n]; NaN for those that are no datetimes."""
        return self._strings.instants()[codes]

    def compared_strings(self, op: str, text: str) -> Mask:
        """Which strings of the dictionary are lt, lte, gt or gte `text` in the order of code points, bool[codes]."""
        return self._strings.compare(op, text)

    def ordered(self) -> tuple[list[str], NDArray[np.int64]]:
        """(the column's strings in ascending order, the rank of each code in this order, int64[codes])."""
        return self._strings.order()

    def present(self, where: Where) -> Mask:
        """Which of these rows have a value, which may be an empty array."""
        return self._rows.arrays(where)[0] != ABSENT

    def equal(self, value: Value, where: Where) -> Mask:
        """Which of these rows are equal to `value`."""
        return self._matching("eq", (value,), where)

    def equal_any(self, values: Sequence[Value], where: Where) -> Mask:
        """Which of these rows are equal to one of `values`."""
        return self._matching("in", values, where)

    def compare(self, op: str, value: Value, where: Where) -> Mask:
        """Which of these rows are lt, lte, gt or gte `value`; values of another kind are not comparable, so they never
        match."""
        return self._matching(op, (value,), where)

    def has(self, values: Sequence[Value], where: Where) -> Mask:
        """Which of these rows have one of `values`, also as an element. Texts are equal if all their characters are:
        two texts for one instant are two values."""
        return self._matching("has", values, where)

    def within(self, values: Sequence[Value], where: Where) -> Mask:
        """Which of these rows have nothing but `values`, compared as in `has`. An empty array has nothing."""
        tests = list(self._tests("has", values))
        kinds, bits = self._rows.arrays(where)
        mask = any_of(tests, kinds, bits) | (kinds == ARRAY)
        if len(self._owners):
            elements, places = self._elements_of(where)
            mask[places[~any_of(tests, *self._elements.arrays(elements))]] = False
        return mask

    def _matching(self, op: str, values: Sequence[Value], where: Where) -> Mask:
        tests = list(self._tests(op, values))
        mask = any_of(tests, *self._rows.arrays(where))
        if len(self._owners):
            elements, places = self._elements_of(where)
            mask[places[any_of(tests, *self._elements.arrays(elements))]] = True
        return mask

    def _elements_of(self, where: Where) -> tuple[Where, NDArray[np.integer]]:
        """The elements of these rows' arrays, and for each the place of its row in `where`."""
        owners = self._owners
        if isinstance(where, slice):
            first, end = np.searchsorted(owners, np.array([where.start, where.stop], np.int32)).tolist()
            return slice(first, end), owners[first:end] - where.start
        rows = where.astype(np.int32)
        firsts = np.searchsorted(owners, rows)
        counts = np.searchsorted(owners, rows, "right") - firsts
        ends = np.cumsum(counts)
        elements = np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + counts, counts)
        return elements, np.repeat(np.arange(len(rows)), counts)

    def _tests(self, op: str, values: Sequence[Value]) -> Iterator[Test]:
        """Tests of kinds and bits: a value satisfies the comparison with `values` if it satisfies one of the tests."""
        plain, instants, text = divided(op, values) if op != "has" else (values, np.zeros(0, np.complex128), None)
        op = op if op != "has" else "in"
        codes = [self.code(value) for value in plain if isinstance(value, str)]
        bools = [int(value) for value in plain if isinstance(value, bool)]
        numbers = [value for value in plain if not isinstance(value, str | bool)]
        if text is not None:
            yield self._test_of_order(op, text)
        if len(instants):
            yield self._test_of_instants(op, instants.tolist())
        if codes:
            yield lambda kinds, bits: (kinds == STRING) & fits(op, bits, codes)
        if bools:
            yield lambda kinds, bits: (kinds == BOOL) & fits(op, bits, bools)
        if numbers and op in EQUALITY:
            floats, integers = equal_floats(numbers), equal_integers(numbers)
            yield lambda kinds, bits: (kinds == FLOAT) & fits(op, bits.view(np.float64), floats)
            yield lambda kinds, bits: (kinds == INTEGER) & fits(op, bits, integers)
        elif numbers:
            yield lambda kinds, bits: (kinds == FLOAT) & ordered_floats(op, bits.view(np.float64), numbers[0])
            yield lambda kinds, bits: (kinds == INTEGER) & ordered_integers(op, bits, numbers[0])

    def _test_of_order(self, op: str, text: str) -> Test:
        chosen = self._strings.compare(op, text)

        def test(kinds: Kinds, bits: Bits) -> Mask:
            known = (kinds == STRING) & (bits < len(chosen))
            return known & chosen[np.where(known, bits, 0)] if len(chosen) else known

        return test

    def _test_of_instants(self, op: str, asked: list[complex]) -> Test:
        instants = self._strings.instants()

        def test(kinds: Kinds, bits: Bits) -> Mask:
            mask = (kinds == STRING) & (bits < len(instants))
            mask[mask] = fits(op, instants[bits[mask]], asked)
            return mask

        return test


def _with_room(array: NDArray, size: int, fill: int = 0) -> NDArray:
    """The array, or a larger copy of it, with room for `size` cells; new ones are `fill`."""
    if size <= len(array):
        return array
    capacity = max(size, len(array) * 3 // 2)
    # The kernel allocates no memory for zeros that are never written.
    larger = np.full(capacity, fill, dtype=array.dtype) if fill else np.zeros(capacity, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _are_owners(owners: NDArray[np.int32], kinds: Kinds) -> bool:
    """Whether `owners` are ascending rows of kind ARRAY."""
    if not len(owners):
        return True
    are_rows = owners[0] >= 0 and owners[-1] < len(kinds) and (owners[1:] >= owners[:-1]).all()
    return bool(are_rows and (kinds[owners] == ARRAY).all())

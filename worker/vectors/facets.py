"""How many of the selected vectors have each value of a field."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shared.errors import BadData
from shared.messages.vectors import Value
from worker.vectors.attribute_column import BOOL, FLOAT, INTEGER, STRING, AttributeColumn
from worker.vectors.attribute_comparison import INT64_MIN
from worker.vectors.attribute_strings import Mask
from worker.vectors.selection import Selection

VALUES_MAX = 200_000
"""Distinct values of a field in one worker. More of them would be counted, sent and merged only to be left out of the
answer."""
TEXT_BYTES_MAX = 32 << 20
"""Characters of all distinct strings together."""


def count_values(selection: Selection, field: str) -> dict[tuple[bool, Value], int]:
    """(whether it is a bool, the value) → how many selected vectors have it, also as an element of an array. An integer
    and a float that are equal are one value. Raises BadData for more distinct values than can be counted."""
    view = selection.collection.view()
    column = view.attributes.column(field)
    if column is None:
        return {}
    mask = selection.mask(view)
    kinds, bits = column.arrays(np.flatnonzero(mask))
    element_kinds, element_bits = _elements(column, mask)
    kinds, bits = np.concatenate([kinds, element_kinds]), np.concatenate([bits, element_bits])
    counts: dict[tuple[bool, Value], int] = {}
    text_bytes = 0
    for kind in (STRING, INTEGER, FLOAT, BOOL):
        selection.check()
        distinct, numbers = _distinct(bits[kinds == kind])
        _require_few(field, len(counts) + len(distinct))
        for value, count in zip(_values(column, kind, distinct), numbers.tolist(), strict=True):
            text_bytes += len(value) if isinstance(value, str) else 0
            key = (kind == BOOL, value)
            counts[key] = counts.get(key, 0) + count
    if text_bytes > TEXT_BYTES_MAX:
        raise BadData(
            f"field {field!r}: its distinct values have {text_bytes} characters; facets are counted of fields with at "
            f"most {TEXT_BYTES_MAX}: narrow the filter"
        )
    return counts


def _elements(column: AttributeColumn, mask: Mask) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(the kinds, the bits) of the elements of the arrays in the rows of `mask`. Equal elements of one row count once,
    also an integer and a float."""
    owners, kinds, bits = column.elements(len(mask))
    places = np.flatnonzero(mask[owners])
    if not len(places):
        return kinds[:0], bits[:0]
    owners, kinds, bits = owners[places], kinds[places], bits[places]
    same_kinds, same_bits = _by_value(kinds, bits)
    order = np.lexsort((same_bits, same_kinds, owners))
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.any([np.diff(array[order]) != 0 for array in (owners, same_kinds, same_bits)], axis=0)
    chosen = order[is_first]
    return kinds[chosen], bits[chosen]


def _by_value(kinds: NDArray[np.uint8], bits: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Kinds and bits that are equal for equal values: floats that are whole numbers become integers."""
    kinds, bits = kinds.copy(), bits.copy()
    floats = bits.view(np.float64)
    places = np.flatnonzero(kinds == FLOAT)
    fits_int64 = (floats[places] >= INT64_MIN) & (floats[places] < -INT64_MIN)
    integral = places[(np.floor(floats[places]) == floats[places]) & fits_int64]
    kinds[integral], bits[integral] = INTEGER, floats[integral].astype(np.int64)
    return kinds, bits


def _distinct(bits: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the distinct numbers, how often each occurs)."""
    if not len(bits):
        return bits, bits
    least, span = int(bits.min()), int(bits.max()) - int(bits.min()) + 1
    if span > 4 * len(bits) + 1024:
        return np.unique(bits, return_counts=True)
    numbers = np.bincount(bits - least)  # several times faster than sorting, for codes and small integers
    present = np.flatnonzero(numbers)
    return present + least, numbers[present]


def _values(column: AttributeColumn, kind: int, distinct: NDArray[np.int64]) -> Iterator[Value]:
    if kind == STRING:
        texts, ranks = column.ordered()
        return (texts[rank] for rank in ranks[distinct].tolist())
    if kind == FLOAT:
        return iter(distinct.view(np.float64).tolist())
    return map(bool, distinct.tolist()) if kind == BOOL else iter(distinct.tolist())


def _require_few(field: str, count: int) -> None:
    if count > VALUES_MAX:
        raise BadData(
            f"field {field!r} has {count} distinct values in one worker; facets are counted of fields with at most "
            f"{VALUES_MAX}: narrow the filter"
        )

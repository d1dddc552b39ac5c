"""One page of a scroll: the first selected vectors after a position, by id or by the values of a field.

A page begins after the last position of the page before, not at an offset. So a vector that exists throughout a scroll
(and, by a field, keeps its value) is in exactly one page, whatever is written meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.messages.selected_vectors import KINDS, Position, kind_of
from shared.messages.vectors import Value
from worker.vectors.attribute_column import BOOL, FLOAT, INTEGER, STRING, AttributeColumn, Where
from worker.vectors.attribute_strings import Mask
from worker.vectors.selection import Selection
from worker.vectors.stored_rows import READ_AT_ONCE
from worker.vectors.table import TableView

COLUMN_KINDS = {"bool": (BOOL,), "number": (INTEGER, FLOAT), "string": (STRING,)}

Keys = NDArray[Any]


def page(selection: Selection, field: str, after: Position | None, limit: int, *, descending: bool) -> list[Position]:
    """The positions of the first `limit` selected vectors after `after`; without `field`, by id.

    Values are in the order of KINDS, numbers by value; descending, the kinds and the values in a kind are reversed.
    Equal values, and vectors without one, are by id, ascending. Raises StoreDamaged, Unavailable.
    """
    kinds = [*reversed(KINDS[:-1]), KINDS[-1]] if descending else list(KINDS)
    if not field:
        kinds = kinds[-1:]
    elif after is not None:
        kinds = kinds[kinds.index(kind_of(after.value)) :]
    positions: list[Position] = []
    for kind in kinds:
        begin = after if after is not None and kind == kind_of(after.value) else None
        wanted = limit - len(positions)
        if not wanted:
            break
        if kind == "none":
            also = partial(_without_value, field) if field else None
            names = selection.first_ids(begin.id if begin is not None else b"", wanted, also)
            positions += [Position(None, name) for name in names]
        else:
            positions += _of_kind(selection, field, kind, begin, wanted, descending=descending)
    return positions


def _of_kind(
    selection: Selection, field: str, kind: str, after: Position | None, limit: int, *, descending: bool
) -> list[Position]:
    """The first vectors whose values are of one kind."""
    positions: list[Position] = []
    edge: Value | None = None
    if after is not None:
        edge = after.value
        assert edge is not None
        positions = _equal(selection, field, edge, after.id, limit)
    while len(positions) < limit:
        later, edge = _later_than(selection, field, kind, edge, limit - len(positions), descending=descending)
        positions += later
        if edge is None:
            break
        # Some of the vectors with this value may have changed since. Then there is still room for later ones.
        positions += _equal(selection, field, edge, b"", limit - len(positions))
    return positions


def _later_than(
    selection: Selection, field: str, kind: str, value: Value | None, limit: int, *, descending: bool
) -> tuple[list[Position], Value | None]:
    """(the first vectors whose values come after `value`, None: all of this kind; the value of the next ones). If there
    are more than `limit`, they are those before the value of number `limit`, which may be the value of many vectors."""
    selection.check()
    view = selection.collection.view()
    column = view.attributes.column(field)
    if column is None:
        return [], None
    rows = np.flatnonzero(selection.mask(view) & _has_kind(column, COLUMN_KINDS[kind], slice(0, view.size)))
    keys, texts = _keys(column, kind, rows)
    if value is not None:
        is_later = _later(keys, texts, value, descending=descending)
        rows, keys = rows[is_later], keys[is_later]
    if descending:
        keys = ~keys if keys.dtype.kind == "i" else -keys
    edge: Value | None = None
    if len(keys) > limit:
        kth = np.partition(keys, limit - 1)[limit - 1]
        edge = _values(column, rows[np.flatnonzero(keys == kth)[:1]])[0]
        rows, keys = rows[keys < kth], keys[keys < kth]
    ids = view.ids
    ordered = sorted(zip(keys.tolist(), [ids[row] for row in rows.tolist()], rows.tolist(), strict=True))
    values = _values(column, np.array([row for _, _, row in ordered], dtype=np.int64))
    return [Position(row_value, name) for row_value, (_, name, _) in zip(values, ordered, strict=True)], edge


def _equal(selection: Selection, field: str, value: Value, after: bytes, limit: int) -> list[Position]:
    """The first vectors with one value, by id."""
    names = selection.first_ids(after, limit, partial(_with_value, field, value))
    return [Position(value, name) for name in names]


def _has_kind(column: AttributeColumn, kinds: Sequence[int], where: Where) -> Mask:
    return np.isin(column.arrays(where)[0], kinds)


def _with_value(field: str, value: Value, view: TableView, where: Where) -> Mask:
    column = view.attributes.column(field)
    if column is None:
        return np.zeros(_length(where), dtype=np.bool_)
    kind = kind_of(value)
    kinds, bits = column.arrays(where)
    mask = np.isin(kinds, COLUMN_KINDS[kind])
    if isinstance(value, str):  # the same text, unlike a filter, to which datetimes of one instant are equal
        mask &= bits == column.code(value)
    else:
        mask[mask] = _numbers(kinds[mask], bits[mask]) == np.longdouble(value)
    return mask


def _without_value(field: str, view: TableView, where: Where) -> Mask:
    column = view.attributes.column(field)
    if column is None:
        return np.ones(_length(where), dtype=np.bool_)
    return ~_has_kind(column, (BOOL, INTEGER, FLOAT, STRING), where)


def _length(where: Where) -> int:
    return where.stop - where.start if isinstance(where, slice) else len(where)


def _keys(column: AttributeColumn, kind: str, rows: NDArray[np.int64]) -> tuple[Keys, list[str]]:
    """(a number for each of these rows, which are all of this kind, in the order of their values; for strings, the
    sorted texts of which the numbers are the ranks: a text that is written later changes the ranks of others)."""
    kinds, bits = column.arrays(rows)
    if kind != "string":
        return _numbers(kinds, bits), []
    texts, ranks = column.ordered()
    return ranks[bits], texts


def _numbers(kinds: NDArray[np.uint8], bits: NDArray[np.int64]) -> Keys:
    """The numbers, or bools, that cells of these kinds have."""
    is_float = kinds == FLOAT
    if not is_float.any():
        return bits
    floats = bits.view(np.float64)
    if is_float.all():
        return floats
    # A long double represents every int64 and every double, so they compare exactly.
    return np.where(is_float, floats.astype(np.longdouble), bits.astype(np.longdouble))


def _later(keys: Keys, texts: list[str], value: Value, *, descending: bool) -> Mask:
    """Which keys come after that of `value`, see `_keys`."""
    if isinstance(value, str):
        edge: Any = bisect_left(texts, value) if descending else bisect_right(texts, value)
        return keys < edge if descending else keys >= edge
    edge = np.longdouble(value)
    return keys < edge if descending else keys > edge


def _values(column: AttributeColumn, rows: NDArray[np.int64]) -> list[Value]:
    """The values of these rows."""
    kinds, bits = column.arrays(rows)
    floats = bits.view(np.float64).tolist()
    texts, ranks = column.ordered() if STRING in kinds else ([], bits)
    values: list[Value] = []
    for kind, number, fraction in zip(kinds.tolist(), bits.tolist(), floats, strict=True):
        if kind == STRING:
            values.append(texts[int(ranks[number])])
        elif kind == FLOAT:
            values.append(fraction)
        else:
            values.append(bool(number) if kind == BOOL else number)
    return values


Content = tuple[bytes, bytes]
"""(components as float32, packed attributes)"""


def contents(
    selection: Selection, positions: Sequence[Position], bytes_max: int
) -> tuple[list[Position], list[Content], int]:
    """(those of the positions that still exist, their contents, how many of the positions were read): fewer than all of
    them if the contents reach `bytes_max` bytes first. Raises StoreDamaged, Unavailable."""
    collection = selection.collection
    existing: list[Position] = []
    position_contents: list[Content] = []
    size = 0
    names = [position.id for position in positions]
    shards = collection.shards_of(names)
    for start in range(0, len(positions), READ_AT_ONCE):
        selection.check()
        end = start + READ_AT_ONCE
        for place, content in enumerate(collection.contents_of(names[start:end], shards[start:end]), start):
            if content is None:
                continue
            existing.append(positions[place])
            position_contents.append(content)
            size += len(content[0]) + len(content[1])
            if size >= bytes_max:
                return existing, position_contents, place + 1
    return existing, position_contents, len(positions)

"""Locates, measures and reads the exemplars of a remote-write 2.0 body (`coordinator.series.walk_v2`).

Their labels are references into the body's symbol table, and any number of exemplars can refer to the same long text.
Therefore each text is checked only once, and all labels are measured before any of them is written. The result is the
same as for version 1.0 (`coordinator.series.exemplars`).
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series import exemplars
from coordinator.series.exemplars import (
    BEGIN,
    DETAIL,
    DETAIL_END,
    FAULT,
    LABELS_AT,
    LABELS_AT_END,
    MALFORMED,
    MESSAGE_END,
    NAMELESS,
    NOT_UTF8,
    PAST_TABLE,
    ROW,
    TIME,
    UNPAIRED,
    VALUE,
    Exemplars,
    add_label,
    characters,
    put_labels,
    settle,
)
from coordinator.series.symbols import BEGIN as SYMBOL_BEGIN
from coordinator.series.symbols import SYMBOL_END
from coordinator.series.walk import END, LABELS, PLAIN, STATUS, is_utf8
from coordinator.series.walk_v2 import EXEMPLARS_BEGIN, EXEMPLARS_END, any_field
from shared.frames.exemplars import LABEL_CHARACTERS_MAX
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import integer
from shared.xxh64 import Bytes, load64

_LABEL_BYTES_MORE = 9
"""The most bytes of an exemplar's label besides its name and its value: three tags and three lengths."""
LABEL_BYTES_MAX = 4 * LABEL_CHARACTERS_MAX + _LABEL_BYTES_MORE * (LABEL_CHARACTERS_MAX // 2)
"""The most bytes of the labels of one valid exemplar: all characters have four bytes, and each name and value has one
character."""

_UNKNOWN, _NO_TEXT = -1, -2
_REFERENCE = 0xFFFFFFFF
"""Mask of the bits of a reference: the protobuf library drops the higher ones."""

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


@inlined(allocates=False)
def _is_reference(tag: int) -> bool:
    """Whether a field contains references, either packed or a single one."""
    return tag == 0x0A or tag == 0x08


@kernel(types.int64(Bytes, types.int64, types.int64, _TABLE), first=True, allocates=False)
def _label_bytes_bound(body: np.ndarray, at: int, end: int, symbols: np.ndarray) -> int:
    """An upper bound of the bytes that the labels of the exemplar body[at:end] take in canonical form."""
    size, references = 0, 0
    while at < end and size < LABEL_BYTES_MAX:
        tag, content, at = any_field(body, at, end)
        if tag < 0:
            return 0
        while _is_reference(tag) and content < at:
            reference, content = integer(body, content, at)
            if content < 0 or reference & _REFERENCE >= len(symbols):
                return 0
            symbol = symbols[reference & _REFERENCE]
            size += symbol[SYMBOL_END] - symbol[SYMBOL_BEGIN] + (references & 1) * _LABEL_BYTES_MORE
            references += 1
    return min(size, LABEL_BYTES_MAX)


@kernel(types.int64(Bytes, _INTS, _INTS, _INTS), first=True, allocates=False)
def _count(body: np.ndarray, begins: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> int:
    """Fill in `counts` (zeros before): the number of exemplars among the TimeSeries fields body[begins[i]:ends[i]], up
    to a truncated field. Returns the total."""
    total = 0
    for i in range(len(begins)):
        at = begins[i]
        while at < ends[i]:
            tag, _, at = any_field(body, at, ends[i])
            if tag < 0:
                break
            counts[i] += np.int64(tag == 0x22)
        total += counts[i]
    return total


@kernel(types.int64(Bytes, _TABLE, _INTS, _INTS, _INTS, _INTS, _TABLE), first=True, allocates=False)
def _locate(
    body: np.ndarray,
    symbols: np.ndarray,
    rows: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    counts: np.ndarray,
    table: np.ndarray,
) -> int:
    """Fill in ROW, BEGIN and MESSAGE_END of the exemplars that `_count` counted. rows[i] is the series of span i.
    Returns an upper bound of the bytes of their labels."""
    size, i = 0, 0
    for span in range(len(rows)):
        at, last = begins[span], i + counts[span]
        while i < last:
            tag, content, at = any_field(body, at, ends[span])
            if tag == 0x22:
                table[i, ROW], table[i, BEGIN], table[i, MESSAGE_END] = rows[span], content, at
                size += _label_bytes_bound(body, content, at, symbols)
                i += 1
    return size


@inlined(allocates=False)
def _characters_of(body: np.ndarray, symbols: np.ndarray, symbol: int, known: np.ndarray) -> int:
    """The number of characters of a symbol, or _NO_TEXT if it is not UTF-8. `known` caches the results, by symbol."""
    if known[symbol] == _UNKNOWN:
        begin, end = symbols[symbol, SYMBOL_BEGIN], symbols[symbol, SYMBOL_END]
        known[symbol] = characters(body, begin, end) if is_utf8(body, begin, end) else _NO_TEXT
    return known[symbol]


@kernel(types.int64(Bytes, _TABLE, _INTS, _INTS, _TABLE, _INTS), first=True)
def _read_one(
    body: np.ndarray, symbols: np.ndarray, known: np.ndarray, row: np.ndarray, spans: np.ndarray, order: np.ndarray
) -> int:
    """Read the message of one exemplar into TIME, VALUE, FAULT and DETAIL of its row. Its labels go to `spans`, and
    their ascending order to `order`. Returns the number of labels. `known` is the cache of `_characters_of`."""
    at, end = row[BEGIN], row[MESSAGE_END]
    count, label_characters, references, name = 0, 0, 0, np.int64(0)
    row[FAULT] = MALFORMED
    while at < end:
        tag, content, at = any_field(body, at, end)
        if tag < 0:
            return 0
        if tag == 0x11:
            row[VALUE] = np.int64(load64(body, content))
        elif tag == 0x18:
            row[TIME], _ = integer(body, content, at)
        while _is_reference(tag) and content < at:
            symbol, content = integer(body, content, at)
            if content < 0:
                return 0
            symbol &= _REFERENCE
            references += 1
            if symbol >= len(symbols):
                row[FAULT], row[DETAIL], row[DETAIL_END] = PAST_TABLE, symbol, len(symbols)
                return 0
            symbol_characters = _characters_of(body, symbols, symbol, known)
            if symbol_characters < 0:
                row[FAULT] = NOT_UTF8
                return 0
            label_characters += symbol_characters
            if references & 1:
                if symbol_characters == 0:
                    row[FAULT] = NAMELESS
                    return 0
                name = symbol
            elif label_characters <= LABEL_CHARACTERS_MAX:
                name_begin, name_end = symbols[name, SYMBOL_BEGIN], symbols[name, SYMBOL_END]
                value_begin, value_end = symbols[symbol, SYMBOL_BEGIN], symbols[symbol, SYMBOL_END]
                count = add_label(body, row, spans, order, count, name_begin, name_end, value_begin, value_end)
                if count < 0:
                    return 0
    if references & 1:
        row[FAULT], row[DETAIL] = UNPAIRED, references
        return 0
    settle(row, label_characters)
    return count


@kernel(types.void(Bytes, _TABLE, _INTS, _TABLE, _TABLE, _OUT), first=True)
def _read(
    body: np.ndarray,
    symbols: np.ndarray,
    known: np.ndarray,
    table: np.ndarray,
    spans: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Read all exemplars. Write the labels of the valid ones to `labels`, one after another."""
    at = 0
    order = np.empty(len(spans), dtype=np.int64)
    for i in range(len(table)):
        row = table[i]
        count = _read_one(body, symbols, known, row, spans, order)
        row[LABELS_AT] = at
        if row[FAULT] == 0:
            at = put_labels(body, spans, order, count, labels, at)
        row[LABELS_AT_END] = at


@dataclass(frozen=True, slots=True)
class Located:
    """The exemplars of a request, before they are read."""

    table: NDArray[np.int64]
    """int64[n, exemplars.COLUMNS], of which ROW (the number of the series), BEGIN and MESSAGE_END are filled in."""
    plain: int
    """How many belong to plain series. These come first in the table."""
    odd_counts: NDArray[np.int64]
    """int64[odd series]: how many belong to each odd series."""
    label_bytes: int
    """An upper bound of the bytes of their labels."""
    left_out: int
    """How many are not stored because exemplars are disabled."""

    def read(self, body: NDArray[np.uint8], symbols: NDArray[np.int64]) -> Exemplars:
        """Read all of them. Faults are in the table of the result."""
        labels = np.empty(self.label_bytes, dtype=np.uint8)
        spans = np.empty((LABEL_CHARACTERS_MAX, 4), dtype=np.int64)
        _read(body, symbols, np.full(len(symbols), _UNKNOWN), self.table, spans, labels)
        return Exemplars(body, self.table, labels)


_NO_ROWS = np.zeros((0, exemplars.COLUMNS), dtype=np.int64)
NONE = Located(_NO_ROWS, 0, np.zeros(0, dtype=np.int64), 0, 0)


def locate(
    body: NDArray[np.uint8],
    symbols: NDArray[np.int64],
    table: NDArray[np.int64],
    references: NDArray[np.int32],
    odd: NDArray[np.int64],
    count_max: int,
) -> Located:
    """Locate the exemplars of all series of a survey. `odd`: the rows of the series that are not plain. `count_max`:
    the limit on exemplars, or 0 if none is to be stored. Raises TooLarge for more than the limit."""
    plain = np.flatnonzero((table[:, STATUS] == PLAIN) & (references[:, EXEMPLARS_END] > 0))
    rows = np.concatenate([plain, odd])
    begins = np.concatenate([references[plain, EXEMPLARS_BEGIN], table[odd, LABELS]])
    ends = np.concatenate([references[plain, EXEMPLARS_END], table[odd, END]])
    counts = np.zeros(len(rows), dtype=np.int64)
    total = _count(body, begins, ends, counts)
    if not count_max:
        return Located(_NO_ROWS, 0, np.zeros_like(odd), 0, total)
    exemplars.check_count(total, count_max)
    located = np.zeros((total, exemplars.COLUMNS), dtype=np.int64)
    label_bytes = _locate(body, symbols, rows, begins, ends, counts, located)
    return Located(located, int(counts[: len(plain)].sum()), counts[len(plain) :], label_bytes, 0)

"""Kernels that locate the members of a JSON object and the elements of a JSON array, without creating Python objects.

They only check the nesting and order of strings, brackets, colons and commas at the level that they walk. A decoder
checks everything between them. Every read is checked against the end of the text.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from shared.kernels import kernel, types
from shared.protobuf_fields import SLICE_BEGIN, SLICE_END, SLICE_FIRST
from shared.xxh64 import Bytes

BROKEN, TOO_DEEP = -1, -2
"""First result of the kernels for text that is not JSON or exceeds a limit."""
DEPTH_MAX = 128
"""The deepest nesting of brackets within one value. The deepest valid filter has 97."""

_QUOTE, _BACKSLASH, _SLASH, _COMMA, _COLON = (ord(c) for c in '"\\/,:')
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = (ord(c) for c in "{}[]")

# What a byte outside of strings means for the end of a value.
_PLAIN, _ENDS_SCALAR, _TEXT, _OPENS, _CLOSES = range(5)
_KINDS = np.zeros(256, np.uint8)
_KINDS[[_COMMA, 32, 9, 10, 13]] = _ENDS_SCALAR
_KINDS[_QUOTE] = _TEXT
_KINDS[[_OPEN_OBJECT, _OPEN_ARRAY]] = _OPENS
_KINDS[[_CLOSE_OBJECT, _CLOSE_ARRAY]] = _CLOSES

_TRIPLE = types.UniTuple(types.int64, 3)
_TABLE = types.Array(types.int64, 2, "C")


@kernel(types.int64(Bytes, types.int64, types.int64))
def past_space(text: np.ndarray, at: int, end: int) -> int:
    """The first position from `at` on without white space."""
    while at < end and text[at] <= 32 and text[at] in (32, 9, 10, 13):
        at += 1
    return at


@kernel(types.int64(Bytes, types.int64, types.int64))
def _past_text(text: np.ndarray, at: int, end: int) -> int:
    """The position after the string whose opening quote is at `at`; BROKEN if it is not closed."""
    at += 1
    while at < end:
        if text[at] == _QUOTE:
            return at + 1
        at += 2 if text[at] == _BACKSLASH else 1
    return BROKEN


@kernel(types.int64(Bytes, types.int64, types.int64))
def past_value(text: np.ndarray, at: int, end: int) -> int:
    """The position after the value at `at`, which must not be white space; BROKEN, or TOO_DEEP beyond DEPTH_MAX."""
    begin, depth = at, 0
    while at < end:
        if depth > 0:
            while at < end and _KINDS[text[at]] <= _ENDS_SCALAR:  # most bytes belong to numbers
                at += 1
            if at == end:
                break
        kind = _KINDS[text[at]]
        if kind == _PLAIN:
            at += 1
        elif kind == _TEXT:
            at = _past_text(text, at, end)
            if at < 0 or depth == 0:
                return at
        elif kind == _OPENS:
            depth += 1
            if depth > DEPTH_MAX:
                return TOO_DEEP
            at += 1
        elif depth == 0:
            break
        else:
            depth -= 1
            at += 1
            if depth == 0:
                return at
    return at if depth == 0 and at > begin else BROKEN


@kernel(_TRIPLE(Bytes, types.int64, types.int64))
def member(text: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """Locate the member of an object whose name begins at `at`: (where the name begins, where it ends, where the value
    begins), or (BROKEN, …) for anything else."""
    if at >= end or text[at] != _QUOTE:
        return BROKEN, at, at
    name_end = _past_text(text, at, end)
    if name_end < 0:
        return BROKEN, at, at
    colon = past_space(text, name_end, end)
    if colon >= end or text[colon] != _COLON:
        return BROKEN, at, at
    return at, name_end, past_space(text, colon + 1, end)


@kernel(_TRIPLE(Bytes, types.int64, types.int64, types.int64, types.int64, _TABLE))
def slices(text: np.ndarray, at: int, end: int, most: int, slice_bytes: int, table: np.ndarray) -> tuple[int, int, int]:
    """Split the array at `at` into slices: (number of elements, number of slices, where the array ends), or (BROKEN or
    TOO_DEEP, position, …) for anything else.

    A slice consists of consecutive elements and the commas between them. It has at most `slice_bytes`, or one element.
    `table` (int64[…, 3], columns as for `protobuf_fields.message_slices`) must have room for 2 + 2 * (end - at) //
    slice_bytes slices. Elements beyond the first `most` are counted, but are in no slice.
    """
    if at >= end or text[at] != _OPEN_ARRAY:
        return BROKEN, at, at
    at = past_space(text, at + 1, end)
    if at < end and text[at] == _CLOSE_ARRAY:
        return 0, 0, at + 1
    count, slice_count, begin, element_end = 0, 0, at, at
    while True:
        value_end = past_value(text, at, end)
        if value_end < 0:
            return value_end, at, at
        if count < most:
            if count > 0 and value_end - begin > slice_bytes:
                table[slice_count, SLICE_END] = element_end
                slice_count += 1
                begin = at
            if begin == at:
                table[slice_count, SLICE_BEGIN], table[slice_count, SLICE_FIRST] = at, count
            element_end = value_end
        count += 1
        at = past_space(text, value_end, end)
        if at < end and text[at] == _CLOSE_ARRAY:
            table[slice_count, SLICE_END] = element_end
            return count, slice_count + 1, at + 1
        if at >= end or text[at] != _COMMA:
            return BROKEN, at, at
        at = past_space(text, at + 1, end)


@kernel(types.int64(Bytes, types.Array(types.uint8, 1, "C")))
def without_slash_escapes(text: np.ndarray, out: np.ndarray) -> int:
    """Copy `text` to `out`, which is as long, replacing every \\/, which some encoders write, by /. Returns the
    length."""
    at, place = 0, 0
    while at < len(text):
        if text[at] == _BACKSLASH and at + 1 < len(text):
            if text[at + 1] != _SLASH:
                out[place] = _BACKSLASH
                place += 1
            at += 1
        out[place] = text[at]
        place += 1
        at += 1
    return place

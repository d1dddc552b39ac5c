"""Where what stands in a frame of histograms (`frames.py`), for those who write one and those who read one.

A frame is a header and twelve arrays, each from a word of 8 bytes on, with zeros behind it up to the next. The header:
version, the codes of the types of `observations` and of `counts`, and two zeros in a byte each, two more zeros of 2
bytes; uint32 numbers of rows, of layouts, of the buckets and of the boundaries of all layouts; the uint64 number of the
counts of all rows. All is in the order of bytes of x86-64.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shared import kernel_types as types
from shared.histograms.batch import INTS, Ints
from shared.kernels import inlined, kernel

VERSION = 1
HEADER_WORDS = 4

U1, U2, U4, F8 = range(4)
"""The codes of the types of numbers, of 2^code bytes each."""
CODES = 4

_BYTE, _HALF, _LOW = 0xFF, 32, 0xFFFF_FFFF
_TWO_52, EXPONENT_52 = 2.0**52, 0x433
"""Added to 2^52, a whole number from 0 to below 2^52 is the lower 52 bits of the sum."""


class Sections(NamedTuple):
    """The numbers in the header of a frame, and behind them the word at which each of its arrays begins; `end` is the
    word behind the last one."""

    rows: int
    layouts: int
    buckets: int
    bounds: int
    counts: int
    """Of all rows together."""
    count_code: int
    observation_code: int

    zero_thresholds: int
    """float64 of each layout."""
    bound_at: int
    """float64 boundaries, of one layout after another."""
    sums: int
    """float64 of each row."""
    counts_at: int
    """Of one row after another, in the order of the buckets of its layout."""
    observations: int
    """Of each row."""
    zero_places: int
    """int32 of each layout: the place of its zero bucket."""
    layout_sizes: int
    """int32 of each layout: how many buckets it has."""
    bound_sizes: int
    """int32 of each layout: how many boundaries it has."""
    indexes: int
    """int32 of the buckets of one layout after another."""
    layout: int
    """int32 of each row: the number of its layout."""
    schemas: int
    """int8 of each layout."""
    flags: int
    """uint8 of each row."""
    end: int


SECTIONS = types.NamedUniTuple(types.int64, len(Sections._fields), Sections)


@inlined(allocates=False)
def size_of(code: Any) -> Any:
    """The bytes of a number of the type with this code."""
    return np.int64(1) << code


@inlined(allocates=False)
def _after(place: Any, items: Any, size: Any) -> Any:
    """The word behind an array of so many items of this size in bytes."""
    return place + ((items * size + 7) >> 3)


@inlined(allocates=False)
def arranged(
    rows: Any, layouts: Any, buckets: Any, bounds: Any, counts: Any, count_code: Any, observation_code: Any
) -> Any:
    """The `Sections` of a frame with so many of each."""
    zero_thresholds: Any = np.int64(HEADER_WORDS)
    bound_at = _after(zero_thresholds, layouts, 8)
    sums = _after(bound_at, bounds, 8)
    counts_at = _after(sums, rows, 8)
    observations = _after(counts_at, counts, size_of(count_code))
    zero_places = _after(observations, rows, size_of(observation_code))
    layout_sizes = _after(zero_places, layouts, 4)
    bound_sizes = _after(layout_sizes, layouts, 4)
    indexes = _after(bound_sizes, layouts, 4)
    layout = _after(indexes, buckets, 4)
    schemas = _after(layout, rows, 4)
    flags = _after(schemas, layouts, 1)
    end = _after(flags, rows, 1)
    return Sections(
        rows, layouts, buckets, bounds, counts, count_code, observation_code, zero_thresholds, bound_at, sums,
        counts_at, observations, zero_places, layout_sizes, bound_sizes, indexes, layout, schemas, flags, end,
    )  # fmt: skip


@inlined(allocates=False)
def put_header(words: Any, own: Sections) -> None:
    """Write the header of a frame to these words, and zeros to the last word of each of its arrays."""
    for following in own[8:]:
        words[following - 1] = 0
    words[0] = VERSION | own.observation_code << 8 | own.count_code << 16
    words[1] = own.rows | own.layouts << _HALF
    words[2] = own.buckets | own.bounds << _HALF
    words[3] = own.counts


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def sections(words: Ints) -> Sections:
    """Those of the frame that these words begin with, from its header, which must be there."""
    first, second, third = words[0], words[1], words[2]
    return arranged(
        second & _LOW, second >> _HALF & _LOW, third & _LOW, third >> _HALF & _LOW, words[3],
        first >> 16 & _BYTE, first >> 8 & _BYTE,
    )  # fmt: skip


NO_SECTIONS = Sections(*[-1] * len(Sections._fields))


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def sections_within(words: Ints) -> Sections:
    """What `sections` gives, or NO_SECTIONS if these words do not begin with a frame that is known and whole."""
    if words.size < HEADER_WORDS or words[0] & _BYTE != VERSION:
        return NO_SECTIONS
    if max(words[0] >> 8 & _BYTE, words[0] >> 16 & _BYTE) >= CODES:
        return NO_SECTIONS
    if words[3] < 0 or words[3] > 8 * words.size:
        return NO_SECTIONS
    own = sections(words)
    return own if own.end <= words.size else NO_SECTIONS


@inlined(allocates=False)
def number(words: Any, code: Any, place: Any, i: Any) -> Any:
    """Number i, as float64, of the array of the type with this code that begins at word `place`."""
    if code == U1:
        return np.float64(words.view(np.uint8)[8 * place + i])
    if code == U2:
        return np.float64(words.view(np.uint16)[4 * place + i])
    if code == U4:
        return np.float64(words.view(np.uint32)[2 * place + i])
    return words.view(np.float64)[place + i]


@inlined(allocates=False)
def get_numbers(words: Any, code: Any, start: Any, out: Any) -> None:
    """Read numbers of the type with this code, from byte `start` of the words on, into `out` (float64[])."""
    place = start // size_of(code)
    if code == U1:
        octets = words.view(np.uint8)
        for i in range(out.size):
            out[i] = octets[place + i]
    elif code == U2:
        shorts = words.view(np.uint16)
        for i in range(out.size):
            out[i] = shorts[place + i]
    elif code == U4:
        ints = words.view(np.uint32)
        for i in range(out.size):
            out[i] = ints[place + i]
    else:
        floats = words.view(np.float64)
        for i in range(out.size):
            out[i] = floats[place + i]


@inlined(allocates=False)
def digits_of(values: Any) -> Any:
    """What tells the narrowest type of these numbers (`frame_writing`): −1 unless they are whole and from 0 to below
    2^52."""
    digits, others = np.int64(0), np.int64(0)
    for i in range(values.size):  # without a way out, so that it is vectorized
        moved = values[i] + _TWO_52
        digits |= np.float64(moved).view(np.int64)
        # -0.0 too, which has to stay; NaN is not equal to itself.
        others |= np.int64(moved - _TWO_52 != values[i]) | np.float64(values[i]).view(np.int64) >> 63
    return np.int64(-1) if others != 0 else digits


@inlined(allocates=False)
def put_numbers(values: Any, code: Any, words: Any, start: Any) -> Any:
    """Write the values as numbers of the type with this code from byte `start` of the words on. Returns where they
    end."""
    place = start // size_of(code)
    if code == U1:
        octets = words.view(np.uint8)[place : place + values.size]
        for i in range(values.size):
            octets[i] = np.uint8(values[i])
    elif code == U2:
        shorts = words.view(np.uint16)[place : place + values.size]
        for i in range(values.size):
            shorts[i] = np.uint16(values[i])
    elif code == U4:
        ints = words.view(np.uint32)[place : place + values.size]
        for i in range(values.size):
            ints[i] = np.uint32(values[i])
    else:
        floats = words.view(np.float64)[place : place + values.size]
        for i in range(values.size):
            floats[i] = values[i]
    return start + values.size * size_of(code)

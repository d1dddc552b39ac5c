"""The layout of a frame of histograms (`frames.py`), for its writers and readers.

A frame is a header and twelve arrays. Each array begins at a word of 8 bytes, with zeros after the array before. The
header: a byte each for the version, the code of the type of `observations` and that of `counts`; five zero bytes; the
numbers of rows, of layouts, of the buckets of all layouts and of the boundaries of all layouts, as uint32; the number
of the counts of all rows, as uint64. The byte order is little-endian.
"""

# The types of a kernel do not tell numpy integers from ints.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shared.histograms.batch import INTS, Ints
from shared.kernels import inlined, kernel, types

VERSION = 1
HEADER_WORDS = 4

U1, U2, U4, F8 = range(4)
"""The codes of the types of numbers, of 2^code bytes each."""
CODES = 4

_BYTE, _HALF, _LOW = 0xFF, 32, 0xFFFF_FFFF
_TWO_52, EXPONENT_52 = 2.0**52, 0x433
"""If a whole number from 0 to below 2^52 is added to 2^52, it is the lower 52 bits of the sum."""


class Sections(NamedTuple):
    """The numbers in the header of a frame, and then the word at which each of its arrays begins. `end` is the word
    after the last array."""

    rows: int
    layouts: int
    buckets: int
    bounds: int
    counts: int
    """Of all rows."""
    count_code: int
    observation_code: int

    zero_thresholds: int
    """float64 of each layout."""
    bound_at: int
    """float64 boundaries, one layout after another."""
    sums: int
    """float64 of each row."""
    counts_at: int
    """One row after another, each in the order of the buckets of its layout."""
    observations: int
    """Of each row."""
    zero_places: int
    """int32 of each layout: the place of its zero bucket."""
    layout_sizes: int
    """int32 of each layout: how many buckets it has."""
    bound_sizes: int
    """int32 of each layout: how many boundaries it has."""
    indexes: int
    """int32 of each bucket, one layout after another."""
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
    """The size in bytes of a number of the type with this code."""
    return np.int64(1) << code


@inlined(allocates=False)
def _after(place: Any, items: Any, size: Any) -> Any:
    """The word after an array of so many items of this size in bytes."""
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
def put_header(words: Any, frame: Sections) -> None:
    """Write the header of a frame to these words, and zeros to the last word of each of its arrays."""
    for next_array in frame[8:]:
        words[next_array - 1] = 0
    words[0] = VERSION | frame.observation_code << 8 | frame.count_code << 16
    words[1] = frame.rows | frame.layouts << _HALF
    words[2] = frame.buckets | frame.bounds << _HALF
    words[3] = frame.counts


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def sections(words: Ints) -> Sections:
    """The sections of the frame that begins with these words, from its header, which must be complete."""
    first, second, third = words[0], words[1], words[2]
    return arranged(
        second & _LOW, second >> _HALF & _LOW, third & _LOW, third >> _HALF & _LOW, words[3],
        first >> 16 & _BYTE, first >> 8 & _BYTE,
    )  # fmt: skip


NO_SECTIONS = Sections(*[-1] * len(Sections._fields))


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def sections_within(words: Ints) -> Sections:
    """`sections`, or NO_SECTIONS if these words do not begin with a complete frame of a known version."""
    if words.size < HEADER_WORDS or words[0] & _BYTE != VERSION:
        return NO_SECTIONS
    if max(words[0] >> 8 & _BYTE, words[0] >> 16 & _BYTE) >= CODES:
        return NO_SECTIONS
    if words[3] < 0 or words[3] > 8 * words.size:
        return NO_SECTIONS
    frame = sections(words)
    return frame if frame.end <= words.size else NO_SECTIONS


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
    """The bits that determine the narrowest type of these numbers (`frame_writing`): the bitwise or of their sums with
    2^52, or −1 unless all are whole and from 0 to below 2^52."""
    digits, misfits = np.int64(0), np.int64(0)
    for i in range(values.size):  # without an early exit, so that it is vectorised
        total = values[i] + _TWO_52
        digits |= np.float64(total).view(np.int64)
        # Also set by -0.0, which has to be preserved, and by NaN, which is not equal to itself.
        misfits |= np.int64(total - _TWO_52 != values[i]) | np.float64(values[i]).view(np.int64) >> 63
    return np.int64(-1) if misfits != 0 else digits


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

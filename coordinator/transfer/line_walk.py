"""A kernel that reads JSON lines of samples without an object for anything in them.

It checks the lines as far as it reads them. The labels of a line are for a decoder
(`coordinator.transfer.json_reading`).
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.parsing.decimals import DIGITS_MAX, nearest
from coordinator.parsing.json_walk import member, past_space, past_value
from shared.kernels import kernel, types
from shared.promql.model import STALE_NAN_BITS
from shared.xxh64 import Bytes

# Columns of a table of lines: where the line and its labels are, which of the values it has (the first, how many), and
# what it is; WRONG_AT: where what is wrong begins.
BEGIN, END, METRIC, METRIC_END, FIRST, COUNT, STATUS, WRONG_AT = range(8)
COLUMNS = 8
SAMPLES, BLANK, HISTOGRAMS, BROKEN, NO_METRIC, NO_SAMPLES, BAD_VALUE, BAD_TIME, UNEQUAL = range(9)
"""What a line is."""

# Columns of the table of numbers that need more digits than a kernel multiplies exactly.
PLACE, TEXT, TEXT_END = range(3)

_QUOTE, _COMMA, _OPEN, _CLOSE, _BRACE, _END_BRACE = (ord(c) for c in '",[]{}')
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E, _BIG_E, _NEWLINE = (ord(c) for c in "-+.09eE\n")
_STALE = np.int64(STALE_NAN_BITS)

_METRIC_NAME, _VALUES_NAME, _TIMESTAMPS_NAME, _HISTOGRAMS_NAME = (
    np.frombuffer(name, dtype=np.uint8) for name in (b"metric", b"values", b"timestamps", b"histograms")
)
_NULL_WORD, _INF_WORD, _INFINITY_WORD, _NAN_WORD, _STALE_WORD = (
    np.frombuffer(word, dtype=np.uint8) for word in (b"null", b"inf", b"infinity", b"nan", b"stale")
)
_CASE = 32
"""The bit by which the lower-case and the upper-case form of an ASCII letter differ."""

_PAIR = types.UniTuple(types.int64, 2)
_TABLE = types.Array(types.int64, 2, "C")
_INTS, _FLOATS = types.int64[::1], types.float64[::1]


@kernel(types.Tuple((types.int64, types.float64, types.boolean))(Bytes, types.int64, types.int64), allocates=False)
def _number(text: np.ndarray, at: int, end: int) -> tuple[int, float, bool]:
    """The JSON number at `at`: (where it ends or -1, the number, whether that is exact)."""
    is_negative = at < end and text[at] == _MINUS
    if is_negative:
        at += 1
    mantissa, digits, exponent, begin = np.uint64(0), 0, 0, at
    while at < end and _ZERO <= text[at] <= _NINE:
        if digits < DIGITS_MAX:
            mantissa = mantissa * np.uint64(10) + np.uint64(text[at] - _ZERO)
            digits += np.int64(mantissa > np.uint64(0))
        else:
            digits += 1
        at += 1
    if at == begin:
        return -1, 0.0, False
    if at < end and text[at] == _POINT:
        at += 1
        begin = at
        while at < end and _ZERO <= text[at] <= _NINE:
            if digits < DIGITS_MAX:
                mantissa = mantissa * np.uint64(10) + np.uint64(text[at] - _ZERO)
                digits += np.int64(mantissa > np.uint64(0))
                exponent -= 1
            else:
                digits += 1
            at += 1
        if at == begin:
            return -1, 0.0, False
    if at < end and (text[at] == _E or text[at] == _BIG_E):
        at += 1
        sign = 1
        if at < end and (text[at] == _MINUS or text[at] == _PLUS):
            sign = -1 if text[at] == _MINUS else 1
            at += 1
        begin, power = at, 0
        while at < end and _ZERO <= text[at] <= _NINE:
            power = min(power * 10 + np.int64(text[at] - _ZERO), 100_000)
            at += 1
        if at == begin:
            return -1, 0.0, False
        exponent += sign * power
    is_exact, value = nearest(mantissa, digits, exponent)
    return at, -value if is_negative else value, is_exact


@kernel(types.boolean(Bytes, types.int64, types.int64, Bytes, types.int64), allocates=False)
def _is(text: np.ndarray, at: int, end: int, word: np.ndarray, fold: int) -> bool:
    """Whether text[at:end] is this word of lower-case letters; `fold`: _CASE to ignore the case, else 0."""
    if end - at != len(word):
        return False
    i = 0
    while i < len(word) and text[at + i] | fold == word[i]:
        i += 1
    return i == len(word)


@kernel(types.Tuple((types.int64, types.int64))(Bytes, types.int64, types.int64), allocates=False)
def _word(text: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """A value that is no number, `null` or a text: (where it ends or -1, the bits that it stands for)."""
    nan, infinity = np.int64(0x7FF8000000000000), np.int64(0x7FF0000000000000)
    if at + 4 <= end and _is(text, at, at + 4, _NULL_WORD, 0):
        return at + 4, nan
    if at >= end or text[at] != _QUOTE:
        return -1, nan
    at += 1
    is_negative = at < end and text[at] == _MINUS
    if at < end and (is_negative or text[at] == _PLUS):
        at += 1
    begin = at
    while at < end and text[at] != _QUOTE:
        at += 1
    if at >= end:
        return -1, nan
    if _is(text, begin, at, _INF_WORD, _CASE) or _is(text, begin, at, _INFINITY_WORD, _CASE):
        return at + 1, infinity | np.int64(-0x8000000000000000) if is_negative else infinity
    if _is(text, begin, at, _NAN_WORD, _CASE):
        return at + 1, nan
    if _is(text, begin, at, _STALE_WORD, _CASE):
        return at + 1, _STALE
    return -1, nan


@kernel(
    types.UniTuple(types.int64, 3)(Bytes, types.int64, types.int64, _FLOATS, _INTS, types.int64, _TABLE, types.int64),
    allocates=False,
)
def _values(
    text: np.ndarray,
    at: int,
    end: int,
    values: np.ndarray,
    bits: np.ndarray,
    place: int,
    long: np.ndarray,
    longs: int,
) -> tuple[int, int, int]:
    """Read the array at `at` into values[place:]: (where it ends, how many values are there then, how many rows `long`
    has); (-1, where the wrong value is, …) for what is no such array."""
    if at >= end or text[at] != _OPEN:
        return -1, at, longs
    at = past_space(text, at + 1, end)
    if at < end and text[at] == _CLOSE:
        return at + 1, place, longs
    while True:
        begin = at
        if at < end and (text[at] == _QUOTE or text[at] == 110):
            at, bits[place] = _word(text, at, end)
            if at < 0:
                return -1, begin, longs
        else:
            at, value, is_exact = _number(text, at, end)
            if at < 0:
                return -1, begin, longs
            values[place] = value
            if not is_exact:
                long[longs, PLACE], long[longs, TEXT], long[longs, TEXT_END] = place, begin, at
                longs += 1
        place += 1
        at = past_space(text, at, end)
        if at < end and text[at] == _CLOSE:
            return at + 1, place, longs
        if at >= end or text[at] != _COMMA:
            return -1, at, longs
        at = past_space(text, at + 1, end)


@kernel(_PAIR(Bytes, types.int64, types.int64, _INTS, types.int64), allocates=False)
def _times(text: np.ndarray, at: int, end: int, times: np.ndarray, place: int) -> tuple[int, int]:
    """Read the array of whole numbers at `at` into times[place:]: (where it ends, how many are there then); (-1, where
    the wrong one is) for what is no such array."""
    if at >= end or text[at] != _OPEN:
        return -1, at
    at = past_space(text, at + 1, end)
    if at < end and text[at] == _CLOSE:
        return at + 1, place
    while True:
        begin = at
        is_negative = at < end and text[at] == _MINUS
        if is_negative:
            at += 1
        first, time = at, 0
        while at < end and _ZERO <= text[at] <= _NINE:
            time = time * 10 + np.int64(text[at] - _ZERO)
            at += 1
        if at == first or at - first > DIGITS_MAX:
            return -1, begin
        times[place] = -time if is_negative else time
        place += 1
        at = past_space(text, at, end)
        if at < end and text[at] == _CLOSE:
            return at + 1, place
        if at >= end or text[at] != _COMMA:
            return -1, begin
        at = past_space(text, at + 1, end)


_LABELS, _VALUES, _TIMES, _HISTOGRAMS = range(1, 5)


@kernel(types.int64(Bytes, types.int64, types.int64), allocates=False)
def _name(text: np.ndarray, at: int, end: int) -> int:
    """Which member has this name, whose quotes are at `at` and before `end`; 0 for one that means nothing here."""
    at, end = at + 1, end - 1
    if _is(text, at, end, _METRIC_NAME, 0):
        return _LABELS
    if _is(text, at, end, _VALUES_NAME, 0):
        return _VALUES
    if _is(text, at, end, _TIMESTAMPS_NAME, 0):
        return _TIMES
    if _is(text, at, end, _HISTOGRAMS_NAME, 0):
        return _HISTOGRAMS
    return 0


@kernel(
    types.UniTuple(types.int64, 2)(Bytes, _TABLE, _FLOATS, _INTS, _INTS, _TABLE, types.int64, types.int64),
    allocates=False,
)
def _line(
    text: np.ndarray,
    table: np.ndarray,
    values: np.ndarray,
    bits: np.ndarray,
    times: np.ndarray,
    long: np.ndarray,
    i: int,
    longs: int,
) -> tuple[int, int]:
    """Read line i, which row i of the table spans, into values[table[i, FIRST]:] and times[table[i, FIRST]:]. Returns
    (how many values are there then, how many rows `long` has)."""
    end, place, longs_before = table[i, END], table[i, FIRST], longs
    values_end, times_end = np.int64(-1), np.int64(-1)
    at = past_space(text, table[i, BEGIN], end)
    if at == end:
        table[i, STATUS] = BLANK
        return place, longs
    table[i, STATUS], table[i, WRONG_AT] = BROKEN, at
    if text[at] != _BRACE:
        return place, longs
    at = past_space(text, at + 1, end)
    has_histograms = False
    while at < end and text[at] != _END_BRACE:
        name, name_end, value = member(text, at, end)
        table[i, WRONG_AT] = at
        if name < 0:
            return place, longs
        which = _name(text, name, name_end)
        if which == _VALUES:
            at, values_end, longs = _values(text, value, end, values, bits, place, long, longs_before)
            if at < 0:
                table[i, STATUS], table[i, WRONG_AT] = BAD_VALUE, values_end
                return place, longs
        elif which == _TIMES:
            at, times_end = _times(text, value, end, times, place)
            if at < 0:
                table[i, STATUS], table[i, WRONG_AT] = BAD_TIME, times_end
                return place, longs
        else:
            at = past_value(text, value, end)
            if at < 0:
                table[i, WRONG_AT] = value
                return place, longs
            has_histograms |= which == _HISTOGRAMS
            if which == _LABELS:
                table[i, METRIC], table[i, METRIC_END] = value, at
        at = past_space(text, at, end)
        if at < end and text[at] == _COMMA:
            at = past_space(text, at + 1, end)
        elif at >= end or text[at] != _END_BRACE:
            table[i, WRONG_AT] = at
            return place, longs
    if at >= end or past_space(text, at + 1, end) < end:
        table[i, WRONG_AT] = min(at + 1, end)
        return place, longs
    if table[i, METRIC_END] == 0:
        table[i, STATUS] = NO_METRIC
    elif has_histograms:
        table[i, STATUS] = HISTOGRAMS
    elif values_end < 0 or times_end < 0:
        table[i, STATUS] = NO_SAMPLES
    elif values_end != times_end:
        table[i, STATUS] = UNEQUAL
        table[i, FIRST], table[i, COUNT] = values_end - place, times_end - place
    else:
        table[i, STATUS], table[i, COUNT] = SAMPLES, values_end - place
        return values_end, longs
    return place, longs


@kernel(_PAIR(Bytes, _TABLE, _FLOATS, _INTS, _INTS, _TABLE), allocates=False)
def walk(
    text: np.ndarray, table: np.ndarray, values: np.ndarray, bits: np.ndarray, times: np.ndarray, long: np.ndarray
) -> tuple[int, int]:
    """Fill `table` (int64[lines, COLUMNS], zeros before; lines: the line breaks of the text and one more), `values`
    (float64[m]; `bits` are its bits) and `times` (int64[m]) with the samples of the lines, where m is the commas of the
    text and two for each line. Of a line that is UNEQUAL, FIRST and COUNT tell how many values and times it has. The
    numbers in `long` (int64[m, 3], or a fifth of the text's bytes and one for each line) are to be read by other means.

    Returns (how many samples, how many rows of `long`).
    """
    begin, place, longs = 0, 0, 0
    for i in range(len(table)):
        end = begin
        while end < len(text) and text[end] != _NEWLINE:
            end += 1
        table[i, BEGIN], table[i, END], table[i, FIRST] = begin, end, place
        place, more = _line(text, table, values, bits, times, long, i, longs)
        if table[i, STATUS] == SAMPLES:
            longs = more
        begin = end + 1
    return place, longs

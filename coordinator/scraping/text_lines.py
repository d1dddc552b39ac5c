"""Kernels that read the lines of a text exposition: where each series stands, its value and its time.

https://prometheus.io/docs/instrumenting/exposition_formats/ and the OpenMetrics 1.0 specification. A target says the
same series again and again, and in nearly the same order. So each line is compared with the series of the last scrape;
only those that are not found there are parsed by interpreted code (`coordinator.scraping.series_text`). So are numbers
and times in unusual forms.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np
from numba import types

from shared.kernels import inlined, kernel
from shared.xxh64 import Bytes, equal_bytes

# Columns of the table of samples: where the text of the series begins and ends; which line of the last scrape it is,
# or -1; where the number begins and ends; what the time is and in which form; where the time begins and ends; where
# the exemplar begins, or -1; and where the line ends.
TEXT, TEXT_END, MATCHED, VALUE, VALUE_END, IS_SLOW, TIME, TIME_FORM, TIME_AT, TIME_END, EXEMPLAR, LINE_END = range(12)
COLUMNS = 12
NO_TIME, TIME_MS, TIME_TEXT = range(3)
"""TIME_FORM: none, milliseconds in TIME, or a text."""

# What a reading says: lines with samples, lines with comments, where it went wrong or -1, where `# EOF` ends or -1.
SAMPLES, COMMENTS, WRONG_AT, EOF_END = range(4)
SUMMARY = 4

WINDOW = 8
"""Lines of the last scrape that one is compared with: so many series that are gone are skipped at once."""
DIGITS_MAX = 15
"""Numbers of more digits, and those with more than 22 decimal places, may not be exact products of two floats."""

_POWERS = np.array([10.0**power for power in range(23)])
_TAB, _LINE_FEED, _SPACE, _QUOTE, _HASH, _BACKSLASH, _OPEN, _CLOSE = 9, 10, 32, 34, 35, 92, 123, 125
_ZERO, _NINE, _PLUS, _MINUS, _DOT, _E, _SMALL_E = 48, 57, 43, 45, 46, 69, 101

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_FLOATS = types.Array(types.float64, 1, "C")


@inlined(allocates=False)
def _past_blanks(body: np.ndarray, at: int) -> int:
    while at < len(body) and (body[at] == _SPACE or body[at] == _TAB):
        at += 1
    return at


@inlined(allocates=False)
def _token_end(body: np.ndarray, at: int) -> int:
    """Where a text without blanks ends."""
    while at < len(body) and body[at] != _SPACE and body[at] != _TAB and body[at] != _LINE_FEED:
        at += 1
    return at


@inlined(allocates=False)
def _line_end(body: np.ndarray, at: int) -> int:
    while at < len(body) and body[at] != _LINE_FEED:
        at += 1
    return at


@kernel(types.int64(Bytes, types.int64), allocates=False)
def labels_end(body: np.ndarray, at: int) -> int:
    """The position after the `}` that ends the labels which begin at body[at]; -1 if the line ends before."""
    is_quoted = False
    at += 1
    while at < len(body) and body[at] != _LINE_FEED:
        if is_quoted and body[at] == _BACKSLASH:
            at += 1
            if at < len(body) and body[at] == _LINE_FEED:
                return -1
        elif body[at] == _QUOTE:
            is_quoted = not is_quoted
        elif body[at] == _CLOSE and not is_quoted:
            return at + 1
        at += 1
    return -1


@inlined(allocates=False)
def _series_end(body: np.ndarray, at: int) -> int:
    """Where the text of the series that begins at body[at] ends; -1 for none."""
    begin = at
    while at < len(body) and body[at] != _SPACE and body[at] != _TAB and body[at] != _LINE_FEED and body[at] != _OPEN:
        at += 1
    labels = _past_blanks(body, at)
    if labels < len(body) and body[labels] == _OPEN:
        return labels_end(body, labels)
    return at if at > begin else np.int64(-1)


@kernel(
    types.Tuple((types.boolean, types.float64))(Bytes, types.int64, types.int64), allocates=False, error_model="numpy"
)
def number(body: np.ndarray, at: int, end: int) -> tuple[bool, float]:
    """(True, the number body[at:end]); (False, …) for one that has to be read in another way, and for what is none."""
    is_negative = at < end and body[at] == _MINUS
    if at < end and (body[at] == _MINUS or body[at] == _PLUS):
        at += 1
    mantissa, digits, places, significant = np.int64(0), 0, 0, 0
    has_point = False
    while at < end:
        byte = np.int64(body[at])
        if _ZERO <= byte <= _NINE:
            digits += 1
            significant += np.int64(significant > 0 or byte != _ZERO)
            if significant > DIGITS_MAX:
                return False, 0.0
            mantissa = mantissa * 10 + (byte - _ZERO)
            places += np.int64(has_point)
        elif byte == _DOT and not has_point:
            has_point = True
        else:
            break
        at += 1
    if digits == 0:
        return False, 0.0
    power = np.int64(0)
    if at < end and (body[at] == _E or body[at] == _SMALL_E):
        at += 1
        is_small = at < end and body[at] == _MINUS
        if at < end and (body[at] == _MINUS or body[at] == _PLUS):
            at += 1
        if at == end or end - at > 3:
            return False, 0.0
        while at < end and _ZERO <= body[at] <= _NINE:
            power = power * 10 + (np.int64(body[at]) - _ZERO)
            at += 1
        power = -power if is_small else power
    power -= places
    if at != end or power < -22 or power > 22:
        return False, 0.0
    value = mantissa / _POWERS[-power] if power < 0 else mantissa * _POWERS[power]
    return True, -value if is_negative else value


@inlined(allocates=False)
def _milliseconds(body: np.ndarray, at: int, end: int) -> tuple[bool, int]:
    """(True, the whole number body[at:end]); (False, …) for anything else."""
    is_negative = body[at] == _MINUS
    at += np.int64(is_negative)
    if at == end or end - at > DIGITS_MAX:
        return False, np.int64(0)
    value = np.int64(0)
    while at < end:
        if not _ZERO <= body[at] <= _NINE:
            return False, np.int64(0)
        value = value * 10 + (np.int64(body[at]) - _ZERO)
        at += 1
    return True, -value if is_negative else value


@inlined(allocates=False)
def _match(body: np.ndarray, at: int, last_body: np.ndarray, last: np.ndarray, following: int) -> int:
    """Which of the lines of the last scrape from `following` on has the series that begins at body[at]; -1 for none."""
    for line in range(following, min(following + WINDOW, len(last))):
        size = last[line, 1] - last[line, 0]
        end = at + size
        is_whole = end < len(body) and (body[end] == _SPACE or body[end] == _TAB)
        if is_whole and equal_bytes(body, at, last_body, last[line, 0], size):
            blank = _past_blanks(body, end)
            if body[end - 1] == _CLOSE or blank == len(body) or body[blank] != _OPEN:
                return np.int64(line)
    return np.int64(-1)


@kernel(
    types.void(Bytes, types.boolean, Bytes, _TABLE, _TABLE, _FLOATS, _TABLE, _INTS),
    allocates=False,
    error_model="numpy",
)
def read_lines(
    body: np.ndarray,
    is_openmetrics: bool,
    last_body: np.ndarray,
    last: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray,
    comments: np.ndarray,
    summary: np.ndarray,
) -> None:
    """Read all lines up to the first that is wrong. `last` int64[n, 2]: where the series of the last scrape stand in
    `last_body`. `rows` int64[lines, COLUMNS], `values` float64[lines] (NaN where IS_SLOW) and `comments`
    int64[lines, 2] have room for all lines; `summary` int64[SUMMARY]."""
    count, commented, following = 0, 0, 0
    summary[WRONG_AT], summary[EOF_END] = -1, -1
    at = np.int64(0)
    while at < len(body):
        at = _past_blanks(body, at)
        if at == len(body) or body[at] == _LINE_FEED:
            at += 1
            continue
        begin = at
        if summary[EOF_END] >= 0:
            summary[WRONG_AT] = begin
            break
        if body[at] == _HASH:
            at = _line_end(body, at)
            comments[commented, 0], comments[commented, 1] = begin, at
            commented += 1
            is_eof = at - begin == 5 and body[begin + 1] == 32 and body[begin + 2] == 69
            if is_openmetrics and is_eof and body[begin + 3] == 79 and body[begin + 4] == 70:
                summary[EOF_END] = at
            at += 1
            continue
        row = rows[count]
        matched = _match(body, at, last_body, last, following)
        if matched >= 0:
            following = matched + 1
            text_end = at + last[matched, 1] - last[matched, 0]
        else:
            text_end = _series_end(body, at)
            if text_end < 0:
                summary[WRONG_AT] = begin
                break
        row[TEXT], row[TEXT_END], row[MATCHED] = begin, text_end, matched
        at = _past_blanks(body, text_end)
        end = _token_end(body, at)
        is_number, value = number(body, at, end)
        row[VALUE], row[VALUE_END], row[IS_SLOW] = at, end, np.int64(not is_number)
        values[count] = value if is_number else np.nan
        is_wrong = at == end
        at = _past_blanks(body, end)
        row[TIME_FORM], row[EXEMPLAR] = NO_TIME, -1
        if at < len(body) and body[at] != _LINE_FEED and body[at] != _HASH:
            end = _token_end(body, at)
            is_whole, time_ms = _milliseconds(body, at, end)
            row[TIME], row[TIME_AT], row[TIME_END] = time_ms, at, end
            row[TIME_FORM] = TIME_MS if is_whole and not is_openmetrics else TIME_TEXT
            is_wrong = is_wrong or (not is_whole and not is_openmetrics)
            at = _past_blanks(body, end)
        if is_openmetrics and at < len(body) and body[at] == _HASH:
            row[EXEMPLAR] = at
            at = _line_end(body, at)
        if is_wrong or (at < len(body) and body[at] != _LINE_FEED):
            summary[WRONG_AT] = begin
            break
        row[LINE_END] = at
        count += 1
        at += 1
    summary[SAMPLES], summary[COMMENTS] = count, commented

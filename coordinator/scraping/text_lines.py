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

from coordinator.parsing.exposition_walk import (
    CLOSE,
    HASH,
    LINE_FEED,
    OPEN,
    SPACE,
    TAB,
    labels_end,
    line_end,
    number,
    past_blanks,
    token_end,
)
from shared.kernels import inlined, kernel, types
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
"""Times in milliseconds of more digits mean nothing."""

_ZERO, _NINE, _MINUS = (ord(c) for c in "09-")

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_FLOATS = types.Array(types.float64, 1, "C")


@inlined(allocates=False)
def _series_end(body: np.ndarray, at: int) -> int:
    """Where the text of the series that begins at body[at] ends; -1 for none."""
    begin = at
    while at < len(body) and body[at] != SPACE and body[at] != TAB and body[at] != LINE_FEED and body[at] != OPEN:
        at += 1
    labels = past_blanks(body, at)
    if labels < len(body) and body[labels] == OPEN:
        return labels_end(body, labels)
    return at if at > begin else np.int64(-1)


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
        is_whole = end < len(body) and (body[end] == SPACE or body[end] == TAB)
        if is_whole and equal_bytes(body, at, last_body, last[line, 0], size):
            blank = past_blanks(body, end)
            if body[end - 1] == CLOSE or blank == len(body) or body[blank] != OPEN:
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
        at = past_blanks(body, at)
        if at == len(body) or body[at] == LINE_FEED:
            at += 1
            continue
        begin = at
        if summary[EOF_END] >= 0:
            summary[WRONG_AT] = begin
            break
        if body[at] == HASH:
            at = line_end(body, at)
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
        at = past_blanks(body, text_end)
        end = token_end(body, at)
        is_number, value = number(body, at, end)
        row[VALUE], row[VALUE_END], row[IS_SLOW] = at, end, np.int64(not is_number)
        values[count] = value if is_number else np.nan
        is_wrong = at == end or (is_openmetrics and at == text_end)  # which wants a space there
        at = past_blanks(body, end)
        row[TIME_FORM], row[EXEMPLAR] = NO_TIME, -1
        if at < len(body) and body[at] != LINE_FEED and body[at] != HASH:
            end = token_end(body, at)
            is_whole, time_ms = _milliseconds(body, at, end)
            row[TIME], row[TIME_AT], row[TIME_END] = time_ms, at, end
            row[TIME_FORM] = TIME_MS if is_whole and not is_openmetrics else TIME_TEXT
            is_wrong = is_wrong or (not is_whole and not is_openmetrics)
            at = past_blanks(body, end)
        if is_openmetrics and at < len(body) and body[at] == HASH:
            row[EXEMPLAR] = at
            at = line_end(body, at)
        if is_wrong or (at < len(body) and body[at] != LINE_FEED):
            summary[WRONG_AT] = begin
            break
        row[LINE_END] = at
        count += 1
        at += 1
    summary[SAMPLES], summary[COMMENTS] = count, commented

"""Kernels that read lines of OpenMetrics with times: which series each belongs to, its value and its time.

They read what is written as programs write it. All other lines are for interpreted code
(`coordinator.transfer.openmetrics`), which alone decides what is an error.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.parsing.exposition_walk import (
    HASH,
    LINE_FEED,
    OPEN,
    SPACE,
    TAB,
    labels_end,
    line_end,
    number,
    past_blanks,
)
from coordinator.series.tagged_slots import entry, is_tagged, number_in, place_of
from shared.kernels import inlined, kernel, types
from shared.xxh64 import Bytes, equal_bytes, xxh64

# Columns of the table of rows: which series it is, counted from 0 in the order in which their texts come first, or
# ODD; where the text of the series begins and ends, of an odd line the whole line; and the number of the line, from 0.
SERIES, BEGIN, END, LINE = range(4)
COLUMNS = 4
ODD = -1

PROBES_MAX = 16
"""Slots that are looked at for one text: one that is not found there counts as another series."""
# What `walk` says: how many rows, series and lines there are.
ROWS, TEXTS, LINES = range(3)

_RETURN = ord("\r")
_EOF = np.frombuffer(b"# EOF", dtype=np.uint8)
_TABLE = types.Array(types.int64, 2, "C")
_INTS, _FLOATS = types.int64[::1], types.float64[::1]


@inlined(allocates=False)
def _is_white(byte: int) -> bool:
    return byte == SPACE or TAB <= byte <= _RETURN


@inlined(allocates=False)
def _is_blank(text: np.ndarray, at: int) -> bool:
    return at < len(text) and (text[at] == SPACE or text[at] == TAB)


@inlined(allocates=False)
def _number_end(text: np.ndarray, at: int) -> int:
    while at < len(text) and not _is_white(text[at]):
        at += 1
    return at


@inlined(allocates=False)
def _series_end(text: np.ndarray, at: int) -> int:
    """Where the text of the series that begins at text[at] ends; -1 if its labels have no end."""
    while at < len(text) and not _is_white(text[at]) and text[at] != OPEN and text[at] != HASH:
        at += 1
    return labels_end(text, at) if at < len(text) and text[at] == OPEN else np.int64(at)


@inlined(allocates=False)
def _begins_with(text: np.ndarray, at: int, rows: np.ndarray, first: int) -> bool:
    """Whether the line at text[at] has the series of row `first`."""
    size = rows[first, END] - rows[first, BEGIN]
    return _is_blank(text, at + size) and equal_bytes(text, at, text, rows[first, BEGIN], size)


@inlined(allocates=False)
def _guess(text: np.ndarray, at: int, rows: np.ndarray, firsts: np.ndarray, count: int, last: int) -> tuple[int, int]:
    """(The series of the line at text[at], where its text ends), if it is the last one again, or the one that came
    behind that before; (ODD, …) otherwise."""
    for series in (last, last + 1 if last + 1 < count else 0):
        if series < count and _begins_with(text, at, rows, firsts[series]):
            return series, at + rows[firsts[series], END] - rows[firsts[series], BEGIN]
    return np.int64(ODD), at


@inlined(allocates=False)
def _find(
    text: np.ndarray, begin: int, end: int, rows: np.ndarray, firsts: np.ndarray, count: int, slots: np.ndarray
) -> int:
    """The number of the series text[begin:end], of which there are `count`; `count` for one that is new, which has got
    a slot then."""
    key, size = xxh64(text, begin, end), end - begin
    for probe in range(PROBES_MAX):
        place = place_of(slots, key, probe)
        if slots[place] == 0:
            slots[place] = entry(key, count)
            break
        if is_tagged(slots[place], key):
            found = number_in(slots[place])
            first = firsts[found]
            is_long = rows[first, END] - rows[first, BEGIN] == size
            if is_long and equal_bytes(text, begin, text, rows[first, BEGIN], size):
                return found
    return count


@inlined(allocates=False)
def _is_end(text: np.ndarray, at: int) -> bool:
    """Whether nothing follows at text[at], behind a time, but an exemplar."""
    at = past_blanks(text, at)
    if at < len(text) and text[at] == _RETURN:
        at += 1
        return at == len(text) or text[at] == LINE_FEED
    return at == len(text) or text[at] == LINE_FEED or text[at] == HASH


@kernel(types.void(Bytes, types.boolean, _INTS, _TABLE, _INTS, _FLOATS, _FLOATS, _INTS), allocates=False)
def walk(
    text: np.ndarray,
    has_ended: bool,
    slots: np.ndarray,
    rows: np.ndarray,
    firsts: np.ndarray,
    values: np.ndarray,
    seconds: np.ndarray,
    summary: np.ndarray,
) -> None:
    """Read whole lines. `has_ended`: `# EOF` was there, so that every line is odd. `slots` int64[a power of two above
    the lines], zeros before. For all lines there is room in `rows` (int64[lines, COLUMNS]), `firsts` (int64[lines], the
    first row of each series), `values` and `seconds` (float64[lines], not set for odd lines). `summary` int64[3]."""
    at, row, series, line, last = np.int64(0), 0, 0, 0, 0
    while at < len(text):
        begin, end, found = at, np.int64(-1), np.int64(ODD)
        while at < len(text) and _is_white(text[at]) and text[at] != LINE_FEED:
            at += 1
        is_comment = at < len(text) and text[at] == HASH
        if is_comment:
            has_ended |= at + len(_EOF) <= len(text) and equal_bytes(text, at, _EOF, 0, len(_EOF))
        is_passed_over = at == len(text) or text[at] == LINE_FEED or (is_comment and not has_ended)
        if not is_passed_over and not has_ended and at == begin:
            found, end = _guess(text, at, rows, firsts, series, last)
            if found == ODD:
                end = _series_end(text, at)
        if end > begin and _is_blank(text, end):
            value_at = past_blanks(text, end)
            value_end = _number_end(text, value_at)
            is_number, value = number(text, value_at, value_end)
            time_at = past_blanks(text, value_end)
            time_end = _number_end(text, time_at)
            is_time, time = number(text, time_at, time_end)
            if is_number and is_time and _is_end(text, time_end):
                if found == ODD:
                    found = _find(text, begin, end, rows, firsts, series, slots)
                if found == series:
                    firsts[series] = row
                    series += 1
                last = found
                values[row], seconds[row] = value, time
                at = time_end
            else:
                found = ODD
        else:
            found = ODD
        at = line_end(text, at)
        if not is_passed_over:
            rows[row, SERIES], rows[row, BEGIN], rows[row, END] = found, begin, at if found == ODD else end
            rows[row, LINE] = line
            row += 1
        line += np.int64(at < len(text))
        at += 1
    summary[ROWS], summary[TEXTS], summary[LINES] = row, series, line


@kernel(types.void(_INTS, _INTS, _INTS, _FLOATS, _INTS, _FLOATS), allocates=False)
def gather(
    series: np.ndarray,
    places: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    gathered_times: np.ndarray,
    gathered_values: np.ndarray,
) -> None:
    """Put the samples of each series side by side. series int64[rows]: which one each row belongs to, or ODD for none;
    places int64[series]: where the samples of each begin, and end afterwards."""
    for row in range(len(series)):
        own = series[row]
        if own != ODD:
            gathered_times[places[own]] = times[row]
            gathered_values[places[own]] = values[row]
            places[own] += 1

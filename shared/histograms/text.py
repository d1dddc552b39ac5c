"""Native histograms as responses show them: the JSON object, and the text that `count_values` turns into a label value.
Both leave out buckets without observations. `shared.promql.rendering.histograms` writes the objects of whole responses.

Sources: the specification's sections "Instant and range queries" and "Template expansion".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import NO_ZERO, HistogramBatch

OPEN_LEFT, OPEN_RIGHT, CLOSED = 0, 1, 3
"""The boundary rules. No schema has rule 2, both open."""

_BRACKETS = {OPEN_LEFT: "({},{}]", OPEN_RIGHT: "[{},{})", CLOSED: "[{},{}]"}
_GENERAL_DIGITS, _REPR_DIGITS = 6, 16
"""Numbers with more digits before the point get an exponent, in `general_number` and in Python's `repr`. Otherwise the
two agree."""

Bucket = tuple[int, float, float, float]
"""(boundary rule, left boundary, right boundary, count)."""


def populated_buckets(batch: HistogramBatch, row: int) -> Iterator[Bucket]:
    """The buckets of a row that have observations, ascending."""
    layout, first = batch.columns.layout[row], batch.columns.start[row]
    counts = batch.columns.counts[first : batch.columns.start[row + 1]]
    zero = int(batch.layouts.columns.zero_at[layout])
    edges = batch.layouts.edges[batch.layouts.columns.start[layout] :]
    for i in np.flatnonzero(counts):
        rule = CLOSED if i == zero else OPEN_LEFT if zero == NO_ZERO or i > zero else OPEN_RIGHT
        yield rule, float(edges[i, 0]), float(edges[i, 1]), float(counts[i])


def answer_object(batch: HistogramBatch, row: int) -> dict[str, Any]:
    """The object in a JSON response: `count`, `sum` and, if there are any, `buckets`."""
    histogram = {
        "count": answer_number(float(batch.columns.observations[row])),
        "sum": answer_number(float(batch.columns.sum[row])),
    }
    buckets = [[rule, *map(answer_number, numbers)] for rule, *numbers in populated_buckets(batch, row)]
    return histogram | {"buckets": buckets} if buckets else histogram


def plain_texts(batch: HistogramBatch, rows: NDArray[np.int64]) -> list[str]:
    """The text of each of the rows, such as `{count:3, sum:2.5, [-0.01,0.01]:1, (1,2]:2}`. Equal rows, equal numbers,
    and the intervals of buckets that several rows have are formatted only once. Takes some hundred bytes of memory for
    each bucket."""
    distinct, index = _distinct(batch, rows)
    batch = batch.take(distinct)
    columns, table = batch.columns, batch.layouts.columns
    is_populated = columns.counts != 0
    owner = np.repeat(np.arange(len(batch)), np.diff(columns.start))
    place = (np.arange(len(owner)) - columns.start[owner])[is_populated]
    owner = owner[is_populated]
    layout = columns.layout[owner]
    intervals = _intervals(batch, table.start[layout] + place, layout)
    counts = _general_numbers(columns.counts[is_populated])
    parts = [f"{interval}:{count}" for interval, count in zip(intervals, counts, strict=True)]
    ends = np.searchsorted(owner, np.arange(len(batch) + 1)).tolist()
    texts = []
    heads = zip(_general_numbers(columns.observations), _general_numbers(columns.sum), pairwise(ends), strict=True)
    for count, sum_, (first, last) in heads:
        texts.append("{" + ", ".join((f"count:{count}", f"sum:{sum_}", *parts[first:last])) + "}")
    return [texts[i] for i in index]


def _distinct(batch: HistogramBatch, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """(the first row of each kind, the number of each row's kind): rows of a kind have the same layout and the same
    bits in all numbers."""
    columns = batch.columns
    numbers: dict[tuple[int, bytes, bytes], int] = {}
    index = []
    for row in rows.tolist():
        head = columns.observations[row : row + 1].tobytes() + columns.sum[row : row + 1].tobytes()
        counts = columns.counts[columns.start[row] : columns.start[row + 1]].tobytes()
        index.append(numbers.setdefault((int(columns.layout[row]), head, counts), len(numbers)))
    return rows[np.unique(index, return_index=True)[1]], index


def _intervals(batch: HistogramBatch, buckets: NDArray[np.int64], layout: NDArray[np.int32]) -> list[str]:
    """The interval of each of these buckets (numbers among the buckets of all layouts) of these layouts."""
    distinct, first, index = np.unique(buckets, return_index=True, return_inverse=True)
    table = batch.layouts.columns
    place, zero = distinct - table.start[layout[first]], table.zero_at[layout[first]]
    brackets = np.where(place == zero, CLOSED, np.where((zero == NO_ZERO) | (place > zero), OPEN_LEFT, OPEN_RIGHT))
    edges = batch.layouts.edges[distinct]
    ends = zip(brackets.tolist(), _general_numbers(edges[:, 0]), _general_numbers(edges[:, 1]), strict=True)
    texts = [_BRACKETS[rule].format(left, right) for rule, left, right in ends]
    return [texts[i] for i in index.tolist()]


def _general_numbers(values: NDArray[np.float64]) -> list[str]:
    """`general_number` of each value; equal values are formatted once."""
    distinct, index = np.unique(np.ascontiguousarray(values).view(np.int64), return_inverse=True)
    texts = [general_number(value) for value in distinct.view(np.float64).tolist()]
    return [texts[i] for i in index.tolist()]


def answer_number(value: float) -> str:
    """The shortest text of a float64 in JSON responses: positional, but below 1e-6 and from 1e21 on with an
    exponent."""
    return _number(value, is_positional=value == 0 or 1e-6 <= abs(value) < 1e21)


def general_number(value: float) -> str:
    """The shortest text of a float64 in the notation of C's and Go's `%g`: an exponent below 1e-4 and from 1e6 on."""
    if not math.isfinite(value):
        return _number(value, is_positional=True)
    shortest = repr(value)
    if not 10**_GENERAL_DIGITS <= abs(value) < 10**_REPR_DIGITS:
        return shortest.removesuffix(".0")
    integer_digits, _, fraction = shortest.lstrip("-").partition(".")
    digits = (integer_digits + fraction).rstrip("0")
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{'-' if value < 0 else ''}{mantissa}e+{len(integer_digits) - 1:02d}"


def _number(value: float, *, is_positional: bool) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if is_positional:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)

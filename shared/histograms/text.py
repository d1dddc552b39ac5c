"""Native histograms as answers show them: the object of the JSON answers, and the text that `count_values` makes labels
of. Both leave out buckets without observations. One histogram at a time: for many, a renderer of arrays is needed.

Sources: the specification's sections "Instant and range queries" and "Template expansion".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from shared.histograms.batch import NO_ZERO, HistogramBatch

OPEN_LEFT, OPEN_RIGHT, CLOSED = 0, 1, 3
"""The rules of boundaries; 2, both open, no schema has."""

_BRACKETS = {OPEN_LEFT: "({},{}]", OPEN_RIGHT: "[{},{})", CLOSED: "[{},{}]"}
_GENERAL_DIGITS = 6

Bucket = tuple[int, float, float, float]
"""Boundary rule, left boundary, right boundary, count."""


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
    """The object of a JSON answer: `count`, `sum` and, if there are any, `buckets`."""
    shown = {
        "count": answer_number(float(batch.columns.observations[row])),
        "sum": answer_number(float(batch.columns.sum[row])),
    }
    buckets = [[rule, *map(answer_number, numbers)] for rule, *numbers in populated_buckets(batch, row)]
    return shown | {"buckets": buckets} if buckets else shown


def plain_text(batch: HistogramBatch, row: int) -> str:
    """`{count:3, sum:2.5, [-0.01,0.01]:1, (1,2]:2}`."""
    parts = [
        f"count:{general_number(float(batch.columns.observations[row]))}",
        f"sum:{general_number(float(batch.columns.sum[row]))}",
    ]
    for rule, left, right, count in populated_buckets(batch, row):
        interval = _BRACKETS[rule].format(general_number(left), general_number(right))
        parts.append(f"{interval}:{general_number(count)}")
    return "{" + ", ".join(parts) + "}"


def answer_number(value: float) -> str:
    """The shortest text of a float64 in JSON answers: positional, but with an exponent below 1e-6 and from 1e21 on."""
    return _number(value, is_positional=value == 0 or 1e-6 <= abs(value) < 1e21)


def general_number(value: float) -> str:
    """The shortest text of a float64 that C's and Go's `%g` make: an exponent below 1e-4 and from 1e6 on."""
    shortest = np.format_float_scientific(value, trim="-")
    exponent = int(shortest.partition("e")[2] or 0)
    return _number(value, is_positional=-4 <= exponent < _GENERAL_DIGITS if "e" in shortest else True)


def _number(value: float, *, is_positional: bool) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if is_positional:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-", exp_digits=2)

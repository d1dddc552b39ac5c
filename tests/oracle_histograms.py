"""The oracle's functions of classic histograms: series with a cumulative count up to `le`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shared.labels import Labels
from tests.oracle_values import Sample, Value, as_labels

BUCKET = "le"
SMALL_DELTA = 1e-12
"""A count that falls by less than this, relatively, is floating-point noise."""

Buckets = list[tuple[float, float]]
"""(upper bound, cumulative count), ascending."""


def _histograms(vector: Sequence[Sample]) -> Iterator[tuple[Labels, Buckets]]:
    """Series that differ in `le` only make one histogram; a series without a number there belongs to none."""
    grouped: dict[Labels, dict[float, float]] = {}
    for sample in vector:
        try:
            bound = float(sample.labels.get(BUCKET, ""))
        except ValueError:
            continue
        counts = grouped.setdefault(as_labels(sample.labels, without=(BUCKET,)), {})
        counts[bound] = counts.get(bound, 0.0) + sample.value
    for labels, counts in grouped.items():
        yield labels, sorted(counts.items())


def _monotonic(buckets: Buckets) -> Buckets:
    """Counts that never fall: a smaller one is raised to the one before it."""
    result = buckets[:1]
    for bound, count in buckets[1:]:
        before = result[-1][1]
        noise = abs(count - before) <= SMALL_DELTA * (abs(count) + abs(before))
        result.append((bound, before if noise or count < before else count))
    return result


def bucket_quantile(q: float, buckets: Buckets) -> float:
    """Linear within the bucket that the rank falls into; the first one starts at 0 if its bound is positive."""
    if math.isnan(q):
        return math.nan
    if q < 0 or q > 1:
        return -math.inf if q < 0 else math.inf
    if len(buckets) < 2 or buckets[-1][0] != math.inf:
        return math.nan
    buckets = _monotonic(buckets)
    if buckets[-1][1] == 0:
        return math.nan
    rank = q * buckets[-1][1]
    at = next((i for i, (_, count) in enumerate(buckets[:-1]) if count >= rank), len(buckets) - 1)
    if at == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[at]
    if at == 0 and bound <= 0:
        return bound
    lower, below = buckets[at - 1] if at else (0.0, 0.0)
    return lower + (bound - lower) * (rank - below) / (count - below) if count != below else math.nan


def bucket_fraction(lower: float, upper: float, buckets: Buckets) -> float:
    """The share of observations between two values; an infinitely wide bucket cannot be divided."""
    if not buckets or buckets[-1][0] != math.inf or math.isnan(lower) or math.isnan(upper):
        return math.nan
    whole = buckets[-1][1]
    if whole == 0 or math.isnan(whole):
        return math.nan
    if lower >= upper:
        return 0.0
    # Counts that fall could otherwise make a share of more than all.
    return (min(_rank(upper, buckets), whole) - min(_rank(lower, buckets), whole)) / whole


def _rank(value: float, buckets: Buckets) -> float:
    """How many observations are at most `value`."""
    below = 0.0
    start = 0.0 if buckets[0][0] > 0 else -math.inf
    for bound, count in buckets:
        if value <= start:
            return below
        if value < bound:
            if math.isinf(start):
                return count
            return below if math.isinf(bound) else below + (count - below) * (value - start) / (bound - start)
        start, below = bound, count
    return below


def _quantile(args: Sequence[Any]) -> Value:
    q, vector = args
    return [Sample(dict(labels), bucket_quantile(q, buckets), True) for labels, buckets in _histograms(vector)]


def _fraction(args: Sequence[Any]) -> Value:
    lower, upper, vector = args
    return [
        Sample(dict(labels), bucket_fraction(lower, upper, buckets), True) for labels, buckets in _histograms(vector)
    ]


def _quantiles(args: Sequence[Any]) -> Value:
    vector, target, *qs = args
    return [
        Sample({**dict(labels), target: openmetrics_text(q)}, bucket_quantile(q, buckets), True)
        for labels, buckets in _histograms(vector)
        for q in qs
    ]


def openmetrics_text(value: float) -> str:
    """As OpenMetrics writes the value of a `quantile` label: whole numbers keep a `.0`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


FUNCTIONS: dict[str, Callable[[Sequence[Any]], Value]] = {
    "histogram_quantile": _quantile,
    "histogram_fraction": _fraction,
    "histogram_quantiles": _quantiles,
    **{f"histogram_{name}": lambda args: [] for name in ("avg", "count", "stddev", "stdvar", "sum")},
}

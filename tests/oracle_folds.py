"""Sums, means, quantiles … of many values: what aggregations do with a group, and functions of range vectors with a
window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from tests.oracle_native_histograms import Hint, NativeHistogram, joined, summed
from tests.oracle_values import Number, Remarks, of_metric

MIXED_SCHEMAS = "vector contains a mix of histograms with exponential and custom buckets schemas"


def total(values: Sequence[float]) -> float:
    """The exact sum, rounded once."""
    if any(math.isnan(v) for v in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    infinite = [v for v in values if math.isinf(v)]
    if infinite:
        return infinite[0]
    return rounded(sum((Fraction(v) for v in values), Fraction(0)))


def mean(values: Sequence[float]) -> float:
    sum_ = total(values)
    if math.isnan(sum_) or any(math.isinf(v) for v in values):
        return sum_
    return rounded(sum((Fraction(v) for v in values), Fraction(0)) / len(values))


def rounded(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def variance(values: Sequence[float]) -> float:
    """Of the population; NaN where any value is not finite."""
    if not all(math.isfinite(v) for v in values):
        return math.nan
    exact = [Fraction(v) for v in values]
    middle = sum(exact, Fraction(0)) / len(exact)
    return rounded(sum(((v - middle) ** 2 for v in exact), Fraction(0)) / len(exact))


def deviation(values: Sequence[float]) -> float:
    return math.sqrt(variance(values))


def quantile(q: float, values: Sequence[float]) -> float:
    """Linear interpolation between the closest ranks; NaN counts as the smallest value."""
    if not values or math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    ordered = sorted(values, key=lambda v: (not math.isnan(v), v))
    rank = q * (len(ordered) - 1)
    lower = math.floor(rank)
    upper = min(len(ordered) - 1, lower + 1)
    weight = rank - lower
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


def lowest(values: Sequence[float]) -> float:
    """The minimum; NaN only where everything is NaN."""
    return min((v for v in values if not math.isnan(v)), default=math.nan)


def highest(values: Sequence[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)


# Floats and histograms


def parted(values: Sequence[Number]) -> tuple[list[float], list[NativeHistogram]]:
    floats = [value for value in values if isinstance(value, float)]
    return floats, [value for value in values if isinstance(value, NativeHistogram)]


def averaged(histograms: Sequence[NativeHistogram]) -> NativeHistogram:
    """Every count and the sum are means; none overflows on the way."""
    return joined(histograms, mean)


_OF_FLOATS: dict[str, Callable[[Sequence[float]], float]] = {"sum": total, "avg": mean}
_OF_HISTOGRAMS: dict[str, Callable[[Sequence[NativeHistogram]], NativeHistogram]] = {"sum": summed, "avg": averaged}


def added_up(how: str, values: Sequence[Number], remarks: Remarks, name: str, mixed: str) -> Number | None:
    """The `sum` or `avg` of floats or of histograms. Both together have none, nor have histograms with exponential and
    with custom buckets. `mixed`: how the warning of the former ends."""
    floats, histograms = parted(values)
    if not histograms:
        return _OF_FLOATS[how](floats)
    if floats:
        remarks.warn(f"encountered a mix of histograms and floats for {mixed}")
        return None
    if len({histogram.is_custom for histogram in histograms}) > 1:
        remarks.warn(MIXED_SCHEMAS + of_metric(name))
        return None
    if {Hint.RESET, Hint.NOT_RESET} <= {histogram.hint for histogram in histograms}:
        remarks.warn("conflicting counter resets during histogram aggregation")
    if len({histogram.bounds for histogram in histograms}) > 1:
        remarks.info("mismatched custom buckets were reconciled during aggregation")
    return _OF_HISTOGRAMS[how](histograms)

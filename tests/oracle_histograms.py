"""The oracle's functions of histograms: classic ones, which are series with a cumulative count up to `le`, and native
ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from shared.labels import METRIC_NAME, Labels
from tests.oracle_native_histograms import NativeHistogram, fraction, quantile, variance
from tests.oracle_values import Remarks, Sample, Value, as_labels, of_metric

BUCKET = "le"
SMALL_DELTA = 1e-12
"""A count that falls by less than this, relatively, is floating-point noise."""

Function = Callable[[Sequence[Any], Remarks], Value]
Buckets = list[tuple[float, float]]
"""(upper bound, cumulative count), ascending."""


def _histograms(vector: Sequence[Sample], remarks: Remarks) -> Iterator[tuple[Labels, Buckets | NativeHistogram]]:
    """Series that differ in `le` only make one histogram; a series without a number there belongs to none. A classic
    and a native one with the same labels are both left out."""
    classic: dict[Labels, dict[float, float]] = {}
    native: dict[Labels, Sample] = {}
    for sample in vector:
        if isinstance(sample.value, NativeHistogram):
            native[as_labels(sample.labels)] = sample
            continue
        try:
            bound = float(sample.labels.get(BUCKET, ""))
        except ValueError:
            continue
        counts = classic.setdefault(as_labels(sample.labels, without=(BUCKET,)), {})
        counts[bound] = counts.get(bound, 0.0) + sample.value
    for labels, counts in classic.items():
        if labels in native:
            remarks.warn(
                "vector contains a mix of classic and native histograms" + of_metric(dict(labels).get(METRIC_NAME, ""))
            )
        else:
            yield labels, sorted(counts.items())
    for labels, sample in native.items():
        if labels not in classic and isinstance(sample.value, NativeHistogram):
            yield labels, sample.value


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


def _quantile_of(q: float, labels: Labels, histogram: Buckets | NativeHistogram, remarks: Remarks) -> float:
    if not isinstance(histogram, NativeHistogram):
        return bucket_quantile(q, histogram)
    value = quantile(q, histogram)
    if 0 <= q <= 1 and math.isnan(histogram.sum) and histogram.count > histogram.total:
        effect = "NaN" if math.isnan(value) else "skewed higher"
        text = f"input to histogram_quantile has NaN observations, result is {effect}"
        remarks.info(text + of_metric(dict(labels).get(METRIC_NAME, "")))
    return value


def _fraction_of(
    lower: float, upper: float, labels: Labels, histogram: Buckets | NativeHistogram, remarks: Remarks
) -> float:
    if not isinstance(histogram, NativeHistogram):
        return bucket_fraction(lower, upper, histogram)
    if math.isnan(histogram.sum) and histogram.count > histogram.total:
        text = "input to histogram_fraction has NaN observations, which are excluded from all fractions"
        remarks.info(text + of_metric(dict(labels).get(METRIC_NAME, "")))
    return fraction(lower, upper, histogram)


def _quantile(args: Sequence[Any], remarks: Remarks) -> Value:
    q, vector = args
    return [
        Sample(dict(labels), _quantile_of(q, labels, histogram, remarks), True)
        for labels, histogram in _histograms(vector, remarks)
    ]


def _fraction(args: Sequence[Any], remarks: Remarks) -> Value:
    lower, upper, vector = args
    return [
        Sample(dict(labels), _fraction_of(lower, upper, labels, histogram, remarks), True)
        for labels, histogram in _histograms(vector, remarks)
    ]


def _quantiles(args: Sequence[Any], remarks: Remarks) -> Value:
    vector, target, *qs = args
    return [
        Sample({**dict(labels), target: openmetrics_text(q)}, _quantile_of(q, labels, histogram, remarks), True)
        for labels, histogram in _histograms(vector, remarks)
        for q in qs
    ]


def _read(value: Callable[[NativeHistogram], float]) -> Function:
    """One number of each native histogram; floats are left out."""
    return lambda args, remarks: [
        Sample(sample.labels, value(sample.value), True)
        for sample in args[0]
        if isinstance(sample.value, NativeHistogram)
    ]


def _mean(histogram: NativeHistogram) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(histogram.sum) / histogram.count)


def _deviation(histogram: NativeHistogram) -> float:
    """A difference of histograms may have negative counts, and so a negative variance."""
    found = variance(histogram)
    return math.sqrt(found) if found >= 0 else math.nan


def openmetrics_text(value: float) -> str:
    """As OpenMetrics writes the value of a `quantile` label: whole numbers keep a `.0`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


FUNCTIONS: dict[str, Function] = {
    "histogram_quantile": _quantile,
    "histogram_fraction": _fraction,
    "histogram_quantiles": _quantiles,
    "histogram_count": _read(lambda histogram: histogram.count),
    "histogram_sum": _read(lambda histogram: histogram.sum),
    "histogram_avg": _read(_mean),
    "histogram_stdvar": _read(variance),
    "histogram_stddev": _read(_deviation),
}

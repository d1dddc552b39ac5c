"""The oracle's functions of range vectors that compare neighbouring samples: rates, differences, resets, changes.

What start timestamps mean is what the conformance scripts show: a counter was reset between two samples if the later
one says that it started in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from tests.oracle_folds import MIXED_SCHEMAS, parted
from tests.oracle_native_histograms import Hint, NativeHistogram, compact, is_reset, same, scaled, summed
from tests.oracle_values import Number, Point, Remarks, Series, of_metric

RECONCILED = "mismatched custom buckets were reconciled during subtraction"


class MixedSchemas(Exception):
    """Exponential and custom buckets cannot be added up."""


# Resets


def restarts(before: Point, after: Point) -> bool:
    """Whether a counter was reset between two neighbouring samples; one that changes its type was."""
    if _started_between(before, after):
        return True
    if isinstance(before.value, NativeHistogram) and isinstance(after.value, NativeHistogram):
        return is_reset(before.value, after.value)
    if isinstance(before.value, float) and isinstance(after.value, float):
        return after.value < before.value
    return True


def _started_between(before: Point, after: Point) -> bool:
    """After the sample before, or right at it if that one had a start too: deltas begin where the last one ended. A
    counter whose start nobody knows begins at its own first sample, which is no reset."""
    start = after.start_ms
    if start == 0 or not before.time_ms <= start < after.time_ms:
        return False
    return start > before.time_ms or 0 < before.start_ms < before.time_ms


# Differences


def difference(
    values: Sequence[Number], resets: Sequence[bool], from_zero: bool, counter: bool, remarks: Remarks, name: str
) -> Number | None:
    """Last minus first, plus what was lost at the resets: `resets[i]` lies before `values[i + 1]`. `from_zero`: the
    first one began at zero within the window, so that all of it counts. None where there are floats and histograms, or
    histograms that cannot be subtracted."""
    weights = [0.0] * len(values)
    weights[-1] += 1
    weights[0] -= not from_zero
    for i, is_reset_ in enumerate(resets):
        weights[i] += is_reset_
    floats, histograms = parted(values)
    if not histograms:
        return _float_difference(floats, resets, from_zero)
    if floats:
        remarks.warn("encountered a mix of histograms and floats" + of_metric(name))
        return None
    # A first histogram that was reset at once is not looked at.
    first = 1 if weights[0] == 0 and len(histograms) > 1 else 0
    looked_at = histograms[first:] if counter else [histograms[0], histograms[-1]]
    if len({histogram.is_custom for histogram in looked_at}) > 1:
        remarks.warn(MIXED_SCHEMAS + of_metric(name))
        return None
    _check_kind(histograms if counter else [histograms[0], histograms[-1]], counter, remarks, name)
    used = [(histogram, weight) for histogram, weight in zip(histograms, weights, strict=True) if weight != 0]
    if len({histogram.bounds for histogram, _ in used}) > 1:
        remarks.info(RECONCILED)
    if not used:
        used = [(histograms[0], 0.0)]
    found = summed([histogram for histogram, _ in used], [weight for _, weight in used])
    return replace(compact(found), hint=Hint.GAUGE)


def _float_difference(values: Sequence[float], resets: Sequence[bool], from_zero: bool) -> float:
    found = values[-1] - (0.0 if from_zero else values[0])
    return found + sum(value for value, is_reset_ in zip(values, resets, strict=False) if is_reset_)


def _check_kind(histograms: Sequence[NativeHistogram], counter: bool, remarks: Remarks, name: str) -> None:
    if counter and any(histogram.hint is Hint.GAUGE for histogram in histograms):
        remarks.warn(f'this native histogram metric is not a counter: "{name}"')
    if not counter and any(histogram.hint is not Hint.GAUGE for histogram in histograms):
        remarks.warn(f'this native histogram metric is not a gauge: "{name}"')


def _times(value: Number, factor: float) -> Number:
    return scaled(value, factor) if isinstance(value, NativeHistogram) else value * factor


def _count(value: Number) -> float:
    return value.count if isinstance(value, NativeHistogram) else value


# Rate, increase and delta


def change_over(series: Series, remarks: Remarks, *, counter: bool, per_second: bool) -> Number | None:
    """The difference within the window, stretched towards its edges."""
    if series.mode != "plain":
        return _extended(series, remarks, counter, per_second)
    points = series.points
    start = points[0].start_ms if points else 0
    from_zero = counter and start != 0 and series.start_ms < start < points[0].time_ms
    if len(points) < 2 and not from_zero:
        return None
    resets = [counter and _comparable(a, b) and restarts(a, b) for a, b in pairwise(points)]
    found = difference([p.value for p in points], resets, from_zero, counter, remarks, series.name)
    if found is None:
        return None
    if counter:
        _check_starts(points, remarks, series.name)
    begin_ms = start if from_zero else points[0].time_ms
    sampled = (points[-1].time_ms - begin_ms) / 1000
    average_gap = (points[-1].time_ms - points[0].time_ms) / 1000 / (len(points) - 1) if len(points) > 1 else 0.0
    to_start = (begin_ms - series.start_ms) / 1000
    to_end = (series.end_ms - points[-1].time_ms) / 1000
    if to_start >= average_gap * 1.1:
        to_start = average_gap / 2
    if to_end >= average_gap * 1.1:
        to_end = average_gap / 2
    begin = 0.0 if from_zero else _count(points[0].value)
    if counter and _count(found) > 0 and begin >= 0:
        to_start = min(to_start, sampled * (begin / _count(found)))
    factor = (sampled + to_start + to_end) / sampled
    return _times(found, factor / ((series.end_ms - series.start_ms) / 1000) if per_second else factor)


def _comparable(before: Point, after: Point) -> bool:
    return isinstance(before.value, NativeHistogram) == isinstance(after.value, NativeHistogram)


def _check_starts(points: Sequence[Point], remarks: Remarks, name: str) -> None:
    if any(b.start_ms and b.start_ms < a.time_ms and b.start_ms != a.start_ms for a, b in pairwise(points)):
        remarks.warn(f'sample has start time that overlaps with previous sample timestamp for metric "{name}"')


def _extended(series: Series, remarks: Remarks, counter: bool, per_second: bool) -> Number | None:
    points = _used(series)
    if not points:
        return None
    are_reconciled = False
    if series.mode == "anchored":
        values = [point.value for point in points]
        resets = [_comparable(a, b) and restarts(a, b) for a, b in pairwise(points)]
    else:
        try:
            values, resets, are_reconciled = _smoothed_values(series, points, counter)
        except MixedSchemas:
            remarks.warn(MIXED_SCHEMAS + of_metric(series.name))
            return None
    found = difference(values, resets if counter else [], False, counter, remarks, series.name)
    if found is None:
        return None
    if are_reconciled:
        remarks.info(RECONCILED)
    if counter:
        _check_starts(points, remarks, series.name)
    seconds = (series.end_ms - series.start_ms) / 1000 if per_second else 1.0
    return _times(found, 1 / seconds) if isinstance(found, NativeHistogram) else found / seconds


def _used(series: Series) -> list[Point]:
    """The samples that the value of an extended window is made of; none if it has no value."""
    inside, before, after = series.points, series.before[-1:], series.after[:1]
    if series.mode == "anchored":
        return [*before, *inside] if inside else []
    if not inside and not (before and after):
        return []
    return [*before, *inside] if _reaches_end(series) else [*before, *inside, *after]


def _reaches_end(series: Series) -> bool:
    return bool(series.points) and series.points[-1].time_ms == series.end_ms


def _smoothed_values(
    series: Series, neighbours: Sequence[Point], counter: bool
) -> tuple[list[Number], list[bool], bool]:
    """The samples within, those at the edges of the window, which of them follow a reset, and whether those at the
    edges are read between histograms with different custom buckets.

    What is read at the start from between two samples is past their reset; what is read at the end is not yet past its.
    """
    inside, before, after = series.points, series.before[-1:], series.after[:1]
    at_end = _reaches_end(series)
    if len({isinstance(point.value, NativeHistogram) for point in neighbours}) > 1:
        return [point.value for point in neighbours], [False] * (len(neighbours) - 1), False
    are_reconciled = False
    values: list[Number] = [point.value for point in inside]
    resets = [restarts(a, b) for a, b in pairwise(inside)]
    exact = bool(before) and before[0].time_ms == series.start_ms
    if before:
        following = (inside or after)[0]
        left = before[0].value if exact else between(before[0], following, series.start_ms, counter)
        are_reconciled = not exact and _differ_in_bounds(before[0], following, counter)
        resets = [*([exact and restarts(before[0], inside[0])] if inside else []), *resets]
        values = [left, *values]
    if not at_end and after:
        last = (inside or before)[-1]
        values.append(between(last, after[0], series.end_ms, counter))
        are_reconciled |= _differ_in_bounds(last, after[0], counter)
        resets.append(restarts(last, after[0]) and (bool(inside) or exact))
    elif not at_end:
        values.append(inside[-1].value)
        resets.append(False)
    return values, resets, are_reconciled


def _differ_in_bounds(before: Point, after: Point, counter: bool) -> bool:
    """Whether what is between two samples is made of histograms with different custom buckets; after a reset, it is
    made of the second one alone."""
    a, b = before.value, after.value
    if not isinstance(a, NativeHistogram) or not isinstance(b, NativeHistogram):
        return False
    return a.bounds != b.bounds and not (counter and restarts(before, after))


def between(before: Point, after: Point, time_ms: int, counter: bool) -> Number:
    """On the line between two samples; a counter that was reset rises from zero. Raises MixedSchemas."""
    share = (time_ms - before.time_ms) / (after.time_ms - before.time_ms)
    a, b = before.value, after.value
    if isinstance(a, NativeHistogram) and isinstance(b, NativeHistogram):
        if a.is_custom != b.is_custom:
            raise MixedSchemas
        if counter and restarts(before, after):
            return scaled(b, share)
        return summed([a, b], [1 - share, share])
    assert isinstance(a, float) and isinstance(b, float)
    if counter and restarts(before, after):
        a = 0.0
    return a + (b - a) * share


def interpolated(points: Sequence[Point], time_ms: int, reach_ms: int, remarks: Remarks) -> Number | None:
    """A `smoothed` instant vector: on the line between the neighbours; the one before where there is none after.
    Raises MixedSchemas."""
    before = [p for p in points if time_ms - reach_ms < p.time_ms <= time_ms]
    after = [p for p in points if time_ms < p.time_ms <= time_ms + reach_ms]
    if not before:
        return None
    if before[-1].time_ms == time_ms or not after:
        return before[-1].value
    last = before[-1].value
    is_counter = isinstance(last, NativeHistogram) and last.hint is not Hint.GAUGE
    a, b = before[-1]._replace(start_ms=0), after[0]._replace(start_ms=0)
    found = between(a, b, time_ms, is_counter)
    if _differ_in_bounds(a, b, is_counter):
        remarks.info("mismatched custom buckets were reconciled during addition")
    return found


# The last two samples


def last_two(series: Series, remarks: Remarks, *, rate: bool) -> Number | None:
    if len(series.points) < 2:
        return None
    before, after = series.points[-2:]
    if not _comparable(before, after):
        remarks.warn("encountered a mix of histograms and floats" + of_metric(series.name))
        return None
    is_reset_ = rate and restarts(before, after)
    found = difference([before.value, after.value], [is_reset_], False, rate, remarks, series.name)
    if found is None or not rate:
        return found
    _check_starts([before, after], remarks, series.name)
    if isinstance(after.value, float) and is_reset_:
        found = after.value
    seconds = (after.time_ms - before.time_ms) / 1000
    return scaled(found, 1 / seconds) if isinstance(found, NativeHistogram) else found / seconds


# Counts of events


def counted(series: Series, differs: Callable[[Point, Point], bool]) -> float | None:
    if not series.points:
        return None
    points = series.points
    if series.mode == "anchored":
        points = [*series.before[-1:], *points]
    return float(sum(differs(before, after) for before, after in pairwise(points)))


def changed(before: Point, after: Point) -> bool:
    a, b = before.value, after.value
    if isinstance(a, NativeHistogram) and isinstance(b, NativeHistogram):
        return not same(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return a != b and not (math.isnan(a) and math.isnan(b))
    return True

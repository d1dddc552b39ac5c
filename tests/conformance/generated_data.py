"""Random series: floats, native histograms, both in one series; with gaps, stale markers, resets and start timestamps.

Counts are multiples of 0.25 and sums of 0.5, so that adding them up is exact in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from loadtest.harness.memory_source import label_set
from shared.labels import Labels
from tests.conformance.series_text import STALE
from tests.oracle_native_histograms import CUSTOM, Hint, NativeHistogram, coarser, fewer_bounds, summed, wider_zero
from tests.oracle_values import Point

Draw = Callable[..., Any]
DataSet = dict[Labels, list[Point]]

INTERVALS_MS = (10_000, 15_000, 30_000, 60_000)
SAMPLES_MIN = 8
SAMPLES_MAX = 24
SERIES_MIN = 5
SERIES_MAX = 12
METRICS = ("gauge", "up_total", "req_total")
TARGETS = (("a", "1", ""), ("a", "2", "x"), ("b", "1", ""), ("b", "3", "y"), ("a", "3", ""))
BOUNDS = ("0.5", "1", "2", "+Inf")
SPECIAL = (math.nan, math.inf, -math.inf, math.nan, -0.0, 0.5)

CUSTOM_BOUNDS = ((1.0, 2.0, 5.0), (1.0, 2.0, 5.0), (1.0, 5.0), (0.5, 1.0, 2.0), (-1.0, 0.0, 2.0), ())
THRESHOLDS = (0.0, 0.0, 0.001, 0.5, 1.0)
SCHEMAS = (0, 0, 1, 2, -1)
KINDS = ("float", "counter", "counter", "custom", "gauge", "mixed")


def _timed_events(draw: Draw) -> list[tuple[int, int]]:
    """(time in ms, a number that says what happens then) of some samples from about t=0 on."""
    interval = draw(st.sampled_from(INTERVALS_MS))
    start = draw(st.sampled_from((0, 0, 0, 1, 5_000, 120_000)))
    events = draw(st.lists(st.integers(0, 31), min_size=SAMPLES_MIN, max_size=SAMPLES_MAX))
    return [(start + i * interval, event) for i, event in enumerate(events)]


@st.composite
def series_points(draw: Draw, counter: bool) -> list[Point]:
    """Some samples from about t=0 on, with gaps, stale markers, resets and special values."""
    timed_events = _timed_events(draw)
    special = 16 if draw(st.integers(0, 2)) == 0 else 27
    points: list[Point] = []
    value = float(draw(st.integers(0, 9)))
    for i, (time_ms, event) in enumerate(timed_events):
        if event == 31:
            points.append(Point(time_ms, STALE))
        elif event >= 28:
            continue
        elif event >= special and not counter:
            points.append(Point(time_ms, SPECIAL[i % len(SPECIAL)]))
        else:
            if counter:
                value = 0.0 if event == 26 else value + event // 4
            else:
                value = event - 12.0 if event % 3 else event / 2
            points.append(Point(time_ms, value))
    return points


@st.composite
def histogram_points(draw: Draw, kind: str) -> list[Point]:
    """As `series_points`, of native histograms. Where the events leave a choice, it depends on a drawn number."""
    timed_events = _timed_events(draw)
    random = Random(draw(st.integers(0, 1 << 20)))
    tells_hints = random.random() < 0.4
    unit = random.choice((1.0, 1.0, 0.25))
    points: list[Point] = []
    value = _first(kind, random, unit)
    hint = Hint.GAUGE if kind == "gauge" else Hint.UNKNOWN
    for i, (time_ms, event) in enumerate(timed_events):
        if event == 31:
            points.append(Point(time_ms, STALE))
        elif event >= 28:
            continue
        elif (event == 27 and kind == "mixed") or (event >= 22 and kind == "mixed" and i % 2):
            points.append(Point(time_ms, event / 2))
        else:
            is_reset = event in (25, 26)
            if is_reset or kind == "gauge":
                value = _first(_other(kind, random), random, unit)
            elif event == 24:
                value = _in_another_layout(value, random)
            else:
                value = summed([value, _increment(value, random, unit, event)])
            if tells_hints and kind != "gauge":
                hint = Hint.RESET if is_reset else Hint.NOT_RESET if points else Hint.UNKNOWN
            elif event == 23 and kind == "mixed":
                hint = random.choice(list(Hint))
            points.append(Point(time_ms, replace(value, hint=hint)))
    return points


def _other(kind: str, random: Random) -> str:
    """What a series goes on with after a reset: mixed ones change between exponential and custom buckets."""
    return random.choice(("custom", "counter")) if kind == "mixed" else kind


def _first(kind: str, random: Random, unit: float) -> NativeHistogram:
    if kind == "custom":
        empty = NativeHistogram(CUSTOM, bounds=random.choice(CUSTOM_BOUNDS))
    else:
        empty = NativeHistogram(random.choice(SCHEMAS), zero_threshold=random.choice(THRESHOLDS))
    return _increment(empty, random, unit, random.randint(0, 20))


def _increment(layout: NativeHistogram, random: Random, unit: float, event: int) -> NativeHistogram:
    """Some observations; now and then one of NaN, which is in no bucket."""
    positive = {}
    negative = {}
    zero = 0.0
    for _ in range(event // 6):
        count = random.randint(1, 4) * unit
        if layout.is_custom:
            positive[random.randint(0, len(layout.bounds))] = count
        elif random.random() < 0.2:
            zero = count
        elif random.random() < 0.3:
            negative[random.randint(1, 4)] = count
        else:
            positive[random.randint(1, 5)] = count
    nans = float(random.random() < 0.01)
    found = replace(layout, positive=positive, negative=negative, zero_count=zero, hint=Hint.UNKNOWN)
    return replace(found, count=found.total + nans, sum=math.nan if nans else random.randint(-3, 12) / 2)


def _in_another_layout(value: NativeHistogram, random: Random) -> NativeHistogram:
    """What a client does that has too many buckets: it widens them."""
    if value.is_custom:
        return fewer_bounds(value, tuple(bound for bound in value.bounds if random.random() < 0.6))
    if random.random() < 0.5:
        return coarser(value, max(value.schema - 1, -2))
    return wider_zero(value, 2.0) if value.schema <= 0 else value


def with_starts(points: list[Point], random: Random) -> list[Point]:
    """As from a client that tells since when it has counted: since a while ago, since the sample before (deltas), or
    since some time between, at a reset."""
    is_delta = random.random() < 0.3
    found: list[Point] = []
    start = max(points[0].time_ms - random.choice((0, 5_000, 40_000)), 0) if points else 0
    for i, point in enumerate(points):
        if i and (is_delta or random.random() < 0.15):
            start = points[i - 1].time_ms + (0 if is_delta else random.choice((0, 1, 4_000)))
        found.append(point._replace(start_ms=0 if random.random() < 0.1 else start))
    return found


@st.composite
def data_sets(draw: Draw, histograms: bool) -> DataSet:
    """A few series of the metrics above, and mostly some info series and a classic histogram. `histograms`: most series
    are native histograms, and some have start timestamps."""
    data: DataSet = {}
    for i in range(draw(st.integers(SERIES_MIN, SERIES_MAX))):
        metric = METRICS[i % len(METRICS)]
        job, instance, zone = draw(st.sampled_from(TARGETS))
        labels = {"__name__": metric, "job": job, "instance": instance, "zone": zone}
        data[label_set(labels)] = draw(
            _any_points(metric != "gauge") if histograms else series_points(metric != "gauge")
        )
    if draw(st.integers(0, 3)):
        for job, instance, _ in TARGETS[draw(st.integers(0, 2)) :]:
            version = draw(st.sampled_from(("v1", "v2")))
            labels = {"__name__": "target_info", "job": job, "instance": instance, "version": version}
            data[label_set(labels)] = draw(series_points(False))
    if draw(st.integers(0, 3)):
        for instance in draw(st.sampled_from(("1", "12"))):
            for bound in BOUNDS[draw(st.integers(0, 1)) :]:
                labels = {"__name__": "lat_bucket", "job": "a", "instance": instance, "le": bound}
                data[label_set(labels)] = draw(series_points(True))
    return data


@st.composite
def _any_points(draw: Draw, counter: bool) -> list[Point]:
    kind = draw(st.sampled_from(KINDS))
    points: list[Point] = draw(series_points(counter) if kind == "float" else histogram_points(kind))
    seed = draw(st.integers(0, 1 << 20))
    return with_starts(points, Random(seed)) if seed % 4 == 3 else points

"""`load_with_nhcb`: classic histograms as native ones with custom buckets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shared.labels import METRIC_NAME, Labels
from tests.conformance.series_text import Histogram, Point
from tests.oracle_native_histograms import CUSTOM, NativeHistogram

_CLASSIC = re.compile(r"(.+)_(bucket|sum|count)")


@dataclass
class _Parts:
    """The series of a classic histogram: by upper boundary, and `sum` and `count`."""

    buckets: dict[float, Sequence[Point]] = field(default_factory=dict)
    others: dict[str, Sequence[Point]] = field(default_factory=dict)


def with_custom_buckets(series: Mapping[Labels, Sequence[Point]]) -> dict[Labels, list[Point]]:
    """The native histograms that these series of classic ones make, without the suffixes of their names."""
    found: dict[Labels, _Parts] = {}
    for labels, points in series.items():
        values = dict(labels)
        match = _CLASSIC.fullmatch(values.get(METRIC_NAME, ""))
        if match is None:
            continue
        name, kind = match.groups()
        key = tuple(sorted((n, name if n == METRIC_NAME else v) for n, v in labels if n != "le"))
        parts = found.setdefault(key, _Parts())
        if kind == "bucket":
            parts.buckets[float(values["le"])] = points
        else:
            parts.others[kind] = points
    return {labels: _histograms(parts) for labels, parts in found.items() if parts.buckets}


def _histograms(parts: _Parts) -> list[Point]:
    length = max(len(points) for points in (*parts.buckets.values(), *parts.others.values()))
    return [_histogram(parts, i) for i in range(length)]


def _histogram(parts: _Parts, i: int) -> Histogram | None:
    def at(points: Sequence[Point]) -> float | None:
        point = points[i] if i < len(points) else None
        return point if isinstance(point, float) else None

    cumulative = {bound: count for bound, points in sorted(parts.buckets.items()) if (count := at(points)) is not None}
    if not cumulative:
        return None
    last = list(cumulative.values())[-1]
    count = at(parts.others.get("count", ()))
    cumulative[float("inf")] = last if count is None else count
    counts = [high - low for low, high in pairwise((0.0, *cumulative.values()))]
    return Histogram(
        NativeHistogram(
            schema=CUSTOM,
            count=cumulative[float("inf")],
            sum=at(parts.others.get("sum", ())) or 0.0,
            positive=dict(enumerate(counts)),
            bounds=tuple(cumulative)[:-1],
        )
    )

"""Answers to metric queries: series as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triptych.tables import Column, Table, column_names

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bucket:
    """`count` observations between `left` and `right`, each of which belongs to the bucket or not."""

    left: float
    right: float
    count: float
    left_inclusive: bool
    right_inclusive: bool


@dataclass(frozen=True)
class Histogram:
    """A native histogram; buckets without observations are left out."""

    count: float
    sum: float
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, eq=False)
class Series:
    """`timestamps`: float64[n], Unix seconds, exact to the millisecond; `values`: float64[n].

    Values that are native histograms stand in `histograms`, with their timestamps in `histogram_timestamps`.
    """

    labels: Mapping[str, str]
    timestamps: Floats
    values: Floats
    histogram_timestamps: Floats = field(default_factory=lambda: np.zeros(0))
    histograms: tuple[Histogram, ...] = ()

    @property
    def times(self) -> NDArray[np.datetime64]:
        """The timestamps as datetime64[ms], in UTC."""
        return as_datetimes(self.timestamps)


@dataclass(frozen=True)
class QueryResult(Table):
    """`type`: vector, matrix, scalar or string. `value`: of a scalar; `text`: of a string.

    `warnings`: what is missing from the answer; `infos`: hints; `stats`: as the server gives them, if they were wanted.
    As a table it has a row for each float sample: a column for each label, then `timestamp` and `value`; a label of
    these names has `exported_` before it, more than once if there is such a label too.
    """

    type: str
    series: list[Series]
    value: float | None = None
    text: str | None = None
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, Column]:
        names = sorted({name for series in self.series for name in series.labels})
        counts = [len(series.values) for series in self.series]
        table: dict[str, Column] = {}
        for name, column in column_names(names, ("timestamp", "value"), "exported_").items():
            texts = np.empty(len(self.series), object)
            texts[:] = [series.labels.get(name) for series in self.series]
            table[column] = np.repeat(texts, counts).tolist()
        empty = np.zeros(0)
        table["timestamp"] = as_datetimes(np.concatenate([empty, *(series.timestamps for series in self.series)]))
        table["value"] = np.concatenate([empty, *(series.values for series in self.series)])
        return table


def as_datetimes(seconds: Floats) -> NDArray[np.datetime64]:
    return np.rint(seconds * 1000).astype(np.int64).astype("datetime64[ms]")


def result_of(content: Mapping[str, Any]) -> QueryResult:
    """From the envelope of `/api/v1/query` and `/api/v1/query_range`."""
    data = content["data"]
    kind, result = data["resultType"], data["result"]
    return QueryResult(
        kind,
        [_series(element) for element in result] if kind in ("vector", "matrix") else [],
        value=float(result[1]) if kind == "scalar" else None,
        text=result[1] if kind == "string" else None,
        warnings=tuple(content.get("warnings", ())),
        infos=tuple(content.get("infos", ())),
        stats=data.get("stats", {}),
    )


def _series(element: Mapping[str, Any]) -> Series:
    """An element of a vector has one pair, one of a matrix a list of them."""
    pairs = [element["value"]] if "value" in element else element.get("values", [])
    histograms = [element["histogram"]] if "histogram" in element else element.get("histograms", [])
    times, texts = zip(*pairs) if pairs else ((), ())
    return Series(
        element["metric"],
        np.array(times, np.float64),
        np.fromiter(map(float, texts), np.float64, len(texts)),
        np.array([time for time, _ in histograms], np.float64),
        tuple(_histogram(content) for _, content in histograms),
    )


def _histogram(content: Mapping[str, Any]) -> Histogram:
    buckets = [
        Bucket(float(left), float(right), float(count), boundaries in (1, 3), boundaries in (0, 3))
        for boundaries, left, right, count in content.get("buckets", ())
    ]
    return Histogram(float(content["count"]), float(content["sum"]), tuple(buckets))

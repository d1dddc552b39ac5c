"""Back end (a): the engine in this process over one in-memory source."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from loadtest.harness import local_queries
from loadtest.harness.memory_source import MemorySource
from shared.errors import TriptychError
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference, references, rows_of
from shared.labels import Labels
from shared.promql import model
from shared.promql.positions import line_column
from tests.conformance.answer import Answer, Pairs
from tests.conformance.data import Data
from tests.conformance.script import Times
from tests.conformance.series_text import Histogram
from tests.histogram_batches import batch_of, histograms_of
from tests.oracle_native_histograms import NativeHistogram


class MemoryBackend:
    name = "memory"
    start_timestamps = True
    histograms = True
    known_remarks: re.Pattern[str] | None = None

    def __init__(self) -> None:
        self._source = MemorySource({})

    def replace(self, data: Data) -> None:
        """Hold exactly `data`."""
        histograms: list[NativeHistogram] = []
        series = {labels: columns(samples.in_order(), histograms) for labels, samples in data.items()}
        self._source = MemorySource(series, batch_of(histograms) if histograms else None)

    def instant(self, text: str, time_ms: int) -> Answer:
        try:
            result = local_queries.instant(text, self._source, time_ms)
        except TriptychError as error:
            return Answer("error", error=str(error))
        return answer_of(text, result.value, result.annotations, model.Grid(time_ms, time_ms), ranged=False)

    def range(self, text: str, times: Times) -> Answer:
        grid = model.Grid(times.start_ms, times.end_ms, times.step_ms)
        try:
            result = local_queries.range_query(text, self._source, grid)
        except TriptychError as error:
            return Answer("error", error=str(error))
        return answer_of(text, result.value, result.annotations, grid, ranged=True)

    def close(self) -> None:
        self._source = MemorySource({})


def columns(
    points: Sequence[tuple[int, float | NativeHistogram, int]], histograms: list[NativeHistogram]
) -> list[ArrayLike]:
    """The columns of a series of (time, value, start timestamp), with references to `histograms`, which is added to."""
    times, values, starts = zip(*points, strict=True)
    floats = np.zeros(len(values))
    for i, value in enumerate(values):
        if isinstance(value, NativeHistogram):
            floats[i : i + 1] = references(np.array([len(histograms)]))
            histograms.append(value)
        else:
            floats[i] = value
    return [np.array(times), floats, np.array(starts)] if any(starts) else [np.array(times), floats]


def answer_of(
    text: str, value: model.Value, annotations: model.Annotations, grid: model.Grid, *, ranged: bool
) -> Answer:
    """The engine's columns as the rows a script speaks of."""
    answer = Answer("matrix" if ranged else "vector")
    times = grid.times_ms().tolist()
    if isinstance(value, model.String):
        answer.kind, answer.string = "string", value.value
    elif isinstance(value, model.Scalar):
        answer.kind = "matrix" if ranged else "scalar"
        answer.series = [((), list(zip(times, value.values.tolist(), strict=True)))]
    elif isinstance(value, model.RangeVector):
        answer.kind, answer.series = "matrix", _ragged(value)
    else:
        shown = _points(value.values, value.present, value.histograms)
        rows = (np.flatnonzero(row) for row in value.present)
        answer.series = [
            (value.labels.labels(i), [(times[step], shown[i][step]) for step in steps.tolist()])
            for i, steps in enumerate(rows)
            if len(steps)
        ]
    for item in annotations.items.values():
        line, column = line_column(text, item.offset) if item.offset is not None else (0, 0)
        place = f" ({line}:{column})" if item.offset is not None else ""
        (answer.warnings if item.level == "warning" else answer.infos).append(item.text + place)
    return answer


def _points(values: model.Float, present: model.Bool, batch: HistogramBatch | None) -> list[list[float | Histogram]]:
    """The values of each series; a reference becomes the histogram that it refers to."""
    points: list[list[float | Histogram]] = values.tolist()
    if batch is not None:
        histograms = histograms_of(batch)
        for i, step in np.argwhere(is_reference(values) & present):
            points[i][step] = Histogram(histograms[rows_of(values[i : i + 1, step])[0]], names_hint=True)
    return points


def _ragged(value: model.RangeVector) -> list[tuple[Labels, Pairs]]:
    samples = value.samples
    (points,) = _points(samples.values[np.newaxis], np.ones((1, len(samples.values)), np.bool_), samples.histograms)
    bounds = zip(samples.offsets[:-1].tolist(), samples.offsets[1:].tolist(), strict=True)
    return [
        (
            value.labels.labels(i),
            list(zip(samples.timestamps_ms[a:b].tolist(), points[a:b], strict=True)),
        )
        for i, (a, b) in enumerate(bounds)
        if b > a
    ]

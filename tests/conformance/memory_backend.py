"""Back end (a): the engine in this process over one in-memory source."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from loadtest.harness import local_queries
from loadtest.harness.memory_source import MemorySource
from shared.errors import TriptychError
from shared.labels import Labels
from shared.promql import model
from shared.promql.positions import line_column
from tests.conformance.answer import Answer, Pairs
from tests.conformance.data import Data, LoadedSamples
from tests.conformance.script import Times


class MemoryBackend:
    name = "memory"
    start_timestamps = True
    annotates = True

    def __init__(self) -> None:
        self._source = MemorySource({})

    def replace(self, data: Data) -> None:
        """Hold exactly `data`."""
        self._source = MemorySource({labels: _columns(samples) for labels, samples in data.items()})

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


def _columns(samples: LoadedSamples) -> list[ArrayLike]:
    columns: list[ArrayLike] = [samples.timestamps_ms(), samples.values()]
    return [*columns, samples.start_timestamps_ms()] if samples.has_start else columns


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
        rows = (np.flatnonzero(row) for row in value.present)
        answer.series = [
            (value.labels.labels(i), [(times[step], float(value.values[i, step])) for step in steps.tolist()])
            for i, steps in enumerate(rows)
            if len(steps)
        ]
    for item in annotations.items.values():
        line, column = line_column(text, item.offset) if item.offset is not None else (0, 0)
        place = f" ({line}:{column})" if item.offset is not None else ""
        (answer.warnings if item.level == "warning" else answer.infos).append(item.text + place)
    return answer


def _ragged(value: model.RangeVector) -> list[tuple[Labels, Pairs]]:
    samples = value.samples
    bounds = zip(samples.offsets[:-1].tolist(), samples.offsets[1:].tolist(), strict=True)
    return [
        (
            value.labels.labels(i),
            list(zip(samples.timestamps_ms[a:b].tolist(), samples.values[a:b].tolist(), strict=True)),
        )
        for i, (a, b) in enumerate(bounds)
        if b > a
    ]

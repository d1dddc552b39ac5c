"""A storage for rules in memory, for their unit tests: the series of the test, and those that rules have written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordinator.rules.alerts import Vector
from coordinator.rules.vectors import vector_of
from coordinator.series.own_samples import STALE
from shared.errors import BadData, TriptychError
from shared.labels import LabelFrame, Labels, Symbols
from shared.promql import parser
from shared.promql.ast import Matcher
from shared.promql.engine.context import LOOKBACK_MS, EvalContext
from shared.promql.engine.evaluator import evaluate
from shared.promql.engine.finishing import finish
from shared.promql.model import Grid, Samples, Value
from shared.promql.regex import Regex


class MemoryStorage:
    """A `Source` of the engine, and the storage that groups of rules read and write."""

    def __init__(self, lookback_ms: int = LOOKBACK_MS) -> None:
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}
        self._lookback_ms = lookback_ms

    def add(self, labels: Labels, time_ms: int, value: float) -> None:
        """Add samples. Those of a series come in the order of time; a sample replaces one at the same time."""
        times, values = self._series.setdefault(labels, ([], []))
        if times and times[-1] == time_ms:
            values[-1] = value
        else:
            times.append(time_ms)
            values.append(value)

    async def write(self, time_ms: int, series: Vector, ended: Sequence[Labels]) -> None:
        for labels, value in series:
            self.add(labels, time_ms, value)
        for labels in ended:
            self.add(labels, time_ms, STALE)

    async def query(self, expr: str, time_ms: int, lookback_ms: int | None = None) -> Vector:
        """Raises TriptychError."""
        return vector_of(self.value(expr, time_ms, lookback_ms))

    async def query_all(self, exprs: Sequence[str], time_ms: int) -> Sequence[Vector | TriptychError]:
        answers: list[Vector | TriptychError] = []
        for expr in exprs:
            try:
                answers.append(await self.query(expr, time_ms))
            except TriptychError as error:
                answers.append(error)
        return answers

    def value(self, expr: str, time_ms: int, lookback_ms: int | None = None) -> Value:
        """Raises TriptychError."""
        grid = Grid(time_ms, time_ms)
        tree = parser.resolve_durations(parser.parse(expr), grid)
        context = EvalContext(self, Symbols(), grid, self._lookback_ms if lookback_ms is None else lookback_ms)
        return finish(evaluate(tree, grid, context))

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> Selection:
        patterns = {one.value: _regex(one.value) for one in matchers if one.op in ("=~", "!~")}

        def satisfies(labels: dict[str, str], one: Matcher) -> bool:
            text = labels.get(one.name, "")
            if one.op in ("=", "!="):
                return (text == one.value) == (one.op == "=")
            return patterns[one.value].matches(text) == (one.op == "=~")

        chosen = [labels for labels in self._series if all(satisfies(dict(labels), matcher) for matcher in matchers)]
        samples = [self._series[labels] for labels in chosen]
        return Selection(LabelFrame.of(chosen, symbols), samples, start_ms, end_ms)


def _regex(pattern: str) -> Regex:
    try:
        return Regex(pattern)
    except ValueError as error:
        raise BadData(f"{pattern!r} is not a regular expression: {error}") from None


class Selection:
    """The series that a selector matches."""

    def __init__(
        self, labels: LabelFrame, samples: Sequence[tuple[list[int], list[float]]], start_ms: int, end_ms: int
    ) -> None:
        self.labels = labels
        self._samples = samples
        self._start_ms, self._end_ms = start_ms, end_ms

    def read(self, first: int, last: int) -> Samples:
        times: list[int] = []
        values: list[float] = []
        offsets = [0]
        for own_times, own_values in self._samples[first:last]:
            for time_ms, value in zip(own_times, own_values, strict=True):
                if self._start_ms <= time_ms <= self._end_ms:
                    times.append(time_ms)
                    values.append(value)
            offsets.append(len(times))
        return Samples(
            np.array(offsets, dtype=np.int64), np.array(times, dtype=np.int64), np.array(values, dtype=np.float64)
        )

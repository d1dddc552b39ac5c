"""The oracle as a back end: it judges the values that the project's own scripts expect. Of remarks it
gives those about native histograms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from shared.errors import TriptychError
from shared.labels import Labels
from shared.promql import ast, parser, types
from shared.promql.model import Grid
from tests import oracle
from tests.conformance.answer import Answer, Pairs
from tests.conformance.data import Data
from tests.conformance.script import Times
from tests.conformance.series_text import Histogram
from tests.oracle_values import KNOWN_REMARKS, METADATA, Number, OracleError, Point, Remarks, Series, as_labels


class OracleBackend:
    name = "oracle"
    start_timestamps = True
    histograms = True
    known_remarks: re.Pattern[str] | None = KNOWN_REMARKS

    def __init__(self) -> None:
        self._data: dict[Labels, list[Point]] = {}

    def replace(self, data: Data) -> None:
        self._data = {labels: [Point(*row) for row in samples.in_order()] for labels, samples in data.items()}

    def instant(self, text: str, time_ms: int) -> Answer:
        return self._ask(text, Grid(time_ms, time_ms), ranged=False)

    def range(self, text: str, times: Times) -> Answer:
        return self._ask(text, Grid(times.start_ms, times.end_ms, times.step_ms), ranged=True)

    def close(self) -> None:
        self._data = {}

    def _ask(self, text: str, grid: Grid, *, ranged: bool) -> Answer:
        try:
            expr = parser.resolve_durations(parser.parse(text), grid)
            kind = types.type_of(expr)
            if ranged and kind in (ast.ValueType.STRING, ast.ValueType.MATRIX):
                return Answer("error", error="invalid expression type for range query")
            if kind in (ast.ValueType.STRING, ast.ValueType.MATRIX):
                return self._other(expr, grid)
            remarks = Remarks()
            result = oracle.evaluate(expr, self._data, grid, remarks)
        except (TriptychError, OracleError) as error:
            return Answer("error", error=str(error))
        shape: Literal["matrix", "scalar", "vector"] = (
            "matrix" if ranged else "scalar" if kind is ast.ValueType.SCALAR else "vector"
        )
        answer = Answer(shape, [(labels, shown(points)) for labels, points in result.items()])
        for level, place in remarks.places(text):
            (answer.warnings if level == "warning" else answer.infos).append(place)
        return answer

    def _other(self, expr: ast.Expr, grid: Grid) -> Answer:
        value = oracle.Oracle(self._data, grid).at(expr, grid.start_ms)
        if isinstance(value, str):
            return Answer("string", string=value)
        assert isinstance(value, list)
        series = [one for one in value if isinstance(one, Series) and one.points]
        return Answer(
            "matrix", [(as_labels(s.labels, METADATA if s.drop_name else ()), shown(s.points)) for s in series]
        )


def shown(points: Sequence[tuple[int, Number] | Point]) -> Pairs:
    """Points as answers have them."""
    return [
        (time_ms, value if isinstance(value, float) else Histogram(value, names_hint=True))
        for time_ms, value, *_ in points
    ]

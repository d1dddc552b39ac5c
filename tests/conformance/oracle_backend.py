"""The oracle as a back end: it judges the values that the project's own scripts expect. It gives no annotations."""

from __future__ import annotations

from shared.errors import TriptychError
from shared.labels import Labels
from shared.promql import ast, parser, types
from shared.promql.model import Grid
from tests import oracle
from tests.conformance.answer import Answer
from tests.conformance.data import Data
from tests.conformance.script import Times
from tests.oracle_values import OracleError, Point, as_labels


class OracleBackend:
    name = "oracle"
    start_timestamps = False
    annotates = False

    def __init__(self) -> None:
        self._data: dict[Labels, list[Point]] = {}

    def replace(self, data: Data) -> None:
        self._data = {labels: [(t, v) for t, (v, _) in samples.floats.items()] for labels, samples in data.items()}

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
            result = oracle.evaluate(expr, self._data, grid)
        except (TriptychError, OracleError) as error:
            return Answer("error", error=str(error))
        shape = "matrix" if ranged else "scalar" if kind is ast.ValueType.SCALAR else "vector"
        return Answer(shape, list(result.items()))  # type: ignore[arg-type]

    def _other(self, expr: ast.Expr, grid: Grid) -> Answer:
        value = oracle.Oracle(self._data, grid).at(expr, grid.start_ms)
        if isinstance(value, str):
            return Answer("string", string=value)
        assert isinstance(value, list)
        series = [(as_labels(s.labels, without=("__name__",) if s.drop_name else ()), s.points) for s in value]
        return Answer("matrix", [one for one in series if one[1]])

"""A reference evaluator of PromQL: one step and one sample at a time, nothing shared with the engine but the AST.

Written from https://prometheus.io/docs/prometheus/latest/querying/ (basics, operators, functions), to be compared with
the engine. It is slow on purpose; it knows floats only and gives no annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shared.labels import METRIC_NAME, Labels
from shared.promql import ast
from shared.promql.model import Grid
from tests import oracle_functions, oracle_histograms, oracle_operators, oracle_windows
from tests.oracle_functions import full_match
from tests.oracle_values import METADATA, OracleError, Point, Sample, Series, Value, as_labels, is_stale

DEFAULT_STEP_MS = 60_000
LOOKBACK_MS = 300_000

Data = Mapping[Labels, Sequence[Point]]
Result = dict[Labels, list[Point]]


def evaluate(expr: ast.Expr, data: Data, grid: Grid) -> Result:
    """The answer of a range query over `grid` (an instant one: a grid of one step). Durations must be resolved.

    Raises OracleError where the language says that the query fails.
    """
    oracle = Oracle(data, grid)
    result: Result = {}
    for time_ms in grid.times_ms().tolist():
        for labels, value in _finish(oracle.at(expr, time_ms)).items():
            result.setdefault(labels, []).append((time_ms, value))
    return result


def _finish(value: Value) -> dict[Labels, float]:
    """Drop the names that are to be dropped; two samples with one label set are an error."""
    if isinstance(value, float):
        return {(): value}
    if isinstance(value, str):
        raise OracleError("a string has no steps")
    finished: dict[Labels, float] = {}
    for sample in value:
        assert isinstance(sample, Sample)
        labels = as_labels(sample.labels, without=METADATA if sample.drop_name else ())
        if labels in finished:
            raise OracleError("vector cannot contain metrics with the same labelset")
        finished[labels] = sample.value
    return finished


class Oracle:
    """Evaluates expressions over `data`; `query_grid` is what `start()` and `end()` mean."""

    def __init__(self, data: Data, query_grid: Grid) -> None:
        self._data = {labels: sorted(points, key=lambda point: point[0]) for labels, points in data.items()}
        self._query_grid = query_grid

    def at(self, expr: ast.Expr, time_ms: int) -> Value:
        """The value of `expr` at one instant."""
        match expr:
            case ast.NumberLiteral():
                return float(expr.value)
            case ast.StringLiteral():
                return expr.value
            case ast.Paren():
                return self.at(expr.expr, time_ms)
            case ast.Unary():
                return _negated(self.at(expr.expr, time_ms)) if expr.op == "-" else self.at(expr.expr, time_ms)
            case ast.VectorSelector():
                return self._instant(expr, time_ms)
            case ast.MatrixSelector():
                return self._window(expr, time_ms)
            case ast.Subquery():
                return self._subquery(expr, time_ms)
            case ast.Binary():
                lhs, rhs = self.at(expr.lhs, time_ms), self.at(expr.rhs, time_ms)
                return oracle_operators.binary(expr, lhs, rhs)
            case ast.Aggregate():
                param = None if expr.param is None else self.at(expr.param, time_ms)
                vector = self.at(expr.expr, time_ms)
                return oracle_operators.aggregate(expr, _samples(vector), param)
            case ast.Call():
                return self._call(expr, time_ms)
            case _:
                raise AssertionError(f"the oracle does not know {type(expr).__name__}")

    # Selectors

    def _reference(self, node: ast.VectorSelector | ast.Subquery, time_ms: int) -> int:
        if node.at is not None:
            ends = {"start": self._query_grid.start_ms, "end": self._query_grid.end_ms}
            time_ms = node.at.at if isinstance(node.at.at, int) else ends[node.at.at]
        assert isinstance(node.offset, int)
        return time_ms - node.offset

    def _matching(self, selector: ast.VectorSelector) -> list[tuple[dict[str, str], Sequence[Point]]]:
        return [
            (dict(labels), points)
            for labels, points in self._data.items()
            if all(_matches(matcher, dict(labels).get(matcher.name, "")) for matcher in selector.matchers)
        ]

    def _instant(self, selector: ast.VectorSelector, time_ms: int) -> list[Sample]:
        """The newest sample of each series in (t - lookback, t], unless that is a stale marker."""
        reference = self._reference(selector, time_ms)
        found = []
        for labels, points in self._matching(selector):
            recent = [point for point in points if reference - LOOKBACK_MS < point[0] <= reference]
            if selector.smoothed:
                live = [point for point in points if not is_stale(point[1])]
                value = oracle_windows.interpolated(live, reference, LOOKBACK_MS)
                if value is not None:
                    found.append(Sample(labels, value, at_ms=time_ms))
            elif recent and not is_stale(recent[-1][1]):
                found.append(Sample(labels, recent[-1][1], at_ms=recent[-1][0]))
        return found

    def _window(self, node: ast.MatrixSelector, time_ms: int) -> list[Series]:
        """The samples of each series in (t - range, t]."""
        assert isinstance(node.range, int)
        end = self._reference(node.vector, time_ms)
        start = end - node.range
        found = []
        for labels, points in self._matching(node.vector):
            live = [point for point in points if not is_stale(point[1])]
            inside = [point for point in live if start < point[0] <= end]
            series = Series(labels, inside, start, end)
            if node.vector.anchored or node.vector.smoothed:
                series.before = [point for point in live if start - LOOKBACK_MS < point[0] <= start]
                series.after = [point for point in live if end < point[0] < end + LOOKBACK_MS]
                series.mode = "anchored" if node.vector.anchored else "smoothed"
            found.append(series)
        return found

    def _subquery(self, node: ast.Subquery, time_ms: int) -> list[Series]:
        """The inner expression at the multiples of the step in (t - range, t]."""
        assert isinstance(node.range, int)
        step = node.step if isinstance(node.step, int) else DEFAULT_STEP_MS
        end = self._reference(node, time_ms)
        start = end - node.range
        found: dict[Labels, Series] = {}
        for inner_ms in range((start // step + 1) * step, end + 1, step):
            value = self.at(node.expr, inner_ms)
            for sample in [Sample({}, value)] if isinstance(value, float) else _samples(value):
                series = found.setdefault(
                    as_labels(sample.labels), Series(sample.labels, [], start, end, drop_name=sample.drop_name)
                )
                series.points.append((inner_ms, sample.value))
        return list(found.values())

    # Functions

    def _call(self, call: ast.Call, time_ms: int) -> Value:
        name = call.func
        if name in ("start", "end", "step", "range", "time", "pi"):
            return self._of_the_query(name, time_ms)
        if name in ("absent", "absent_over_time"):
            value = self.at(call.args[0], time_ms)
            assert isinstance(value, list)
            there = any(not isinstance(one, Series) or one.points for one in value)
            return [] if there else [Sample(_absent_labels(call.args[0]), 1.0)]
        if name == "timestamp":
            return self._timestamps(call.args[0], time_ms)
        args = [self.at(arg, time_ms) for arg in call.args]
        if name in oracle_windows.FUNCTIONS:
            return oracle_windows.call(name, args, time_ms)
        if name in oracle_histograms.FUNCTIONS:
            return oracle_histograms.FUNCTIONS[name](args)
        if not args:
            args = [[Sample({}, time_ms / 1000)]]
        return oracle_functions.FUNCTIONS[name](args)

    def _of_the_query(self, name: str, time_ms: int) -> float:
        grid = self._query_grid
        instant = grid.start_ms == grid.end_ms
        return {
            "start": grid.start_ms / 1000,
            "end": grid.end_ms / 1000,
            "step": 0.0 if instant else grid.step_ms / 1000,
            "range": (grid.end_ms - grid.start_ms) / 1000,
            "time": time_ms / 1000,
            "pi": float(np.pi),
        }[name]

    def _timestamps(self, arg: ast.Expr, time_ms: int) -> list[Sample]:
        """Of a selector the samples' own times, of anything else the time of evaluation."""
        inner = arg
        while isinstance(inner, ast.Paren):
            inner = inner.expr
        own = isinstance(inner, ast.VectorSelector)
        return [
            Sample(sample.labels, (sample.at_ms if own else time_ms) / 1000, drop_name=True)
            for sample in _samples(self.at(arg, time_ms))
        ]


def _samples(value: Value) -> list[Sample]:
    assert isinstance(value, list)
    return [one for one in value if isinstance(one, Sample)]


def _negated(value: Value) -> Value:
    if isinstance(value, float):
        return -value
    return [Sample(sample.labels, -sample.value, drop_name=True) for sample in _samples(value)]


def _matches(matcher: ast.Matcher, value: str) -> bool:
    if matcher.op in ("=", "!="):
        return (matcher.value == value) == (matcher.op == "=")
    return (full_match(matcher.value, value) is not None) == (matcher.op == "=~")


def _absent_labels(arg: ast.Expr) -> dict[str, str]:
    """What the selector's equality matchers say of the series that is not there."""
    selector = arg.vector if isinstance(arg, ast.MatrixSelector) else arg
    if not isinstance(selector, ast.VectorSelector):
        return {}
    names = [matcher.name for matcher in selector.matchers]
    return {
        matcher.name: matcher.value
        for matcher in selector.matchers
        if matcher.op == "=" and matcher.name != METRIC_NAME and names.count(matcher.name) == 1
    }

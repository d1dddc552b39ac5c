"""A reference evaluator of PromQL: one step and one sample at a time, nothing shared with the engine but the AST.

Written from https://prometheus.io/docs/prometheus/latest/querying/ (basics, operators, functions),
and, of native histograms, https://prometheus.io/docs/specs/native_histograms, to be compared with the engine. It
is slow on purpose. Its remarks are those about native histograms only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from shared.labels import METRIC_NAME, Labels
from shared.promql import ast
from shared.promql.model import Grid
from tests import (
    oracle_aggregations,
    oracle_functions,
    oracle_histograms,
    oracle_info,
    oracle_operators,
    oracle_windows,
)
from tests.oracle_counters import MixedSchemas, interpolated
from tests.oracle_folds import MIXED_SCHEMAS
from tests.oracle_functions import full_match
from tests.oracle_native_histograms import Hint, NativeHistogram, is_reset, scaled
from tests.oracle_values import (
    METADATA,
    Number,
    OracleError,
    Point,
    Remarks,
    Sample,
    Series,
    Value,
    as_labels,
    is_stale,
    of_metric,
)

DEFAULT_STEP_MS = 60_000
LOOKBACK_MS = 300_000

Data = Mapping[Labels, Sequence[tuple[int, Number] | tuple[int, Number, int]]]
"""Label set → its samples, as `Point`s or as tuples of a Point's fields."""

Result = dict[Labels, list[tuple[int, Number]]]


def evaluate(expr: ast.Expr, data: Data, grid: Grid, remarks: Remarks | None = None) -> Result:
    """The answer of a range query over `grid` (an instant one: a grid of one step). Durations must be resolved.

    Raises OracleError where the language says that the query fails.
    """
    oracle = Oracle(data, grid, remarks)
    result: Result = {}
    for time_ms in grid.times_ms().tolist():
        for labels, value in _finish(oracle.at(expr, time_ms)).items():
            result.setdefault(labels, []).append((time_ms, value))
    return result


def _finish(value: Value) -> dict[Labels, Number]:
    """Drop the names that are to be dropped; two samples with one label set are an error."""
    if isinstance(value, float):
        return {(): value}
    if isinstance(value, str):
        raise OracleError("a string has no steps")
    finished: dict[Labels, Number] = {}
    for sample in value:
        assert isinstance(sample, Sample)
        labels = as_labels(sample.labels, without=METADATA if sample.drop_name else ())
        if labels in finished:
            raise OracleError("vector cannot contain metrics with the same labelset")
        finished[labels] = sample.value
    return finished


def _after(time_ms: int, step: int) -> int:
    """The first multiple of the step after a time."""
    return (time_ms // step + 1) * step


class Oracle:
    """Evaluates expressions over `data`; `query_grid` is what `start()` and `end()` mean."""

    def __init__(self, data: Data, query_grid: Grid, remarks: Remarks | None = None) -> None:
        self._data = {
            labels: sorted((Point(*point) for point in points), key=lambda point: point.time_ms)
            for labels, points in data.items()
        }
        self._query_grid = self._grid = query_grid
        self._remarks = remarks or Remarks()
        self._detects_resets = False

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
                return oracle_operators.binary(expr, lhs, rhs, self._remarks.at(expr.span[0]))
            case ast.Aggregate():
                param = None if expr.param is None else self.at(expr.param, time_ms)
                vector = self.at(expr.expr, time_ms)
                return oracle_aggregations.aggregate(expr, _samples(vector), param, self._remarks)
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

    def _matching(self, selector: ast.VectorSelector, reach_ms: int) -> list[tuple[dict[str, str], Sequence[Point]]]:
        """The series. Resets are looked for in the samples that the selector reads at all the times of the grid, which
        begin `reach_ms` before the first of them."""
        matching: list[tuple[dict[str, str], Sequence[Point]]] = [
            (dict(labels), points)
            for labels, points in self._data.items()
            if all(_matches(matcher, dict(labels).get(matcher.name, "")) for matcher in selector.matchers)
        ]
        if not self._detects_resets:
            return matching
        first_ms = self._reference(selector, self._grid.start_ms) - reach_ms
        return [
            (
                labels,
                [p for p in points if p.time_ms <= first_ms]
                + with_detected_resets([p for p in points if p.time_ms > first_ms]),
            )
            for labels, points in matching
        ]

    def _instant(self, selector: ast.VectorSelector, time_ms: int) -> list[Sample]:
        """The newest sample of each series in (t - lookback, t], unless that is a stale marker."""
        reference = self._reference(selector, time_ms)
        found = []
        for labels, points in self._matching(selector, 2 * LOOKBACK_MS if selector.smoothed else LOOKBACK_MS):
            recent = [point for point in points if reference - LOOKBACK_MS < point.time_ms <= reference]
            if selector.smoothed:
                live = [point for point in points if not is_stale(point.value)]
                value = self._smoothed(selector, labels, live, reference)
                if value is not None:
                    found.append(Sample(labels, value, at_ms=time_ms))
            elif recent and not is_stale(recent[-1].value):
                newest = recent[-1]
                found.append(Sample(labels, newest.value, at_ms=newest.time_ms, start_ms=newest.start_ms))
        return found

    def _smoothed(
        self, selector: ast.VectorSelector, labels: dict[str, str], points: Sequence[Point], time_ms: int
    ) -> Number | None:
        remarks = self._remarks.at(selector.span[0])
        metric = of_metric(labels.get(METRIC_NAME, ""))
        around = [point for point in points if -LOOKBACK_MS < point.time_ms - time_ms <= LOOKBACK_MS]
        if len({isinstance(point.value, NativeHistogram) for point in around}) > 1:
            remarks.warn("encountered a mix of histograms and floats" + metric)
            return None
        try:
            return interpolated(points, time_ms, LOOKBACK_MS, remarks)
        except MixedSchemas:
            remarks.warn(MIXED_SCHEMAS + metric)
            return None

    def _window(self, node: ast.MatrixSelector, time_ms: int) -> list[Series]:
        """The samples of each series in (t - range, t]."""
        assert isinstance(node.range, int)
        end = self._reference(node.vector, time_ms)
        start = end - node.range
        found = []
        is_extended = node.vector.anchored or node.vector.smoothed
        for labels, points in self._matching(node.vector, node.range + (LOOKBACK_MS if is_extended else 0)):
            live = [point for point in points if not is_stale(point.value)]
            inside = [point for point in live if start < point.time_ms <= end]
            series = Series(labels, inside, start, end)
            if is_extended:
                series.before = [point for point in live if start - LOOKBACK_MS < point.time_ms <= start]
                series.after = [point for point in live if end < point.time_ms <= end + LOOKBACK_MS]
                series.mode = "anchored" if node.vector.anchored else "smoothed"
            found.append(series)
        return found

    def _subquery(self, node: ast.Subquery, time_ms: int) -> list[Series]:
        """The inner expression at the multiples of the step in (t - range, t]. Its values need not be neighbours, or
        are one sample several times: hints say nothing about resets between them.

        Between the windows it is evaluated for its remarks and errors: a range query evaluates it once, from the first
        window to the last.
        """
        assert isinstance(node.range, int)
        step = node.step if isinstance(node.step, int) else DEFAULT_STEP_MS
        end, grid, detects_resets = self._reference(node, time_ms), self._grid, self._detects_resets
        start = end - node.range
        is_last = time_ms == grid.end_ms
        next_start = start if is_last else self._reference(node, time_ms + grid.step_ms) - node.range
        first_ms = _after(self._reference(node, grid.start_ms) - node.range, step)
        last_ms = self._reference(node, grid.end_ms) // step * step
        self._grid, self._detects_resets = Grid(first_ms, max(first_ms, last_ms), step), False
        found: dict[Labels, Series] = {}
        for inner_ms in range(_after(start, step), max(end, next_start) + 1, step):
            value = self.at(node.expr, inner_ms)
            if inner_ms > end:
                continue
            for sample in [Sample({}, value)] if isinstance(value, float) else _samples(value):
                series = found.setdefault(
                    as_labels(sample.labels), Series(sample.labels, [], start, end, drop_name=sample.drop_name)
                )
                series.drop_name |= sample.drop_name
                number = sample.value
                if isinstance(number, NativeHistogram) and number.hint is not Hint.GAUGE:
                    number = replace(number, hint=Hint.UNKNOWN)
                series.points.append(Point(inner_ms, number))
        self._grid, self._detects_resets = grid, detects_resets
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
        if name == "info":
            return self._info(call, time_ms)
        if name == "timestamp":
            return self._timestamps(call.args[0], time_ms)
        if name == "start_timestamp" and not isinstance(_inner(call.args[0]), ast.VectorSelector):
            return []
        detects_resets = self._detects_resets
        if name in oracle_histograms.FUNCTIONS:
            self._detects_resets = name in ("histogram_count", "histogram_sum", "histogram_avg")
        args = [self.at(arg, time_ms) for arg in call.args]
        self._detects_resets = detects_resets
        if name in oracle_windows.FUNCTIONS:
            vector = next(arg for arg in call.args if isinstance(_inner(arg), (ast.MatrixSelector, ast.Subquery)))
            return oracle_windows.call(name, args, time_ms, self._remarks.at(vector.span[0]))
        if name in oracle_histograms.FUNCTIONS:
            vectors = [arg for arg, value in zip(call.args, args, strict=True) if isinstance(value, list)]
            return oracle_histograms.FUNCTIONS[name](args, self._remarks.at(vectors[0].span[0]))
        if not args:
            args = [[Sample({}, time_ms / 1000)]]
        return oracle_functions.FUNCTIONS[name](args)

    def _info(self, call: ast.Call, time_ms: int) -> list[Sample]:
        """The info series are those of the time that the first selector reads its samples at."""
        base = _samples(self.at(call.args[0], time_ms))
        labels = call.args[1] if len(call.args) > 1 else None
        matchers = oracle_info.complete(labels.matchers if isinstance(labels, ast.VectorSelector) else ())
        for node in oracle_info.path_to_selector(call.args[0]):
            time_ms = self._reference(node, time_ms)
        info = self._instant(ast.VectorSelector(None, matchers), time_ms)
        return oracle_info.enriched(base, info, matchers, _matches)

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
        own = isinstance(_inner(arg), ast.VectorSelector)
        return [
            Sample(sample.labels, (sample.at_ms if own else time_ms) / 1000, drop_name=True)
            for sample in _samples(self.at(arg, time_ms))
        ]


def _inner(expr: ast.Expr) -> ast.Expr:
    return _inner(expr.expr) if isinstance(expr, ast.Paren) else expr


def with_detected_resets(points: Sequence[Point]) -> list[Point]:
    """Where only count and sum of histograms are read, each one's hint says what is found between it and the one before
    (as the scripts show), except that of the first one that is read; otherwise it is what was stored."""
    found = list(points[:1])
    for before, after in pairwise(points):
        if (
            isinstance(before.value, NativeHistogram)
            and isinstance(after.value, NativeHistogram)
            and after.value.hint is not Hint.GAUGE
        ):
            hint = Hint.RESET if is_reset(before.value, after.value) else Hint.NOT_RESET
            after = after._replace(value=replace(after.value, hint=hint))
        found.append(after)
    return found


def _samples(value: Value) -> list[Sample]:
    assert isinstance(value, list)
    return [one for one in value if isinstance(one, Sample)]


def _negated(value: Value) -> Value:
    if isinstance(value, float):
        return -value
    return [
        Sample(s.labels, scaled(s.value, -1.0) if isinstance(s.value, NativeHistogram) else -s.value, drop_name=True)
        for s in _samples(value)
    ]


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

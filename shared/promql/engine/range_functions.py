"""Functions of range vectors.

Source: https://prometheus.io/docs/prometheus/latest/querying/functions/. The kernels do the arithmetic; this module
decides which kernel computes which function, and adds the annotations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shared.errors import NotExecutable
from shared.labels import LabelFrame
from shared.promql import types
from shared.promql.ast import Call, Expr, MatrixSelector, Subquery, without_parens
from shared.promql.engine import histogram_notes, histogram_ranges, readings, scan
from shared.promql.engine.aggregation_parameters import quantile_remark
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.vectors import absent_labels
from shared.promql.engine.gathering import GatheredHistograms
from shared.promql.engine.histogram_notes import names, quoted
from shared.promql.engine.kernels import counters, extended, extremes, moments, order_statistics, tallies, trends
from shared.promql.engine.range_vectors import RangeSeries
from shared.promql.engine.readings import Reading
from shared.promql.engine.rows import by_name
from shared.promql.engine.scan import Windows
from shared.promql.functions import FUNCTIONS
from shared.promql.model import ANNOTATIONS_MAX, Bool, Float, Grid, Matrix, Samples

COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")


def _counter(op: int) -> Callable[[Reading], None]:
    def run(reading: Reading) -> None:
        starts, began = scan.counter_starts(reading.samples)
        if reading.windows.before_ms:
            extended.increases(
                op, reading.smoothed, *reading.series, began, *reading.edges, reading.lookback_ms, reading.out,
                reading.present,
            )  # fmt: skip
            return
        if op in (counters.IRATE, counters.IDELTA):
            counters.last_changes(op, *reading.series, began, *reading.edges, reading.out, reading.present)
            return
        counters.counters(op, *reading.series, began, starts, *reading.edges, reading.out, reading.present)

    return run


def _tally(op: int) -> Callable[[Reading], None]:
    def run(reading: Reading) -> None:
        events = reading.events
        if op == tallies.RESETS and not events.size:
            events = scan.counter_starts(reading.samples)[1]
        tallies.tallies(
            op, *reading.series, events, *reading.edges, reading.windows.before_ms, reading.out, reading.present
        )

    return run


def _extreme(op: int) -> Callable[[Reading], None]:
    return lambda r: extremes.extremes(op, *r.series, *r.edges, r.out, r.present)


def _moment(op: int) -> Callable[[Reading], None]:
    return lambda r: moments.moments(op, *r.series, *r.edges, r.out, r.present)


def _trend(op: int) -> Callable[[Reading], None]:
    def run(r: Reading) -> None:
        a = r.parameters[0] if r.parameters else np.zeros(r.windows.steps)
        b = r.parameters[-1] if r.parameters else a
        trends.trends(op, *r.series, *r.edges, r.now, r.now_step, a, b, r.out, r.present)

    return run


def _order(op: int) -> Callable[[Reading], None]:
    def run(r: Reading) -> None:
        q = r.parameters[0] if r.parameters else np.full(r.windows.steps, 0.5)
        order_statistics.order_statistics(op, *r.series, *r.edges, q, r.out, r.present)

    return run


RANGE_FUNCTIONS: dict[str, Callable[[Reading], None]] = {
    "rate": _counter(counters.RATE),
    "increase": _counter(counters.INCREASE),
    "delta": _counter(counters.DELTA),
    "irate": _counter(counters.IRATE),
    "idelta": _counter(counters.IDELTA),
    "changes": _tally(tallies.CHANGES),
    "resets": _tally(tallies.RESETS),
    "count_over_time": _tally(tallies.COUNT),
    "present_over_time": _tally(tallies.PRESENT),
    "absent_over_time": _tally(tallies.PRESENT),
    "first_over_time": _tally(tallies.FIRST),
    "last_over_time": _tally(tallies.LAST),
    "ts_of_first_over_time": _tally(tallies.FIRST_TIME),
    "ts_of_last_over_time": _tally(tallies.LAST_TIME),
    "min_over_time": _extreme(extremes.MIN),
    "max_over_time": _extreme(extremes.MAX),
    "ts_of_min_over_time": _extreme(extremes.MIN_TIME),
    "ts_of_max_over_time": _extreme(extremes.MAX_TIME),
    "sum_over_time": _moment(moments.SUM),
    "avg_over_time": _moment(moments.AVG),
    "stddev_over_time": _moment(moments.STDDEV),
    "stdvar_over_time": _moment(moments.STDVAR),
    "deriv": _trend(trends.DERIV),
    "predict_linear": _trend(trends.PREDICT),
    "double_exponential_smoothing": _trend(trends.SMOOTH),
    "quantile_over_time": _order(order_statistics.QUANTILE),
    "mad_over_time": _order(order_statistics.MAD),
}
"""The kernel call of each function that takes a range vector."""

WEIGHTS = {"quantile_over_time": 8, "mad_over_time": 8}
"""The weights of functions that do more work for each sample in a window than others. They keep the values of a window
sorted, and move most values of a long window at each step, which takes 5 to 30 ns a value."""


def range_argument(node: Call) -> tuple[int, MatrixSelector | Subquery]:
    """(index, expression) of the argument that is a range vector, without its parentheses. Raises NotExecutable if
    there is none."""
    for index, argument in enumerate(node.args):
        ranged = without_parens(argument)
        if isinstance(ranged, MatrixSelector | Subquery):
            return index, ranged
    raise NotExecutable(f"expected a range vector in call to function {node.func!r}")


def evaluate_range_function(
    node: Call, series: RangeSeries, parameters: list[Float], grid: Grid, context: EvalContext
) -> Matrix:
    """The value of a call of one of RANGE_FUNCTIONS over its range vector, `series`. `parameters`: float64[steps] each,
    the other arguments in order. Raises NotExecutable for parameters outside their domain."""
    index, ranged = range_argument(node)
    _refuse_extension(node.func, ranged)
    if node.func == "absent_over_time":
        return _absent(ranged, series, grid, context)
    labels, drop_name = series.labels, series.drop_name
    values, present = scan.empty(labels.size, grid.steps, context)
    notes = np.zeros(labels.size, dtype=np.uint8)
    function, gathered = RANGE_FUNCTIONS[node.func], GatheredHistograms()
    for rows, samples in series.reads:
        reading = _reading(ranged, samples, series.windows, values[rows], present[rows], parameters, grid, context)
        reading.notes, reading.weight = notes[rows], WEIGHTS.get(node.func, 1)
        if samples.histograms is None:
            readings.run(function, reading, context)
            if node.func in histogram_ranges.COUNTERS:
                histogram_ranges.note_overlaps(node.func, reading, context)
        else:
            histogram_ranges.evaluate(node.func, function, reading, gathered, context)
    if not FUNCTIONS[node.func].keeps_name:
        drop_name = np.ones_like(drop_name)
    elif series.is_dropped is not None:
        rows_by_name, present, drop_name = by_name(present, series.is_dropped)
        labels, values = labels.take(rows_by_name), values[rows_by_name]
    matrix = scan.seen_only(labels, values, present, drop_name, gathered.batch())
    operation = "aggregation" if node.func in histogram_ranges.SUMS else "subtraction"
    histogram_notes.remark(notes, series.labels, operation, node.args[index].span[0], context.annotations)
    _remark(node, node.args[index], matrix, parameters, context)
    return matrix


def _reading(
    ranged: MatrixSelector | Subquery,
    samples: Samples,
    windows: Windows,
    out: Float,
    present: Bool,
    parameters: list[Float],
    grid: Grid,
    context: EvalContext,
) -> Reading:
    smoothed = isinstance(ranged, MatrixSelector) and ranged.vector.smoothed
    return Reading(
        samples, windows, out, present, parameters, grid.start_ms, grid.step_ms, smoothed, context.lookback_ms
    )


def _absent(ranged: MatrixSelector | Subquery, series: RangeSeries, grid: Grid, context: EvalContext) -> Matrix:
    """1 at the steps where no series has a sample."""
    seen = np.zeros(grid.steps, dtype=np.bool_)
    for _, samples in series.reads:
        shape = (len(samples.offsets) - 1, grid.steps)
        context.require(shape[0] * shape[1])
        present = np.zeros(shape, dtype=np.bool_)
        reading = _reading(ranged, samples, series.windows, np.empty(shape), present, [], grid, context)
        readings.run(RANGE_FUNCTIONS["present_over_time"], reading, context)
        seen |= present.any(axis=0)
    labels = LabelFrame.of([absent_labels(ranged)], context.symbols)
    return scan.seen_only(labels, np.ones((1, grid.steps)), ~seen.reshape(1, -1), np.zeros(1, dtype=np.bool_))


def _refuse_extension(func: str, ranged: MatrixSelector | Subquery) -> None:
    message = types.extension_refusal(func, ranged)
    if message is not None:
        raise NotExecutable(message)


def _remark(node: Call, ranged: Expr, matrix: Matrix, parameters: list[Float], context: EvalContext) -> None:
    """Add Prometheus's annotations on a range function's arguments. Raises NotExecutable for factors that Prometheus
    refuses."""
    annotations = context.annotations
    if node.func in ("rate", "increase"):
        for name in names(matrix.labels):
            if name and not name.endswith(COUNTER_SUFFIXES):
                annotations.info(
                    "metric might not be a counter, name does not end in _total/_sum/_count/_bucket: " + quoted(name),
                    ranged.span[0],
                )
    if not parameters or not matrix.labels.size:
        return
    evaluated = [parameter[matrix.present.any(axis=0)] for parameter in parameters]
    if node.func == "quantile_over_time":
        for q in np.unique(evaluated[0][~((evaluated[0] >= 0) & (evaluated[0] <= 1))])[:ANNOTATIONS_MAX]:
            annotations.warn(quantile_remark(q), node.args[0].span[0])
    if node.func == "double_exponential_smoothing":
        for kind, factors in zip(("smoothing", "trend"), evaluated, strict=True):
            bad = factors[~((factors > 0) & (factors < 1))]
            if len(bad):
                symbol = "sf" if kind == "smoothing" else "tf"
                raise NotExecutable(f"invalid {kind} factor. Expected: 0 < {symbol} < 1, got: {bad[0]:f}")

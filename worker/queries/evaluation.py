"""Evaluates the sub-queries of a query over one source of samples."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.histograms.batch import HistogramBatch
from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.messages.sub_queries import EvaluateBody, EvaluateReply, Form, Shape, ShardRead, SubQuery, SubQueryReply
from shared.process.processor_time import UNBOUNDED, ProcessorTime
from shared.promql import parser, types
from shared.promql.ast import Aggregate, Call, Expr, MatrixSelector, VectorSelector, without_parens
from shared.promql.engine import partial, range_vectors, scan
from shared.promql.engine.context import EvalContext, uncounted
from shared.promql.engine.evaluator import evaluate, evaluate_partial, evaluate_vector
from shared.promql.engine.finishing import finish
from shared.promql.engine.memory import account_of, bounded
from shared.promql.model import Grid, Matrix, RangeVector, Samples, Source
from shared.promql.rendering.series import SAMPLE_BYTES_MAX, SeriesWriter
from shared.wire import Frame

TEXT_WEIGHT_MIN = 2048
"""The coordinator renders a smaller value, unless only one worker evaluates the query: rendering on two workers would
cost more than it saves there. The weight is the number of values, plus SERIES_WEIGHT for the labels of each series."""
SERIES_WEIGHT = 32
TEXT_BYTES_MAX = 128 << 20
"""The largest text of one answer that a worker may hold, as an upper bound from its numbers and labels (half of that is
usual): two million numbers. As arrays these take a quarter of the memory, and no part of a text is sent before all of
it is written. Therefore a larger value goes to the coordinator as arrays, which renders it while it sends. The text is
some 80 frames of 1 MB, far below `wire.FRAMES_MAX`."""


def answer(
    message: EvaluateBody,
    source: Source,
    symbols: Symbols,
    *,
    deadline: float,
    cancelled: Callable[[], bool],
    processor: ProcessorTime = UNBOUNDED,
    counted: Callable[[int], None] = uncounted,
    has_matched: Callable[[], bool] = lambda: True,
    shard_reads: Callable[[], tuple[ShardRead, ...]] = tuple,
) -> tuple[EvaluateReply, list[Frame]]:
    """The answers of all sub-queries, in order, and their frames. The limits apply to all of them together.

    `processor` is bounded for a light query. `counted` is called with numbers of samples as they are read.
    `has_matched`: whether the selections since its last call matched a series, at any time. `shard_reads`: what was
    read from each shard since its last call. Raises NotExecutable, DeadlineExceeded; TooHeavy if a light query needs
    more.
    """
    if not message.bytes_max:
        return _answers(message, source, symbols, deadline, cancelled, processor, counted, has_matched, shard_reads)
    is_light = processor.is_bounded
    with bounded(account_of(message.bytes_max, is_light=is_light), is_light=is_light):
        return _answers(message, source, symbols, deadline, cancelled, processor, counted, has_matched, shard_reads)


def _answers(
    message: EvaluateBody,
    source: Source,
    symbols: Symbols,
    deadline: float,
    cancelled: Callable[[], bool],
    processor: ProcessorTime,
    counted: Callable[[int], None],
    has_matched: Callable[[], bool],
    shard_reads: Callable[[], tuple[ShardRead, ...]],
) -> tuple[EvaluateReply, list[Frame]]:
    answers: list[SubQueryReply] = []
    frames: list[Frame] = []
    held = peak = 0
    for subquery in message.subqueries:
        context = EvalContext(
            source,
            symbols,
            Grid(message.start_ms, message.end_ms, message.step_ms),
            lookback_ms=message.lookback_ms,
            deadline=deadline,
            samples_max=message.samples_max,
            samples_held=held,
            cancelled=cancelled,
            processor=processor,
            counted=counted,
            finds_resets=subquery.finds_resets,
        )
        started = time.perf_counter()
        shape, answer_frames = _answer(subquery, message, context)
        held, peak = context.samples_held, max(peak, context.samples_peak)
        elapsed_ms = (time.perf_counter() - started) * 1000
        remarks = exchange.remarks(context.annotations)
        read = context.samples_read, elapsed_ms, context.series_read, context.buckets_read, has_matched()
        answers.append(SubQueryReply(shape, remarks, *read, shard_reads() if message.explains else ()))
        frames += answer_frames
    return EvaluateReply(tuple(answers), peak), frames


def _answer(subquery: SubQuery, message: EvaluateBody, context: EvalContext) -> tuple[Shape, list[Frame]]:
    """The encoded answer, whose numbers count as held until the reply is sent."""
    grid = Grid(subquery.start_ms, subquery.end_ms, subquery.step_ms)
    expr = without_parens(parser.resolve_durations(parser.parse(subquery.text), context.query_grid))
    held_before = context.samples_held
    value, hashes = _value(subquery, expr, message, grid, context)
    context.keep(held_before, exchange.cells(value))
    encoded = exchange.encode(value)
    return encoded if hashes is None else exchange.with_hashes(*encoded, hashes)


def _value(
    subquery: SubQuery, expr: Expr, message: EvaluateBody, grid: Grid, context: EvalContext
) -> tuple[exchange.Shipped, NDArray[np.uint64] | None]:
    """(the answer, the hashes of its label sets; None if they are not needed)."""
    if subquery.mode in ("samples", "series"):
        return _samples(expr, grid, context, labels_only=subquery.mode == "series"), None
    if subquery.mode == "info":
        return _info_times(expr, grid, context), None
    if subquery.mode == "newest":
        return _newest(expr, grid, context), None
    if subquery.mode == "value":
        evaluated = evaluate(expr, grid, context)
        if not isinstance(evaluated, Matrix | RangeVector):
            raise Internal(f"{subquery.text!r} is no vector, so it is no sub-query of a shard")
        value = exchange.without_unused(evaluated)
        return _rendered(value, message.form, grid, context, is_alone=message.is_alone) or value, None
    if subquery.mode == "presence":
        return evaluate_partial(types.presence(expr), grid, context), None
    if not isinstance(expr, Aggregate):
        raise Internal(f"{subquery.text!r} is no aggregation, so it has no partial form")
    if subquery.mode == "partial":
        return evaluate_partial(expr, grid, context), None
    return _partial_with_hashes(expr, grid, context)


def _rendered(
    value: Matrix | RangeVector, form: Form, grid: Grid, context: EvalContext, *, is_alone: bool = False
) -> exchange.Rendered | None:
    """The value as the answer's text; None if that is not allowed or not worth it."""
    cells = exchange.cells(value)
    if form == "arrays":
        return None
    # The coordinator counts the numbers of an answer that shows few histograms at many steps.
    is_for_coordinator = not is_alone or _histograms(value) is not None
    if is_for_coordinator and cells + SERIES_WEIGHT * value.labels.size < TEXT_WEIGHT_MIN:
        return None
    if cells * SAMPLE_BYTES_MAX > TEXT_BYTES_MAX:
        return None
    finished = finish(value)
    assert isinstance(finished, Matrix | RangeVector)
    writer = SeriesWriter(finished, finished.labels.sort_order(), grid, instant=form == "vector")
    if writer.bytes_max > TEXT_BYTES_MAX or writer.has_long_series:
        return None
    texts = []
    for text in writer.texts():
        context.check()
        texts.append(text)
    return exchange.Rendered(texts, cells)


def _histograms(value: Matrix | RangeVector) -> HistogramBatch | None:
    return value.samples.histograms if isinstance(value, RangeVector) else value.histograms


def _partial_with_hashes(
    node: Aggregate, grid: Grid, context: EvalContext
) -> tuple[partial.Partial, NDArray[np.uint64]]:
    """A partial aggregation, with the hashes of the aggregated label sets: equal hashes from two workers tell the
    coordinator that a label function may have made series of different shards equal."""
    param = None if node.param is None else evaluate(node.param, grid, context)
    value = evaluate_vector(node.expr, grid, context)
    return partial.partial(node, value, param, grid, context), exchange.label_hashes(value.labels)


def _info_times(expr: Expr, grid: Grid, context: EvalContext) -> Matrix:
    """The times of the samples of info series, NaN for histograms."""
    selector = expr.args[0] if isinstance(expr, Call) else None
    if not isinstance(selector, VectorSelector):
        raise Internal("the times of info series are asked for by `timestamp` of their selector")
    return scan.sample_times(scan.INFO_TIMES, selector, grid, context)


def _newest(expr: Expr, grid: Grid, context: EvalContext) -> RangeVector:
    if not isinstance(expr, VectorSelector):
        raise Internal("newest samples are asked for by a selector")
    return range_vectors.newest(expr, grid, context)


def _samples(expr: Expr, grid: Grid, context: EvalContext, *, labels_only: bool = False) -> RangeVector:
    """All samples of a range selector's series between the ends of the grid, including staleness markers; or only the
    series that have any."""
    if not isinstance(expr, MatrixSelector):
        raise Internal("samples are asked for by a range selector")
    assert context.source is not None
    selection = context.source.select(expr.vector.matchers, grid.start_ms, grid.end_ms, context.symbols)
    context.finds_resets = False  # the coordinator looks for them when it evaluates these samples
    selected = scan.Scan(selection.labels, selection, 0, grid.end_ms - grid.start_ms + 1)
    blocks = scan.reads(selected, context, keep_stale=True, is_kept=not labels_only)
    if labels_only:
        return _without_samples(selection.labels, [np.diff(samples.offsets) > 0 for _, samples in blocks])
    no_names_dropped = np.zeros(selection.labels.size, dtype=np.bool_)
    return RangeVector(selection.labels, exchange.joined_samples([samples for _, samples in blocks]), no_names_dropped)


def _without_samples(labels: LabelFrame, have_samples: list[NDArray[np.bool_]]) -> RangeVector:
    present = labels.take(np.concatenate([np.zeros(0, np.bool_), *have_samples]))
    nothing = np.zeros(0, np.int64)
    samples = Samples(np.zeros(present.size + 1, np.int64), nothing, nothing.view(np.float64))
    return RangeVector(present, samples, np.zeros(present.size, np.bool_))

"""The coordinator's half of a query: the workers' answers are merged leaf by leaf, and the rest of the tree evaluated.

Runs in a thread, never on the event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.queries.fetched import Fetched
from coordinator.queries.joining import Joined, SeriesBecameEqual, SeriesTooLong, received, written
from coordinator.queries.label_memory import JoinedLabels, LabelMemory
from coordinator.queries.planner import Leaf, Plan, gives_order
from coordinator.queries.results import ordered
from shared.errors import OverBudget
from shared.labels import Symbols
from shared.messages import exchange
from shared.messages.sub_queries import EvaluateBody, EvaluateReply, Form, SubQueryReply
from shared.process.processor_time import ProcessorTime
from shared.promql.ast import Aggregate, MatrixSelector, Remote, without_parens
from shared.promql.engine import partial
from shared.promql.engine.context import EvalContext, require_samples
from shared.promql.engine.evaluator import evaluate
from shared.promql.engine.finishing import finish
from shared.promql.model import Annotations, Grid, Matrix, RangeVector, Value
from shared.promql.rendering.series import SeriesWriter
from shared.wire import Frame

LABELS = LabelMemory()


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions of an evaluation. `deadline` is of `time.monotonic()`. `processor_s`: what a light query may take
    in each process, 0 for a heavy one. `samples_max`: samples held at a time in each process; `bytes_max`: memory
    in each worker. `form`: the form of the workers' values, which is text only where the answer shows all series in the
    order of their label sets. `is_alone`: only one worker is asked. `explains`: the time of each node is taken."""

    grid: Grid
    lookback_ms: int
    samples_max: int
    deadline: float
    cancelled: Callable[[], bool] = lambda: False
    form: Form = "arrays"
    processor_s: float = 0.0
    bytes_max: int = 0
    is_alone: bool = False
    explains: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """The finished value of a query. `samples_read`: by all workers together; `samples_peak`: the most that one
    process, a worker or the coordinator, held at a time. `node_seconds`: id of a node of the plan → how long the
    coordinator took for it and what is below it, if that was asked for; `leaf_seconds`: to merge each leaf."""

    value: Value | Joined
    annotations: Annotations
    samples_read: int
    samples_peak: int
    node_seconds: dict[int, float] = field(default_factory=dict)
    leaf_seconds: list[float] = field(default_factory=list)


def message(plan: Plan, terms: Terms) -> EvaluateBody:
    """What every worker is asked. Raises OverBudget when one series at the times of a sub-query is more
    than a worker may hold."""
    clock = EvalContext(None, Symbols(), terms.grid, terms.lookback_ms)
    subqueries = tuple(leaf.subquery(clock) for leaf in plan.leaves)
    for leaf in plan.leaves:
        require_samples(leaf.grid(clock).steps, terms.samples_max)
    grid = terms.grid
    form = terms.form if _only_joins(plan) else "arrays"
    return EvaluateBody(
        grid.start_ms,
        grid.end_ms,
        grid.step_ms,
        terms.lookback_ms,
        terms.samples_max,
        subqueries,
        form,
        terms.bytes_max,
        terms.is_alone,
        terms.explains,
    )


def _only_joins(plan: Plan) -> bool:
    """Whether the workers' values are already the answer."""
    return isinstance(plan.root, Remote) and plan.leaves[0].mode == "value"


def evaluate_plan(plan: Plan, replies: Sequence[tuple[EvaluateReply, Sequence[Frame]]], terms: Terms) -> Merged:
    """The value of the whole query from what the workers answered, one pair a worker.

    What the workers sent is held here until the end. Raises NotExecutable (OverBudget when that, and what is made of
    it, is more than may be held), DeadlineExceeded, TooHeavy, AskAgain.
    """
    read = sum(samples_read(evaluated) for evaluated, _ in replies)
    fetched = Fetched()
    context = EvalContext(
        fetched,
        Symbols(),
        terms.grid,
        lookback_ms=terms.lookback_ms,
        deadline=terms.deadline,
        samples_max=terms.samples_max,
        samples_peak=max([evaluated.samples_peak for evaluated, _ in replies], default=0),
        cancelled=terms.cancelled,
        processor=ProcessorTime(terms.processor_s),
        node_seconds={} if terms.explains else None,
    )
    known = _known_labels(plan, replies)
    leaves = _decoded(plan, replies, context.symbols, known)
    context.hold(sum(exchange.cells(value) for values in leaves for value in values))
    if any(isinstance(part, exchange.Rendered) for parts in leaves for part in parts):
        _gather_remarks(plan, replies, context.annotations)
        started = time.perf_counter()
        joined = _joined(leaves[0], terms, context)
        joining = [time.perf_counter() - started]
        return Merged(joined, context.annotations, read, context.samples_peak, leaf_seconds=joining)
    # An order that the query gives is kept, so what it leaves open must not depend on the shards. An aggregation that
    # gives one leaves nothing open.
    is_open = plan.keeps_order and not isinstance(without_parens(plan.expr), Aggregate)
    is_sorted = is_open and terms.grid.steps == 1
    values: list[Value] = []
    leaf_seconds: list[float] = []
    for leaf, parts in zip(plan.leaves, leaves, strict=True):
        context.check()
        started = time.perf_counter()
        values.append(_merge(leaf, parts, context, fetched, known, is_sorted=is_sorted))
        leaf_seconds.append(time.perf_counter() - started)
    _gather_remarks(plan, replies, context.annotations)
    context.remote = values
    value = finish(evaluate(plan.root, terms.grid, context))
    if isinstance(value, Matrix | RangeVector):
        _require_shown(exchange.shown(value), terms)
    node_seconds = context.node_seconds or {}
    return Merged(value, context.annotations, read, context.samples_peak, node_seconds, leaf_seconds)


def samples_read(evaluated: EvaluateReply) -> int:
    """By one worker, for all leaves."""
    return sum(answer.samples_read for answer in evaluated.answers)


def with_frames(evaluated: EvaluateReply, frames: Sequence[Frame]) -> Iterator[tuple[SubQueryReply, Sequence[Frame]]]:
    """The answers of one worker, each with its frames."""
    at = 0
    for answer in evaluated.answers:
        last = at + answer.shape.frames
        yield answer, frames[at:last]
        at = last


def _require_shown(numbers: int, terms: Terms) -> None:
    """Raises OverBudget if an answer has too many numbers. It may have far more than are held, where one histogram is
    shown at many steps."""
    if numbers > terms.samples_max:
        raise OverBudget(
            f"the answer would have too many samples: {numbers}, buckets of histograms as often as they are shown; "
            f"the limit is {terms.samples_max} (TRIPTYCH_QUERY_SAMPLES_MAX); ask for fewer series or a longer step"
        )


def _known_labels(plan: Plan, replies: Sequence[tuple[EvaluateReply, Sequence[Frame]]]) -> JoinedLabels | None:
    """The label sets of arrays that are only joined, if they are few."""
    if len(replies) < 2 or not _only_joins(plan):
        return None
    if any(evaluated.answers[0].shape.kind not in ("matrix", "range") for evaluated, _ in replies):
        return None
    return LABELS.joined([frames[:2] for _, frames in replies])


def _decoded(
    plan: Plan,
    replies: Sequence[tuple[EvaluateReply, Sequence[Frame]]],
    symbols: Symbols,
    known: JoinedLabels | None,
) -> list[list[exchange.Shipped]]:
    """Per leaf, the answer of each worker; `known`: the label sets of the only leaf."""
    leaves: list[list[exchange.Shipped]] = [[] for _ in plan.leaves]
    hashes: list[list[NDArray[np.uint64]]] = [[] for _ in plan.leaves]
    for number, (evaluated, frames) in enumerate(replies):
        assert len(evaluated.answers) == len(plan.leaves)
        labels = None if known is None else known.parts[number]
        for parts, seen, (answer, own) in zip(leaves, hashes, with_frames(evaluated, frames), strict=True):
            parts.append(exchange.decode(answer.shape, own, symbols, labels))
            if answer.shape.hashed:
                seen.append(exchange.hashes_of(answer.shape, own))
    for leaf_hashes in hashes:
        if len(leaf_hashes) > 1:
            together = np.concatenate(leaf_hashes)
            if len(np.unique(together)) != len(together):
                raise SeriesBecameEqual
    return leaves


def _merge(
    leaf: Leaf,
    parts: Sequence[exchange.Shipped],
    context: EvalContext,
    fetched: Fetched,
    known: JoinedLabels | None,
    *,
    is_sorted: bool,
) -> Value:
    """`is_sorted`: series that the leaf gives no order are sorted by label set."""
    value: Value
    if leaf.aggregate is not None:
        value = _merge_partials(leaf, leaf.aggregate, parts, context)
    else:
        values = [part for part in parts if isinstance(part, Matrix | RangeVector)]
        assert len(values) == len(parts)
        value = exchange.joined(values, None if known is None else known.labels)
    if is_sorted and not gives_order(leaf.expr):
        value = ordered(value)
    if leaf.mode == "samples":
        assert isinstance(value, RangeVector) and isinstance(leaf.expr, MatrixSelector)
        span = leaf.subquery(context)
        fetched.add(leaf.expr.vector.matchers, span.start_ms, span.end_ms, value)
    return value


def _merge_partials(leaf: Leaf, node: Aggregate, parts: Sequence[exchange.Shipped], context: EvalContext) -> Value:
    """The answer of the aggregation `node`. Its remarks, which are about the first place of the leaf in the query, are
    repeated for each of the others, as those of the workers are."""
    partials = [part for part in parts if isinstance(part, partial.Partial)]
    assert len(partials) == len(parts)
    annotations, context.annotations = context.annotations, Annotations()
    grid = leaf.grid(context)
    param = None if node.param is None else evaluate(node.param, grid, context)
    merged = partial.merge(node, partials, param, grid, context)
    remarks, context.annotations = exchange.remarks(context.annotations), annotations
    for start in leaf.starts:
        exchange.add_remarks(annotations, remarks, start - leaf.starts[0])
    return merged


def _joined(parts: Sequence[exchange.Shipped], terms: Terms, context: EvalContext) -> Joined:
    """The series of the answer, some or all of them rendered by workers."""
    assert terms.form != "arrays"
    joined_parts = []
    for part in parts:
        context.check()
        if isinstance(part, exchange.Rendered):
            joined_parts.append(received(part))
        else:
            assert isinstance(part, Matrix | RangeVector)
            value = finish(part)
            assert isinstance(value, Matrix | RangeVector)
            if value.labels.size:
                writer = SeriesWriter(value, value.labels.sort_order(), terms.grid, instant=terms.form == "vector")
                _require_shown(writer.numbers, terms)
                if writer.has_long_series:
                    raise SeriesTooLong
                joined_parts.append(written(writer))
    return Joined(joined_parts, terms.form)


def _gather_remarks(
    plan: Plan, replies: Sequence[tuple[EvaluateReply, Sequence[Frame]]], annotations: Annotations
) -> None:
    for evaluated, _ in replies:
        for leaf, answer in zip(plan.leaves, evaluated.answers, strict=True):
            for start in leaf.starts:
                exchange.add_remarks(annotations, answer.remarks, start)

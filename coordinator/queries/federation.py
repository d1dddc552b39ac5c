"""Federation: the newest sample of every series that any of some selectors chooses, as a query without PromQL text."""

from __future__ import annotations

import time
from collections.abc import Sequence

from coordinator.queries.cost import demands_of
from coordinator.queries.evaluation import Conclusion, Query, Replies, WorkerShare
from coordinator.queries.merge import Merged, samples_read, with_frames
from coordinator.queries.planner import LEAVES_MAX, Leaf, Plan
from coordinator.queries.results import take
from shared.errors import BadData
from shared.labels import Symbols
from shared.messages import exchange
from shared.messages.series import Selectors
from shared.promql import printer
from shared.promql.ast import Remote, ValueType, VectorSelector
from shared.promql.engine.context import LOOKBACK_MS, EvalContext
from shared.promql.model import Annotations, Grid, RangeVector


def federation_plan(text: str, selectors: Selectors) -> Plan:
    """A leaf for each different selector. Raises BadData when there are too many."""
    distinct = list(dict.fromkeys(tuple(matchers) for matchers in selectors))
    if len(distinct) > LEAVES_MAX:
        raise BadData(f"there are {len(distinct)} different parameters 'match[]'; the limit is {LEAVES_MAX}")
    expressions = [VectorSelector(None, matchers) for matchers in distinct]
    leaves = tuple(Leaf("newest", expr, printer.to_text(expr), (), (0,)) for expr in expressions)
    root = Remote(0, ValueType.VECTOR, expressions[0])
    demands, steps_most = demands_of(leaves, root, Grid(0, 0), LOOKBACK_MS)
    return Plan(text, expressions[0], root, leaves, ValueType.VECTOR, False, demands, steps_most)


def merge_newest(query: Query, replies: Replies) -> tuple[RangeVector, Conclusion]:
    """Each series once, with its sample, in no order. Work for a thread. Raises OverBudget, DeadlineExceeded."""
    started_at = time.perf_counter()
    terms = replies.terms
    symbols = Symbols()
    context = EvalContext(
        None, symbols, terms.grid, deadline=terms.deadline, samples_max=terms.samples_max, cancelled=terms.cancelled
    )
    shares: list[WorkerShare] = []
    parts: list[RangeVector] = []
    for reply in replies.fan_out.replies:
        context.check()
        share = WorkerShare.of(reply)
        shares.append(share)
        for answer, frames in with_frames(share.evaluated, reply.message.frames):
            part = exchange.decode(answer.shape, frames, symbols)
            assert isinstance(part, RangeVector)
            context.hold(exchange.cells(part))
            parts.append(part)
    value = _each_once(parts, len(replies.plan.leaves))
    read = sum(samples_read(share.evaluated) for share in shares)
    merged = Merged(value, Annotations(), read, context.samples_peak)
    timings_s = {"mergeTime": time.perf_counter() - started_at}
    return value, Conclusion(replies.plan, merged, replies.fan_out.warnings(), shares, timings_s)


def _each_once(parts: Sequence[RangeVector], selectors: int) -> RangeVector:
    joined = exchange.joined(parts)
    assert isinstance(joined, RangeVector)
    if selectors < 2:
        return joined
    once = take(joined, joined.labels.unique()[1])
    assert isinstance(once, RangeVector)
    return once

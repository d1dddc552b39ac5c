"""Federation: the newest sample of every series that any of some selectors chooses, as a query without PromQL text."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.queries.cost import demands_of
from coordinator.queries.planner import LEAVES_MAX, Leaf, Plan
from coordinator.queries.results import take
from shared.errors import BadData
from shared.messages import exchange
from shared.messages.series import Selectors
from shared.promql import printer
from shared.promql.ast import Remote, ValueType, VectorSelector
from shared.promql.engine.context import LOOKBACK_MS
from shared.promql.model import Grid, RangeVector


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


def each_once(parts: Sequence[Sequence[RangeVector]]) -> RangeVector:
    """Each series once, with its sample, in no order. `parts`: for each selector, the series of each worker."""
    joined = exchange.joined([part for own in parts for part in own])
    assert isinstance(joined, RangeVector)
    if len(parts) < 2:
        return joined
    once = take(joined, joined.labels.unique()[1])
    assert isinstance(once, RangeVector)
    return once

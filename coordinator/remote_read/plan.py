"""A request of remote read as a query plan without PromQL text, and the workers' replies to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.queries.cost import demands_of
from coordinator.queries.planner import Leaf, Plan
from coordinator.remote_read.parts import Parts, parts_of
from coordinator.remote_read.requests import ReadSelection
from shared.messages import exchange
from shared.messages.series import Selectors
from shared.messages.sub_queries import Mode, SubQuery
from shared.promql import printer
from shared.promql.ast import MatrixSelector, Remote, ValueType, VectorSelector
from shared.promql.engine.context import LOOKBACK_MS, EvalContext
from shared.promql.model import Grid, RangeVector

RANGE_MS = 1000
"""The range of the selectors that workers receive. It has no effect, because the times are sent separately."""
_EVERYTHING = VectorSelector(None, ())


@dataclass(frozen=True, slots=True)
class ReadLeaf(Leaf):
    """The samples with start_ms ≤ t ≤ end_ms."""

    start_ms: int = 0
    end_ms: int = 0

    def subquery(self, clock: EvalContext) -> SubQuery:
        grid = self.grid(clock)
        return SubQuery(self.text, self.mode, grid.start_ms, grid.end_ms, grid.step_ms)

    def grid(self, clock: EvalContext) -> Grid:
        return Grid(self.start_ms, self.end_ms, max(1, self.end_ms - self.start_ms))


def read_plan(selections: Sequence[ReadSelection], selectors: Selectors) -> Plan:
    """A leaf for each query of the request. `selectors`: the parsed texts of the selections."""
    leaves = tuple(_leaf(*pair) for pair in zip(selections, selectors, strict=True))
    root = Remote(0, ValueType.MATRIX, _EVERYTHING)
    demands, steps_most = demands_of(leaves, root, Grid(0, 0), LOOKBACK_MS)
    return Plan(text_of(selections), _EVERYTHING, root, leaves, ValueType.MATRIX, False, demands, steps_most)


def _leaf(selection: ReadSelection, matchers: Sequence) -> ReadLeaf:
    expr = MatrixSelector(VectorSelector(None, tuple(matchers)), RANGE_MS)
    mode: Mode = "series" if selection.labels_only else "samples"
    return ReadLeaf(
        mode, expr, printer.to_text(expr), (), (0,), start_ms=selection.start_ms, end_ms=selection.end_ms
    )  # fmt: skip


def text_of(selections: Sequence[ReadSelection]) -> str:
    """The request as it appears in lists of queries."""
    return " ".join(selection.text for selection in selections)


def results_of(selections: Sequence[ReadSelection], parts: Sequence[Sequence[RangeVector]]) -> list[Parts]:
    """The samples of each query. `parts`: for each query, the series of each worker. To be called in a thread."""
    results = []
    for selection, worker_vectors in zip(selections, parts, strict=True):
        joined = exchange.joined(worker_vectors)
        assert isinstance(joined, RangeVector)
        results.append(parts_of(joined, keeps_empty=selection.labels_only))
    return results

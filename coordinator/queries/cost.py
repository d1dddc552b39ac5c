"""What a query will cost, estimated from its plan before any worker is asked.

The plan says how many steps each leaf is evaluated at, and which time range it reads. How many series a selection has,
and how dense their samples are, is learned from what workers reply. So the same selection has an estimate in every
later query, also with another function, range or step. A selection that nobody has asked for yet counts as light.

The unit is a *touch*: a sample that is read, a value at one step of one series, or a move in a sorted window. A
histogram counts as one and one more for each bucket.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple, Protocol

from shared.errors import OverBudget
from shared.labels import Symbols
from shared.promql.ast import Call, Expr, MatrixSelector, Remote, Subquery, VectorSelector, children
from shared.promql.engine.context import EvalContext, resolved
from shared.promql.engine.scan import windows_of
from shared.promql.engine.subquery import inner_grid
from shared.promql.model import Grid

SELECTIONS_MAX = 10_000
SELECTION_CHARACTERS_MAX = 1000
"""Selections whose density is known: some 200 bytes each, and no more than a text of the longest."""
LIGHT_TOUCHES_MAX = 400_000
"""A query with more touches in one worker is heavy. Kernels do at least 50 million a second, so it takes more than the
processor time of a light query (`gate.LIGHT_PROCESSOR_S`), even if the estimate is half wrong."""
LIGHT_MARGIN = 8
"""A query with one in so many of these touches is a light one, however wrong the estimate is."""
CELL_BYTES = 9
"""A value and whether it is present."""
SORTED_WINDOWS = frozenset(("quantile_over_time", "mad_over_time"))
"""Functions whose windows are kept sorted: a sample that enters moves half of the others on average."""
SORTED_SHARE = 1 / 16
"""What such a move costs, in touches for each value moved."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a leaf needs for every series that it selects.

    `selections`: the matchers of its selectors, as a text that no others have and whose hash is computed only once.
    `read_ms`: the time ranges
    that they read, all together. `cells`: values at all steps, of the leaf and of the subqueries in it. `steps_most`:
    of the longest grid. `sorted_ms`: the time range that enters a sorted window, times the length of that window.
    """

    selections: str
    read_ms: int
    cells: int
    steps_most: int
    sorted_ms: float = 0.0


class Steps(NamedTuple):
    """Of the longest grids of a plan: in the coordinator's part, and in what is sent to workers."""

    own: int
    sent: int


class Estimate(NamedTuple):
    """Of a whole query, in all workers together. `unknown`: leaves whose selections nobody has asked for yet; they
    count as nothing."""

    series: int = 0
    samples: int = 0
    touches: int = 0
    unknown: int = 0

    def told(self) -> dict[str, int]:
        """By the names of the HTTP interface."""
        return {
            "series": self.series,
            "samples": self.samples,
            "touches": self.touches,
            "leavesNotSeenBefore": self.unknown,
        }

    def is_light(self, workers: int) -> bool:
        """Whether it is surely a light query: all about it is known, and is far below the bound."""
        return not self.unknown and self.touches * LIGHT_MARGIN < LIGHT_TOUCHES_MAX * max(1, workers)

    def is_heavy(self, workers: int) -> bool:
        """Whether it is not worth trying as a light query."""
        return self.touches > LIGHT_TOUCHES_MAX * max(1, workers)


class _Leaf(Protocol):
    """A leaf of a plan."""

    @property
    def expr(self) -> Expr: ...

    def grid(self, clock: EvalContext) -> Grid: ...


def demands_of(leaves: Iterable[_Leaf], root: Expr, shape: Grid, lookback_ms: int) -> tuple[tuple[Demand, ...], Steps]:
    """The demand of each leaf, and the steps of the longest grids."""
    clock = EvalContext(None, Symbols(), shape, lookback_ms)
    demands = []
    for leaf in leaves:
        walk = _Walk(clock)
        walk.visit(leaf.expr, leaf.grid(clock), None)
        demands.append(walk.demand())
    own = _Walk(clock)
    own.visit(root, shape, None)
    return tuple(demands), Steps(own.steps_most, max([demand.steps_most for demand in demands], default=0))


class _Walk:
    """Adds up what the nodes of a tree need."""

    def __init__(self, clock: EvalContext) -> None:
        self._clock = clock
        self._selections: list[str] = []
        self._read_ms = self._cells = 0
        self._sorted_ms = 0.0
        self.steps_most = 0

    def demand(self) -> Demand:
        return Demand(" | ".join(self._selections), self._read_ms, self._cells, self.steps_most, self._sorted_ms)

    def visit(self, node: Expr, grid: Grid, function: str | None) -> None:
        """`function`: the call that `node` is an argument of."""
        self.steps_most = max(self.steps_most, grid.steps)
        match node:
            case Remote():
                return
            case VectorSelector():
                self._select(node, self._clock.lookback_ms, grid)
            case MatrixSelector():
                range_ms = resolved(node.range)
                read_ms = self._select(node.vector, range_ms, grid)
                if function in SORTED_WINDOWS:
                    self._sorted_ms += float(read_ms) * range_ms
            case Subquery():
                inner = inner_grid(node, grid, self._clock)
                self._cells += inner.steps
                self.visit(node.expr, inner, None)
            case _:
                name = node.func if isinstance(node, Call) else None
                for child in children(node):
                    self.visit(child, grid, name)

    def _select(self, selector: VectorSelector, range_ms: int, grid: Grid) -> int:
        windows = windows_of(selector, range_ms, grid, self._clock)
        read_ms = windows.read_end_ms - windows.read_start_ms + 1
        self._selections.append(" ".join(f"{m.name!r}{m.op}{m.value!r}" for m in selector.matchers))
        self._read_ms += read_ms
        self._cells += grid.steps
        return read_ms


def require_fits(steps_most: int, bytes_max: int, where: str) -> None:
    """Raises OverBudget when one series over so many steps is more than a process may hold."""
    estimate = steps_most * CELL_BYTES
    if estimate > bytes_max:
        raise OverBudget(
            f"the query is evaluated at {steps_most} steps, which needs {estimate} bytes for each series; the limit is "
            f"{bytes_max} bytes in {where}, its share of TRIPTYCH_QUERY_BYTES_MAX; ask for a shorter range or a longer "
            "step"
        )


class _Density(NamedTuple):
    """Of a selection: its series, their samples for each millisecond, and the touches for each sample: 1 if all are
    floats."""

    series: int
    samples: float
    width: float


class Costs:
    """What is known of selections. Estimates are made on the event loop, and threads learn."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Density] = OrderedDict()
        self._lock = Lock()

    def estimate(self, demands: Sequence[Demand]) -> Estimate:
        """The cost of leaves with these demands."""
        series = unknown = 0
        samples = touches = 0.0
        for demand in demands:
            density = self._known.get(demand.selections)
            if density is None:
                unknown += 1
                continue
            read = density.samples * demand.read_ms
            series += density.series
            samples += read
            touches += read + density.series * demand.cells * density.width
            if demand.sorted_ms and density.series:
                touches += density.samples * density.samples / density.series * demand.sorted_ms * SORTED_SHARE
        return Estimate(series, int(samples), int(touches), unknown)

    def learn(self, demand: Demand, series: int, samples: int, buckets: int = 0) -> None:
        """A leaf with this demand had so many series and read so many samples, in all workers together. `buckets`: how
        many of the samples were counted for buckets of histograms."""
        if not demand.read_ms or len(demand.selections) > SELECTION_CHARACTERS_MAX:
            return
        density = _Density(series, samples / demand.read_ms, samples / max(samples - buckets, 1) if buckets else 1.0)
        with self._lock:
            self._known[demand.selections] = density
            self._known.move_to_end(demand.selections)
            if len(self._known) > SELECTIONS_MAX:
                self._known.popitem(last=False)

"""From a query to a plan: what the workers evaluate, over which grid, and what is left for the coordinator.

The largest subtrees that need no other shard's series (`coordinator.queries.locality`) are cut out of the tree; a
`Remote` leaf stands where each was. An aggregation directly on top of such a subtree goes with it, in partial form. A
plan evaluated over N shards gives what the engine gives over one source that holds all series.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from coordinator.queries.cost import Demand, Steps, demands_of
from coordinator.queries.locality import Localities, Locality
from shared.errors import NotExecutable
from shared.messages.sub_queries import Mode, SubQuery
from shared.promql import parser, printer, types
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    Paren,
    Remote,
    Subquery,
    Unary,
    ValueType,
)
from shared.promql.engine.context import LOOKBACK_MS, EvalContext, resolved
from shared.promql.engine.evaluator import finds_resets
from shared.promql.engine.functions.info import info_selector
from shared.promql.engine.scan import windows_of
from shared.promql.engine.subquery import inner_grid
from shared.promql.functions import FUNCTIONS, ORDERING_AGGREGATORS
from shared.promql.model import Grid

PLANS_CACHED = 1024
"""Plans kept: more than the panels of the dashboards that refresh at the same time."""
CACHED_TEXT_MAX = 8_192
"""Longer queries are planned each time, so that the cache stays within some tens of megabytes."""
LEAVES_MAX = 500
"""Sub-queries of one plan: each has up to seven frames in a reply, which holds at most `wire.FRAMES_MAX`."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One sub-query: `text` is sent, `expr` is the subtree it stands for.

    `path` are the subqueries around it, outermost first: they decide its grid. `starts` are the positions in the query
    at which the sent text begins: a text that stands several times at the same place of the time line is sent once.
    `aggregate` is the node whose partial forms are merged; `finds_resets` as in `EvalContext`.
    """

    mode: Mode
    expr: Expr
    text: str
    path: tuple[Subquery, ...]
    starts: tuple[int, ...]
    aggregate: Aggregate | None = None
    finds_resets: bool = False

    def subquery(self, clock: EvalContext) -> SubQuery:
        """What is sent. `clock` knows the whole query's grid and the lookback."""
        grid = self.grid(clock)
        if self.mode == "samples":
            grid = _reach(self.expr, grid, clock)
        return SubQuery(self.text, self.mode, grid.start_ms, grid.end_ms, grid.step_ms, self.finds_resets)

    def grid(self, clock: EvalContext) -> Grid:
        """The times at which the coordinator's evaluator meets this leaf."""
        grid = clock.query_grid
        for node in self.path:
            grid = inner_grid(node, grid, clock)
        return grid

    def merge(self) -> str:
        """How the shards' answers become one, in words."""
        if self.aggregate is not None:
            return f"partial {self.aggregate.op} merged"
        return "union of samples" if self.mode == "samples" else "union of series"


@dataclass(frozen=True, slots=True)
class Plan:
    """`root` is `expr` with `Remote` leaves, evaluated by the coordinator once every leaf has its value. `demands`: of
    each leaf, with the usual lookback. `steps_most`: of its longest grids."""

    text: str
    expr: Expr
    root: Expr
    leaves: tuple[Leaf, ...]
    type: ValueType
    keeps_order: bool
    demands: tuple[Demand, ...] = ()
    steps_most: Steps = Steps(1, 0)


def plan(text: str, grid: Grid, *, relabel: bool = True) -> Plan:
    """The plan of a query. Raises ParseError, BadData, NotExecutable.

    `relabel`: aggregations over label functions may go to the workers; the answer tells if they had better not have.
    """
    shape = Grid(0, grid.end_ms - grid.start_ms, grid.step_ms)  # all that step() and range() depend on
    return _cached(text, shape, relabel) if len(text) <= CACHED_TEXT_MAX else _plan(text, shape, relabel)


def _plan(text: str, shape: Grid, relabel: bool) -> Plan:
    try:
        expr = parser.resolve_durations(parser.parse(text), shape)
        cut = _Cut(text, relabel)
        root = cut.root(expr)
        leaves = tuple(cut.leaves)
        demands, steps_most = demands_of(leaves, root, shape, LOOKBACK_MS)
        return Plan(text, expr, root, leaves, types.type_of(expr), gives_order(expr), demands, steps_most)
    except RecursionError:
        raise NotExecutable("the expression is nested too deeply") from None


_cached = lru_cache(maxsize=PLANS_CACHED)(_plan)


class _Cut:
    """Rewrites one tree; `leaves` are the sub-queries found so far."""

    def __init__(self, text: str, relabel: bool) -> None:
        self.leaves: list[Leaf] = []
        self._relabel = relabel
        self._text = text
        self._localities = Localities()
        self._known: dict[tuple[str, Mode, tuple[Subquery, ...], bool], int] = {}
        self._finds_resets = False

    def root(self, expr: Expr) -> Expr:
        if self._is_local(expr):
            return self._leaf("value", expr, ())  # also a range vector, which is a value at an instant only
        return self._rewrite(expr, ())

    def _is_local(self, expr: Expr) -> bool:
        return self._localities.of(expr) is Locality.LOCAL

    def _is_relabelled(self, expr: Expr) -> bool:
        return self._localities.of(expr) is Locality.RELABELLED

    def _is_constant(self, expr: Expr | None) -> bool:
        return expr is None or self._localities.of(expr) is Locality.CONSTANT

    def _rewrite(self, expr: Expr, path: tuple[Subquery, ...]) -> Expr:
        if self._is_constant(expr):
            return expr
        if self._is_local(expr) and types.type_of(expr) is ValueType.VECTOR:
            return self._leaf("value", expr, path)
        match expr:
            case Paren() | Unary():
                return replace(expr, expr=self._rewrite(expr.expr, path))
            case Binary():
                return replace(expr, lhs=self._rewrite(expr.lhs, path), rhs=self._rewrite(expr.rhs, path))
            case Subquery():
                with self._finding_resets(False):
                    return replace(expr, expr=self._rewrite(expr.expr, (*path, expr)))
            case Aggregate():
                return self._aggregate(expr, path)
            case Call():
                return self._call(expr, path)
            case MatrixSelector():
                # Its function runs here, for a parameter that needs other shards: the samples themselves are fetched.
                self._leaf("samples", expr, path)
                return expr
        raise AssertionError(f"no rule for a {type(expr).__name__}")

    def _aggregate(self, node: Aggregate, path: tuple[Subquery, ...]) -> Expr:
        if self._is_local(node.expr) and self._is_constant(node.param):
            return self._leaf("partial", node, path, aggregate=node)
        if self._relabel and self._is_relabelled(node.expr) and self._is_constant(node.param):
            return self._leaf("relabelled", node, path, aggregate=node)
        param = None if node.param is None else self._rewrite(node.param, path)
        return replace(node, expr=self._rewrite(node.expr, path), param=param)

    def _call(self, node: Call, path: tuple[Subquery, ...]) -> Expr:
        if node.func == "absent" and self._is_local(node.args[0]):
            return replace(node, args=(self._presence(node.args[0], path),))
        if node.func == "absent_over_time" and self._is_local(node.args[0]):
            return replace(node, func="absent", args=(self._presence(node.args[0], path),))
        if node.func == "info":
            return replace(node, args=(self._rewrite(node.args[0], path), self._info_series(node, path)))
        with self._finding_resets(finds_resets(node, self._finds_resets)):
            return replace(node, args=tuple(self._rewrite(argument, path) for argument in node.args))

    @contextmanager
    def _finding_resets(self, finds: bool) -> Iterator[None]:
        outer, self._finds_resets = self._finds_resets, finds
        yield
        self._finds_resets = outer

    def _info_series(self, node: Call, path: tuple[Subquery, ...]) -> Expr:
        """A leaf for the series `info` joins to its argument's: the timestamps of their samples."""
        selector = info_selector(node)
        times = Call("timestamp", (selector,), span=node.span)
        return self._leaf("info", times, path, text=printer.to_text(times))

    def _presence(self, expr: Expr, path: tuple[Subquery, ...]) -> Expr:
        """A leaf for `absent`, which asks only whether there is any series: one series without labels comes, if so.
        Its text is a part of the query, so that it is no longer or deeper than workers accept."""
        node = types.presence(expr)
        leaf = self._leaf("presence", node, path, aggregate=node)
        return replace(leaf, expr=expr)  # whose matchers say what labels the answer has

    def _leaf(
        self,
        mode: Mode,
        expr: Expr,
        path: tuple[Subquery, ...],
        *,
        aggregate: Aggregate | None = None,
        text: str | None = None,
    ) -> Remote:
        start, last = expr.span
        text = self._text[start:last] if text is None else text
        index = self._known.setdefault((text, mode, path, self._finds_resets), len(self.leaves))
        if index == len(self.leaves):
            if index == LEAVES_MAX:
                raise NotExecutable(f"the query reads more than {LEAVES_MAX} different selections of series")
            self.leaves.append(Leaf(mode, expr, text, path, (start,), aggregate, self._finds_resets))
        else:
            known = self.leaves[index]
            self.leaves[index] = replace(known, starts=(*known.starts, start))
        return Remote(index, types.type_of(expr), expr, span=expr.span)


def gives_order(expr: Expr) -> bool:
    """Whether an instant answer has an order of its own. Otherwise it is sorted, so that shards do not show."""
    match expr:
        case Paren() | Unary():
            return gives_order(expr.expr)
        case Binary():
            return gives_order(expr.lhs) or gives_order(expr.rhs)
        case Call():
            return FUNCTIONS[expr.func].gives_order or any(gives_order(argument) for argument in expr.args)
        case Aggregate():
            return expr.op in ORDERING_AGGREGATORS
    return False


def _reach(expr: Expr, grid: Grid, clock: EvalContext) -> Grid:
    """The time range that a range selector reads for all of the grid, as its two ends."""
    assert isinstance(expr, MatrixSelector)
    windows = windows_of(expr.vector, resolved(expr.range), grid, clock)
    return Grid(windows.read_start_ms, windows.read_end_ms, 1)

"""Which subtrees of a query need no other shard's series: the rule that decides what the workers evaluate.

A series lives in one shard, placed by its whole label set. A subtree is `LOCAL` when its value over all shards is the
union of its values over each: every output series comes from one input series. It is `RELABELLED` when it is local but
for label functions on its top, `CONSTANT` when it reads no series, and `GLOBAL` otherwise. docs/internals/promql.md has
the table of all node kinds.
"""

from __future__ import annotations

import enum

from shared.promql import types
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    Paren,
    Remote,
    StringLiteral,
    Subquery,
    Unary,
    ValueType,
    VectorSelector,
)

_OF_INSTANT_VECTORS = """
    abs acos acosh asin asinh atan atanh ceil clamp clamp_max clamp_min cos cosh day_of_month day_of_week day_of_year
    days_in_month deg exp floor hour ln log10 log2 minute month rad round sgn sin sinh sqrt start_timestamp tan tanh
    timestamp year
"""
_OF_RANGE_VECTORS = """
    avg_over_time changes count_over_time delta deriv double_exponential_smoothing first_over_time idelta increase
    irate last_over_time mad_over_time max_over_time min_over_time predict_linear present_over_time quantile_over_time
    rate resets stddev_over_time stdvar_over_time sum_over_time ts_of_first_over_time ts_of_last_over_time
    ts_of_max_over_time ts_of_min_over_time
"""

PER_SERIES = frozenset(_OF_INSTANT_VECTORS.split() + _OF_RANGE_VECTORS.split())
"""Functions that may run where the series are. Not among them although they take one vector: `absent*` (about all
series together), `sort*` (order), `scalar`, `histogram_*` (a histogram's buckets are series of several shards), `info`
(joins series), `label_replace` and `label_join` (two shards' series may become equal, which has to be refused)."""

LABEL_FUNCTIONS = frozenset({"label_replace", "label_join"})

ALWAYS_GLOBAL = frozenset({"info"})
"""Functions that read series beside their arguments'."""


class Locality(enum.Enum):
    CONSTANT = "constant"
    LOCAL = "local"
    RELABELLED = "relabelled"
    GLOBAL = "global"


class Localities:
    """The locality of every node of one tree, found once a node."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Expr, Locality]] = {}

    def of(self, expr: Expr) -> Locality:
        held = self._known.get(id(expr))
        if held is None:
            held = self._known[id(expr)] = (expr, self._find(expr))
        return held[1]

    def _find(self, expr: Expr) -> Locality:
        match expr:
            case NumberLiteral() | StringLiteral():
                return Locality.CONSTANT
            case VectorSelector() | MatrixSelector():
                return Locality.LOCAL
            case Paren() | Unary():
                return self.of(expr.expr)
            case Subquery():
                inner = self.of(expr.expr)
                return Locality.GLOBAL if inner is Locality.RELABELLED else inner
            case Binary():
                return self._binary(expr)
            case Call():
                return self._call(expr)
            case Aggregate():
                parts = {self.of(expr.expr), *([self.of(expr.param)] if expr.param is not None else [])}
                return Locality.CONSTANT if parts == {Locality.CONSTANT} else Locality.GLOBAL
            case Remote():
                return Locality.GLOBAL

    def _binary(self, expr: Binary) -> Locality:
        sides = (self.of(expr.lhs), self.of(expr.rhs))
        if sides == (Locality.CONSTANT, Locality.CONSTANT):
            return Locality.CONSTANT
        for vector, other in ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs)):
            if self.of(vector) is Locality.LOCAL and self._is_constant_scalar(other):
                return Locality.LOCAL
        return Locality.GLOBAL

    def _call(self, expr: Call) -> Locality:
        if expr.func in ALWAYS_GLOBAL:
            return Locality.GLOBAL
        if all(self.of(argument) is Locality.CONSTANT for argument in expr.args):
            return Locality.CONSTANT
        if expr.func in LABEL_FUNCTIONS:
            local = self.of(expr.args[0]) in (Locality.LOCAL, Locality.RELABELLED)
            return Locality.RELABELLED if local else Locality.GLOBAL
        series = [argument for argument in expr.args if not self._is_constant_scalar(argument)]
        if expr.func in PER_SERIES and len(series) == 1 and self.of(series[0]) is Locality.LOCAL:
            return Locality.LOCAL
        return Locality.GLOBAL

    def _is_constant_scalar(self, expr: Expr) -> bool:
        return self.of(expr) is Locality.CONSTANT and types.type_of(expr) is ValueType.SCALAR

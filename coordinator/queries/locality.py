"""Which subtrees of a query need no other shard's series: the rule that decides what the workers evaluate.

A series lives in one shard, placed by its whole label set. A subtree is `LOCAL` when its value over all shards is the
union of its values over each: every output series comes from one input series. It is `RELABELLED` when it is local but
for label functions on its top, `CONSTANT` when it reads no series, and `GLOBAL` otherwise. What a function must
see is its `scope` in `shared.promql.functions`; docs/internals/promql.md has the table of all node kinds.
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
from shared.promql.functions import FUNCTIONS, Scope


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
        memo = self._known.get(id(expr))
        if memo is None:
            memo = self._known[id(expr)] = (expr, self._find(expr))
        return memo[1]

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
        scope = FUNCTIONS[expr.func].scope
        if scope is Scope.BEYOND_ARGUMENT:
            return Locality.GLOBAL
        if all(self.of(argument) is Locality.CONSTANT for argument in expr.args):
            return Locality.CONSTANT
        if scope is Scope.RELABELLED:
            local = self.of(expr.args[0]) in (Locality.LOCAL, Locality.RELABELLED)
            return Locality.RELABELLED if local else Locality.GLOBAL
        series = [argument for argument in expr.args if not self._is_constant_scalar(argument)]
        if scope is Scope.ONE and len(series) == 1 and self.of(series[0]) is Locality.LOCAL:
            return Locality.LOCAL
        return Locality.GLOBAL

    def _is_constant_scalar(self, expr: Expr) -> bool:
        return self.of(expr) is Locality.CONSTANT and types.type_of(expr) is ValueType.SCALAR

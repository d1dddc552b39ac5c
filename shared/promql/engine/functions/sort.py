"""Functions that order the result of an instant query; in a range query they only add an annotation.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cmp_to_key

import numpy as np

from shared.labels import Rows
from shared.promql.ast import Call
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.arguments import Function, floats, text, vector
from shared.promql.engine.rows import take, without_empty
from shared.promql.model import Grid, Matrix, Value

_CHUNK = re.compile(r"\d+|\D+", re.ASCII)
_DIGITS = "0123456789"

COMPARED_AT_ONCE = 1 << 12
"""Comparisons of label values between two checks of the deadline: about 10 ms."""

Order = Callable[[Call, list[Value], Matrix, EvalContext], Rows]


def _sorted(order: Order, argument: Callable[[Call, list[Value]], Matrix]) -> Function:
    def evaluate(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
        matrix = argument(call, args)
        if grid.start_ms != grid.end_ms:
            context.annotations.warn(
                "sort is ineffective for range queries since results are always ordered by labels", call.span[0]
            )
            return matrix
        matrix = without_empty(matrix)
        return take(matrix, order(call, args, matrix, context)) if matrix.labels.size else matrix

    return evaluate


def _ascending(call: Call, args: list[Value], matrix: Matrix, context: EvalContext) -> Rows:
    return np.argsort(matrix.values[:, 0], kind="stable")


def _descending(call: Call, args: list[Value], matrix: Matrix, context: EvalContext) -> Rows:
    # argsort puts NaN last, as both orders require.
    return np.argsort(-matrix.values[:, 0], kind="stable")


def natural(a: str, b: str) -> int:
    """Compare texts, with the numbers in them compared as numbers. Returns a negative number, 0 or a positive one."""
    for x, y in itertools.zip_longest(_CHUNK.findall(a), _CHUNK.findall(b), fillvalue=""):
        if x and y and x[0] in _DIGITS and y[0] in _DIGITS:
            x, y = x.lstrip("0"), y.lstrip("0")
            if len(x) != len(y):
                return len(x) - len(y)
        if x != y:
            return -1 if x < y else 1
    return (a > b) - (a < b)


def _natural_within(check: Callable[[], None]) -> Callable[[str, str], int]:
    """`natural` with a call of `check` at every COMPARED_AT_ONCE-th comparison. `check` may raise."""
    count = itertools.count(1)

    def compare(a: str, b: str) -> int:
        if next(count) % COMPARED_AT_ONCE == 0:
            check()
        return natural(a, b)

    return compare


def _by_label(call: Call, args: list[Value], matrix: Matrix, context: EvalContext) -> Rows:
    """The order by the given labels, each in natural order, and then by the whole label set."""
    key = cmp_to_key(_natural_within(context.check))
    keys = [np.argsort(matrix.labels.sort_order())]
    for index in reversed(range(1, len(args))):
        codes, inverse = np.unique(matrix.labels.column(text(call, args, index)), return_inverse=True)
        texts = map(key, matrix.labels.symbols.texts(codes))
        ranks = np.empty(len(codes), dtype=np.int64)
        ranks[[i for _, i in sorted(zip(texts, range(len(codes)), strict=True))]] = np.arange(len(codes))
        keys.append(ranks[inverse])
    return np.lexsort(keys)


def _by_label_descending(call: Call, args: list[Value], matrix: Matrix, context: EvalContext) -> Rows:
    return _by_label(call, args, matrix, context)[::-1]


FUNCTIONS: dict[str, Function] = {
    "sort": _sorted(_ascending, floats),
    "sort_desc": _sorted(_descending, floats),
    "sort_by_label": _sorted(_by_label, vector),
    "sort_by_label_desc": _sorted(_by_label_descending, vector),
}

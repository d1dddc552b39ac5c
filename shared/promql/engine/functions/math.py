"""Functions of one number applied to every sample, and the scalar functions `pi`, `min_of` and `max_of`.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shared.promql.ast import Call
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.arguments import Function, floats, scalar
from shared.promql.engine.rows import without_empty
from shared.promql.model import Float, Grid, Matrix, Scalar, Value


def mapped(matrix: Matrix, values: Float) -> Matrix:
    """The series of `matrix` with other values (float64[n, steps]) and without their names."""
    return Matrix(matrix.labels, values, matrix.present, np.ones_like(matrix.drop_name))


def _each(function: Callable[[Float], Any]) -> Function:
    def evaluate(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
        matrix = floats(call, args)
        with np.errstate(all="ignore"):
            return mapped(matrix, function(matrix.values))

    return evaluate


def _round(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """Round to the nearest multiple of the second argument (1 by default), halves up."""
    matrix = floats(call, args)
    nearest = scalar(call, args, 1) if len(args) > 1 else np.ones(grid.steps)
    with np.errstate(all="ignore"):
        # Multiplying by the inverse is more exact than dividing: 0.1 has no exact binary representation, 10 has.
        inverse = 1.0 / nearest
        return mapped(matrix, np.floor(matrix.values * inverse + 0.5) / inverse)


def _sign(values: Float) -> Float:
    """1, -1, or the value itself if it is neither above nor below 0: a NaN, or a zero with its sign."""
    return np.where(values > 0, 1.0, np.where(values < 0, -1.0, values))


def _clamp(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """Values clamped to two bounds; no values at steps at which the upper bound is below the lower one."""
    matrix, lower, upper = floats(call, args), scalar(call, args, 1), scalar(call, args, 2)
    clamped = mapped(matrix, np.maximum(lower, np.minimum(upper, matrix.values)))
    if (upper < lower).any():
        clamped.present = clamped.present & ~(upper < lower)
        return without_empty(clamped)
    return clamped


def _clamp_min(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    matrix = floats(call, args)
    return mapped(matrix, np.maximum(scalar(call, args, 1), matrix.values))


def _clamp_max(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    matrix = floats(call, args)
    return mapped(matrix, np.minimum(scalar(call, args, 1), matrix.values))


def _pi(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    return Scalar(np.full(grid.steps, math.pi))


def _min_of(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    return Scalar(np.minimum(scalar(call, args, 0), scalar(call, args, 1)))


def _max_of(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    return Scalar(np.maximum(scalar(call, args, 0), scalar(call, args, 1)))


FUNCTIONS: dict[str, Function] = {
    "abs": _each(np.abs),
    "ceil": _each(np.ceil),
    "floor": _each(np.floor),
    "exp": _each(np.exp),
    "ln": _each(np.log),
    "log2": _each(np.log2),
    "log10": _each(np.log10),
    "sqrt": _each(np.sqrt),
    "sgn": _each(_sign),
    "sin": _each(np.sin),
    "cos": _each(np.cos),
    "tan": _each(np.tan),
    "asin": _each(np.arcsin),
    "acos": _each(np.arccos),
    "atan": _each(np.arctan),
    "sinh": _each(np.sinh),
    "cosh": _each(np.cosh),
    "tanh": _each(np.tanh),
    "asinh": _each(np.arcsinh),
    "acosh": _each(np.arccosh),
    "atanh": _each(np.arctanh),
    "deg": _each(lambda values: values * 180.0 / math.pi),
    "rad": _each(lambda values: values * math.pi / 180.0),
    "round": _round,
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "pi": _pi,
    "min_of": _min_of,
    "max_of": _max_of,
}

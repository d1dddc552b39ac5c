"""Binary operators: arithmetic, comparison and set operators on scalars and instant vectors.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/operators/#binary-operators. Arithmetic is IEEE 754
with the special cases of C99's fmod, pow and atan2, which are those of Go's math package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.errors import NotExecutable
from shared.promql.ast import Binary
from shared.promql.engine.context import EvalContext
from shared.promql.engine.matching import Operation, evaluate_pairs
from shared.promql.engine.rows import without_empty
from shared.promql.engine.setops import evaluate_set
from shared.promql.model import Bool, Float, Grid, Matrix, Scalar, Value
from shared.promql.operators import ARITHMETIC, SET_OPERATORS, TRIMS

ARITHMETIC_UFUNCS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
COMPARISON_UFUNCS: dict[str, Any] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}


def evaluate_binary(node: Binary, lhs: Value, rhs: Value, grid: Grid, context: EvalContext) -> Value:
    """The value of `lhs op rhs` for every combination of scalars and instant vectors.

    Raises NotExecutable for other types and for ambiguous vector matches.
    """
    if node.op in TRIMS:
        return _trimmed(node, lhs, rhs, context)
    if isinstance(lhs, Matrix) and isinstance(rhs, Matrix):
        if node.op in SET_OPERATORS:
            return evaluate_set(node, lhs, rhs)
        return evaluate_pairs(node, lhs, rhs, _operation(node), arithmetic=node.op in ARITHMETIC, context=context)
    if isinstance(lhs, Scalar) and isinstance(rhs, Scalar):
        return Scalar(_scalars(node, lhs.values, rhs.values))
    if isinstance(lhs, Matrix) and isinstance(rhs, Scalar):
        return _with_scalar(node, lhs, rhs.values, swapped=False)
    if isinstance(lhs, Scalar) and isinstance(rhs, Matrix):
        return _with_scalar(node, rhs, lhs.values, swapped=True)
    raise NotExecutable(
        f"binary operator {node.op} is defined on scalars and instant vectors, "
        f"not on {type(lhs).__name__} and {type(rhs).__name__}"
    )


def _trimmed(node: Binary, lhs: Value, rhs: Value, context: EvalContext) -> Matrix:
    """The empty vector, with an annotation if there was a float to trim. Raises NotExecutable between scalars, and for
    ambiguous vector matches."""

    def drop(left: Float, right: Float) -> tuple[Float, Bool | None]:
        return left, np.zeros(np.broadcast_shapes(left.shape, right.shape), dtype=np.bool_)

    if isinstance(lhs, Matrix) and isinstance(rhs, Matrix):
        dropped = evaluate_pairs(node, lhs, rhs, drop, arithmetic=False, context=context)
        is_remarked = bool(lhs.present.any() and rhs.present.any())
    elif isinstance(lhs, Matrix) or isinstance(rhs, Matrix):
        vector = lhs if isinstance(lhs, Matrix) else rhs
        assert isinstance(vector, Matrix)
        is_remarked = bool(vector.present.any())
        dropped = Matrix(vector.labels, vector.values, np.zeros_like(vector.present), vector.drop_name)
    else:
        raise NotExecutable(f"binary operator {node.op} trims native histograms, it is not defined between scalars")
    if is_remarked:
        text = f'incompatible sample types encountered for binary operator "{node.op}": float {node.op} float'
        context.annotations.info(text, node.span[0])
    return without_empty(dropped)


def _operation(node: Binary) -> Operation:
    """The function of (left values, right values). A comparison without `bool` keeps the left value where it holds."""
    arithmetic = ARITHMETIC_UFUNCS.get(node.op)

    def apply(left: Float, right: Float) -> tuple[Float, Bool | None]:
        with np.errstate(all="ignore"):
            if arithmetic is not None:
                return arithmetic(left, right), None
            holds = COMPARISON_UFUNCS[node.op](left, right)
        return (holds.astype(np.float64), None) if node.return_bool else (left, holds)

    return apply


def _scalars(node: Binary, left: Float, right: Float) -> Float:
    values, is_kept = _operation(node)(left, right)
    if is_kept is not None:
        raise NotExecutable(f"comparisons between scalars must use the bool modifier: {node.op} bool")
    return values


def _with_scalar(node: Binary, vector: Matrix, scalar: Float, *, swapped: bool) -> Matrix:
    """The value for a vector and a scalar. A comparison without `bool` keeps the vector's values, whichever side the
    vector is on."""
    if node.op in ARITHMETIC or node.return_bool:
        operation = _operation(node)
        values, _ = operation(scalar, vector.values) if swapped else operation(vector.values, scalar)
        return Matrix(vector.labels, values, vector.present, np.ones_like(vector.drop_name))
    compare = COMPARISON_UFUNCS[node.op]
    holds = compare(scalar, vector.values) if swapped else compare(vector.values, scalar)
    return without_empty(Matrix(vector.labels, vector.values, vector.present & holds, vector.drop_name))

"""Binary operators by the types of their operands: scalars and instant vectors.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/operators/#binary-operators. `operations.py` applies an
operator to pairs of values.
"""

from __future__ import annotations

import numpy as np

from shared.errors import NotExecutable
from shared.promql.ast import Binary
from shared.promql.engine.context import EvalContext
from shared.promql.engine.matching import evaluate_pairs
from shared.promql.engine.operations import operate, operate_on_floats
from shared.promql.engine.rows import without_empty
from shared.promql.engine.setops import evaluate_set
from shared.promql.model import Float, Grid, Matrix, Scalar, Value
from shared.promql.operators import ARITHMETIC, SET_OPERATORS, TRIMS


def evaluate_binary(node: Binary, lhs: Value, rhs: Value, grid: Grid, context: EvalContext) -> Value:
    """The value of `lhs op rhs` for every combination of scalars and instant vectors.

    Raises NotExecutable for other types and for ambiguous vector matches.
    """
    if isinstance(lhs, Matrix) and isinstance(rhs, Matrix):
        if node.op in SET_OPERATORS:
            return evaluate_set(node, lhs, rhs)
        return evaluate_pairs(node, lhs, rhs, context)
    if isinstance(lhs, Scalar) and isinstance(rhs, Scalar):
        return Scalar(_scalars(node, lhs.values, rhs.values))
    if isinstance(lhs, Matrix) and isinstance(rhs, Scalar):
        return _with_scalar(node, lhs, rhs.values, context, swapped=False)
    if isinstance(lhs, Scalar) and isinstance(rhs, Matrix):
        return _with_scalar(node, rhs, lhs.values, context, swapped=True)
    raise NotExecutable(
        f"binary operator {node.op} is defined on scalars and instant vectors, "
        f"not on {type(lhs).__name__} and {type(rhs).__name__}"
    )


def _scalars(node: Binary, left: Float, right: Float) -> Float:
    if node.op in TRIMS:
        raise NotExecutable(f"binary operator {node.op} trims native histograms, it is not defined between scalars")
    values, is_kept = operate_on_floats(node, left, right)
    if is_kept is not None:
        raise NotExecutable(f"comparisons between scalars must use the bool modifier: {node.op} bool")
    return values


def _with_scalar(node: Binary, vector: Matrix, scalar: Float, context: EvalContext, *, swapped: bool) -> Matrix:
    """The value for a vector and a scalar. A comparison without `bool` keeps the vector's values, on whichever side the
    vector is."""
    left, right = (scalar, vector.values) if swapped else (vector.values, scalar)
    values, is_kept, histograms = operate(node, left, right, vector.present, vector.histograms, context)
    present = vector.present if is_kept is None else vector.present & is_kept
    if node.op in ARITHMETIC or node.return_bool:
        dropped = Matrix(vector.labels, values, present, np.ones_like(vector.drop_name), histograms)
        return dropped if is_kept is None else without_empty(dropped)
    if node.op not in TRIMS:
        # No comparison between a histogram and a scalar holds, so only floats are kept.
        values, histograms = vector.values, None
    return without_empty(Matrix(vector.labels, values, present, vector.drop_name, histograms))

"""Binary operators on pairs of values, floats and histograms, cell by cell.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/operators/#binary-operators. Arithmetic is IEEE 754
with the special cases of C99's fmod, pow and atan2, which are those of Go's math package. The arithmetic of histograms
is in `shared.histograms.operators` and `trimming`. Pairs of types without an operation have no result, and get a
remark.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shared.histograms import merging, operators
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference, references, rows_of
from shared.histograms.trimming import trimmed
from shared.promql.ast import Binary
from shared.promql.engine.context import EvalContext
from shared.promql.model import Bool, Float
from shared.promql.operators import TRIMS


def _power(left: Float, right: Float) -> Float:
    """`left ^ right`. If all exponents are 0.5, NumPy takes square roots, but its root of -Inf is NaN, and that of -0
    is -0."""
    values = np.power(left, right)
    is_root = right == 0.5
    return np.where(is_root & ((left == 0) | np.isneginf(left)), np.abs(left), values) if is_root.any() else values


ARITHMETIC_UFUNCS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": _power,
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

_OF_TWO_HISTOGRAMS: Final = frozenset({"+", "-", "==", "!="})
_OF_HISTOGRAM_AND_FLOAT: Final = frozenset({"*", "/"}) | TRIMS
_OF_FLOAT_AND_HISTOGRAM: Final = frozenset({"*"})
_NAMES: Final = {"+": "addition", "-": "subtraction"}


class Outcome(NamedTuple):
    """`values`: float64, in the shape of the cells; `is_kept`: which cells have a result (None: all); `histograms`:
    those that values refer to."""

    values: Float
    is_kept: Bool | None
    histograms: HistogramBatch | None = None


def operate(
    node: Binary,
    left: Float,
    right: Float,
    matched: Bool,
    histograms: HistogramBatch | None,
    context: EvalContext,
) -> Outcome:
    """`left op right` where `matched`, for operands whose shapes broadcast to that of `matched`. Other cells are
    meaningless, in operands and result. Both operands refer to `histograms`.

    A comparison without `bool` keeps the left value where it holds."""
    if histograms is None and node.op not in TRIMS:
        return Outcome(*operate_on_floats(node, left, right))
    left, right = np.broadcast_to(left, matched.shape), np.broadcast_to(right, matched.shape)
    if histograms is None:
        is_left = is_right = np.zeros_like(matched)
    else:
        is_left, is_right = matched & is_reference(left), matched & is_reference(right)
    of_floats = matched & ~is_left & ~is_right
    computed = _defined(node, matched, is_left, is_right, context)
    is_kept = computed
    values = np.full(matched.shape, np.nan)
    if node.op not in TRIMS:
        numbers, holds = operate_on_floats(node, left, right)
        values[of_floats] = numbers[of_floats]
        is_kept = computed if holds is None else computed & (holds | ~of_floats)
    cells = computed & ~of_floats
    if histograms is None or not cells.any():
        return Outcome(values, is_kept)
    if node.op in COMPARISON_UFUNCS:
        are_equal = operators.equal(histograms.take(rows_of(left[cells])), histograms.take(rows_of(right[cells])))
        holds_here = are_equal if node.op == "==" else ~are_equal
        if node.return_bool:
            values[cells] = holds_here
            return Outcome(values, is_kept)
        values[cells] = left[cells]
        is_kept[cells] = holds_here
        return Outcome(values, is_kept, histograms)
    results, has_result = _combined(node, left[cells], right[cells], histograms, context)
    values[cells] = np.where(has_result, references(np.arange(len(results))), np.nan)
    is_kept[cells] = has_result
    return Outcome(values, is_kept, results)


def operate_on_floats(node: Binary, left: Float, right: Float) -> tuple[Float, Bool | None]:
    """(`left op right` between floats, which results are kept: None for all)."""
    arithmetic = ARITHMETIC_UFUNCS.get(node.op)
    with np.errstate(all="ignore"):
        if arithmetic is not None:
            return arithmetic(left, right), None
        holds = COMPARISON_UFUNCS[node.op](left, right)
    return (holds.astype(np.float64), None) if node.return_bool else (left, holds)


def _defined(node: Binary, matched: Bool, is_left: Bool, is_right: Bool, context: EvalContext) -> Bool:
    """The cells whose types the operator is defined for, with a remark on each pair of other types. `is_left`,
    `is_right`: where there are histograms."""
    types = (
        (is_left & is_right, ("histogram", "histogram"), node.op in _OF_TWO_HISTOGRAMS),
        (is_left & ~is_right, ("histogram", "float"), node.op in _OF_HISTOGRAM_AND_FLOAT),
        (is_right & ~is_left, ("float", "histogram"), node.op in _OF_FLOAT_AND_HISTOGRAM),
        (matched & ~is_left & ~is_right, ("float", "float"), node.op not in TRIMS),
    )
    computed = np.zeros_like(matched)
    for cells, (left_type, right_type), is_defined in types:
        if is_defined:
            computed |= cells
        elif cells.any():
            text = f'encountered for binary operator "{node.op}": {left_type} {node.op} {right_type}'
            context.annotations.info(f"incompatible sample types {text}", node.span[0])
    return computed


def _combined(
    node: Binary, left: Float, right: Float, histograms: HistogramBatch, context: EvalContext
) -> tuple[HistogramBatch, Bool]:
    """(results, which of them are defined) of an arithmetic or trimming operator on cells with a histogram on at least
    one side."""
    if node.op in _NAMES:
        combine = operators.added_rows if node.op == "+" else operators.subtracted_rows
        results, notes = combine(histograms, rows_of(left), rows_of(right))
        _remark(node, int(np.bitwise_or.reduce(notes)), context)
        return results, notes & merging.MIXED == 0
    is_left = is_reference(left)
    operands = histograms.take(rows_of(np.where(is_left, left, right)))
    numbers = np.where(is_left, right, left)
    if node.op in TRIMS:
        results = trimmed(operands, numbers, keeps_below=node.op == "</")
    else:
        results = (operators.scaled if node.op == "*" else operators.divided)(operands, numbers)
    return results, np.ones(len(results), dtype=np.bool_)


def _remark(node: Binary, notes: int, context: EvalContext) -> None:
    """Add the annotations for the notes of a sum (`merging`)."""
    annotations, offset = context.annotations, node.span[0]
    if notes & merging.MIXED:
        annotations.warn(f"incompatible bucket layout encountered for binary operator {node.op}", offset)
    if notes & merging.CONFLICTING:
        annotations.warn(f"conflicting counter resets during histogram {_NAMES[node.op]}", offset)
    if notes & merging.RECONCILED:
        annotations.info(f"mismatched custom buckets were reconciled during {_NAMES[node.op]}", offset)

"""The oracle's binary operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shared.labels import METRIC_NAME, Labels
from shared.promql import ast
from tests.oracle_native_histograms import Hint, NativeHistogram, divided, same, scaled, summed, trimmed
from tests.oracle_values import METADATA, Number, OracleError, Remarks, Sample, Value, as_labels

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def _power(base: np.float64, exponent: np.float64) -> float:
    """As C99 has it; Python raises where that says NaN or infinity."""
    try:
        return math.pow(base, exponent)
    except (ValueError, OverflowError) as error:
        is_odd = math.isfinite(exponent) and exponent % 2 == 1
        if isinstance(error, ValueError) and base != 0:
            return math.nan
        return math.copysign(math.inf, base) if is_odd else math.inf


ARITHMETIC: dict[str, Callable[[np.float64, np.float64], float]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": _power,
    "atan2": np.arctan2,
}
SET_OPERATORS = ("and", "or", "unless")


TRIMS = ("</", ">/")


def apply(op: str, lhs: Number, rhs: Number, return_bool: bool, remarks: Remarks) -> Number | None:
    """None: a comparison that does not hold and only filters, or operands that the operator does not take."""
    if isinstance(lhs, NativeHistogram) or isinstance(rhs, NativeHistogram):
        return _with_histograms(op, lhs, rhs, return_bool, remarks)
    if op in TRIMS:
        _refused(op, lhs, rhs, remarks)
        return None
    if op in COMPARISONS:
        holds = COMPARISONS[op](lhs, rhs)
        return float(holds) if return_bool else lhs if holds else None
    with np.errstate(all="ignore"):
        return float(ARITHMETIC[op](np.float64(lhs), np.float64(rhs)))


def _with_histograms(op: str, lhs: Number, rhs: Number, return_bool: bool, remarks: Remarks) -> Number | None:
    match lhs, rhs:
        case NativeHistogram(), NativeHistogram():
            if op in ("+", "-"):
                return _added(op, lhs, rhs, remarks)
            if op in ("==", "!="):
                holds = same(lhs, rhs) == (op == "==")
                return float(holds) if return_bool else lhs if holds else None
        case NativeHistogram(), float():
            if op == "*":
                return scaled(lhs, rhs)
            if op == "/":
                return divided(lhs, rhs)
            if op in TRIMS:
                return trimmed(lhs, rhs, keeps_below=op == "</")
        case float(), NativeHistogram() if op == "*":
            return scaled(rhs, lhs)
    _refused(op, lhs, rhs, remarks)
    return None


def _refused(op: str, lhs: Number, rhs: Number, remarks: Remarks) -> None:
    left, right = ("float" if isinstance(side, float) else "histogram" for side in (lhs, rhs))
    remarks.info(f'incompatible sample types encountered for binary operator "{op}": {left} {op} {right}')


def _added(op: str, lhs: NativeHistogram, rhs: NativeHistogram, remarks: Remarks) -> NativeHistogram | None:
    if lhs.is_custom != rhs.is_custom:
        remarks.warn(f"incompatible bucket layout encountered for binary operator {op}")
        return None
    what = "addition" if op == "+" else "subtraction"
    if {lhs.hint, rhs.hint} == {Hint.RESET, Hint.NOT_RESET}:
        remarks.warn(f"conflicting counter resets during histogram {what}")
    if lhs.bounds != rhs.bounds:
        remarks.info(f"mismatched custom buckets were reconciled during {what}")
    if op == "+":
        return summed([lhs, rhs])
    return replace(summed([lhs, rhs], [1.0, -1.0]), hint=Hint.GAUGE)


def keeps_left(node: ast.Binary) -> bool:
    """Whether the result is (what is left of) the left operand, with its name."""
    return node.op in TRIMS or (node.op in COMPARISONS and not node.return_bool)


def binary(node: ast.Binary, lhs: Value, rhs: Value, remarks: Remarks) -> Value:
    if isinstance(lhs, float) and isinstance(rhs, float):
        value = apply(node.op, lhs, rhs, True, remarks)
        assert isinstance(value, float)
        return value
    if isinstance(lhs, float) or isinstance(rhs, float):
        return _with_scalar(node, lhs, rhs, remarks)
    assert node.matching is not None
    left, right = _all_samples(lhs), _all_samples(rhs)
    if node.op in SET_OPERATORS:
        return _set_operation(node.op, node.matching, left, right)
    return _matched(node, node.matching, left, right, remarks)


def _all_samples(value: Value) -> list[Sample]:
    assert isinstance(value, list)
    return [one for one in value if isinstance(one, Sample)]


def _with_scalar(node: ast.Binary, lhs: Value, rhs: Value, remarks: Remarks) -> list[Sample]:
    found = []
    vector = _all_samples(rhs if isinstance(lhs, float) else lhs)
    for sample in vector:
        a = lhs if isinstance(lhs, float) else sample.value
        b = rhs if isinstance(rhs, float) else sample.value
        value = apply(node.op, a, b, node.return_bool, remarks)
        if value is not None:
            filters = node.op in COMPARISONS and not node.return_bool
            drop = sample.drop_name or not keeps_left(node)
            found.append(Sample(sample.labels, sample.value if filters else value, drop))
    return found


def signature(matching: ast.Matching, sample: Sample) -> Labels:
    if matching.on:
        return as_labels(sample.labels, only=matching.labels)
    return as_labels(sample.labels, without=(*matching.labels, METRIC_NAME))


def _set_operation(op: str, matching: ast.Matching, lhs: list[Sample], rhs: list[Sample]) -> list[Sample]:
    left = {signature(matching, sample) for sample in lhs}
    right = {signature(matching, sample) for sample in rhs}
    if op == "and":
        return [sample for sample in lhs if signature(matching, sample) in right]
    if op == "unless":
        return [sample for sample in lhs if signature(matching, sample) not in right]
    return [*lhs, *(sample for sample in rhs if signature(matching, sample) not in left)]


def _matched(
    node: ast.Binary, matching: ast.Matching, lhs: list[Sample], rhs: list[Sample], remarks: Remarks
) -> list[Sample]:
    """Vector matching: `many` is the side that may have several samples to a signature, `one` the other."""
    swapped = matching.card == "one-to-many"
    many, one = (rhs, lhs) if swapped else (lhs, rhs)
    # Under group_right, too, Prometheus's fill_left is for the many and fill_right for the one side.
    fill_many, fill_one = matching.fill_left, matching.fill_right
    if not (many or (one and fill_many is not None)) or not (one or (many and fill_one is not None)):
        return []
    single: dict[Labels, Sample] = {}
    for sample in one:
        if single.setdefault(signature(matching, sample), sample) is not sample:
            raise OracleError("found duplicate series for the match group")
    pairs: list[tuple[Labels, Sample, Sample]] = []
    for sample in many:
        key = signature(matching, sample)
        partner = single.get(key)
        if partner is None and fill_one is not None:
            partner = Sample(dict(key), fill_one)
        if partner is not None:
            pairs.append((key, sample, partner))
    if fill_many is not None:
        there = {signature(matching, sample) for sample in many}
        pairs += [(key, Sample(dict(key), fill_many), sample) for key, sample in single.items() if key not in there]
    return _paired(node, matching, pairs, swapped, remarks)


def _paired(
    node: ast.Binary,
    matching: ast.Matching,
    pairs: list[tuple[Labels, Sample, Sample]],
    swapped: bool,
    remarks: Remarks,
) -> list[Sample]:
    found: list[Sample] = []
    keys = set()
    results = set()
    for key, many, one in pairs:
        if matching.card == "one-to-one":
            if key in keys:
                raise OracleError("many-to-one matching must be explicit (group_left/group_right)")
            keys.add(key)
        a, b = (one.value, many.value) if swapped else (many.value, one.value)
        value = apply(node.op, a, b, node.return_bool, remarks)
        if value is None:
            continue
        labels = _result_labels(node, matching, many, one)
        drop = many.drop_name or not keeps_left(node)
        if matching.card != "one-to-one":
            identity = as_labels(labels)
            if identity in results:
                raise OracleError("grouping labels must ensure unique matches")
            results.add(identity)
        found.append(Sample(labels, value, drop))
    return found


def _result_labels(node: ast.Binary, matching: ast.Matching, many: Sample, one: Sample) -> dict[str, str]:
    labels = dict(many.labels)
    if node.op not in (*COMPARISONS, *TRIMS):
        labels = {name: value for name, value in labels.items() if name not in METADATA}
    if matching.card == "one-to-one":
        labels = {name: value for name, value in labels.items() if (name in matching.labels) == matching.on}
    for name in matching.include:
        labels[name] = one.labels.get(name, "")
    return labels

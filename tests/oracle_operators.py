"""The oracle's binary operators and aggregations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np

from shared.hashing import hash64
from shared.labels import METRIC_NAME, Labels, encode
from shared.promql import ast
from tests.oracle_values import METADATA, OracleError, Sample, Value, as_labels
from tests.oracle_windows import highest, lowest, mean, quantile, total, variance

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
ARITHMETIC: dict[str, Callable[[np.float64, np.float64], np.floating]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
SET_OPERATORS = ("and", "or", "unless")


def apply(op: str, lhs: float, rhs: float, return_bool: bool) -> float | None:
    """None: a comparison that does not hold and only filters."""
    if op in COMPARISONS:
        holds = COMPARISONS[op](lhs, rhs)
        return float(holds) if return_bool else lhs if holds else None
    with np.errstate(all="ignore"):
        return float(ARITHMETIC[op](np.float64(lhs), np.float64(rhs)))


def binary(node: ast.Binary, lhs: Value, rhs: Value) -> Value:
    if isinstance(lhs, float) and isinstance(rhs, float):
        value = apply(node.op, lhs, rhs, True)
        assert value is not None
        return value
    if isinstance(lhs, float) or isinstance(rhs, float):
        return _with_scalar(node, lhs, rhs)
    assert node.matching is not None
    left, right = _all_samples(lhs), _all_samples(rhs)
    if node.op in SET_OPERATORS:
        return _set_operation(node.op, node.matching, left, right)
    return _matched(node, node.matching, left, right)


def _all_samples(value: Value) -> list[Sample]:
    assert isinstance(value, list)
    return [one for one in value if isinstance(one, Sample)]


def _with_scalar(node: ast.Binary, lhs: Value, rhs: Value) -> list[Sample]:
    found = []
    vector = _all_samples(rhs if isinstance(lhs, float) else lhs)
    for sample in vector:
        a = lhs if isinstance(lhs, float) else sample.value
        b = rhs if isinstance(rhs, float) else sample.value
        value = apply(node.op, a, b, node.return_bool)
        if value is not None:
            filters = node.op in COMPARISONS and not node.return_bool
            found.append(Sample(sample.labels, sample.value if filters else value, sample.drop_name or not filters))
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


def _matched(node: ast.Binary, matching: ast.Matching, lhs: list[Sample], rhs: list[Sample]) -> list[Sample]:
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
    return _paired(node, matching, pairs, swapped)


def _paired(
    node: ast.Binary, matching: ast.Matching, pairs: list[tuple[Labels, Sample, Sample]], swapped: bool
) -> list[Sample]:
    filters = node.op in COMPARISONS and not node.return_bool
    found: list[Sample] = []
    keys = set()
    results = set()
    for key, many, one in pairs:
        if matching.card == "one-to-one":
            if key in keys:
                raise OracleError("many-to-one matching must be explicit (group_left/group_right)")
            keys.add(key)
        a, b = (one.value, many.value) if swapped else (many.value, one.value)
        value = apply(node.op, a, b, node.return_bool)
        if value is None:
            continue
        labels = _result_labels(node, matching, many, one)
        drop = many.drop_name or not filters
        if matching.card != "one-to-one":
            identity = as_labels(labels)
            if identity in results:
                raise OracleError("grouping labels must ensure unique matches")
            results.add(identity)
        found.append(Sample(labels, value, drop))
    return found


def _result_labels(node: ast.Binary, matching: ast.Matching, many: Sample, one: Sample) -> dict[str, str]:
    labels = dict(many.labels)
    if node.op not in COMPARISONS:
        labels = {name: value for name, value in labels.items() if name not in METADATA}
    if matching.card == "one-to-one":
        labels = {name: value for name, value in labels.items() if (name in matching.labels) == matching.on}
    for name in matching.include:
        labels[name] = one.labels.get(name, "")
    return labels


# Aggregations

_OF_VALUES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": total,
    "avg": mean,
    "min": lowest,
    "max": highest,
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
    "stdvar": variance,
    "stddev": lambda values: math.sqrt(variance(values)),
}


def aggregate(node: ast.Aggregate, vector: list[Sample], param: Value | None) -> list[Sample]:
    if node.op == "count_values":
        assert isinstance(param, str)
        if not param:
            raise OracleError("invalid label name")
        return _count_values(node, vector, param)
    groups: dict[Labels, list[Sample]] = {}
    for sample in vector:
        groups.setdefault(_group(node, sample), []).append(sample)
    if node.op in ("topk", "bottomk", "limitk", "limit_ratio"):
        assert isinstance(param, float)
        select = _sampled if node.op == "limit_ratio" else _selected
        return [sample for members in groups.values() for sample in select(node.op, param, members)]
    found = []
    for labels, members in groups.items():
        values = [sample.value for sample in members]
        if node.op == "quantile":
            assert isinstance(param, float)
            value = quantile(param, values)
        else:
            value = _OF_VALUES[node.op](values)
        found.append(Sample(dict(labels), value, any(sample.drop_name for sample in members)))
    return found


def _group(node: ast.Aggregate, sample: Sample, extra: tuple[str, ...] = ()) -> Labels:
    if node.without:
        return as_labels(sample.labels, without=(*node.grouping, METRIC_NAME))
    return as_labels(sample.labels, only=(*node.grouping, *extra))


def _selected(op: str, param: float, members: list[Sample]) -> list[Sample]:
    """The k first: by value, NaN last, equal values by label set; `limitk` takes them by their hash alone."""
    if math.isnan(param):
        raise OracleError("Parameter value is NaN")
    if abs(param) >= 2**63:
        raise OracleError(f"Scalar value {param} overflows int64")
    k = max(int(param), 0)
    if op == "limitk":
        return sorted(members, key=lambda s: hash64(encode(as_labels(s.labels))))[:k]
    sign = -1 if op == "topk" else 1
    ordered = sorted(members, key=lambda s: as_labels(s.labels))
    return sorted(ordered, key=lambda s: (1, 0.0) if math.isnan(s.value) else (0, sign * s.value))[:k]


def _sampled(op: str, ratio: float, members: list[Sample]) -> list[Sample]:
    """Those whose hash, as a share of all hashes, is below the ratio; for a negative one, the others of 1 + ratio."""
    if math.isnan(ratio):
        raise OracleError("Ratio value is NaN")
    ratio = min(max(ratio, -1.0), 1.0)
    shares = [(hash64(encode(as_labels(sample.labels))) >> 11) * 2.0**-53 for sample in members]
    if ratio >= 0:
        return [sample for sample, share in zip(members, shares, strict=True) if share < ratio]
    return [sample for sample, share in zip(members, shares, strict=True) if share >= 1 + ratio]


def _count_values(node: ast.Aggregate, vector: list[Sample], name: str) -> list[Sample]:
    counts: dict[Labels, list[Sample]] = {}
    for sample in vector:
        counted = Sample({**sample.labels, name: plain_text(sample.value)}, sample.value, sample.drop_name)
        counts.setdefault(_group(node, counted, (name,)), []).append(counted)
    return [
        Sample(dict(labels), float(len(members)), any(s.drop_name for s in members))
        for labels, members in counts.items()
    ]


def plain_text(value: float) -> str:
    """The shortest decimal that reads back as the value, never with an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = format(Decimal(repr(value)), "f")
    return text[:-2] if text.endswith(".0") else text

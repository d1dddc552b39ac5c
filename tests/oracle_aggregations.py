"""The oracle's aggregations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal

from shared.hashing import hash64
from shared.labels import METRIC_NAME, Labels, encode
from shared.promql import ast
from shared.promql.ast import ValueType
from shared.promql.types import type_of
from tests.oracle_folds import added_up, deviation, highest, lowest, parted, quantile, variance
from tests.oracle_native_histograms import Kind, NativeHistogram
from tests.oracle_values import Number, OracleError, Remarks, Sample, Value, as_labels

_OF_FLOATS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": lowest,
    "max": highest,
    "stdvar": variance,
    "stddev": deviation,
}
_OF_ANY: dict[str, Callable[[Sequence[Number]], float]] = {
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
}


def aggregate(node: ast.Aggregate, vector: list[Sample], param: Value | None, remarks: Remarks) -> list[Sample]:
    """Remarks are about the operand, and those of topk and bottomk about the whole."""
    remarks = remarks.at((node if node.op in ("topk", "bottomk") else node.expr).span[0])
    if node.op == "count_values":
        assert isinstance(param, str)
        if not param:
            raise OracleError("invalid label name")
        return _count_values(node, vector, param)
    if node.op in ("topk", "bottomk"):
        vector = _only_floats(node.op, vector, remarks)
    groups: dict[Labels, list[Sample]] = {}
    for sample in vector:
        groups.setdefault(_group(node, sample), []).append(sample)
    if node.op in ("topk", "bottomk", "limitk", "limit_ratio"):
        assert isinstance(param, float)
        if math.isnan(param):
            raise OracleError("Parameter value is NaN")
        if node.op != "limit_ratio" and abs(param) >= 2**63:
            raise OracleError(f"Scalar value {param} overflows int64")
        select = _sampled if node.op == "limit_ratio" else _selected
        return [sample for members in groups.values() for sample in select(node.op, param, members)]
    found = []
    for labels, members in groups.items():
        value = _folded(node, param, members, remarks)
        if value is not None:
            found.append(Sample(dict(labels), value, any(sample.drop_name for sample in members)))
    return found


def _folded(node: ast.Aggregate, param: Value | None, members: list[Sample], remarks: Remarks) -> Number | None:
    op, values = node.op, [sample.value for sample in members]
    if op in ("sum", "avg"):
        return added_up(op, values, remarks, _metric(node.expr), "aggregation")
    if op in _OF_ANY:
        return _OF_ANY[op](values)
    floats, _ = parted([sample.value for sample in _only_floats(op, members, remarks)])
    if not floats:
        return None
    if op == "quantile":
        assert isinstance(param, float)
        return quantile(param, floats)
    return _OF_FLOATS[op](floats)


def _metric(expr: ast.Expr) -> str:
    """The metric's name in the selector that the series come from. There is none where a selector has none, after
    another aggregation, and where the series of two selectors were matched."""
    while not isinstance(expr, ast.VectorSelector):
        vectors = [child for child in ast.children(expr) if type_of(child) in (ValueType.VECTOR, ValueType.MATRIX)]
        if not vectors or isinstance(expr, ast.Aggregate) or (isinstance(expr, ast.Binary) and expr.matching):
            return ""
        expr = vectors[0]
    return expr.name or ""


def _only_floats(op: str, vector: list[Sample], remarks: Remarks) -> list[Sample]:
    kept = [sample for sample in vector if not isinstance(sample.value, NativeHistogram)]
    if len(kept) < len(vector):
        remarks.info(f"ignored histogram in {op} aggregation")
    return kept


def _group(node: ast.Aggregate, sample: Sample, extra: tuple[str, ...] = ()) -> Labels:
    if node.without:
        return as_labels(sample.labels, without=(*node.grouping, METRIC_NAME))
    return as_labels(sample.labels, only=(*node.grouping, *extra))


def _selected(op: str, param: float, members: list[Sample]) -> list[Sample]:
    """The k first: by value, NaN last, equal values by label set; `limitk` takes them by their hash alone."""
    k = max(int(param), 0)
    if op == "limitk":
        return sorted(members, key=lambda s: hash64(encode(as_labels(s.labels))))[:k]
    sign = -1 if op == "topk" else 1
    ordered = [(sample, sample.value) for sample in sorted(members, key=lambda s: as_labels(s.labels))]
    floats = [(sample, value) for sample, value in ordered if isinstance(value, float)]
    ranked = sorted(floats, key=lambda one: (1, 0.0) if math.isnan(one[1]) else (0, sign * one[1]))
    return [sample for sample, _ in ranked[:k]]


def _sampled(op: str, ratio: float, members: list[Sample]) -> list[Sample]:
    """Those whose hash, as a share of all hashes, is below the ratio; for a negative one, the others of 1 + ratio."""
    ratio = min(max(ratio, -1.0), 1.0)
    shares = [(hash64(encode(as_labels(sample.labels))) >> 11) * 2.0**-53 for sample in members]
    if ratio >= 0:
        return [sample for sample, share in zip(members, shares, strict=True) if share < ratio]
    return [sample for sample, share in zip(members, shares, strict=True) if share >= 1 + ratio]


def _count_values(node: ast.Aggregate, vector: list[Sample], name: str) -> list[Sample]:
    counts: dict[Labels, list[Sample]] = {}
    for sample in vector:
        counted = Sample({**sample.labels, name: text_of(sample.value)}, sample.value, sample.drop_name)
        counts.setdefault(_group(node, counted, (name,)), []).append(counted)
    return [
        Sample(dict(labels), float(len(members)), any(s.drop_name for s in members))
        for labels, members in counts.items()
    ]


def text_of(value: Number) -> str:
    return histogram_text(value) if isinstance(value, NativeHistogram) else plain_text(value)


def histogram_text(histogram: NativeHistogram) -> str:
    """Count, sum and the buckets with observations; a parenthesis stands where the boundary is not part of it."""
    parts = [f"count:{short_text(histogram.count)}", f"sum:{short_text(histogram.sum)}"]
    for bucket in histogram.buckets():
        if bucket.population != 0:
            opening = "[" if bucket.kind in (Kind.NEGATIVE, Kind.ZERO) else "("
            closing = ")" if bucket.kind is Kind.NEGATIVE else "]"
            ends = f"{short_text(bucket.left)},{short_text(bucket.right)}"
            parts.append(f"{opening}{ends}{closing}:{short_text(bucket.population)}")
    return "{" + ", ".join(parts) + "}"


def short_text(value: float) -> str:
    """The shortest decimal that reads back as the value, with an exponent below 1e-4 and from 1e6 on."""
    if math.isfinite(value) and value != 0 and not 1e-4 <= abs(value) < 1e6:
        digits, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
        return f"{digits}e{'-' if int(exponent) < 0 else '+'}{abs(int(exponent)):02d}"
    return "-0" if value == 0 and math.copysign(1, value) < 0 else plain_text(value)


def plain_text(value: float) -> str:
    """The shortest decimal that reads back as the value, never with an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = format(Decimal(repr(value)), "f")
    return text[:-2] if text.endswith(".0") else text

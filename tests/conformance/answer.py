"""What a back end says to one evaluation, and how that is compared with what a script expects."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shared.labels import Labels
from shared.promql.model import STALE_NAN_BITS
from tests.conformance.script import Eval, Remark, Times
from tests.conformance.series_text import Histogram, Point
from tests.oracle_native_histograms import Kind, NativeHistogram, compact

RELATIVE_TOLERANCE = 1e-6
_SMALLEST_NORMAL = 2.2250738585072014e-308


@dataclass(frozen=True, slots=True)
class Shown:
    """A histogram as the HTTP API shows it: `buckets` has (boundary rule, left, right, count) of those with
    observations."""

    count: float
    sum: float
    buckets: tuple[tuple[int, float, float, float], ...] = ()


Value = float | Histogram | Shown
Pairs = list[tuple[int, Value]]
"""(timestamp in milliseconds, value), ascending."""

_RULES = {Kind.NEGATIVE: 1, Kind.ZERO: 3, Kind.POSITIVE: 0, Kind.CUSTOM: 0}


@dataclass(slots=True)
class Answer:
    """`series` in the order of the result; a scalar is one series without labels. `error` set means it failed."""

    kind: Literal["vector", "matrix", "scalar", "string", "error"]
    series: list[tuple[Labels, Pairs]] = field(default_factory=list)
    string: str = ""
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)


def _is_stale(value: float) -> bool:
    return bool(struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_NAN_BITS)


def same_value(a: float, b: float) -> bool:
    """Equal within the scripts' relative tolerance; NaN equals NaN, a stale marker only itself."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b) and _is_stale(a) == _is_stale(b)
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    if a == 0 or b == 0 or abs(a) + abs(b) < _SMALLEST_NORMAL:
        return abs(a - b) < RELATIVE_TOLERANCE * _SMALLEST_NORMAL
    return abs(a - b) / min(abs(a) + abs(b), 1.7976931348623157e308) < RELATIVE_TOLERANCE


def same_point(expected: Value, got: Value) -> bool:
    """Equal within the tolerance. Buckets without observations do not count, and the counter reset hint only where both
    sides name it."""
    if isinstance(expected, Histogram) and isinstance(got, Shown):
        return _same_shown(shown(expected.value), got)
    if isinstance(expected, Histogram) and isinstance(got, Histogram):
        if expected.names_hint and got.names_hint and expected.value.hint is not got.value.hint:
            return False
        return _same_histogram(compact(expected.value), compact(got.value))
    return isinstance(expected, float) and isinstance(got, float) and same_value(expected, got)


def shown(h: NativeHistogram) -> Shown:
    """What the HTTP API shows of it."""
    buckets = [(_RULES[b.kind], b.left, b.right, b.population) for b in h.buckets() if b.population]
    return Shown(h.count, h.sum, tuple(buckets))


def _same_shown(a: Shown, b: Shown) -> bool:
    return len(a.buckets) == len(b.buckets) and all(
        same_value(x, y)
        for one, other in zip(((a.count, a.sum), *a.buckets), ((b.count, b.sum), *b.buckets), strict=True)
        for x, y in zip(one, other, strict=True)
    )


def _same_histogram(a: NativeHistogram, b: NativeHistogram) -> bool:
    return (a.schema, a.zero_threshold, a.bounds, a.positive.keys(), a.negative.keys()) == (
        b.schema, b.zero_threshold, b.bounds, b.positive.keys(), b.negative.keys(),
    ) and all(
        same_value(x, y)
        for x, y in (
            (a.count, b.count), (a.sum, b.sum), (a.zero_count, b.zero_count),
            *((count, b.positive[i]) for i, count in a.positive.items()),
            *((count, b.negative[i]) for i, count in a.negative.items()),
        )
    )  # fmt: skip


def show_labels(labels: Labels) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels) + "}"


def show_pairs(pairs: Pairs) -> str:
    shown = ((value.value if isinstance(value, Histogram) else value, time) for time, value in pairs)
    return " ".join(f"{value!r}@{time / 1000:g}" for value, time in shown) or "nothing"


def differences(case: Eval, answer: Answer, known: re.Pattern[str] | None = None) -> Iterator[str]:
    """Every way in which `answer` is not what `case` expects, in words; nothing when it is right.

    `known`: the back end gives only remarks with such texts, and neither texts of failures nor an order.
    """
    if case.fail:
        yield from _failure_differences(case.fail if known is None else [], answer)
        return
    if answer.kind == "error":
        yield f"failed: {answer.error}"
        return
    yield from _value_differences(case, answer, ordered=case.ordered and known is None)
    for kind, wanted, none_wanted, seen in (
        ("warning", case.warn, case.no_warn, answer.warnings),
        ("info", case.info, case.no_info, answer.infos),
    ):
        expected = [one for one in wanted if known is None or known.search(one.text or one.pattern or "")]
        yield from _remark_differences(kind, expected, none_wanted, seen)


def _failure_differences(expected: Sequence[Remark], answer: Answer) -> Iterator[str]:
    if answer.kind != "error":
        yield "did not fail"
    for remark in expected:
        if answer.kind == "error" and not remark.matches(answer.error):
            yield f"failed with {answer.error!r}, expected {remark.text or remark.pattern!r}"


def _remark_differences(kind: str, expected: Sequence[Remark], none_wanted: bool, seen: list[str]) -> Iterator[str]:
    if none_wanted and seen:
        yield f"unexpected {kind}: {seen}"
    if not expected:
        return
    for remark in expected:
        if not any(remark.matches(text) for text in seen):
            yield f"no {kind} like {remark.text or remark.pattern or 'any'!r} among {seen}"
    for text in seen:
        if not any(remark.matches(text) for remark in expected):
            yield f"unexpected {kind} {text!r}"


def expected_series(case: Eval) -> list[tuple[Labels, Pairs]]:
    if case.scalar is not None:
        return [((), [(case.time_ms, case.scalar)])]
    times = case.times or case.range_vector or Times(case.time_ms, case.time_ms, 1)
    return [(labels, placed(points, times)) for labels, points in case.series]


def placed(points: Sequence[Point], times: Times) -> Pairs:
    return [(times.start_ms + i * times.step_ms, value) for i, value in enumerate(points) if value is not None]


def _value_differences(case: Eval, answer: Answer, *, ordered: bool) -> Iterator[str]:
    if case.string is not None:
        if answer.kind != "string" or answer.string != case.string:
            yield f"expected the string {case.string!r}, got {answer.kind} {answer.string!r}"
        return
    if case.scalar is not None and answer.kind != "scalar":
        yield f"expected a scalar, got a {answer.kind}"
    if case.range_vector is not None and answer.kind != "matrix":
        yield f"expected a range vector, got a {answer.kind}"
    if case.scalar is None and case.times is None and answer.kind == "scalar":
        yield "expected a vector, got a scalar"
    expected = expected_series(case)
    yield from series_differences(expected, answer.series)
    wanted = [labels for labels, _ in expected]
    got = [labels for labels, _ in answer.series]
    if ordered and wanted != got and sorted(wanted) == sorted(got):
        yield f"expected the order {_shown(wanted)}, got {_shown(got)}"


def _shown(label_sets: Sequence[Labels]) -> str:
    return ", ".join(show_labels(labels) for labels in label_sets)


def series_differences(expected: Sequence[tuple[Labels, Pairs]], got: Sequence[tuple[Labels, Pairs]]) -> Iterator[str]:
    """Differences of two results whatever their order."""
    left = {labels: pairs for labels, pairs in expected if pairs}
    right = {labels: pairs for labels, pairs in got if pairs}
    if len(right) < sum(1 for _, pairs in got if pairs):
        yield "the result has a label set twice"
    for labels in sorted(left.keys() | right.keys()):
        if labels not in right:
            yield f"missing {show_labels(labels)} {show_pairs(left[labels])}"
        elif labels not in left:
            yield f"unexpected {show_labels(labels)} {show_pairs(right[labels])}"
        elif not _same_pairs(left[labels], right[labels]):
            yield f"{show_labels(labels)}: expected {show_pairs(left[labels])}, got {show_pairs(right[labels])}"


def _same_pairs(left: Pairs, right: Pairs) -> bool:
    return len(left) == len(right) and all(
        a[0] == b[0] and same_point(a[1], b[1]) for a, b in zip(left, right, strict=True)
    )

"""Aggregations over vectors that have native histograms, in one place and in parts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import OverBudget
from shared.histograms.text import plain_texts
from shared.promql.ast import Aggregate, NumberLiteral, StringLiteral, VectorSelector
from shared.promql.engine.partial import combine, merge, partial
from shared.promql.engine.rows import take
from shared.promql.model import String
from tests import oracle_native_histograms as oracle
from tests.histogram_batches import batch_of
from tests.histogram_strategies import WHOLE, custom, exponential
from tests.oracle_native_histograms import Hint, NativeHistogram
from tests.unit.operators_setup import Bench, by_labels
from tests.unit.test_operators_native import assert_same

M = VectorSelector("m", (), span=(7, 8))
STEPS = 2
H = NativeHistogram(count=6.0, sum=9.0, positive={0: 1.0, 1: 2.0, 2: 3.0})
CUSTOM = NativeHistogram(schema=-53, count=3.0, sum=4.0, positive={0: 1.0, 1: 2.0}, bounds=(5.0, 10.0))
COARSER = NativeHistogram(schema=-53, count=1.0, sum=4.0, positive={0: 1.0}, bounds=(5.0,))
MIXED = "PromQL warning: encountered a mix of histograms and floats for aggregation"
INCOMPATIBLE = (
    "PromQL warning: vector contains a mix of histograms with exponential and custom buckets schemas "
    'for metric name "m"'
)
CONFLICTING = "PromQL warning: conflicting counter resets during histogram aggregation"
RECONCILED = "PromQL info: mismatched custom buckets were reconciled during aggregation"

finite = st.one_of(exponential(WHOLE), exponential(WHOLE), custom(WHOLE)).filter(lambda h: math.isfinite(h.sum))
cells = st.one_of(st.none(), st.sampled_from([0.0, 1.5, -2.0]), finite, finite, finite)
series = st.lists(st.tuples(st.sampled_from("pq"), st.tuples(*[cells] * STEPS)), max_size=9)
shards = st.lists(st.integers(0, 2), min_size=9, max_size=9)


def in_parts(bench, node, rows, cut, param=None):
    """The answer of three shards, of which the first two are combined first."""
    matrix = bench.matrix(
        *(({"__name__": "m", "g": group, "i": str(i)}, values) for i, (group, values) in enumerate(rows))
    )

    def part(shard):
        chosen = [i for i in range(len(rows)) if cut[i] == shard]
        return partial(node, take(matrix, np.array(chosen, dtype=np.int64)), param, bench.grid, bench.context)

    first_two = combine(node, [part(0), part(1)], param, bench.context)
    return by_labels(merge(node, [first_two, part(2)], param, bench.grid, bench.context))


def expected(op, group):
    """(the result of sum or avg over one group at one step, the remarks). Of a group that has no result it is said why,
    and nothing else."""
    found = [h for h in group if isinstance(h, NativeHistogram)]
    numbers = [x for x in group if isinstance(x, float)]
    if not found:
        return (sum(numbers) / (len(group) if op == "avg" else 1) if numbers else None), set()
    if numbers:
        return None, {MIXED}
    if len({h.is_custom for h in found}) > 1:
        return None, {INCOMPATIBLE}
    remarks = set()
    if {Hint.RESET, Hint.NOT_RESET} <= {h.hint for h in found}:
        remarks.add(CONFLICTING)
    if len({h.bounds for h in found if h.is_custom}) > 1:
        remarks.add(RECONCILED)
    return oracle.divided(oracle.summed(found), len(found) if op == "avg" else 1), remarks


@pytest.mark.parametrize("op", ["sum", "avg"])
@settings(deadline=None, max_examples=60)
@given(rows=series, cut=shards)
def test_sums_of_shards_are_the_sum_of_all(op, rows, cut):
    bench = Bench(STEPS)
    got = in_parts(bench, Aggregate(op, M, None, ("g",)), rows, cut)
    remarks = set()
    for group in "pq":
        for step in range(STEPS):
            members = [values[step] for name, values in rows if name == group and values[step] is not None]
            want, said = expected(op, members)
            remarks |= said
            total = got.get((("g", group),), [None] * STEPS)[step]
            if isinstance(want, NativeHistogram) and isinstance(total, NativeHistogram):
                # The sum of a shard may have a smaller schema than its histograms. Then the zero threshold of another
                # shard cuts through a bucket where it is between two of a histogram's, and is raised.
                want = oracle.wider_zero(want, total.zero_threshold)
            assert_same(total, want)
    assert set(bench.remarks) == remarks
    assert all(annotation.offset == 7 for annotation in bench.context.annotations.items.values())


@pytest.mark.parametrize("cut", [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 0], [0, 1, 2, 2]])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_sums_stay_compensated_when_merged(op, cut):
    """Without what rounding lost in each shard, 1 + 1e100 would be 1e100."""
    sums = [3.1, 1e100, -1e100, 1.3]
    rows = [("p", (NativeHistogram(count=1.0, sum=x, positive={1: x}), None)) for x in sums]
    (values,) = in_parts(Bench(STEPS), Aggregate(op, M), rows, cut).values()
    size = 4 if op == "avg" else 1
    assert values[0].sum == pytest.approx(4.4 / size, rel=1e-15)
    assert values[0].positive == pytest.approx({1: 4.4 / size}, rel=1e-15)


@pytest.mark.parametrize("cut", [[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 2]])
def test_an_average_whose_sum_would_overflow_is_an_average(cut):
    large = NativeHistogram(count=1.5e308, sum=1e308, positive={1: 1.7e308, 2: 1.0})
    rows = [("p", (large, 2.0))] * 4
    (values,) = in_parts(Bench(STEPS), Aggregate("avg", M), rows, cut).values()
    assert_same(values[0], large)
    assert values[1] == 2.0
    (total,) = in_parts(Bench(STEPS), Aggregate("sum", M), rows, cut).values()
    assert (total[0].count, total[0].positive[1], total[1]) == (math.inf, math.inf, 8.0)


@pytest.mark.parametrize("cut", [[0, 0, 0], [0, 1, 2], [0, 0, 1]])
def test_a_conflict_of_hints_is_seen_behind_an_unknown_one(cut):
    rows = [("p", (oracle.replace(H, hint=hint), None)) for hint in (Hint.RESET, Hint.UNKNOWN, Hint.NOT_RESET)]
    bench = Bench(STEPS)
    in_parts(bench, Aggregate("sum", M), rows, cut)
    assert bench.remarks == [CONFLICTING]


@pytest.mark.parametrize(
    ("values", "remarks"), [([H, CUSTOM], [INCOMPATIBLE]), ([H, 1.0], [MIXED]), ([CUSTOM, COARSER], [RECONCILED])]
)
@pytest.mark.parametrize("cut", [[0, 0], [0, 1], [1, 2], [2, 2]])
def test_what_does_not_fit_is_said_wherever_it_meets(values, remarks, cut):
    bench = Bench(STEPS)
    in_parts(bench, Aggregate("sum", M), [("p", (value, None)) for value in values], cut)
    assert bench.remarks == remarks


def test_a_shard_without_histograms_is_merged_with_one_that_has_some():
    bench = Bench(STEPS)
    rows = [("p", (H, H)), ("q", (1.5, 2.5)), ("p", (H, None)), ("q", (1.0, None))]
    merged = in_parts(bench, Aggregate("sum", M, grouping=("g",)), rows, [0, 1, 2, 2])
    assert [value.count for value in merged[("g", "p"),]] == [12.0, 6.0]
    assert merged[("g", "q"),] == [2.5, 2.5]


def test_two_shards_without_any_result_are_merged():
    bench = Bench(STEPS)
    rows = [("p", (value, None)) for value in (H, CUSTOM, H, CUSTOM)]
    assert in_parts(bench, Aggregate("sum", M), rows, [0, 0, 1, 1]) == {}
    assert bench.remarks == [INCOMPATIBLE]


@pytest.mark.parametrize("op", ["min", "max", "stddev", "stdvar", "quantile", "topk", "bottomk"])
@settings(deadline=None, max_examples=20)
@given(rows=series, cut=shards)
def test_operators_of_numbers_ignore_histograms_and_say_so(op, rows, cut):
    bench, alone = Bench(STEPS), Bench(STEPS)
    param, literal = None, None
    if op in ("quantile", "topk", "bottomk"):
        param, literal = bench.scalar(1), NumberLiteral(1)
    node = Aggregate(op, M, literal, ("g",), span=(3, 9))
    got = in_parts(bench, node, rows, cut, param)
    floats = [(g, tuple(None if isinstance(x, NativeHistogram) else x for x in values)) for g, values in rows]
    assert got == in_parts(alone, node, floats, cut, param)
    has_any = any(isinstance(x, NativeHistogram) for _, values in rows for x in values)
    assert bench.remarks == [f"PromQL info: ignored histogram in {op} aggregation"] * has_any
    for annotation in bench.context.annotations.items.values():
        assert annotation.offset == (3 if op in ("topk", "bottomk") else 7)


@settings(deadline=None, max_examples=20)
@given(rows=series, cut=shards)
def test_counts_and_choices_take_histograms_like_floats(rows, cut):
    bench = Bench(STEPS)
    for op, result in (("count", float), ("group", lambda n: 1.0)):
        got = in_parts(bench, Aggregate(op, M, None, ("g",)), rows, cut)
        for group in "pq":
            present = [sum(name == group and v[step] is not None for name, v in rows) for step in range(STEPS)]
            want = [result(n) if n else None for n in present]
            assert got.get((("g", group),), [None] * STEPS) == want
    everything = {
        (("__name__", "m"), ("g", group), ("i", str(i))): [
            oracle.compact(x) if isinstance(x, NativeHistogram) else x for x in values
        ]
        for i, (group, values) in enumerate(rows)
        if any(x is not None for x in values)
    }
    for op, k in (("limitk", 10), ("limit_ratio", 1)):
        node = Aggregate(op, M, NumberLiteral(k), ("g",))
        assert in_parts(bench, node, rows, cut, bench.scalar(k)) == everything
    assert bench.remarks == []


@settings(deadline=None, max_examples=20)
@given(rows=series, cut=shards)
def test_values_are_counted_by_the_text_of_histograms(rows, cut):
    bench = Bench(STEPS)
    rows = [(group, (values[0], values[0])) for group, values in rows]
    got = in_parts(bench, Aggregate("count_values", M, StringLiteral("v"), ("g",)), rows, cut, String("v"))
    texts = {0.0: "0", 1.5: "1.5", -2.0: "-2"}
    counted = Counter(
        (group, plain_texts(batch_of([x]), np.zeros(1, np.int64))[0] if isinstance(x, NativeHistogram) else texts[x])
        for group, (x, _) in rows
        if x is not None
    )
    assert got == {(("g", group), ("v", text)): [n, n] for (group, text), n in counted.items()}


def test_the_texts_of_counted_histograms_are_bounded():
    bench = Bench()
    many = NativeHistogram(count=100.0, positive=dict.fromkeys(range(100), 1.0))
    matrix = bench.matrix(*(({"i": str(i)}, [replace(many, sum=float(i))]) for i in range(20)))
    bench.context.samples_max = 1000
    with pytest.raises(OverBudget):
        partial(
            Aggregate("count_values", M, StringLiteral("v")), matrix, String("v"), bench.grid, bench.context
        )  # fmt: skip

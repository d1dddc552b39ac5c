"""Aggregations in parts answer what one place answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.promql.ast import Aggregate, NumberLiteral, StringLiteral, VectorSelector
from shared.promql.engine.partial import Partial, combine, merge, partial
from shared.promql.engine.rows import take
from shared.promql.model import String
from tests.unit.operators_setup import Bench, by_labels

M = VectorSelector("m", ())
REDUCTIONS = ["sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"]
STEPS = 2

values = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, math.inf, -math.inf, math.nan, 1e308, -1e308, 1e100, -1e100, 1e-9]),
    st.floats(-1e6, 1e6),
)
series = st.lists(st.tuples(st.sampled_from("pqr"), st.tuples(*[values] * STEPS)), max_size=14)


def _param(bench, op, rows):
    match op:
        case "count_values":
            return String("v"), StringLiteral("v")
        case "quantile":
            return bench.scalar(0.3), NumberLiteral(0.3)
        case "limit_ratio":
            return bench.scalar(0.5), NumberLiteral(0.5)
        case "topk" | "bottomk" | "limitk":
            return bench.scalar(2), NumberLiteral(2)
    return None, None


@pytest.mark.parametrize("op", [*REDUCTIONS, "topk", "bottomk", "limitk", "limit_ratio", "quantile", "count_values"])
@settings(deadline=None, max_examples=60)
@given(rows=series, cut=st.lists(st.integers(0, 3), min_size=14, max_size=14), without=st.booleans())
def test_merging_shards_and_batches_changes_nothing(op, rows, cut, without):
    bench = Bench(STEPS)
    matrix = bench.matrix(
        *(({"__name__": "m", "g": group, "i": str(i)}, cells) for i, (group, cells) in enumerate(rows))
    )
    param, literal = _param(bench, op, rows)
    node = Aggregate(op, M, literal, ("i", "z") if without else ("g",), without)

    def part(chosen):
        return partial(node, take(matrix, np.array(chosen, dtype=np.int64)), param, bench.grid, bench.context)

    whole = merge(node, [part(range(len(rows)))], param, bench.grid, bench.context)
    shards = [[i for i in range(len(rows)) if cut[i] == shard] for shard in range(4)]
    first_two = combine(node, [part(shards[0]), part(shards[1])], param, bench.context)
    split = merge(node, [first_two, part(shards[2]), part(shards[3])], param, bench.grid, bench.context)
    largest = max((abs(c) for _, row in rows for c in row if c is not None and math.isfinite(c)), default=0.0)
    # Whether sums and squares near the end of the range overflow depends on the order, in one place as well.
    assume(largest < {"sum": 1e307, "stddev": 1e150, "stdvar": 1e150}.get(op, math.inf))
    expected, answer = by_labels(whole), by_labels(split)
    assert answer.keys() == expected.keys()
    for labels, cells in expected.items():
        assert [cell is None for cell in answer[labels]] == [cell is None for cell in cells]
        found, wanted = (np.array([c for c in side if c is not None]) for side in (answer[labels], cells))
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_compensated_sum_stays_compensated_when_merged():
    bench = Bench()
    node = Aggregate("sum", M)
    cells = [1e100, 1.0, -1e100, 1.0]
    parts = [
        partial(node, bench.matrix(({"i": str(i)}, [cell])), None, bench.grid, bench.context)
        for i, cell in enumerate(cells)
    ]
    assert by_labels(merge(node, parts, None, bench.grid, bench.context)) == {(): [2.0]}


def test_an_average_that_would_overflow_is_merged_as_a_mean():
    bench = Bench()
    node = Aggregate("avg", M)
    parts = [
        partial(
            node,
            bench.matrix(*(({"i": f"{shard}{i}"}, [9e307]) for i in range(count))),
            None,
            bench.grid,
            bench.context,
        )
        for shard, count in enumerate((1, 2, 4))
    ]
    (cells,) = by_labels(merge(node, parts, None, bench.grid, bench.context)).values()
    np.testing.assert_allclose(cells, [9e307])


def test_merging_leaves_the_parts_as_they_were_and_reads_read_only_planes():
    bench = Bench()
    node = Aggregate("sum", M, None, ("g",))
    part = partial(node, bench.matrix(({"g": "a", "i": "1"}, [2])), None, bench.grid, bench.context)
    frozen = Partial(part.groups, {n: p.copy() for n, p in part.planes.items()}, part.present, part.drop_name)
    for plane in frozen.planes.values():
        plane.flags.writeable = False
    for _ in range(2):
        assert by_labels(merge(node, [frozen, frozen], None, bench.grid, bench.context)) == {(("g", "a"),): [4.0]}


def test_limitk_does_not_depend_on_which_rows_come_first():
    bench = Bench()
    node = Aggregate("limitk", M, NumberLiteral(3))
    rows = [({"i": str(i)}, [i]) for i in range(20)]
    forward, backward = (
        by_labels(merge(node, [part], bench.scalar(3), bench.grid, bench.context))
        for part in (
            partial(node, bench.matrix(*order), bench.scalar(3), bench.grid, bench.context)
            for order in (rows, rows[::-1])
        )
    )
    assert forward == backward
    assert len(forward) == 3

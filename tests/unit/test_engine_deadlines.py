"""The loops of interpreted code in the engine end when the query's time does, wherever they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shared.errors import DeadlineExceeded
from shared.promql.ast import Aggregate, Call, NumberLiteral, VectorSelector
from shared.promql.engine import selection
from shared.promql.engine.aggregate import evaluate_aggregate
from shared.promql.engine.functions import INSTANT_FUNCTIONS, sort, time
from shared.promql.model import Matrix, String, Value
from tests.unit.operators_setup import Bench

SERIES = 6
CHECKS = 3
"""There are more in each of the loops below."""

Evaluate = Callable[[Bench, Matrix], Value]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "TEXTS_AT_ONCE", 2)
    monkeypatch.setattr(selection, "VALUES_AT_ONCE", 1)
    monkeypatch.setattr(sort, "COMPARED_AT_ONCE", 2)
    monkeypatch.setattr(time, "DATES_AT_ONCE", 2)


def aggregation(op: str, param: float | str) -> Evaluate:
    def evaluate(bench: Bench, matrix: Matrix) -> Value:
        node = Aggregate(op, VectorSelector("m", ()), NumberLiteral(0.0, span=(0, 1)))
        value = String(param) if isinstance(param, str) else bench.scalar(param)
        return evaluate_aggregate(node, matrix, value, bench.grid, bench.context)

    return evaluate


def function(name: str, *params: float | str) -> Evaluate:
    def evaluate(bench: Bench, matrix: Matrix) -> Value:
        values = [String(param) if isinstance(param, str) else bench.scalar(param) for param in params]
        call = Call(name, tuple(NumberLiteral(0.0, span=(0, 1)) for _ in range(1 + len(params))))
        return INSTANT_FUNCTIONS[name](call, [matrix, *values], bench.grid, bench.context)

    return evaluate


@pytest.mark.parametrize("op", ["topk", "limitk", "quantile", "count_values"])
def test_an_aggregation_of_many_values_ends_with_the_time_of_the_query(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "TEXTS_AT_ONCE", 1 << 13)  # so that the values are what takes long
    bench = Bench(100)
    matrix = bench.matrix(*(({"i": str(n)}, np.arange(100.0)) for n in range(SERIES)))
    checks = 0

    def is_over() -> bool:
        nonlocal checks
        checks += 1
        return checks == 20

    bench.context.cancelled = is_over
    with pytest.raises(DeadlineExceeded):
        aggregation(op, "v" if op == "count_values" else 0.5 if op == "quantile" else 2.0)(bench, matrix)
    assert checks == 20


@pytest.mark.parametrize(
    "evaluate",
    [
        pytest.param(aggregation("count_values", "v"), id="count_values"),
        pytest.param(aggregation("limitk", 3.0), id="limitk"),
        pytest.param(aggregation("limit_ratio", 0.5), id="limit_ratio"),
        pytest.param(function("sort_by_label", "i"), id="sort_by_label"),
        pytest.param(function("sort_by_label_desc", "i"), id="sort_by_label_desc"),
        pytest.param(function("days_in_month"), id="days_in_month"),
        pytest.param(function("histogram_quantiles", "q", 0.1, 0.2, 0.5, 0.9), id="histogram_quantiles"),
    ],
)
def test_a_long_loop_ends_with_the_time_of_the_query(evaluate: Evaluate) -> None:
    bench = Bench()
    matrix = bench.matrix(*(({"le": str(n), "i": str(-n)}, [float(n)]) for n in range(SERIES)))
    checks = 0

    def is_over() -> bool:
        nonlocal checks
        checks += 1
        return checks == CHECKS

    bench.context.cancelled = is_over
    with pytest.raises(DeadlineExceeded):
        evaluate(bench, matrix)
    assert checks == CHECKS

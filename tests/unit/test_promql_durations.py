"""Duration expressions: what the parser keeps, and what they are worth on a query's grid."""

from __future__ import annotations

import pytest

from shared.errors import NotExecutable
from shared.promql.ast import (
    Call,
    DurationBinary,
    DurationCall,
    DurationLiteral,
    MatrixSelector,
    Subquery,
    VectorSelector,
)
from shared.promql.model import Grid
from shared.promql.parser import parse, resolve_durations

GRID = Grid(50_000, 60_000, 5_000)


def range_ms(text: str, grid: Grid = GRID) -> int:
    expr = resolve_durations(parse(f"m[{text}]"), grid)
    assert isinstance(expr, MatrixSelector)
    assert isinstance(expr.range, int)
    return expr.range


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("5m * 2", 600_000),
        ("-1m+6m", 300_000),
        ("1h / 2", 1_800_000),
        ("1h30m % 1h", 1_800_000),
        ("30m1s-30m1s % 1m", 1_800_000),
        ("(5+2) * 1m", 420_000),
        ("(2 ^ 3) * 1m", 480_000),
        ("2 ^ 3 ^ 2", 512_000),
        ("-2 ^ 2 + 5", 1_000),
        ("((((8 - 2) / 3) * 7s) % 4) + 8000ms", 10_000),
        ("24m+((1.5*2m)+2m)", 1_740_000),
        ("step()", 5_000),
        ("1+(STep()-4)*2", 3_000),
        ("range()", 10_000),
        ("min_of(step()+1, 1h)", 6_000),
        ("max(min(step(), 1s), 1ms)", 1_000),
        ("1ms / 3 + 1", 1_000),
        ("0.0016", 2),
    ],
)
def test_ranges(text: str, ms: int) -> None:
    assert range_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("(2 ^ 2)", 4_000),
        ("(-2 * 2)", -4_000),
        ("-4", -4_000),
        ("-step()", -5_000),
        ("-(step() * 2)", -10_000),
        ("-min_of(step(), 1s)", -1_000),
        ("max_of(3s, min_of(step(), 1s))", 3_000),
        ("range()", 10_000),
        ("(1m+2m)", 180_000),
    ],
)
def test_offsets(text: str, ms: int) -> None:
    expr = resolve_durations(parse(f"m offset {text}"), GRID)
    assert isinstance(expr, VectorSelector)
    assert expr.offset == ms


def test_every_duration_of_a_subquery() -> None:
    expr = resolve_durations(parse("sum_over_time((m offset (1s*2))[29s+1s:5s+5s] offset (step()))"), GRID)
    assert isinstance(expr, Call)
    subquery = expr.args[0]
    assert isinstance(subquery, Subquery)
    assert (subquery.range, subquery.step, subquery.offset) == (30_000, 10_000, 5_000)
    assert resolve_durations(expr, GRID) is expr


def test_nothing_to_work_out_gives_the_same_tree() -> None:
    expr = parse("sum by (a) (rate(m[5m] offset 1m)) / on(a) -last_over_time((topk(3, n))[1h:1m]) == 1")
    assert resolve_durations(expr, GRID) is expr


def test_step_and_range_are_zero_for_an_instant() -> None:
    instant = Grid(50_000, 50_000)
    assert range_ms("step() + range() + 7s", instant) == 7_000
    with pytest.raises(NotExecutable, match="duration must be greater than 0"):
        range_ms("step()", instant)


def test_a_range_query_of_one_time_and_a_step_of_1_ms_is_no_instant() -> None:
    grid = Grid(50_000, 50_000, 1)
    assert not grid.instant and grid.steps == 1 and grid.times_ms().tolist() == [50_000]
    assert range_ms("step() + range()", grid) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step() - 5s", "duration must be greater than 0"),
        ("step() / (step() - 5)", "division by zero"),
        ("step() % (step() - 5)", "modulo by zero"),
        ("step() ^ 100", "duration out of range"),
        ("step() * 1e9 * 1e9", "duration out of range"),
        ("(0 - step()) ^ 0.5", "duration out of range"),
    ],
)
def test_what_only_the_grid_shows_is_not_executable(text: str, message: str) -> None:
    expr = parse(f"m[{text}]")
    with pytest.raises(NotExecutable, match=message):
        resolve_durations(expr, GRID)


def test_literals_are_integers_and_expressions_are_kept() -> None:
    literal, expression = parse("m[5m]"), parse("m[5m * 2]")
    assert isinstance(literal, MatrixSelector)
    assert isinstance(expression, MatrixSelector)
    assert literal.range == 300_000
    assert expression.range == DurationBinary("*", DurationLiteral(300_000), DurationLiteral(2_000))
    called = parse("m offset min(step(), 1s)")
    assert isinstance(called, VectorSelector)
    assert called.offset == DurationCall("min", (DurationCall("step"), DurationLiteral(1_000)))

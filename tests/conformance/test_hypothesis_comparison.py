"""The engine, and the planner over 1, 2 and 5 shards, answer what the oracle answers.

`TRIPTYCH_COMPARISON_CASES` and `TRIPTYCH_COMPARISON_SEED` run more or other cases than the usual ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st

from loadtest.harness import local_queries
from loadtest.harness.memory_source import MemorySource
from shared.errors import TriptychError
from shared.labels import Labels
from shared.promql import parser
from shared.promql.model import Grid
from tests import oracle
from tests.conformance.generation import COMPARISON_CASES, COMPARISON_SEED, STEPS_MS, Points, data_sets, queries
from tests.conformance.memory_backend import answer_of
from tests.oracle_values import OracleError
from tests.sharded import evaluate_sharded, split

SHARDS = (1, 2, 5)
TOLERANCE = 1e-7
QUERIES_MAX = 6
"""Queries on one data set: hypothesis varies the data more eagerly than the queries."""

Result = dict[Labels, Points]
Outcome = tuple[Result | None, Any]
"""What was answered (None: an error), and the remarks or the error's text."""


@st.composite
def grids(draw: Callable[[st.SearchStrategy], Any]) -> Grid:
    start = draw(st.sampled_from((60_000, 123_456, 150_000, 240_000, 300_000, 0, 420_000)))
    step = draw(st.sampled_from(STEPS_MS))
    return Grid(start, start + draw(st.sampled_from((0, 0, 1, 2, 4, 7))) * step, step)


def by_oracle(text: str, data: dict[Labels, Points], grid: Grid) -> Outcome:
    try:
        return oracle.evaluate(parser.resolve_durations(parser.parse(text), grid), data, grid), None
    except (OracleError, TriptychError) as error:
        return None, str(error)


def by_engine(text: str, data: dict[Labels, Points], grid: Grid) -> Outcome:
    try:
        done = local_queries.range_query(text, MemorySource(columns(data)), grid)
    except TriptychError as error:
        return None, str(error)
    answer = answer_of(text, done.value, done.annotations, grid, ranged=True)
    return dict(answer.series), set(answer.warnings + answer.infos)


def by_shards(text: str, data: dict[Labels, Points], grid: Grid, shards: int) -> Outcome:
    try:
        done = evaluate_sharded(text, split(columns(data), shards), grid)
    except TriptychError as error:
        return None, str(error)
    answer = answer_of(text, done.value, done.annotations, grid, ranged=True)
    return dict(answer.series), set(answer.warnings + answer.infos)


def columns(data: dict[Labels, Points]) -> dict[Labels, Any]:
    return {
        labels: (np.array([t for t, _ in points], dtype=np.int64), np.array([v for _, v in points], dtype=np.float64))
        for labels, points in data.items()
        if points
    }


def differences(expected: Result, got: Result) -> list[str]:
    found = [f"missing {dict(labels)}: {expected[labels]}" for labels in expected.keys() - got.keys()]
    found += [f"unexpected {dict(labels)}: {got[labels]}" for labels in got.keys() - expected.keys()]
    for labels in expected.keys() & got.keys():
        left, right = expected[labels], got[labels]
        if [t for t, _ in left] != [t for t, _ in right] or not all(map(same, left, right)):
            found.append(f"{dict(labels)}: expected {left}, got {right}")
    return found


def same(left: tuple[int, float], right: tuple[int, float]) -> bool:
    a, b = left[1], right[1]
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))


def agree(who: str, expected: Outcome, got: Outcome) -> None:
    assert (expected[0] is None) == (got[0] is None), f"{who}: expected {expected}, got {got}"
    if expected[0] is not None and got[0] is not None:
        assert not differences(expected[0], got[0]), f"{who}: " + "; ".join(differences(expected[0], got[0]))


@pytest.mark.timeout(1800)
@seed(COMPARISON_SEED)
@settings(
    max_examples=COMPARISON_CASES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=data_sets(), texts=st.lists(queries(), min_size=1, max_size=QUERIES_MAX), grid=grids())
def test_engine_and_planner_answer_what_the_oracle_answers(
    data: dict[Labels, Points], texts: list[str], grid: Grid
) -> None:
    note(f"seed {COMPARISON_SEED}")
    for text in texts:
        note(text)
        compare(text, data, grid)


def compare(text: str, data: dict[Labels, Points], grid: Grid) -> None:
    """Values of all against the oracle's; remarks and texts of errors of the shards against those of one source."""
    one_source = by_engine(text, data, grid)
    # The oracle does not know info(): there the shards are compared with one source only.
    expected = one_source if "info(" in text else by_oracle(text, data, grid)
    agree("engine", expected, one_source)
    for shards in SHARDS:
        merged = by_shards(text, data, grid, shards)
        agree(f"{shards} shards", expected, merged)
        if merged[0] is not None:
            assert merged[1] == one_source[1], f"remarks of {shards} shards"
        else:
            # Which of several series is named depends on where they are.
            assert _anonymous(merged[1]) == _anonymous(one_source[1])


def _anonymous(text: str) -> str:
    return re.sub(r"\{.*?\}", "{…}", text)

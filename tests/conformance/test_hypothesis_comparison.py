"""The engine, and the planner over 1, 2 and 5 shards, answer what the oracle answers.

`TRIPTYCH_COMPARISON_CASES` and `TRIPTYCH_COMPARISON_SEED` run more or other cases than the usual ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from loadtest.harness import local_queries
from loadtest.harness.memory_source import MemorySource
from shared.errors import TriptychError
from shared.histograms.batch import HistogramBatch
from shared.labels import Labels
from shared.promql import parser
from shared.promql.model import Grid
from tests import oracle
from tests.conformance.answer import Answer
from tests.conformance.generated_data import DataSet
from tests.conformance.generation import COMPARISON_CASES, COMPARISON_SEED, STEPS_MS, cases
from tests.conformance.memory_backend import answer_of, columns
from tests.conformance.series_text import Histogram
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from tests.oracle_values import KNOWN_REMARKS, Number, OracleError, Remarks
from tests.sharded import evaluate_sharded, split

SHARDS = (1, 2, 5)
FAR_STARTS_MS = (-400_000, -60_000, 1, 200_000, 1_700_000, 10_000_000)
FAR_STEPS_MS = (1, 999, 300_000, 3_600_000)
"""Times before, after and around all data, close together and far apart."""
TOLERANCE = 1e-7

Result = Mapping[Labels, Sequence[tuple[int, Number]]]
Columns = tuple[dict[Labels, list[ArrayLike]], HistogramBatch | None]
Outcome = tuple[Result | None, Any]
"""What was answered (None: an error), and the remarks or the error's text."""


@st.composite
def grids(draw: Callable[[st.SearchStrategy], Any]) -> Grid:
    if draw(st.integers(0, 7)) == 0:
        start, step = draw(st.sampled_from(FAR_STARTS_MS)), draw(st.sampled_from(FAR_STEPS_MS))
        return Grid(start, start + draw(st.sampled_from((0, 1, 11))) * step, step)
    start = draw(st.sampled_from((60_000, 123_456, 150_000, 240_000, 300_000, 0, 420_000)))
    step = draw(st.sampled_from(STEPS_MS))
    return Grid(start, start + draw(st.sampled_from((0, 0, 1, 2, 4, 7))) * step, step)


def by_oracle(text: str, data: DataSet, grid: Grid) -> Outcome:
    remarks = Remarks()
    try:
        result = oracle.evaluate(parser.resolve_durations(parser.parse(text), grid), data, grid, remarks)
        return result, {place for _, place in remarks.places(text)}
    except (OracleError, TriptychError) as error:
        return None, str(error)


def by_engine(text: str, data: Columns, grid: Grid) -> Outcome:
    series, histograms = data
    try:
        done = local_queries.range_query(text, MemorySource(series, histograms), grid)
    except TriptychError as error:
        return None, str(error)
    return outcome_of(answer_of(text, done.value, done.annotations, grid, ranged=True))


def by_shards(text: str, data: Columns, grid: Grid, shards: int) -> Outcome:
    series, histograms = data
    try:
        done = evaluate_sharded(text, split(series, shards, histograms), grid)
    except TriptychError as error:
        return None, str(error)
    return outcome_of(answer_of(text, done.value, done.annotations, grid, ranged=True))


def outcome_of(answer: Answer) -> Outcome:
    series = {
        labels: [(time, value.value if isinstance(value, Histogram) else value) for time, value in pairs]
        for labels, pairs in answer.series
    }
    return series, set(answer.warnings + answer.infos)


def in_columns(data: DataSet) -> Columns:
    histograms: list[NativeHistogram] = []
    series = {labels: columns(points, histograms) for labels, points in data.items() if points}
    return series, batch_of(histograms) if histograms else None


def rounded(labels: Labels) -> Labels:
    """With boundaries of buckets to ten digits, in values that are texts of histograms: Prometheus's have other last
    digits than 2^x has, and so has the engine."""
    short = lambda number: f"{float(number[0]):.10g}"  # noqa: E731
    return tuple(
        (name, re.sub(r"\d+\.\d+", short, value) if value.startswith("{count:") else value) for name, value in labels
    )


def differences(expected: Result, got: Result) -> list[str]:
    expected = {rounded(labels): points for labels, points in expected.items()}
    got = {rounded(labels): points for labels, points in got.items()}
    found = [f"missing {dict(labels)}: {expected[labels]}" for labels in expected.keys() - got.keys()]
    found += [f"unexpected {dict(labels)}: {got[labels]}" for labels in got.keys() - expected.keys()]
    for labels in expected.keys() & got.keys():
        left, right = expected[labels], got[labels]
        if [t for t, _ in left] != [t for t, _ in right] or not all(map(same, left, right)):
            found.append(f"{dict(labels)}: expected {left}, got {right}")
    return found


def same(left: tuple[int, Number], right: tuple[int, Number]) -> bool:
    a, b = left[1], right[1]
    if isinstance(a, NativeHistogram) and isinstance(b, NativeHistogram):
        return _same_histogram(a, b)
    return isinstance(a, float) and isinstance(b, float) and close(a, b)


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))


def _same_histogram(a: NativeHistogram, b: NativeHistogram) -> bool:
    """A bucket that is not there has no observations. Hints are seen in what they lead to."""
    if (a.schema, a.zero_threshold, a.bounds) != (b.schema, b.zero_threshold, b.bounds):
        return False
    pairs = [(a.count, b.count), (a.sum, b.sum), (a.zero_count, b.zero_count)]
    for left, right in ((a.positive, b.positive), (a.negative, b.negative)):
        pairs += [(left.get(i, 0.0), right.get(i, 0.0)) for i in left.keys() | right.keys()]
    return all(close(x, y) for x, y in pairs)


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
@given(case=cases(), grid=grids())
def test_engine_and_planner_answer_what_the_oracle_answers(case: tuple[DataSet, list[str]], grid: Grid) -> None:
    data, texts = case
    note(f"seed {COMPARISON_SEED}")
    columns = in_columns(data)
    for text in texts:
        note(text)
        compare(text, data, columns, grid)


def check_remarks(expected: set[str], got: set[str]) -> None:
    known = {remark for remark in got if KNOWN_REMARKS.search(remark)}
    assert known == expected, f"remarks: expected {expected}, got {known}"


def compare(text: str, data: DataSet, columns: Columns, grid: Grid) -> None:
    """Values and remarks about histograms of all against the oracle's; other remarks and texts of errors of the shards
    against those of one source."""
    one_source = by_engine(text, columns, grid)
    expected = by_oracle(text, data, grid)
    agree("engine", expected, one_source)
    if expected[0] is not None:
        check_remarks(expected[1], one_source[1])
    for shards in SHARDS:
        merged = by_shards(text, columns, grid, shards)
        agree(f"{shards} shards", expected, merged)
        if merged[0] is not None:
            assert merged[1] == one_source[1], f"remarks of {shards} shards"
        else:
            # Which of several series is named depends on where they are.
            assert _anonymous(merged[1]) == _anonymous(one_source[1])


def _anonymous(text: str) -> str:
    return re.sub(r"\{.*?\}", "{…}", text)

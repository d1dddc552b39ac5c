"""Quantiles, fractions, variances and trimming of native histograms, against the oracle and the scripts' values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms import readouts
from shared.histograms.trimming import trimmed
from tests import oracle_native_histograms as oracle
from tests.conformance.histogram_notation import parse_histogram, parse_histograms
from tests.conformance.suite import PROMQLTEST
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import histograms
from tests.oracle_native_histograms import NativeHistogram

EXAMPLES = settings(max_examples=40, deadline=None)

limits = st.sampled_from(
    [
        -math.inf,
        -20.0,
        -2.0,
        -1.5,
        -1.0,
        -0.3,
        -0.01,
        0.0,
        0.0005,
        0.25,
        0.6,
        1.0,
        1.4,
        2.0,
        9.0,
        1e9,
        math.inf,
        math.nan,
    ]
)
pairs = st.lists(st.tuples(histograms, limits, limits))


def close(number: float) -> object:
    return pytest.approx(number, rel=1e-9, abs=1e-9, nan_ok=True)


@EXAMPLES
@given(st.lists(st.tuples(histograms, st.sampled_from([-1.0, 0.0, 0.1, 0.3, 0.5, 0.77, 1.0, 1.5, math.nan]))))
def test_quantiles(rows: list[tuple[NativeHistogram, float]]) -> None:
    got, notes = readouts.quantiles(batch_of([h for h, _ in rows]), np.array([q for _, q in rows], float))
    for value, note, (h, q) in zip(got, notes, rows, strict=True):
        assert value == close(oracle.quantile(q, h)), (h, q)
        has_nan = h.count > 0 and math.isnan(h.sum) and h.total < h.count and 0 <= q <= 1
        assert note == (0 if not has_nan else readouts.NO_RANK if math.isnan(value) else readouts.SKEWED)


@EXAMPLES
@given(pairs)
def test_fractions(rows: list[tuple[NativeHistogram, float, float]]) -> None:
    lower, upper = (np.array([row[i] for row in rows], float) for i in (1, 2))
    got = readouts.fractions(batch_of([h for h, _, _ in rows]), lower, upper)
    for value, (h, a, b) in zip(got, rows, strict=True):
        assert value == close(oracle.fraction(a, b, h)), (h, a, b)


@EXAMPLES
@given(st.lists(histograms))
def test_variances_and_averages(rows: list[NativeHistogram]) -> None:
    batch = batch_of(rows)
    for variance, average, h in zip(readouts.variances(batch), readouts.averages(batch), rows, strict=True):
        assert variance == pytest.approx(oracle.variance(h), nan_ok=True), h
        assert average == close(h.sum / h.count if h.count else h.sum * math.inf if h.sum else math.nan)


@EXAMPLES
@given(pairs, st.booleans())
def test_trimming(rows: list[tuple[NativeHistogram, float, float]], keeps_below: bool) -> None:
    batch = batch_of([h for h, _, _ in rows])
    got = histograms_of(trimmed(batch, np.array([x for _, x, _ in rows], float), keeps_below=keeps_below))
    for ours, (h, x, _) in zip(got, rows, strict=True):
        want = oracle.trimmed(h, x, keeps_below=keeps_below)
        assert_close(ours, want, 1e-9)


def assert_close(got: NativeHistogram, want: NativeHistogram, tolerance: float) -> None:
    near = lambda number: pytest.approx(number, rel=tolerance, abs=1e-12, nan_ok=True)  # noqa: E731
    got, want = oracle.compact(got), oracle.compact(want)
    assert (got.schema, got.zero_threshold, got.bounds) == (want.schema, want.zero_threshold, want.bounds)
    assert (got.count, got.sum, got.zero_count) == (near(want.count), near(want.sum), near(want.zero_count))
    assert (got.positive, got.negative) == (near(want.positive), near(want.negative))


# The scripts

Histograms = dict[str, NativeHistogram]
_LOADED = re.compile(r"^\s+(\w+(?:\{[^{}]*\})?)\s+(\{\{.*)$")
_NUMBER = r"[+-]?(?:[0-9.]+(?:e[+-]?[0-9]+)?|inf|nan)"
_CALLS = {
    "quantile": re.compile(rf"histogram_quantile\(({_NUMBER}), ([^()]+)\)", re.IGNORECASE),
    "fraction": re.compile(rf"histogram_fraction\(({_NUMBER}), ({_NUMBER}), ([^()]+)\)", re.IGNORECASE),
    "read": re.compile(r"histogram_(stdvar|stddev|avg)\(([^()]+)\)"),
    "trim": re.compile(rf"(\S+) (</|>/) ({_NUMBER})", re.IGNORECASE),
}


def _cases() -> Iterator[tuple[str, Histograms, list[str]]]:
    """Every `eval instant` of the scripts with the histograms that are loaded, by their selector, and its results."""
    for name in ("native_histograms.test", "histograms.test", "functions.test", "operators.test"):
        loaded: dict[str, list[NativeHistogram]] = {}
        lines = (PROMQLTEST / name).read_text().splitlines()
        for i, line in enumerate(lines):
            series = _LOADED.match(line)
            if line.startswith("clear"):
                loaded = {}
            elif series and not _is_result(lines, i):
                words = re.findall(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x[0-9]+)?|\S+", series[2])
                points = [h for word in words if word.startswith("{{") for h in parse_histograms(word)]
                loaded[series[1]] = points
            elif line.startswith("eval instant at"):
                query = line.split(maxsplit=4)[4]
                results = []
                for result in lines[i + 1 :]:
                    if not result.strip() or result.startswith(("#", "eval", "load")):
                        break
                    if not result.strip().startswith(("expect", "#")):
                        results.append(result.strip())
                # Series that change are left to the engine's tests: this one knows no time.
                steady = {key: points[0] for key, points in loaded.items() if len(set(map(str, points))) == 1}
                yield query, steady, results


def _is_result(lines: list[str], at: int) -> bool:
    while at and lines[at].startswith((" ", "\t")):
        at -= 1
    return not lines[at].startswith("load")


def _value(result: str) -> float:
    return float(result.split("}")[-1].split()[0])


@pytest.mark.skipif(not PROMQLTEST.exists(), reason="the conformance scripts are not there")
def test_the_scripts_readouts_of_single_histograms() -> None:
    checked = dict.fromkeys(_CALLS, 0)
    for query, loaded, results in _cases():
        for kind, pattern in _CALLS.items():
            match = pattern.fullmatch(query.strip())
            name = match and (match[1] if kind == "trim" else match[match.lastindex or 0])
            if match is None or name not in loaded or len(results) != 1:
                continue
            batch = batch_of([loaded[name]])
            checked[kind] += 1
            if kind == "trim":
                got = histograms_of(trimmed(batch, np.array([float(match[3])]), keeps_below=match[2] == "</"))[0]
                assert_close(got, parse_histogram(results[0].split("{{")[1].split("}}")[0]), 1e-6)
                continue
            if kind == "quantile":
                value = readouts.quantiles(batch, np.array([float(match[1])]))[0][0]
            elif kind == "fraction":
                value = readouts.fractions(batch, np.array([float(match[1])]), np.array([float(match[2])]))[0]
            elif match[1] == "avg":
                value = readouts.averages(batch)[0]
            else:
                value = readouts.variances(batch)[0] ** (0.5 if match[1] == "stddev" else 1)
            assert value == pytest.approx(_value(results[0]), rel=1e-6, abs=1e-15, nan_ok=True), query
    assert checked == {"quantile": 31, "fraction": 59, "read": 12, "trim": 53}


@pytest.mark.filterwarnings("error")
def test_a_negative_variance_has_no_deviation() -> None:
    difference = NativeHistogram(count=1.0, sum=0.0, positive={3: -5.0, 0: 6.0})
    batch = batch_of([difference, parse_histogram("count:2 sum:3 buckets:[1 1]")])

    assert readouts.variances(batch)[0] < 0
    deviations = readouts.deviations(batch)
    assert math.isnan(deviations[0]) and deviations[1] == math.sqrt(readouts.variances(batch)[1])


def test_buckets_that_the_zero_threshold_cuts_begin_there() -> None:
    batch = batch_of([NativeHistogram(count=6.0, sum=3.0, zero_threshold=0.7, positive={0: 4.0}, negative={0: 2.0})])
    negative, positive = -math.sqrt(0.7), math.sqrt(0.7)

    assert batch.layouts.edges.tolist() == [[-1.0, -0.7], [-0.7, 0.7], [0.7, 1.0]]
    assert [readouts.fractions(batch, *np.array([[0.0], [upper]]))[0] for upper in (0.7, positive, 1.0)] == [
        0.0,
        close(2 / 6),
        close(4 / 6),
    ]
    assert readouts.quantiles(batch, np.array([1 / 6]))[0][0] == close(negative)
    assert readouts.quantiles(batch, np.array([4 / 6]))[0][0] == close(positive)
    assert readouts.variances(batch)[0] == close((2 * (negative - 0.5) ** 2 + 4 * (positive - 0.5) ** 2) / 6)
    [left] = histograms_of(trimmed(batch, np.array([0.7]), keeps_below=True))
    assert (left.count, left.positive, left.negative) == (2.0, {0: 0.0}, {0: 2.0})


def test_a_bucket_that_is_removed_leaves_nothing() -> None:
    endless = NativeHistogram(count=math.inf, sum=math.inf, positive={1: math.inf, 3: 2.0}, negative={2: math.nan})
    [left] = histograms_of(trimmed(batch_of([endless]), np.array([2.0]), keeps_below=False))

    assert (left.count, left.positive, left.negative) == (2.0, {1: 0.0, 3: 2.0}, {2: 0.0})

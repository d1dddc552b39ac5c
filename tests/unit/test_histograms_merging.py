"""Sums, averages, scaling, comparison and counter resets of native histograms, against the oracle and the scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.histograms import buckets, merging, operators, resets
from shared.histograms.batch import concatenated
from shared.process.array_memory import Account
from tests import oracle_native_histograms as oracle
from tests.conformance.histogram_notation import parse_histogram
from tests.histogram_batches import batch_of, histograms_of
from tests.histogram_strategies import WHOLE, alike, custom, exponential, histograms
from tests.oracle_native_histograms import Hint, NativeHistogram

EXAMPLES = settings(max_examples=40, deadline=None)


def grouped(groups: Sequence[Sequence[NativeHistogram]]) -> tuple:
    """(the batch of all, its rows, where each group begins), as the functions take them."""
    sizes = [len(group) for group in groups]
    return batch_of([h for group in groups for h in group]), np.arange(sum(sizes)), np.cumsum([0, *sizes])


def shown(rows: Iterable[NativeHistogram]) -> list[str]:
    """A text of each row, which is the same for NaN, and for buckets in another order."""
    ordered = lambda counts: dict(sorted(counts.items()))  # noqa: E731
    return [str(replace(h, positive=ordered(h.positive), negative=ordered(h.negative))) for h in rows]


def assert_same(got: NativeHistogram, want: NativeHistogram, scale: float = 1.0) -> None:
    """The same buckets and hint, and counts that differ by rounding only; `scale`: the largest number added up."""
    got, want = oracle.compact(got), oracle.compact(want)
    assert (got.schema, got.bounds, got.hint) == (want.schema, want.bounds, want.hint)
    close = lambda number: pytest.approx(number, rel=1e-9, abs=1e-12 * scale, nan_ok=True)  # noqa: E731
    assert got.zero_threshold == close(want.zero_threshold)
    assert (got.count, got.sum, got.zero_count) == (close(want.count), close(want.sum), close(want.zero_count))
    for side in ("positive", "negative"):
        ours, theirs = getattr(got, side), getattr(want, side)
        assert {i: ours.get(i, 0.0) for i in {*ours, *theirs}} == {
            i: close(theirs.get(i, 0.0)) for i in {*ours, *theirs}
        }


@EXAMPLES
@given(st.lists(alike, min_size=1, max_size=4))
def test_each_group_is_summed_as_the_specification_says(groups: list[list[NativeHistogram]]) -> None:
    batch, notes = merging.summed(*grouped(groups))
    for got, note, group in zip(histograms_of(batch), notes, groups, strict=True):
        assert_same(got, oracle.summed(group), scale=1e7)
        assert bool(note & merging.RECONCILED) == (len({h.bounds for h in group}) > 1)
        assert bool(note & merging.CONFLICTING) == ({Hint.RESET, Hint.NOT_RESET} <= {h.hint for h in group})
        assert not note & merging.MIXED


@EXAMPLES
@given(st.lists(st.one_of(exponential(), custom()), min_size=2, max_size=5), alike)
def test_a_group_of_exponential_and_custom_buckets_has_no_sum(
    group: list[NativeHistogram], other: list[NativeHistogram]
) -> None:
    batch, notes = merging.summed(*grouped([other, group, other, group]))
    is_mixed = len({h.is_custom for h in group}) > 1
    assert (notes & merging.MIXED > 0).tolist() == [False, is_mixed, False, is_mixed]
    got = histograms_of(batch)
    for i in (1, 3):
        assert_same(got[i], NativeHistogram() if is_mixed else oracle.summed(group), scale=1e7)
    for i in (0, 2):
        assert_same(got[i], oracle.summed(other), scale=1e7)


@EXAMPLES
@given(alike, st.data())
def test_rows_are_weighted(group: list[NativeHistogram], data: st.DataObject) -> None:
    weights = [data.draw(st.sampled_from([1.0, -1.0, 0.5])) for _ in group]
    batch, members, starts = grouped([group])
    got = histograms_of(merging.summed(batch, members, starts, np.array(weights)).batch)[0]
    assert_same(got, oracle.summed(group, weights), scale=1e7)


@EXAMPLES
@given(st.lists(alike, min_size=1, max_size=3))
def test_an_average_is_the_sum_divided_by_the_number_of_rows(groups: list[list[NativeHistogram]]) -> None:
    for got, group in zip(histograms_of(operators.averaged(*grouped(groups)).batch), groups, strict=True):
        assert_same(got, oracle.divided(oracle.summed(group), len(group)), scale=1e7)


def test_an_average_does_not_overflow_and_a_sum_is_compensated() -> None:
    """Values of the script's incremental averages."""
    texts = ["count:1.7976931348623157e+308 sum:5.3", "count:1e308 sum:1e100", "count:1e-6 sum:1",
             "count:1e-6 sum:-1e100", "count:1e-6 sum:2", "count:1e-6", "count:1e-6"]  # fmt: skip
    group = [parse_histogram(text) for text in texts]
    small = [parse_histogram("count:3 sum:1 buckets:[3]"), parse_histogram("count:1 sum:2 buckets:[1]")]
    averages = histograms_of(operators.averaged(*grouped([small, group])).batch)
    assert averages[0] == NativeHistogram(count=2.0, sum=1.5, positive={0: 2.0})
    assert averages[1].count == pytest.approx(3.9967044783747367e307)
    assert averages[1].sum == pytest.approx(1.1857142857142857)
    total = histograms_of(merging.summed(*grouped([group])).batch)[0]
    assert (total.count, total.sum) == (math.inf, pytest.approx(8.3))


@EXAMPLES
@given(st.lists(st.tuples(histograms, histograms).filter(lambda pair: pair[0].is_custom == pair[1].is_custom)))
def test_rows_are_added_to_and_subtracted_from_each_other(pairs: list[tuple[NativeHistogram, NativeHistogram]]) -> None:
    left, right = batch_of([a for a, _ in pairs]), batch_of([b for _, b in pairs])
    for got, pair in zip(histograms_of(operators.added(left, right).batch), pairs, strict=True):
        assert_same(got, oracle.summed(pair), scale=1e7)
    for got, pair in zip(histograms_of(operators.subtracted(left, right).batch), pairs, strict=True):
        assert_same(got, replace(oracle.summed(pair, [1.0, -1.0]), hint=Hint.GAUGE), scale=1e7)


@EXAMPLES
@given(st.lists(st.tuples(histograms, st.sampled_from([0.0, -0.0, 1.0, -3.0, 0.1, math.inf, math.nan]))))
def test_rows_are_multiplied_and_divided_by_numbers(pairs: list[tuple[NativeHistogram, float]]) -> None:
    batch, numbers = batch_of([h for h, _ in pairs]), np.array([x for _, x in pairs], float)
    for got, (h, x) in zip(histograms_of(operators.scaled(batch, numbers)), pairs, strict=True):
        assert_same(got, oracle.scaled(h, x))
    for got, (h, x) in zip(histograms_of(operators.divided(batch, numbers)), pairs, strict=True):
        assert_same(got, oracle.divided(h, x))


@EXAMPLES
@given(st.lists(st.tuples(histograms, histograms)), st.data())
def test_histograms_are_equal_whatever_buckets_without_observations_they_have(
    pairs: list[tuple[NativeHistogram, NativeHistogram]], data: st.DataObject
) -> None:
    for h, _ in list(pairs):
        side = data.draw(st.sampled_from(["positive"] if h.is_custom else ["positive", "negative"]))
        place = data.draw(st.integers(0, len(h.bounds) if h.is_custom else 4))
        pairs.append((h, replace(h, **{side: {place: 0.0, **getattr(h, side)}}, hint=Hint.GAUGE)))
        pairs.append((h, replace(h, sum=h.sum + 1)))
        pairs.append((h, replace(h, positive=h.negative, negative=h.positive) if not h.is_custom else h))
        pairs.append(
            (h, replace(h, zero_count=h.zero_count + 1) if not h.is_custom else replace(h, bounds=(*h.bounds, 11.0)))
        )
    got = operators.equal(batch_of([a for a, _ in pairs]), batch_of([b for _, b in pairs]))
    assert got.tolist() == [oracle.same(a, b) for a, b in pairs]


@EXAMPLES
@given(st.lists(histograms))
def test_compacting_leaves_the_buckets_with_observations(rows: list[NativeHistogram]) -> None:
    batch = batch_of(rows)
    compact = buckets.compacted(batch)
    assert shown(histograms_of(compact)) == shown(map(oracle.compact, rows))
    assert len(compact.columns.counts) <= len(batch.columns.counts)


close = st.one_of(exponential(WHOLE, reach=2), exponential(WHOLE, reach=2), custom(WHOLE))


def has_same_digits(threshold: float, *parts: NativeHistogram) -> bool:
    """Whether a sum's zero threshold is the same in the oracle and here: it is that of a part, or a boundary at a power
    of two. Other boundaries have other last digits than Prometheus's, which are used here."""
    return threshold in {part.zero_threshold for part in parts} or math.frexp(threshold)[0] == 0.5


@EXAMPLES
@given(st.lists(st.tuples(close, close)))
def test_counter_resets_are_seen(pairs: list[tuple[NativeHistogram, NativeHistogram]]) -> None:
    sums = [(a, b, oracle.compact(oracle.summed([a, b]))) for a, b in pairs if a.is_custom == b.is_custom]
    pairs += [(a, replace(h, hint=b.hint)) for a, b, h in sums if has_same_digits(h.zero_threshold, a, b)]
    # Pairs of which the second differs from the first in one respect only.
    for h, _ in pairs[:5]:
        if h.is_custom:
            pairs += [(h, oracle.fewer_bounds(h, h.bounds[1:])), (oracle.fewer_bounds(h, h.bounds[1:]), h)]
            continue
        finer = replace(h, schema=min(h.schema + 1, 8))
        pairs += [(h, replace(h, zero_threshold=t)) for t in (0.0, h.zero_threshold + 0.25, h.zero_threshold + 1)]
        pairs += [(h, finer), (finer, oracle.coarser(finer, h.schema)), (h, replace(h, zero_count=h.zero_count + 1))]
        pairs += [(h, oracle.wider_zero(h, h.zero_threshold + t)) for t in (0.25, 1.0)]
    batch = batch_of([h for pair in pairs for h in pair])
    rows = np.arange(0, 2 * len(pairs), 2)
    got = resets.resets(batch, rows, rows + 1)
    assert got.tolist() == [oracle.is_reset(a, b) for a, b in pairs]


@EXAMPLES
@given(st.lists(histograms, min_size=1), st.data())
def test_rows_are_taken_and_put_together(rows: list[NativeHistogram], data: st.DataObject) -> None:
    batch = batch_of(rows)
    taken = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    part, chosen = batch.rows(first, last), batch.take(np.array(taken, np.int64))
    everything = concatenated([part, chosen, batch_of(rows), part])
    want = [*rows[first:last], *(rows[i] for i in taken), *rows, *rows[first:last]]
    assert shown(histograms_of(everything)) == shown(want)
    for array in (*everything.columns, *everything.layouts.columns, everything.layouts.edges):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


BOUNDS_ADDED = (
    "schema:-53 sum:55 count:15 custom_values:[2 4 6] buckets:[1 2 5 7]",
    "schema:-53 sum:555 count:450 custom_values:[1 2 3 4 5 6 7 8] buckets:[10 20 30 40 50 60 70 80 90]",
)
BOUNDS_REMOVED = (
    "schema:-53 sum:55 count:45 custom_values:[1 2 3 4 5 6 7 8] buckets:[1 2 3 4 5 6 7 8 9]",
    "schema:-53 sum:5560 count:1000 custom_values:[3 5 7] buckets:[100 200 300 400]",
)
BOUND_SPLIT = (
    "schema:-53 sum:55 count:15 custom_values:[2 4 6] buckets:[1 2 5 7]",
    "schema:-53 sum:56 count:15 custom_values:[2 3 4 6] buckets:[1 0 1 5 8]",
)
FINER = "schema:1 count:11 sum:1234.5 z_bucket:3 z_bucket_w:0.001 buckets:[0 2 1] n_buckets:[0 0 3 2]"
COARSER = (
    "schema:0 count:41 sum:2345.6 z_bucket:5 z_bucket_w:0.001 buckets:[1 3 1 2 1 1 1] "
    "n_buckets:[0 1 4 2 7 0 0 0 0 5 5 2]"
)
DIFFERENCE = (
    "schema:0 count:30 sum:1111.1 z_bucket:2 z_bucket_w:0.001 buckets:[1 0 1 2 1 1 1] "
    "n_buckets:[0 -2 2 2 7 0 0 0 0 5 5 2]"
)


@pytest.mark.parametrize(
    ("older", "newer", "want", "is_reset"),
    [
        (*BOUNDS_ADDED, "schema:-53 sum:500 count:435 custom_values:[2 4 6] buckets:[29 68 105 233]", False),
        (*BOUNDS_REMOVED, "schema:-53 sum:5505 count:955 custom_values:[3 5 7] buckets:[94 191 287 383]", False),
        (*BOUND_SPLIT, "schema:-53 sum:1 custom_values:[2 4 6] buckets:[0 -1 0 1]", True),
        (FINER, COARSER, DIFFERENCE, True),
        ("count:4 sum:5 buckets:[1 2 1]", "count:5 sum:6 buckets:[1 1 3]", "count:1 sum:1 buckets:[0 -1 2]", True),
        ("schema:1 count:3 buckets:[1 1 1]", "count:4 buckets:[1 3]", "count:1 buckets:[0 1]", False),
        ("count:3 buckets:[1 1 1]", "schema:1 count:9 buckets:[3 3 3]", "count:6 buckets:[2 5 -1]", True),
    ],
)
def test_the_scripts_differences_of_neighbours(older: str, newer: str, want: str, is_reset: bool) -> None:
    pair = [parse_histogram(newer), parse_histogram(older)]
    got = histograms_of(operators.subtracted(batch_of(pair[:1]), batch_of(pair[1:])).batch)[0]
    assert_same(got, replace(parse_histogram(want), hint=Hint.GAUGE))
    assert resets.resets(batch_of(pair), np.array([1]), np.array([0])).tolist() == [is_reset]


def test_many_custom_boundaries_and_few_buckets_take_little_memory() -> None:
    """Results with so many boundaries that a copy of them for each row would take 64 MB."""
    bounds = tuple(map(float, range(10_000)))
    wide = [NativeHistogram(-53, count=1.0, positive={i: 1.0, i + 1: 0.0}, bounds=bounds) for i in range(3)]
    groups = [*([h, replace(wide[0], bounds=bounds[::2])] for h in wide), wide[:2]]
    batch, members, starts = grouped(groups)
    members, starts = np.tile(members, 100), np.arange(0, 801, 2)
    account = Account(32 << 20)
    with account.open():
        sums, _ = merging.summed(batch, members, starts)
        compact = buckets.compacted(batch.take(members))
    for ours, group in zip(histograms_of(sums.rows(396, 400)), groups, strict=True):
        assert_same(ours, oracle.summed(group))
    assert len(compact.layouts) == 4
    assert account.peak_bytes < 8 << 20


def test_a_group_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="without a row"):
        merging.summed(batch_of([NativeHistogram()]), np.zeros(0, np.int64), np.array([0, 0]))


def test_operands_of_different_length_are_refused() -> None:
    one, two = batch_of([NativeHistogram()]), batch_of([NativeHistogram()] * 2)
    for operation in (operators.added, operators.subtracted, operators.equal):
        with pytest.raises(ValueError, match=r"1 histograms cannot be .* with 2"):
            operation(one, two)

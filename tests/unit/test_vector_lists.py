"""Inverted lists: which rows a search of them finds, and what is added beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from tests.unit.test_vector_recall import finished
from worker.vectors import inverted_lists as module
from worker.vectors import list_blocks
from worker.vectors.codes import CODE_MAX, QUERY_MAX
from worker.vectors.inverted_lists import InvertedLists, lists_of
from worker.vectors.list_blocks import BLOCK_ROWS
from worker.vectors.row_filter import Allowed, Bits
from worker.vectors.similarity import Rows, prepared

METRICS = ["cosine", "dot", "l2"]
EVERYTHING = 1 << 20
"""An expansion with which all rows are compared."""
K = 10


def drawn(count: int, dimension: int, metric: str, seed: int = 1) -> Floats:
    random = np.random.default_rng(seed)
    return prepared(random.normal(size=(count, dimension)).astype(np.float32), metric)


def apart(count: int, lists: int, dimension: int, seed: int = 1) -> tuple[Floats, Floats]:
    """(vectors in so many groups that lie far from each other, the middles of the groups)."""
    random = np.random.default_rng(seed)
    centres = (10 * np.eye(lists, dimension)).astype(np.float32)
    own = random.integers(0, lists, count)
    return (centres[own] + random.uniform(-1, 1, (count, dimension))).astype(np.float32), centres


def filled(vectors: Floats, metric: str, centres: Floats | None = None) -> InvertedLists:
    lists = InvertedLists(vectors.shape[1], metric, centres)
    lists.add(np.arange(len(vectors)), vectors)
    return lists


def trained(vectors: NDArray[np.floating], metric: str) -> InvertedLists:
    empty = InvertedLists(vectors.shape[1], metric)
    return finished(empty.retrained(vectors, np.arange(len(vectors))))[0]


def near_by_definition(vectors: Floats, queries: Floats, metric: str) -> NDArray[np.float64]:
    """float64[q, n], greater for nearer ones; under l2, minus half of the squared distance."""
    wide, asked = vectors.astype(np.float64), queries.astype(np.float64)
    if metric == "l2":
        near: NDArray[np.float64] = -0.5 * np.square(asked[:, None] - wide[None]).sum(axis=2)
        return near
    return asked @ wide.T


def nearest_rows(vectors: Floats, queries: Floats, metric: str, k: int = K) -> list[set[int]]:
    near = near_by_definition(vectors, queries, metric)
    return [set(row.tolist()) for row in np.argsort(-near, axis=1, kind="stable")[:, :k]]


def sets(found: Rows) -> list[set[int]]:
    """The rows of each query, which are there once each."""
    own = [row[row >= 0].tolist() for row in found]
    assert all(len(rows) == len(set(rows)) for rows in own)
    return [set(rows) for rows in own]


def all_of(lists: InvertedLists, queries: Floats, rows: int) -> list[set[int]]:
    return sets(lists.search(queries, rows, rows, EVERYTHING, rows, Allowed()))


def chains(lists: InvertedLists) -> list[list[int]]:
    """The rows of each list in the order of its blocks."""
    own, found = lists._lists, []
    for count, block in zip(own.counts.tolist(), own.first.tolist(), strict=True):
        rows: list[int] = []
        while len(rows) < count:
            rows += own.rows[block].tolist()[: count - len(rows)]
            block = int(own.following[block])
        found.append(rows)
    return found


def content(lists: InvertedLists, directory: Path) -> bytes:
    lists.save(directory / "content")
    return (directory / "content").read_bytes()


# What is found


@pytest.mark.parametrize("dimension", [1, 2, 7, 128, 300])
@pytest.mark.parametrize("metric", METRICS)
def test_every_row_that_was_added_is_found_once_when_all_are_compared(metric: str, dimension: int) -> None:
    table, queries = drawn(1500, dimension, metric), drawn(3, dimension, metric, 2)
    rows = np.random.default_rng(3).permutation(1500)[:1200]
    lists = InvertedLists(dimension, metric)
    lists.add(rows, table[rows])
    again, _ = finished(lists.retrained(table, rows))
    assert (lists.lists, again.lists) == (1, lists_of(1200))
    for own in (lists, again):
        assert len(own) == 1200
        assert all_of(own, queries, 1500) == [set(rows.tolist())] * 3


def largest_error(vectors: Floats, queries: Floats, metric: str) -> NDArray[np.float64]:
    """How far a similarity may be from that of the code of a row, float64[q]; what is left of a vector without its
    centre has no component above twice the greatest one of all."""
    dimension = vectors.shape[1]
    greatest = float(np.abs(vectors).max())
    width = math.sqrt(dimension)
    rest = 0.5 * 2 * greatest / CODE_MAX * width
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    largest = np.abs(queries).max(axis=1) + greatest
    rounding = 0.5 * largest / QUERY_MAX * width * 2 * greatest * width
    if metric == "l2":
        lengths = lengths + np.linalg.norm(vectors.astype(np.float64), axis=1).max()
    error: NDArray[np.float64] = lengths * rest + rest * rest + rounding + 1e-5
    return error


@pytest.mark.parametrize("dimension", [1, 2, 7, 128, 300])
@pytest.mark.parametrize("metric", METRICS)
def test_of_all_rows_the_nearest_are_candidates_except_for_near_ties(metric: str, dimension: int) -> None:
    vectors, queries = drawn(1500, dimension, metric), drawn(20, dimension, metric, 2)
    near = near_by_definition(vectors, queries, metric)
    expected = nearest_rows(vectors, queries, metric)
    slack = 2 * largest_error(vectors, queries, metric)
    for lists in (filled(vectors, metric), trained(vectors, metric)):
        found = lists.search(queries, K, K, EVERYTHING, 1500, Allowed())
        assert found.shape == (20, math.ceil(K * module.SURPLUS) + module.SURPLUS_ROWS)
        assert (found >= 0).all()
        for query, rows in enumerate(sets(found)):
            left_out = list(expected[query] - rows)
            assert (near[query, left_out] <= near[query, list(rows)].min() + slack[query]).all()
            assert not left_out or dimension <= 2


@pytest.mark.parametrize("metric", METRICS)
def test_a_table_of_half_precision_is_put_into_lists_too(metric: str) -> None:
    halves = drawn(1500, 16, metric).astype(np.float16)
    queries = drawn(20, 16, metric, 2)
    found = sets(trained(halves, metric).search(queries, K, K, EVERYTHING, 1500, Allowed()))
    expected = nearest_rows(halves.astype(np.float32), queries, metric)
    assert all(rows >= wanted for rows, wanted in zip(found, expected, strict=True))


def test_vectors_far_from_the_origin_are_told_apart_by_their_lists() -> None:
    vectors = (1e4 + drawn(2000, 16, "l2")).astype(np.float32)
    queries = (1e4 + drawn(20, 16, "l2", 2)).astype(np.float32)
    found = sets(trained(vectors, "l2").search(queries, K, K, EVERYTHING, 2000, Allowed()))
    expected = nearest_rows(vectors, queries, "l2")
    assert all(rows >= wanted for rows, wanted in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # squares of lengths are infinite
@pytest.mark.parametrize("every", [1, 100])
def test_the_nearest_of_huge_components_are_found(every: int) -> None:
    vectors = drawn(2000, 16, "l2")
    vectors[::every] *= np.float32(1e30)
    queries = np.concatenate([vectors[::100], vectors[1::100]])
    expected = nearest_rows(vectors, queries, "l2", 1)
    assert [next(iter(rows)) % 100 for rows in expected] == [0] * 20 + [1] * 20
    for lists in (filled(vectors, "l2"), trained(vectors, "l2")):
        assert all_of(lists, queries, 2000) == [set(range(2000))] * 40
        found = sets(lists.search(queries, K, K, EVERYTHING, 2000, Allowed()))
        assert all(rows >= wanted for rows, wanted in zip(found, expected, strict=True))


@pytest.mark.parametrize("metric", METRICS)
def test_equal_vectors_are_all_found(metric: str) -> None:
    vectors = np.repeat(drawn(1, 8, metric), 1500, axis=0)
    for lists in (filled(vectors, metric), trained(vectors, metric)):
        assert all_of(lists, vectors[:1], 1500) == [set(range(1500))]
        assert len(sets(lists.search(vectors[:1], K, K, EVERYTHING, 1500, Allowed()))[0]) >= K


def test_vectors_without_length_are_found_by_their_distance() -> None:
    zeros = np.zeros((1500, 8), np.float32)
    for lists in (filled(zeros, "l2"), trained(zeros, "l2")):
        assert all_of(lists, np.concatenate([zeros[:1], drawn(1, 8, "l2")]), 1500) == [set(range(1500))] * 2
    one_other = zeros.copy()
    one_other[700] = 1
    for lists in (filled(one_other, "l2"), trained(one_other, "l2")):
        first, second = sets(lists.search(one_other[[3, 700]], 1, 1, EVERYTHING, 1500, Allowed()))
        assert 700 not in first and 700 in second


# Rows that do not count


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.45, 0.55, 0.9, 1.0])
@pytest.mark.parametrize("metric", METRICS)
def test_only_allowed_rows_below_the_limit_are_found(metric: str, share: float) -> None:
    """Of few allowed rows, each is compared alone; else whole blocks are."""
    vectors, queries = drawn(2000, 16, metric), drawn(5, 16, metric, 2)
    random = np.random.default_rng(4)
    for lists in (filled(vectors, metric), trained(vectors, metric)):
        for limit in (0, 1, 1000, 2000):
            allowed = random.random(limit) < share
            counted = set(np.flatnonzero(allowed).tolist())
            found = lists.search(queries, 2000, 2000, EVERYTHING, limit, Allowed(Bits.of(allowed)))
            assert sets(found) == [counted] * 5
            assert np.count_nonzero(found == -1) == found.size - 5 * len(counted)
        mask = random.random(2000) < share
        living = np.flatnonzero(mask)
        wanted = nearest_rows(vectors[living], queries, metric)
        some = sets(lists.search(queries, K, K, EVERYTHING, 2000, Allowed(Bits.of(mask))))
        for rows, places in zip(some, wanted, strict=True):
            assert rows >= set(living[list(places)].tolist())


def test_without_a_filter_rows_from_the_limit_on_are_left_out() -> None:
    vectors = drawn(1000, 8, "dot")
    for limit in (0, 1, BLOCK_ROWS, 700, 1000, 5000):
        found = filled(vectors, "dot").search(vectors[:2], 1000, 1000, EVERYTHING, limit, Allowed())
        assert sets(found) == [set(range(min(limit, 1000)))] * 2
        assert found.min() == -1


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [1, 9])
def test_without_rows_nothing_is_found(metric: str, count: int) -> None:
    lists = InvertedLists(8, metric, drawn(count, 8, metric))
    for _ in range(2):
        assert (len(lists), lists.is_outgrown()) == (0, False)
        assert (lists.search(drawn(2, 8, metric), K, K, EVERYTHING, 100, Allowed()) == -1).all()
        lists.add(np.zeros(0, np.int64), np.zeros((0, 8), np.float32))


# Lists


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("metric", METRICS)
def test_a_row_is_in_the_list_of_its_nearest_centre(metric: str, count: int) -> None:
    vectors, centres = drawn(1500, 8, metric), drawn(count, 8, metric, 5)
    lists = filled(vectors, metric, centres)
    own = chains(lists)
    assert sorted(row for rows in own for row in rows) == list(range(1500))
    near = near_by_definition(centres, vectors, "l2")
    for number, rows in enumerate(own):
        assert rows == sorted(rows)
        assert (near[rows, number] >= near[rows].max(axis=1) - 1e-5).all()


def test_a_search_ends_with_the_list_that_makes_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centres = apart(2000, 8, 8)
    lists = filled(vectors, "l2", centres)
    own = [set(rows) for rows in chains(lists)]

    def found(query: int, compared: int) -> set[int]:
        monkeypatch.setattr(InvertedLists, "_compared", lambda *_: compared)
        return all_of(lists, centres[query : query + 1], 2000)[0]

    for query, rows in enumerate(own):
        assert found(query, 1) == found(query, len(rows)) == rows
        two = found(query, len(rows) + 1)
        assert two > rows and two - rows in own
        assert found(query, 2000) == found(query, 5000) == set(range(2000))


def test_more_is_compared_for_a_greater_expansion_and_behind_a_filter() -> None:
    lists = InvertedLists(8, "dot")
    costs = [lists.exact_rows(10, 10, expansion) for expansion in (1, 10, 100)]
    assert costs == sorted(set(costs)) and costs[0] > 0
    assert lists.exact_rows(10, 5, 10) == costs[1]
    compared = [lists._compared(10, fetch, 100) for fetch in (5, 10, 11, 100)]
    assert compared[0] == compared[1]
    assert compared[1] < compared[2] < compared[3] < 10 * compared[1]
    assert lists._compared(1000, 1000, 1) >= 1000


@pytest.mark.parametrize(
    ("rows", "lists"),
    [
        (0, 1),
        (1, 1),
        (63, 1),
        (64, 2),
        (95, 2),
        (96, 3),
        (16_383, 511),
        (16_384, 512),
        (16_640, 515),
        (1_000_000, 4000),
    ],
)
def test_so_many_rows_are_in_so_many_lists(rows: int, lists: int) -> None:
    assert lists_of(rows) == lists


@pytest.mark.parametrize(("lists", "last"), [(1, 1023), (10, 1023), (18, 1023), (19, 1055), (20, 1087), (100, 5439)])
def test_lists_are_outgrown_from_so_many_rows_on(lists: int, last: int) -> None:
    own = InvertedLists(1, "l2", np.arange(lists, dtype=np.float32)[:, None])
    own.add(np.arange(last), np.zeros((last, 1), np.float32))
    assert not own.is_outgrown()
    own.add(np.array([last]), np.zeros((1, 1), np.float32))
    assert (own.lists, own.is_outgrown()) == (lists, True)


@pytest.mark.parametrize("metric", METRICS)
def test_retrained_lists_are_as_many_as_their_rows_need_and_are_made_in_slices(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, before = drawn(6000, 8, metric), InvertedLists(8, metric)
    added: list[int] = []
    add = InvertedLists.add

    def noted(lists: InvertedLists, rows: Rows, own: Floats) -> None:
        added.append(len(rows))
        add(lists, rows, own)

    monkeypatch.setattr(InvertedLists, "add", noted)
    own, slices = finished(before.retrained(vectors, np.arange(0, 6000, 2)))
    assert (own.lists, len(own), len(before)) == (lists_of(3000), 3000, 0)
    assert not own.is_outgrown()
    assert sum(added) == 3000 and max(added) <= before.slice_rows and len(added) < slices
    lengths = np.linalg.norm(own._lists.centres, axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == (metric == "cosine")


def test_memory_is_counted_by_blocks_and_centres() -> None:
    lists, vector = InvertedLists(20, "dot"), drawn(1, 20, "dot")
    sizes = []
    for row in range(2 * BLOCK_ROWS + 1):
        lists.add(np.array([row]), vector)
        sizes.append(lists.memory_bytes)
    assert len(set(sizes)) == 3
    a_block = sizes[BLOCK_ROWS] - sizes[BLOCK_ROWS - 1]
    assert a_block == sizes[2 * BLOCK_ROWS] - sizes[2 * BLOCK_ROWS - 1]
    own = lists._lists
    arrays: list[NDArray[Any]] = [own.following, own.rows, own.steps, own.squares, own.codes]
    assert a_block == sum(array[0].nbytes for array in arrays)
    more = InvertedLists(20, "dot", drawn(9, 20, "dot")).memory_bytes - InvertedLists(20, "dot").memory_bytes
    arrays = [own.centres, own.counts, lists._filled, own.first, own.last]
    arrays += [lists._centres._centres, lists._centres._halves, *lists._centre_codes[1:]]
    assert more == 8 * sum(array[0].nbytes for array in arrays)


# Few lists


@pytest.mark.parametrize(("offset", "scale"), [(1e4, 1.0), (0.0, 1e25)])
@pytest.mark.parametrize("is_retrained", [False, True])
def test_far_and_huge_vectors_are_found_by_looking_at_few_lists(
    offset: float, scale: float, is_retrained: bool
) -> None:
    random = np.random.default_rng(3)
    centres = random.standard_normal((50, 16))
    vectors = (scale * (centres[np.arange(6000) % 50] + 0.3 * random.standard_normal((6000, 16))) + offset).astype(
        np.float32
    )
    own = InvertedLists(16, "l2")
    own.add(np.arange(6000), vectors)
    if is_retrained:
        own = finished(own.retrained(vectors, np.arange(6000)))[0]
    hits = 0
    for row in range(0, 6000, 300):
        away = np.square(vectors.astype(np.float64) - vectors[row].astype(np.float64)).sum(axis=1)
        expected = set(np.argpartition(away, 10)[:10].tolist())
        hits += len(expected & set(own.search(vectors[row][None], 10, 10, 48, 6000, Allowed())[0].tolist()))
    assert hits >= 190


def test_a_filter_that_leaves_nothing_near_the_query_makes_the_search_look_further() -> None:
    vectors, centres = apart(1000, 10, 16)
    own = filled(vectors, "l2", centres)
    away = np.square(vectors - vectors[0]).sum(axis=1)
    in_order = np.argsort(np.square(centres - vectors[0]).sum(axis=1))
    farthest = (np.square(vectors[:, None] - centres).sum(axis=2).argmin(axis=1)) == in_order[-1]
    found = own.search(vectors[:1], K, 2 * K, 12, 1000, Allowed(Bits.of(farthest)))[0]
    assert set(np.argsort(np.where(farthest, away, np.inf))[:K].tolist()) <= set(found.tolist())
    assert farthest[found[found >= 0]].all()


def test_a_filter_makes_a_search_see_so_many_times_as_many_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    centres = (np.arange(20, dtype=np.float32) * 10)[:, None] * np.ones((1, 4), np.float32)
    own = filled(np.repeat(centres, 100, axis=0), "l2", centres)
    monkeypatch.setattr(InvertedLists, "_compared", lambda *_: 250)
    last_seen = module.FILTERED_MAX * 250 - 1
    for row, is_seen in ((0, True), (last_seen, True), (last_seen + 1, False), (1999, False)):
        allowed = np.arange(2000) == row
        found = own.search(centres[:1], 1, 2, 12, 2000, Allowed(Bits.of(allowed)))
        assert sets(found) == [{row} if is_seen else set()]


def test_room_is_made_for_the_blocks_that_rows_may_need() -> None:
    own = InvertedLists(2000, "l2")
    own.add(np.arange(1000), np.zeros((1000, 2000), np.float32))
    assert len(own._lists.rows) <= 1000 // list_blocks.BLOCK_ROWS + 2


@pytest.mark.parametrize(("dimension", "rows"), [(2, 1024), (1024, 1024), (2048, 512), (16_384, 64)])
def test_a_slice_has_no_more_components_than_fit(dimension: int, rows: int) -> None:
    assert InvertedLists(dimension, "l2").slice_rows == rows
    assert rows * dimension <= module.SLICE_COMPONENTS

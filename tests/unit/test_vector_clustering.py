"""Centres of lists: the nearest one of each vector, and how they are trained."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.messages.vectors import Floats
from tests.unit.test_vector_recall import finished
from worker.vectors import clustering
from worker.vectors.clustering import ITERATIONS, SAMPLE_PER_LIST, Centres, train
from worker.vectors.pace import Pace
from worker.vectors.similarity import Rows


def drawn(count: int, dimension: int, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)


def grouped(count: int, groups: int, dimension: int, seed: int = 1) -> Floats:
    random = np.random.default_rng(seed)
    middles = random.normal(size=(groups, dimension))
    own = random.integers(0, groups, count)
    return (middles[own] + 0.2 * random.normal(size=(count, dimension))).astype(np.float32)


def distances(vectors: Floats, centres: Floats) -> NDArray[np.float64]:
    """float64[n, lists]."""
    wide, middles = vectors.astype(np.float64), centres.astype(np.float64)
    away: NDArray[np.float64] = np.sqrt(np.square(wide[:, None] - middles[None]).sum(axis=2))
    return away


def centres_of(
    vectors: NDArray[np.floating], lists: int, rows: Rows | None = None, *, is_normal: bool = False
) -> Floats:
    own = np.arange(len(vectors)) if rows is None else rows
    return finished(train(vectors, own, lists, Pace(), is_normal=is_normal))[0]


@pytest.mark.parametrize("dimension", [1, 2, 7, 128])
@pytest.mark.parametrize("lists", [1, 2, 33])
def test_the_nearest_centre_is_that_of_the_definition(dimension: int, lists: int) -> None:
    vectors, centres = drawn(500, dimension, 1), drawn(lists, dimension, 2)
    centres *= np.random.default_rng(3).uniform(0.8, 1.2, (lists, 1)).astype(np.float32)
    found = Centres(centres).nearest(vectors)
    assert (found.dtype.name, found.shape) == ("int64", (500,))
    away = distances(vectors, centres)
    np.testing.assert_allclose(away[np.arange(500), found], away.min(axis=1), rtol=1e-4, atol=1e-4)
    assert len(set(found.tolist())) > 1 or lists == 1


@pytest.mark.parametrize("products", [1, 40, 41, 399, 4000, 1 << 20])
def test_so_many_products_are_held_at_once_and_the_result_is_the_same(
    monkeypatch: pytest.MonkeyPatch, products: int
) -> None:
    vectors, centres = grouped(100, 4, 8), 5 * np.eye(40, 8, dtype=np.float32)
    centres[8:] = 100 + drawn(32, 8, 2)
    expected = distances(vectors, centres).argmin(axis=1)
    monkeypatch.setattr(clustering, "PRODUCTS_MAX", products)
    assert Centres(centres).nearest(vectors).tolist() == expected.tolist()
    assert Centres(centres).nearest(vectors[:0]).shape == (0,)


def test_products_of_all_vectors_with_all_centres_are_never_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centres = drawn(4000, 2, 1), drawn(500, 2, 2)
    monkeypatch.setattr(clustering, "PRODUCTS_MAX", 5000)
    own = Centres(centres)
    tracemalloc.start()
    own.nearest(vectors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4000 * 500 * 4 / 10


@pytest.mark.parametrize(("offset", "scale"), [(1e4, 1.0), (1e6, 100.0), (0.0, 1e25), (0.0, 1e-25)])
def test_centres_far_from_the_origin_and_huge_ones_are_told_apart(offset: float, scale: float) -> None:
    vectors, centres = scale * drawn(400, 16, 1) + offset, scale * drawn(30, 16, 2) + offset
    away = distances(vectors.astype(np.float64), centres.astype(np.float64))
    found = Centres(centres.astype(np.float32)).nearest(vectors.astype(np.float32))
    np.testing.assert_allclose(away[np.arange(400), found], away.min(axis=1), rtol=1e-2)


@pytest.mark.parametrize("is_normal", [False, True])
@pytest.mark.parametrize(("lists", "dimension"), [(1, 1), (1, 16), (7, 2), (40, 16), (40, 130)])
def test_as_many_centres_as_wanted_are_made(lists: int, dimension: int, is_normal: bool) -> None:
    vectors = grouped(2000, 20, dimension)
    if is_normal:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = centres_of(vectors, lists, is_normal=is_normal)
    assert (centres.shape, centres.dtype.name) == ((lists, dimension), "float32")
    assert np.isfinite(centres).all()
    if is_normal:
        np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, rtol=1e-5)
    else:
        assert (centres.min(axis=0) >= vectors.min(axis=0) - 1e-5).all()
        assert (centres.max(axis=0) <= vectors.max(axis=0) + 1e-5).all()


@pytest.mark.parametrize("is_normal", [False, True])
def test_no_centre_of_grouped_vectors_is_without_rows(is_normal: bool) -> None:
    vectors = grouped(3000, 30, 16)
    if is_normal:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    centres = centres_of(vectors, 60, is_normal=is_normal)
    counts = np.bincount(Centres(centres).nearest(vectors), minlength=60)
    assert counts.min() > 0 and counts.sum() == 3000


def test_trained_centres_are_nearer_than_vectors_drawn_by_chance() -> None:
    vectors = grouped(2000, 30, 16)
    by_chance = np.random.default_rng(2).choice(vectors, 30, replace=False)
    centres = centres_of(vectors, 30)
    assert distances(vectors, centres).min(axis=1).mean() < 0.8 * distances(vectors, by_chance).min(axis=1).mean()


def test_one_centre_is_the_mean() -> None:
    vectors = drawn(SAMPLE_PER_LIST, 5, 1)
    np.testing.assert_allclose(centres_of(vectors, 1), vectors.mean(axis=0, keepdims=True), atol=1e-6)
    wanted = vectors.mean(axis=0, keepdims=True)
    wanted /= np.linalg.norm(wanted)
    np.testing.assert_allclose(centres_of(vectors, 1, is_normal=True), wanted, atol=1e-6)


@pytest.mark.parametrize("lists", [1, 20, 100])
@pytest.mark.parametrize("value", [0.0, 0.25])
def test_equal_vectors_have_equal_centres(lists: int, value: float) -> None:
    vectors = np.full((100, 4), value, np.float32)
    assert (centres_of(vectors, lists) == value).all()
    lengths = np.linalg.norm(centres_of(vectors, lists, is_normal=True), axis=1)
    np.testing.assert_allclose(lengths, 1 if value else 0, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_as_many_centres_as_rows_are_the_rows(count: int) -> None:
    vectors = 10 * drawn(count, 6, 1)
    centres = centres_of(vectors, count)
    assert sorted(map(tuple, centres.tolist())) == sorted(map(tuple, vectors.tolist()))


def test_the_same_rows_give_the_same_centres() -> None:
    vectors = grouped(1500, 20, 16)
    assert (centres_of(vectors, 25) == centres_of(vectors.copy(), 25)).all()


def test_only_the_rows_that_are_named_count() -> None:
    vectors = grouped(1500, 20, 8)
    rows = np.arange(3, 1500, 3)
    alone = centres_of(vectors[rows], 10)
    vectors[np.setdiff1d(np.arange(1500), rows)] = np.nan
    assert (centres_of(vectors, 10, rows) == alone).all()


@pytest.mark.parametrize("is_normal", [False, True])
def test_a_table_of_half_precision_has_centres_too(is_normal: bool) -> None:
    halves = grouped(1500, 20, 16).astype(np.float16)
    centres = centres_of(halves, 25, is_normal=is_normal)
    assert (centres.dtype.name, centres.shape) == ("float32", (25, 16))
    assert (centres == centres_of(halves.astype(np.float32), 25, is_normal=is_normal)).all()


@pytest.mark.parametrize(
    ("rows", "products", "slices"),
    [(300, 1 << 20, 1), (300, 10 * 300, 1), (300, 10 * 299, 2), (300, 10 * 100, 3), (9000, 10 * 100, 4), (300, 1, 300)],
)
def test_training_goes_through_a_sample_in_slices(
    monkeypatch: pytest.MonkeyPatch, rows: int, products: int, slices: int
) -> None:
    vectors = grouped(rows, 10, 4)
    monkeypatch.setattr(clustering, "PRODUCTS_MAX", products)
    _, count = finished(train(vectors, np.arange(rows), 10, Pace(), is_normal=False))
    assert count == ITERATIONS * slices


def test_so_many_components_are_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "COMPONENTS_MAX", 100 * 16)
    _, slices = finished(train(grouped(1000, 20, 16), np.arange(1000), 40, Pace(), is_normal=False))
    assert slices == ITERATIONS * 10

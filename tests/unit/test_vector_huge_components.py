"""Vectors with components near the largest that float32 has, under l2: float32 has neither their differences nor their
squares."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from shared.messages.vectors import Collection, Floats
from tests.unit.test_vector_recall import finished
from worker.vectors import calibration
from worker.vectors.clustering import Centres
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.pace import Pace
from worker.vectors.row_filter import Allowed
from worker.vectors.table import Table

HUGE = 2e38
COUNT = 2048
FEW = 12
"""An expansion with which few of the lists are looked into."""


@pytest.fixture(autouse=True)
def overflows_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def vectors() -> Floats:
    drawn = np.random.default_rng(1).normal(size=(COUNT, 8)).clip(-1.6, 1.6)
    return (HUGE * drawn).astype(np.float32)


@pytest.mark.parametrize("is_retrained", [False, True])
def test_the_index_finds_huge_vectors(vectors: Floats, *, is_retrained: bool) -> None:
    rows = np.arange(COUNT)
    index = InvertedLists(8, "l2")
    if is_retrained:
        index = finished(index.retrained(vectors, rows))[0]
        assert index.lists > 1
    else:
        vectors = np.abs(vectors) / 2 + np.float32(1.6e38)  # the sum of two of these is beyond float32
        index.add(rows, vectors)
    found = index.search(vectors[:100], 1, 1, FEW if is_retrained else COUNT, COUNT, Allowed())
    assert (found == rows[:100, None]).any(axis=1).all()


def test_the_nearest_centre_of_huge_vectors_is_that_of_the_definition(vectors: Floats) -> None:
    centres = vectors[:20]
    wide = vectors[20:, None].astype(np.float64) - centres
    expected = np.square(wide).sum(axis=2).argmin(axis=1)
    assert (Centres(centres).nearest(vectors[20:]) == expected).mean() > 0.99


@pytest.mark.parametrize("scale", [HUGE, 1e25, 1.0])
def test_made_queries_are_as_far_from_huge_vectors_as_their_neighbours(vectors: Floats, scale: float) -> None:
    scaled = (vectors.astype(np.float64) / HUGE * scale).astype(np.float32)
    table = Table(Collection(1, "c", 8, "l2"))
    ids = [str(row).encode() for row in range(COUNT)]
    table.append(ids, scaled, np.arange(COUNT, dtype=np.uint64), 0, [b""] * COUNT, ())
    while table.pending():
        rows, chosen, end = table.index_slice(512)
        table.view.index.add(rows, chosen)
        table.advance(end)
    queries = calibration._queries(table.view, "l2", Pace())
    assert np.isfinite(queries).all()
    wide = queries[:, None].astype(np.float64) - scaled
    nearest = np.sqrt(np.square(wide / scale).sum(axis=2)).min(axis=1)
    assert 0.5 < np.median(nearest) < 2

"""Searches behind a filter in a table with dead rows: as many results as there are, and the nearest ones."""

from __future__ import annotations

import numpy as np
import pytest

from shared.messages.vectors import Collection, Floats
from tests.unit.test_vector_recall import finished
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.row_filter import Allowed, Bits
from worker.vectors.search import _indexed, search
from worker.vectors.similarity import prepared
from worker.vectors.table import Table

ROWS, INDEXED, DIMENSION = 3000, 2800, 8


def filled(dead_share: float) -> Table:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((ROWS, DIMENSION)).astype(np.float32)
    table = Table(Collection(1, "c", DIMENSION, "cosine", "f32"))
    ids = [b"%d" % row for row in range(ROWS)]
    table.append(ids, vectors, np.arange(ROWS, dtype=np.uint64), 0, [b""] * ROWS, [])
    index = table.view.index
    assert isinstance(index, InvertedLists)
    lists = finished(index.retrained(table.view.vectors, np.arange(INDEXED)))[0]
    table.advance(INDEXED)
    table.replace_index(lists)
    table.kill(np.flatnonzero(random.random(ROWS) < dead_share).tolist())
    return table


def queries(count: int) -> Floats:
    return prepared(np.random.default_rng(2).standard_normal((count, DIMENSION)).astype(np.float32), "cosine")


@pytest.mark.parametrize("dead_share", [0.0, 0.02, 0.5, 0.98])
def test_what_the_index_finds_is_what_a_comparison_of_all_finds(
    dead_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InvertedLists, "exact_rows", lambda *_: -1.0)  # so the index is always used
    view, asked = filled(dead_share).view, queries(4)
    for left in (1, 5, 60, 300, 2000, ROWS):
        flags = np.zeros(ROWS, np.bool_)
        flags[np.random.default_rng(left).permutation(ROWS)[:left]] = True
        for bits in (Bits.of(flags), None):
            for k in (1, 10, 100):
                found, expected = (
                    search(view, asked, k, "cosine", 4096, exhaustive=is_exact, bits=bits, check=lambda: None)
                    for is_exact in (False, True)
                )
                assert found.counts.tolist() == expected.counts.tolist()
                assert found.rows.tolist() == expected.rows.tolist()


@pytest.mark.parametrize("dead_share", [0.0, 0.1, 0.5])
def test_rows_that_are_left_are_counted_or_estimated(dead_share: float) -> None:
    view = filled(dead_share).view
    flags = np.random.default_rng(3).random(ROWS) < 0.6
    living = int(np.count_nonzero((flags & view.alive[:ROWS])[:INDEXED]))
    allowed = Allowed(Bits.of(flags), view.alive if view.dead else None)
    assert _indexed(view, 10, allowed) == pytest.approx(living, rel=0.1)
    assert _indexed(view, ROWS, allowed) == living, "with too few for the search, they are counted"

"""Codes of pending rows: which rows they leave out of a search, and which rows have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.messages.vectors import DIMENSION_MAX, Collection
from worker.vectors import codes as module
from worker.vectors import search as search_module
from worker.vectors.codes import CODE_MAX, PendingCodes
from worker.vectors.row_filter import Bits
from worker.vectors.search import search
from worker.vectors.similarity import prepared, similarities
from worker.vectors.table import Table

METRICS = ["cosine", "dot", "l2"]


def coded(vectors: np.ndarray, first: int = 0) -> PendingCodes:
    own = PendingCodes(vectors.shape[1])
    own.clear(first)
    own.append(first, vectors, first)
    return own


def near_ones(vectors: np.ndarray, query: np.ndarray, k: int, metric: str, mask: np.ndarray | None = None) -> set[int]:
    """The rows that are among the `k` nearest, or as near as the last of them, by the definition of an answer."""
    near = similarities(vectors, np.arange(len(vectors))[np.newaxis], query[np.newaxis], metric)[0]
    is_candidate = near > -np.inf if mask is None else (near > -np.inf) & mask
    rows = np.flatnonzero(is_candidate)
    if len(rows) <= k:
        return set(rows.tolist())
    return set(rows[near[rows] >= np.sort(near[rows])[-k]].tolist())


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.sampled_from([1, 2, 3, 17, 64, 130]),
    st.integers(1, 12),
    st.sampled_from(METRICS),
    st.sampled_from([1e-42, 1e-30, 1e-3, 1.0, 300.0, 1e17, 1e25, 3e37]),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.02, 1.0]),
    st.booleans(),
)
def test_no_row_is_left_out_that_is_among_the_nearest(
    seed: int, count: int, dimension: int, k: int, metric: str, scale: float, spread: float, masked: bool
) -> None:
    random = np.random.default_rng(seed)
    # Rows that differ by less than the codes can tell, by about as much, and by far more.
    given_rows = random.normal(size=dimension) + spread * random.normal(size=(count, dimension))
    rows, asked = (
        (scale * given_rows).astype(np.float32),
        (scale * random.normal(size=(1, dimension))).astype(np.float32),
    )
    assume(
        metric != "cosine" or (rows.any(axis=1).all() and asked.any())
    )  # zeros, to which tiny ones round, are refused
    vectors, query = prepared(rows, metric), prepared(asked, metric)[0]
    mask = random.random(count) < 0.6 if masked else None
    found = coded(vectors).view.nearest(query, 0, count, k, metric, mask)
    assert set(found.tolist()) >= near_ones(vectors, query, k, metric, mask)
    assert found.tolist() == sorted(set(found.tolist()))
    assert mask is None or mask[found].all()


@pytest.mark.parametrize("metric", METRICS)
def test_the_rounding_of_the_query_is_allowed_for(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_MAX", 2)
    random = np.random.default_rng(5)
    vectors = prepared(random.normal(size=(300, 8)).astype(np.float32), metric)
    own = coded(vectors).view
    for query in prepared(random.normal(size=(50, 8)).astype(np.float32), metric):
        assert set(own.nearest(query, 0, 300, 3, metric, None).tolist()) >= near_ones(vectors, query, 3, metric)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_rows_that_become_equal_in_the_answer_are_all_kept(k: int) -> None:
    below_two = np.float32(2) - np.arange(1, 20, dtype=np.float32) * np.float32(2**-23)
    vectors, query = below_two[:, np.newaxis], np.array([0.51], np.float32)
    assert len(set(similarities(vectors, np.arange(19)[np.newaxis], query[np.newaxis], "dot")[0].tolist())) < 19
    found = coded(vectors).view.nearest(query, 0, 19, k, "dot", None)
    assert set(found.tolist()) >= near_ones(vectors, query, k, "dot")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dimension", [32, 384])
def test_few_rows_are_left(metric: str, dimension: int) -> None:
    random = np.random.default_rng(1)
    vectors = prepared(random.normal(size=(5000, dimension)).astype(np.float32), metric)
    for query in prepared(random.normal(size=(20, dimension)).astype(np.float32), metric):
        assert 10 <= len(coded(vectors).view.nearest(query, 0, 5000, 10, metric, None)) < 100


def test_a_sum_of_products_of_the_most_components_fits_its_integer() -> None:
    vectors = np.array([[1], [-1], [0.5]], np.float32).repeat(DIMENSION_MAX, axis=1)
    found = coded(vectors).view.nearest(vectors[0], 0, 3, 1, "dot", None)
    assert found.tolist() == [0]
    assert coded(vectors).view.nearest(vectors[1], 0, 3, 1, "dot", None).tolist() == [1]


def test_zeros_are_as_near_as_they_are() -> None:
    vectors = np.array([[0, 0], [1, 0], [-1, 0]], np.float32)
    own = coded(vectors).view
    assert own.nearest(vectors[1], 0, 3, 2, "dot", None).tolist() == [0, 1]
    assert own.nearest(vectors[0], 0, 3, 1, "l2", None).tolist() == [0]
    assert own.nearest(vectors[0], 0, 3, 1, "dot", None).tolist() == [0, 1, 2], "all are equally near"


def test_a_part_of_the_rows_is_compared_under_their_own_numbers() -> None:
    vectors = np.eye(8, dtype=np.float32)
    own = coded(vectors, 100).view
    assert own.nearest(vectors[6], 103, 108, 1, "dot", None).tolist() == [106]
    mask = np.ones(108, np.bool_)
    mask[106] = False
    rest = own.nearest(vectors[6], 105, 108, 1, "dot", mask[105:]).tolist()
    assert rest == [105, 107]
    assert own.nearest(vectors[6], 108, 108, 3, "dot", None).tolist() == []
    with pytest.raises(AssertionError):
        own.nearest(vectors[6], 99, 108, 1, "dot", None)


def vectors_of(own: PendingCodes, rows: int) -> np.ndarray:
    """What the codes of the first `rows` rows that have one stand for."""
    return own.view.codes[:rows] * own.view.bounds[:rows, :1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), max_size=30))
def test_the_latest_pending_rows_have_codes_and_readers_keep_theirs(steps: list[tuple[int, int]]) -> None:
    """`steps`: so many rows are appended, then so many indexed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CODES_BYTES_MAX", 2 * 64)
        patch.setattr(module, "CAPACITY_MIN", 4)
        own, table = PendingCodes(2), np.zeros((0, 2), np.float32)
        indexed = 0
        seen: list[tuple[Any, int, np.ndarray]] = []
        for count, more in steps:
            new = np.random.default_rng(len(table)).normal(size=(count, 2)).astype(np.float32)
            own.append(len(table), new, indexed)
            table = np.concatenate([table, new])
            view, size = own.view, len(table) - own.view.first
            assert view.first <= max(indexed, len(table) - 32), "at least half as many rows as may have codes have one"
            assert size <= len(view.codes) <= 64
            assert own.memory_bytes == size * (2 + 3 * 8)
            step = np.abs(table[view.first :]).max(axis=1, keepdims=True) / CODE_MAX
            assert (np.abs(vectors_of(own, size) - table[view.first :]) <= 0.51 * step).all()
            seen.append((view, size, view.codes[:size].copy()))
            indexed = min(len(table), indexed + more)
            if indexed == len(table):
                own.clear(indexed)
        assert all((view.codes[:size] == content).all() for view, size, content in seen)


def filled(storage: str, metric: str, count: int, indexed: int) -> tuple[Table, np.ndarray]:
    random = np.random.default_rng(7)
    table = Table(Collection(1, "c", 24, metric, storage))
    vectors = random.normal(size=(count, 24)).astype(np.float32)
    names = [b"%d" % row for row in range(count)]
    table.append(names, vectors, np.arange(1, count + 1, dtype=np.uint64), 0, [b""] * count, ())
    rows, own, end = table.index_slice(indexed)
    table.view.index.add(rows, own)
    table.advance(end)
    return table, prepared(random.normal(size=(12, 24)).astype(np.float32), metric)


@pytest.mark.parametrize("storage", ["f32", "f16"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("indexed", [0, 3000])
def test_a_search_finds_the_same_pending_rows_as_without_codes(
    storage: str, metric: str, indexed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, queries = filled(storage, metric, 4000, indexed)
    table.kill(list(range(0, 4000, 7)))
    random = np.random.default_rng(3)
    for bits in (None, Bits.of(random.random(4000) < 0.5)):
        for asked in (queries[:1], queries[:8], queries):

            def found(asked: np.ndarray = asked, bits: Bits | None = bits) -> list[Any]:
                ranking = search(table.view, asked, 10, metric, 48, exhaustive=False, bits=bits, check=lambda: None)
                return [ranking.counts.tolist(), ranking.rows.tolist(), ranking.near.tolist()]

            with_codes = found()
            with monkeypatch.context() as patch:
                patch.setattr(search_module, "CODED_QUERIES_MAX", 0)
                assert found() == with_codes


def test_a_few_queries_are_compared_with_codes_and_many_with_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    table, queries = filled("f32", "dot", 4000, 3000)
    asked: list[int] = []
    compared = search_module._coded

    def noted(view: Any, some: np.ndarray, *options: Any) -> Any:
        asked.append(len(some))
        return compared(view, some, *options)

    monkeypatch.setattr(search_module, "_coded", noted)

    def find(some: np.ndarray, exhaustive: bool = False) -> None:
        search(table.view, some, 10, "dot", 48, exhaustive=exhaustive, bits=None, check=lambda: None)

    for count in (1, 8, 9):
        find(queries[:count])
    find(queries[:1], exhaustive=True)
    table.advance(table.view.size)
    find(queries[:1])
    assert asked == [1, 8]


def test_a_restored_table_goes_on_behind_its_snapshot() -> None:
    old, queries = filled("f32", "dot", 300, 300)
    table = Table(Collection(1, "c", 24, "dot", "f32"))
    joined, lengths = old.view.ids.pack(np.arange(300))
    table.restore(old.view.index, joined, lengths, old.view.versions[:300], old.view.attributes)
    table.append([b"new"], 9 * queries[:1], np.array([301], np.uint64), 0, [b""], ())
    assert table.view.codes.first == 300
    ranking = search(table.view, queries[:1], 1, "dot", 48, exhaustive=False, bits=None, check=lambda: None)
    assert ranking.rows.tolist() == [300]


def test_rows_that_come_while_a_slice_is_indexed_are_in_the_next_one() -> None:
    table, _ = filled("f32", "dot", 10, 0)
    rows, own, end = table.index_slice(64)
    table.view.index.add(rows, own)
    more = [b"later-%d" % number for number in range(100)]
    table.append(more, np.ones((100, 24), np.float32), np.arange(100, dtype=np.uint64), 0, [b""] * 100, ())
    table.advance(end)
    assert (table.view.indexed, table.pending()) == (10, 100)
    assert table.index_slice(64)[0].tolist() == list(range(10, 74))

"""Searches of inverted lists with the same filter again: they know where its rows are, and find the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.unit.test_vector_lists import EVERYTHING, METRICS, K, drawn, filled, nearest_rows, sets, trained
from worker.vectors import list_filters as module
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.list_filters import NOWHERE, PLACED_SHARE, ListFilters, Places
from worker.vectors.row_filter import Allowed, Bits

ROWS, DIMENSION = 2000, 16


def some_bits(rows: int = ROWS, share: float = 0.05, seed: int = 4) -> Bits:
    return Bits.of(np.random.default_rng(seed).random(rows) < share)


def placed(lists: InvertedLists, bits: Bits) -> Places:
    arrays = lists._lists
    return lists._filters.places(bits, arrays.counts, arrays.first, arrays.following, arrays.rows)


def kept_in(lists: InvertedLists) -> list[Bits | None]:
    """The filters that the lists remember, the latest last."""
    return [bits() for bits, _ in lists._filters._latest.values()]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("expansion", [1, 12, EVERYTHING])
def test_a_search_finds_the_same_when_it_knows_where_the_rows_are(metric: str, expansion: int) -> None:
    lists, queries = trained(drawn(ROWS, DIMENSION, metric), metric), drawn(20, DIMENSION, metric, 2)
    alive = np.random.default_rng(5).random(ROWS) < 0.9
    for flags in (None, alive):
        for limit in (ROWS, 1500, 1, 0):
            own = some_bits()
            first, again = (
                sets(lists.search(queries, K, 10 * K, expansion, limit, Allowed(own, flags))) for _ in range(2)
            )
            assert placed(lists, own) is not NOWHERE
            assert again == first


@pytest.mark.parametrize("count", [1, 3, 60])
@pytest.mark.parametrize("metric", METRICS)
def test_rows_that_come_later_are_found_with_those_whose_places_are_known(metric: str, count: int) -> None:
    vectors, queries = drawn(ROWS, DIMENSION, metric), drawn(5, DIMENSION, metric, 2)
    centres = trained(vectors, metric)._lists.centres[:count].copy()
    for step in (1, 63, 64, 65, 300):
        lists = filled(vectors[:1000], metric, centres)
        head = some_bits(1000)
        for size in range(1000, ROWS, 7 * step):
            bits = head.extended(some_bits(size - 1000, seed=6).mask(0, size - 1000))
            expected = np.flatnonzero(bits.mask(0, size))
            wanted = nearest_rows(vectors[expected], queries, metric)
            for rows, places in zip(
                sets(lists.search(queries, K, K, EVERYTHING, size, Allowed(bits))), wanted, strict=True
            ):
                assert rows >= {int(expected[place]) for place in places}
                assert rows <= set(expected.tolist())
            lists.add(np.arange(size, min(ROWS, size + 7 * step)), vectors[size : size + 7 * step])
        known = placed(lists, bits)
        assert known.rows.tolist() and set(known.rows.tolist()) == set(np.flatnonzero(head.mask(0, 1000)).tolist())
        assert known.known.sum() == 1000


def test_places_are_those_of_the_rows() -> None:
    lists, bits = trained(drawn(ROWS, DIMENSION, "l2"), "l2"), some_bits()
    placed(lists, bits)
    places = placed(lists, bits)
    assert lists._lists.rows.reshape(-1)[places.places].tolist() == places.rows.tolist()
    assert sorted(places.rows.tolist()) == np.flatnonzero(bits.mask(0, ROWS)).tolist()
    assert places.start[-1] == bits.count and (places.known == lists._lists.counts).all()


def test_a_filter_that_leaves_many_rows_or_comes_once_gets_no_places() -> None:
    lists = filled(drawn(ROWS, DIMENSION, "dot"), "dot")
    many = Bits.of(np.arange(ROWS) < ROWS // PLACED_SHARE + 1)
    assert [placed(lists, many) is NOWHERE for _ in range(3)] == [True] * 3
    few = Bits.of(np.arange(ROWS) < ROWS // PLACED_SHARE)
    assert [placed(lists, few) is NOWHERE for _ in range(3)] == [True, False, False]
    same = Bits(few.packed, few.size, few.count)
    assert placed(lists, same) is NOWHERE, "bits are told apart by what they are, not by what they say"


def test_the_places_of_the_filters_that_were_not_used_for_the_longest_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = filled(drawn(ROWS, DIMENSION, "dot"), "dot")
    own = [some_bits(seed=seed) for seed in range(6)]
    one_bytes = max(placed(lists, bits).memory_bytes or placed(lists, bits).memory_bytes for bits in own)
    monkeypatch.setattr(module, "BYTES_MIN", 3 * one_bytes)
    monkeypatch.setattr(module, "BYTES_PER_ROW_MAX", 0)
    lists._filters = ListFilters()
    before = lists.memory_bytes
    for bits in own:
        placed(lists, bits)
        assert placed(lists, bits) is not NOWHERE
        assert lists.memory_bytes - before == lists._filters.memory_bytes <= 3 * one_bytes
    assert [places is not None for _, places in lists._filters._latest.values()] == [True] * 3
    assert kept_in(lists) == own[3:]
    placed(lists, own[3])
    assert kept_in(lists) == [own[4], own[5], own[3]]


def test_not_all_filters_are_remembered_after_their_first_search() -> None:
    lists = filled(drawn(ROWS, DIMENSION, "dot"), "dot")
    own = [some_bits(seed=seed) for seed in range(module.SEEN_MAX + 1)]
    for bits in own:
        placed(lists, bits)
    assert kept_in(lists) == own[1:]
    assert placed(lists, own[0]) is NOWHERE


def test_places_that_were_found_when_few_rows_were_in_the_lists_are_found_anew() -> None:
    vectors, bits = drawn(ROWS, DIMENSION, "dot"), some_bits()
    lists = filled(vectors[:100], "dot")
    for size, known in ((100, 100), (106, 100), (107, 107), (ROWS, ROWS)):
        lists.add(np.arange(len(lists), size), vectors[len(lists) : size])
        placed(lists, bits)
        assert placed(lists, bits).known.sum() == known
    assert placed(lists, bits) is placed(lists, bits)


def test_places_go_with_their_filter() -> None:
    lists = filled(drawn(ROWS, DIMENSION, "dot"), "dot")
    before, first, second = lists.memory_bytes, some_bits(seed=1), some_bits(seed=2)
    for bits in (first, first, second, second):
        placed(lists, bits)
    both = lists.memory_bytes
    del bits, second
    placed(lists, some_bits(seed=3))
    assert before < lists.memory_bytes < both
    assert first in kept_in(lists) and placed(lists, first) is not NOWHERE


def test_lists_that_are_replaced_have_places_of_their_own() -> None:
    vectors, bits = drawn(ROWS, DIMENSION, "dot"), some_bits()
    lists = filled(vectors, "dot")
    placed(lists, bits)
    assert len(placed(lists, bits).known) == 1
    for _ in range(3):
        lists = trained(vectors, "dot")
        assert placed(lists, bits) is NOWHERE
        assert len(placed(lists, bits).known) == lists.lists


def test_searches_with_the_same_filters_may_come_at_once() -> None:
    vectors, queries = drawn(ROWS, DIMENSION, "cosine"), drawn(4, DIMENSION, "cosine", 2)
    lists = trained(vectors, "cosine")
    own = [some_bits(seed=seed) for seed in range(8)]
    expected = [sets(lists.search(queries, K, K, EVERYTHING, ROWS, Allowed(bits))) for bits in own]

    def find(number: int) -> bool:
        allowed = Allowed(own[number % 8])
        return sets(lists.search(queries, K, K, EVERYTHING, ROWS, allowed)) == expected[number % 8]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(find, range(400)))

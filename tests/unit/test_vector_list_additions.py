"""Rows that are added to inverted lists, and searches beside that."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.unit.test_vector_lists import all_of, apart, chains, content, drawn, filled
from worker.vectors import inverted_lists as module
from worker.vectors import list_blocks
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.list_blocks import BLOCK_ROWS

SLICES = [
    [1] * 300,
    [63, 1, 64, 65, 127, 128, 129, 700],
    [2000],
    [1999, 1],
    [0, 5, 0, 1000, 995],
]


def sliced(count: int, sizes: list[int]) -> Iterator[slice]:
    start = 0
    for size in sizes:
        yield slice(start, min(count, start + size))
        start += size
    yield slice(start, count)


@pytest.mark.parametrize("sizes", SLICES)
@pytest.mark.parametrize("count", [1, 7])
def test_rows_that_are_added_in_slices_are_in_the_same_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, sizes: list[int]
) -> None:
    vectors, centres = apart(2000, count, 8)
    at_once = filled(vectors, "l2", centres)
    monkeypatch.setattr(module, "ADDED_AT_ONCE", 300)
    lists, numbers = InvertedLists(8, "l2", centres), np.arange(2000)
    for part in sliced(2000, sizes):
        lists.add(numbers[part], vectors[part])
        assert len(lists) == part.stop
    assert chains(lists) == chains(at_once)
    assert content(lists, tmp_path) == content(at_once, tmp_path)
    assert all_of(lists, vectors[:3], 2000) == [set(range(2000))] * 3


@pytest.mark.parametrize("count", [BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS, 5 * BLOCK_ROWS + 1])
def test_as_many_blocks_are_used_as_the_rows_fill(count: int) -> None:
    lists = filled(drawn(count, 4, "l2"), "l2")
    assert lists._used == -(-count // BLOCK_ROWS)
    assert len(lists._lists.rows) >= lists._used
    assert all_of(lists, drawn(1, 4, "l2", 2), count) == [set(range(count))]


@pytest.mark.parametrize("lists", [1, 6])
def test_a_search_beside_an_add_finds_what_was_there_and_nothing_that_is_not_yet(lists: int) -> None:
    vectors, centres = apart(4000, lists, 8)
    own, numbers = InvertedLists(8, "l2", centres), np.arange(1, 4001)
    random = np.random.default_rng(6)
    queries = vectors[:2]
    done = searches = 0
    with ThreadPoolExecutor(1) as pool:
        while done < 4000:
            end = min(4000, done + int(random.integers(1, 120)))
            adding = pool.submit(own.add, numbers[done:end], vectors[done:end])
            while True:
                is_last = adding.done()
                for rows in all_of(own, queries, 4001):
                    assert set(range(1, done + 1)) <= rows <= set(range(1, end + 1))
                searches += 1
                if is_last:
                    break
            adding.result()
            done = end
    assert len(own) == 4000 and searches >= 4000 // 120


@pytest.mark.parametrize("lists", [1, 6])
def test_rows_are_not_found_before_all_of_their_slice_are_written(monkeypatch: pytest.MonkeyPatch, lists: int) -> None:
    vectors, centres = apart(1500, lists, 8)
    own, numbers = InvertedLists(8, "l2", centres), np.arange(1500)
    append = list_blocks.append
    found: list[set[int]] = []

    def noted(*given: object) -> object:
        found.extend(all_of(own, vectors[:1], 1500))
        used = append(*given)
        found.extend(all_of(own, vectors[:1], 1500))
        return used

    monkeypatch.setattr(list_blocks, "append", noted)
    for part in sliced(1500, [1, 10, 200, 3, 64]):
        own.add(numbers[part], vectors[part])
        assert found[-2:] == [set(range(part.start))] * 2
        assert all_of(own, vectors[:1], 1500) == [set(range(part.stop))]
    assert len(found) == 12


def test_a_reader_keeps_what_it_has_when_arrays_are_replaced() -> None:
    lists, vectors = InvertedLists(4, "l2"), drawn(5000, 4, "l2")
    lists.add(np.arange(10), vectors[:10])
    before = lists._lists
    lists.add(np.arange(10, 5000), vectors[10:])
    assert len(lists._lists.rows) > len(before.rows)
    assert int(before.counts.sum()) == 10
    assert before.rows[before.first[0], :10].tolist() == list(range(10))

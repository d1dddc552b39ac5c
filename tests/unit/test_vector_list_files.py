"""The files of inverted lists: what a file gives back, and those that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.test_vector_lists import EVERYTHING, METRICS, K, all_of, apart, content, drawn, filled
from worker.vectors import inverted_lists as module
from worker.vectors.graph import Graph
from worker.vectors.inverted_lists import InvertedLists
from worker.vectors.list_blocks import BLOCK_ROWS
from worker.vectors.row_filter import Allowed


def loaded(data: bytes, directory: Path, rows: int, dimension: int = 8, metric: str = "l2") -> InvertedLists:
    lists = InvertedLists(dimension, metric)
    (directory / "loaded").write_bytes(data)
    lists.load(directory / "loaded", rows)
    return lists


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [0, 1, BLOCK_ROWS, 1500])
def test_a_saved_index_answers_as_before_and_grows(tmp_path: Path, metric: str, count: int) -> None:
    vectors, queries = drawn(2000, 8, metric), drawn(10, 8, metric, 2)
    lists = filled(vectors[:count], metric, drawn(12, 8, metric, 3))
    again = loaded(content(lists, tmp_path), tmp_path, count, metric=metric)
    assert (len(again), again.lists, again.memory_bytes) == (count, 12, lists.memory_bytes)
    for own in (lists, again):
        own.add(np.arange(count, 2000), vectors[count:])
    assert content(again, tmp_path) == content(lists, tmp_path)
    for expansion in (1, 10, EVERYTHING):
        expected = lists.search(queries, K, K, expansion, 2000, Allowed())
        assert (again.search(queries, K, K, expansion, 2000, Allowed()) == expected).all()
    assert all_of(again, queries, 2000) == [set(range(2000))] * 10


COUNT, LISTS = 300, 5
"""Of the file whose bytes are changed."""


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    vectors, centres = apart(COUNT, LISTS, 8)
    lists = filled(vectors, "l2", centres)
    lists.add(np.zeros(0, np.int64), vectors[:0])
    return content(lists, tmp_path)


def header(data: bytes) -> list[int]:
    """How many lists, blocks and components a file has."""
    numbers: list[int] = np.frombuffer(data, np.int64, 3, len(module.MAGIC)).tolist()
    return numbers


def changed(data: bytes, change: Callable[[dict[str, NDArray[Any]]], None]) -> bytes:
    """The file with its arrays changed."""
    arrays: dict[str, NDArray[Any]] = {}
    copy = bytearray(data)
    start = len(module.MAGIC) + 24
    lists, blocks, dimension = header(data)
    for field, kind, shape in module._layout(lists, blocks, dimension):
        arrays[field] = np.frombuffer(copy, kind, math.prod(shape), start).reshape(shape)
        start += arrays[field].nbytes
    assert start == len(data)
    change(arrays)
    return bytes(copy)


def with_header(data: bytes, place: int, value: int) -> bytes:
    numbers = header(data)
    numbers[place] = value
    start = len(module.MAGIC)
    return data[:start] + np.array(numbers, np.int64).tobytes() + data[start + 24 :]


def test_a_file_that_is_whole_is_taken(tmp_path: Path, data: bytes) -> None:
    blocks = header(data)[1]
    assert header(data) == [LISTS, blocks, 8] and blocks >= LISTS
    for same in (data, changed(data, lambda arrays: None)):
        assert len(loaded(same, tmp_path, COUNT)) == COUNT


@pytest.mark.parametrize("dimension", [7, 9, 16])
def test_a_file_of_another_dimension_is_refused(tmp_path: Path, data: bytes, dimension: int) -> None:
    with pytest.raises(ValueError, match=f"loaded has vectors of 8 components; {dimension} are right"):
        loaded(data, tmp_path, COUNT, dimension)


@pytest.mark.parametrize("kept", [0, 7, 8, 31])
def test_a_file_without_a_whole_beginning_is_refused(tmp_path: Path, data: bytes, kept: int) -> None:
    with pytest.raises(ValueError, match="index of another kind"):
        loaded(data[:kept], tmp_path, COUNT)


def test_a_file_that_ends_early_is_refused(tmp_path: Path, data: bytes) -> None:
    blocks = header(data)[1]
    start = len(module.MAGIC) + 24
    ends = [start]
    for _, kind, shape in module._layout(LISTS, blocks, 8):
        ends.append(ends[-1] + math.prod(shape) * kind.itemsize)
    for kept in {*ends[:-1], *(end - 1 for end in ends[1:]), *(end + 1 for end in ends[:-1])}:
        with pytest.raises(ValueError, match=f"{kept} bytes, too few for {LISTS} lists in {blocks} blocks"):
            loaded(data[:kept], tmp_path, COUNT)
    assert ends[-1] == len(data)


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 0), (0, -1), (0, LISTS + 1000), (0, 1 << 62), (1, -1), (1, -(1 << 62)), (1, 1000), (1, 1 << 62)],
)
def test_a_file_with_too_few_bytes_for_what_it_says_is_refused(
    tmp_path: Path, data: bytes, place: int, value: int
) -> None:
    with pytest.raises(ValueError, match="too few for"):
        loaded(with_header(data, place, value), tmp_path, COUNT)


def test_a_graph_is_refused(tmp_path: Path) -> None:
    graph = Graph(8, "l2", "f32")
    graph.add(np.arange(COUNT), drawn(COUNT, 8, "l2"))
    graph.save(tmp_path / "graph")
    with pytest.raises(ValueError, match="graph is an index of another kind; earlier releases wrote graphs"):
        InvertedLists(8, "l2").load(tmp_path / "graph", COUNT)


def test_a_file_with_more_rows_than_there_are_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"has {COUNT} rows; at most {COUNT - 1} are right"):
        loaded(data, tmp_path, COUNT - 1)


@pytest.mark.parametrize("count", [-1, -(1 << 40)])
def test_a_file_with_a_list_of_less_than_no_rows_is_refused(tmp_path: Path, data: bytes, count: int) -> None:
    def change(arrays: dict[str, NDArray[Any]]) -> None:
        arrays["counts"][2] = count

    with pytest.raises(ValueError, match=f"rows; at most {COUNT} are right"):
        loaded(changed(data, change), tmp_path, COUNT)


@pytest.mark.parametrize("field", ["first", "last", "following"])
@pytest.mark.parametrize("beyond", [True, False])
def test_a_file_that_names_a_block_it_does_not_have_is_refused(
    tmp_path: Path, data: bytes, field: str, beyond: bool
) -> None:
    blocks = header(data)[1]

    def change(arrays: dict[str, NDArray[Any]]) -> None:
        arrays[field][-1] = blocks if beyond else -2

    with pytest.raises(ValueError, match=f"names blocks or rows that it does not have; it has {blocks} blocks"):
        loaded(changed(data, change), tmp_path, COUNT)


def test_a_file_that_names_a_row_below_all_is_refused(tmp_path: Path, data: bytes) -> None:
    def change(arrays: dict[str, NDArray[Any]]) -> None:
        arrays["rows"][0, 1] = -1

    with pytest.raises(ValueError, match="names blocks or rows that it does not have"):
        loaded(changed(data, change), tmp_path, COUNT)


def test_a_file_that_is_refused_changes_nothing(tmp_path: Path, data: bytes) -> None:
    lists = filled(drawn(100, 8, "l2"), "l2")
    before = content(lists, tmp_path)
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match="at most 7 are right"):
        lists.load(tmp_path / "file", 7)
    assert content(lists, tmp_path) == before
    lists.load(tmp_path / "file", COUNT)
    assert content(lists, tmp_path) == data


@pytest.mark.parametrize("field", ["counts", "first", "last", "following"])
def test_a_file_whose_chains_do_not_fit_the_counts_is_refused(tmp_path: Path, field: str) -> None:
    own = InvertedLists(2, "l2", drawn(3, 2, "l2"))
    own.add(np.arange(500), drawn(500, 2, "l2"))
    array = getattr(own._lists, field)
    filled = int(np.argmax(own._lists.counts))
    place = int(own._lists.first[filled]) if field == "following" else filled
    array[place] = 500 if field == "counts" else -1
    own.save(tmp_path / "file")
    with pytest.raises(ValueError, match=r"names blocks or rows that it does not have|rows; at most"):
        InvertedLists(2, "l2").load(tmp_path / "file", 100_000)

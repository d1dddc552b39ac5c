"""Series of which a function drops the name at some of their steps, and series that thereby get equal label sets."""

from __future__ import annotations

import time

import numpy as np
import pytest

from shared.errors import NotExecutable
from shared.promql.engine.rows import by_name, united
from shared.promql.model import Matrix
from tests.unit.operators_setup import Bench, by_labels


def test_a_series_whose_name_is_dropped_at_some_steps_becomes_two() -> None:
    present = np.array([[1, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], np.bool_)
    is_dropped = np.array([[0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 1], [1, 0, 0, 0]], np.bool_)
    rows, of_each, drop_name = by_name(present, is_dropped)
    assert rows.tolist() == [0, 1, 2, 3, 0]
    assert drop_name.tolist() == [False, True, False, False, True]
    assert of_each.astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]]


def test_each_sample_is_in_one_series_whose_name_is_dropped_as_its_own() -> None:
    random = np.random.default_rng(3)
    present, is_dropped = random.random((2, 40, 12)) < 0.6
    rows, of_each, drop_name = by_name(present, is_dropped)
    found = np.zeros(present.shape, np.int64)
    np.add.at(found, rows, of_each)
    assert (found == present).all()
    assert (is_dropped[rows][of_each] == np.repeat(drop_name, of_each.sum(axis=1))).all()


def alternating(bench: Bench, series: int) -> Matrix:
    """Two series for each of `series` label sets, of which one is present at even and one at odd steps; each value is
    its step."""
    steps = np.arange(float(bench.grid.steps))
    matrix = bench.matrix(*(({"i": str(i // 2)}, steps) for i in range(2 * series)))
    matrix.present = np.arange(2 * series)[:, np.newaxis] % 2 == steps % 2
    return matrix


def test_series_with_equal_label_sets_are_one_series_unless_a_step_has_both() -> None:
    bench = Bench(5)
    matrix = alternating(bench, 2)
    assert by_labels(united(matrix)) == {(("i", "0"),): [0, 1, 2, 3, 4], (("i", "1"),): [0, 1, 2, 3, 4]}
    matrix.present[1, 0] = True
    with pytest.raises(NotExecutable, match="cannot contain metrics with the same labelset"):
        united(matrix)
    matrix.present[1, 0] = False
    occupied = matrix.present.copy()
    occupied[3, 4] = True
    with pytest.raises(NotExecutable, match="two at a step"):
        united(matrix, message="two at a step", occupied=occupied)
    assert len(by_labels(united(matrix, occupied=occupied & False))) == 2


def test_series_whose_names_are_to_be_dropped_stay_apart_from_others() -> None:
    bench = Bench(4)
    matrix = alternating(bench, 1)
    matrix.drop_name[1] = True
    result = united(matrix)
    assert result.drop_name.tolist() == [False, True]
    assert result.present.astype(int).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]


def test_millions_of_values_are_united_in_less_than_a_second() -> None:
    """No deadline is checked meanwhile."""
    matrix = alternating(Bench(2000), 1000)
    united(matrix)
    began_s = time.thread_time()
    assert united(matrix).present.all()
    assert time.thread_time() - began_s < 0.5

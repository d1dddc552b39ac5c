"""Series of which a function drops the name at some of their steps."""

from __future__ import annotations

import numpy as np

from shared.promql.engine.rows import by_name


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

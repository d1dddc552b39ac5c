"""The order in which a query looks into the inverted lists."""

from __future__ import annotations

import numpy as np
import pytest

from shared.messages.vectors import Floats
from tests.unit.test_vector_lists import METRICS, drawn, near_by_definition
from worker.vectors import inverted_lists as module
from worker.vectors.codes import CODE_MAX, QUERY_MAX
from worker.vectors.list_order import GROUP, rank, rounded_query, take_nearest


def in_order(query: Floats, centres: Floats, metric: str) -> list[int]:
    """All lists, as a search takes them."""
    middle, codes, steps, squares = module.coded_centres(centres)
    rounded, is_l2 = np.empty(len(query), np.int16), metric == "l2"
    nearness, nearest = np.empty(len(centres)), np.empty(-(-len(centres) // GROUP), np.int64)
    step = rounded_query(query, middle, is_l2, rounded)
    rank(rounded, step, codes, steps, squares, is_l2, nearness, nearest)
    return [take_nearest(nearness, nearest) for _ in centres]


@pytest.mark.parametrize("away", [0, 1000])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("count", [1, 2, GROUP - 1, GROUP, GROUP + 1, 5 * GROUP + 7])
def test_lists_are_looked_into_in_the_order_of_their_centres(metric: str, count: int, away: float) -> None:
    """As far as a byte for each component tells, also where all of them lie in one direction from the origin."""
    centres, queries = drawn(count, 8, metric) + np.float32(away), drawn(10, 8, metric, 2) + np.float32(away)
    middle = centres.mean(axis=0, dtype=np.float64)
    longest = np.abs(centres - middle).max()
    for query, near in zip(queries, near_by_definition(centres, queries, metric), strict=True):
        taken = in_order(query, centres, metric)
        assert sorted(taken) == list(range(count))
        compared = np.abs(query - middle if metric == "l2" else query)
        # Half a step of each component of the code, and of the query.
        error = compared.sum() * longest / CODE_MAX / 2 + 8 * longest * compared.max() / QUERY_MAX
        assert (near[taken] >= -np.sort(-near) - 2.1 * error).all()


def test_a_centre_that_is_the_middle_of_all_has_its_place_in_the_order() -> None:
    centres = np.array([[1, 1], [1, 1], [3, 1], [-1, 1]], np.float32)
    assert in_order(np.array([3, 1], np.float32), centres, "l2") == [2, 0, 1, 3]
    assert in_order(np.array([1, 5], np.float32), centres, "l2") == [0, 1, 2, 3]
    assert in_order(np.array([5, 0], np.float32), centres[:2], "dot") == [0, 1]

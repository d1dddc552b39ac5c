"""The kernel that selects the n-th smallest value, also from values that were made to be slow to select from."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.promql.engine.kernels.aggregation import nth_smallest


class _Adversary:
    """Decides the values of 0 … size − 1 only when they are compared, so that each partition removes few of them.
    Source: M. D. McIlroy, A Killer Adversary for Quicksort, 1999."""

    def __init__(self, size: int) -> None:
        self.undecided = size
        self.values = [size] * size
        self._decided = 0
        self._candidate = -1

    def less(self, x: int, y: int) -> bool:
        if self.values[x] == self.values[y] == self.undecided:
            self.values[x if x == self._candidate else y] = self._decided
            self._decided += 1
        if self.values[x] == self.undecided:
            self._candidate = x
        elif self.values[y] == self.undecided:
            self._candidate = y
        return self.values[x] < self.values[y]

    def lower(self, x: int, y: int) -> int:
        return x if self.less(x, y) else y

    def higher(self, x: int, y: int) -> int:
        return y if self.less(x, y) else x


def slow_values(size: int, n: int) -> NDArray[np.float64]:
    """Values for which Hoare's selection of the n-th smallest, with the median of three as the pivot, is slow."""
    adversary, places = _Adversary(size), list(range(size))
    low, high = 0, size - 1
    while low < high:
        a, b, c = places[low], places[(low + high) // 2], places[high]
        pivot = adversary.higher(adversary.lower(a, b), adversary.lower(adversary.higher(a, b), c))
        i, j = low, high
        while i <= j:
            while places[i] != pivot and adversary.less(places[i], pivot):
                i += 1
            while places[j] != pivot and adversary.less(pivot, places[j]):
                j -= 1
            if i <= j:
                places[i], places[j] = places[j], places[i]
                i, j = i + 1, j - 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return np.array(adversary.values, np.float64)


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=50), st.data())
def test_the_value_is_in_its_place_between_smaller_and_larger_ones(values: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(0, len(values) - 1))
    buffer = np.array(values)
    assert nth_smallest(buffer, len(values), n) == sorted(values)[n]
    assert max(buffer[:n], default=-np.inf) <= buffer[n] <= min(buffer[n + 1 :], default=np.inf)
    assert sorted(buffer.tolist()) == sorted(values)


@pytest.mark.parametrize("n", [1500, 2999])
def test_values_made_to_be_slow_take_little_longer_than_others(n: int) -> None:
    def least_s(values: NDArray[np.float64]) -> float:
        took = []
        for _ in range(20):
            buffer = values.copy()
            began_s = time.perf_counter()
            nth_smallest(buffer, len(values), n)
            took.append(time.perf_counter() - began_s)
            assert buffer[n] == ordered[n]
        return min(took)

    slow = slow_values(3000, n)
    ordered = np.sort(slow)
    assert least_s(slow) < 60 * least_s(np.random.default_rng(1).permutation(slow))

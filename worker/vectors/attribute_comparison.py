"""Comparisons of cells by value. Numbers are compared exactly, also an integer with a float."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from worker.vectors.attribute_strings import EQUALITY, Mask, ordered

Kinds = NDArray[np.uint8]
Bits = NDArray[np.int64]
Test = Callable[[Kinds, Bits], Mask]
"""Which of some cells satisfy a comparison, by their kinds and bits."""

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def equal_floats(numbers: Sequence[float]) -> list[float]:
    """The floats that are equal to one of `numbers`: an integer that no float represents is equal to none."""
    return [float(number) for number in numbers if float(number) == number]


def equal_integers(numbers: Sequence[float]) -> list[int]:
    """The 64-bit integers that are equal to one of `numbers`."""
    return [int(n) for n in numbers if float(n).is_integer() and INT64_MIN <= n <= INT64_MAX]


def any_of(tests: Sequence[Test], kinds: Kinds, bits: Bits) -> Mask:
    """Which cells satisfy one of the tests."""
    mask = np.zeros(len(kinds), dtype=np.bool_)
    for test in tests:
        mask |= test(kinds, bits)
    return mask


def fits(op: str, values: NDArray, asked: Sequence[float] | Sequence[complex]) -> Mask:
    """Which of `values` are in `asked`, or lt, lte, gt or gte the only one of `asked`."""
    if op not in EQUALITY:
        return ordered(op, values, asked[0])
    return values == asked[0] if len(asked) == 1 else np.isin(values, np.array(asked, dtype=values.dtype))


def ordered_floats(op: str, values: NDArray[np.float64], edge: float | int) -> Mask:
    """Compare floats with `edge` exactly, even if it is an integer that no float represents."""
    nearest = float(edge)
    if nearest < edge:
        op = {"lt": "lte", "gte": "gt"}.get(op, op)
    elif nearest > edge:
        op = {"lte": "lt", "gt": "gte"}.get(op, op)
    return ordered(op, values, nearest)


def ordered_integers(op: str, values: NDArray[np.int64], edge: float | int) -> Mask:
    """Compare integers with `edge` exactly, even if it is a float, or an integer that no int64 represents."""
    if isinstance(edge, float) and not math.isinf(edge):
        edge = math.ceil(edge) if op in ("lt", "gte") else math.floor(edge)
    if edge > INT64_MAX:
        return np.full(len(values), op in ("lt", "lte"))
    if edge < INT64_MIN:
        return np.full(len(values), op in ("gt", "gte"))
    return ordered(op, values, int(edge))

"""Schemas of native histograms, and the boundaries of their buckets.

A standard schema n (-4 to 8) divides the positive numbers at the powers of 2^(2^-n): bucket i is (bound(i-1), bound(i)]
and its negative mirror image. Schema -53 has custom boundaries. Source: the specification's section "Schema".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined

SCHEMA_MIN, SCHEMA_MAX, CUSTOM = -4, 8, -53
FLOAT_MAX = float(np.finfo(np.float64).max)
_EXPONENT_END = 1024
"""2^1024 is the first power of two that no float64 can hold."""
SUBNORMAL_EXPONENT = -1074
"""2^-1074 is the smallest positive float64."""


def _exp2(x: float) -> float:
    """2^x by the reduction and the polynomial of FreeBSD's `e_exp.c`, with an error of less than one unit in the last
    place. Prometheus computes its boundaries in this way, and responses show them with all digits: correctly rounded
    ones would differ from its text in every second boundary."""
    exponent = int(x + math.copysign(0.5, x))
    high = (x - exponent) * 6.93147180369123816490e-01
    low = (exponent - x) * 1.90821492927058770002e-10
    reduced_x = high - low
    square = reduced_x * reduced_x
    series = 0.0
    for coefficient in (
        4.13813679705723846039e-08,
        -1.65339022054652515390e-06,
        6.61375632143793436117e-05,
        -2.77777777770155933842e-03,
        1.66666666666666657415e-01,
    ):
        series = coefficient + square * series
    c = reduced_x - square * series
    return math.ldexp(1 - ((low - (reduced_x * c) / (2 - c)) - high), exponent)


def _boundaries() -> NDArray[np.float64]:
    """float64[511]: the boundaries in [0.5, 1) of schemas 0 to 8, one schema after the other; those of schema n begin
    at 2^n - 1. Every second boundary of a schema is one of the schema before it."""
    table = [0.5]
    for schema in range(1, SCHEMA_MAX + 1):
        coarser = table[(1 << schema - 1) - 1 :]
        factor = _exp2(_exp2(-schema))
        for i in range(1 << schema):
            table.append(coarser[i // 2] if i % 2 == 0 else table[-1] * factor)
    return np.array(table)


BOUNDARIES = _boundaries()


@inlined
def bucket_bound(schema: Any, index: Any) -> Any:
    """The upper boundary of the positive bucket with this index, for a standard schema. The bucket that contains the
    largest float64 ends at it, and the next one at infinity."""
    if schema > 0:
        size = np.int64(1) << np.int64(schema)
        fraction = BOUNDARIES[size - 1 + (index & (size - 1))]
        exponent = (index >> schema) + 1
    else:
        fraction = 0.5
        exponent = (np.int64(index) << np.int64(-schema)) + 1
    if exponent > _EXPONENT_END:
        return FLOAT_MAX if exponent == _EXPONENT_END + 1 and fraction == 0.5 else np.inf
    return math.ldexp(fraction, int(exponent))


@inlined
def reduced(index: Any, levels: Any) -> Any:
    """The index of the bucket that contains this one in the schema that is smaller by `levels`."""
    return ((np.int64(index) - 1) >> np.int64(levels)) + 1


@inlined
def index_range(schema: Any) -> Any:
    """(the first, the last) index of a bucket that can have observations: from the bucket of the smallest positive
    float64 to the one above the largest float64, which has the infinite observations."""
    if schema >= 0:
        return np.int64(SUBNORMAL_EXPONENT) << np.int64(schema), (np.int64(_EXPONENT_END) << np.int64(schema)) + 1
    return reduced(SUBNORMAL_EXPONENT, -schema), (np.int64(_EXPONENT_END) >> np.int64(-schema)) + 1

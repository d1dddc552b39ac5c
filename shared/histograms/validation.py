"""Checks one histogram message that has been read: its layout, which is interned, and its counts.

Source: the native histograms specification, section "Data model".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import NO_ZERO, Floats
from shared.histograms.fields import (
    BOUNDS_AT,
    IS_FLOAT_AT,
    MESSAGE,
    NEGATIVE_SPANS_AT,
    NEGATIVES_AT,
    OBSERVATIONS_AT,
    POSITIVE_SPANS_AT,
    POSITIVES_AT,
    SCHEMA_AT,
    SUM_AT,
    THRESHOLD_AT,
    ZERO_COUNT_AT,
    Fault,
    Message,
)
from shared.histograms.interning import COLLECTION, LayoutCollection, intern
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN, index_range
from shared.kernels import inlined, kernel, types


@kernel(
    types.Tuple((types.int64, types.float64, types.float64, types.int64))(
        MESSAGE, MESSAGE, types.int64, COLLECTION, types.float64[::1]
    ),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def validate(
    message: Message, last: Message, last_layout: int, layouts: LayoutCollection, counts: Floats
) -> tuple[int, float, float, int]:
    """Check a message, put its counts in order (those of positive buckets are at counts[1:]), and intern its layout,
    which usually is `last_layout`, that of the message `last`, if any. Returns (fault or 0, the number seen, the one
    wanted, the layout or -1)."""
    is_custom = message.integers[SCHEMA_AT] == CUSTOM
    if is_custom and (
        message.floats[ZERO_COUNT_AT] != 0 or message.sizes[NEGATIVE_SPANS_AT] > 0 or message.sizes[NEGATIVES_AT] > 0
    ):
        return Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE.value, 0.0, 0.0, -1
    is_same = last_layout >= 0 and _have_same_layout(message, last)
    if not is_same:
        fault, seen, wanted = _write_candidate(message, layouts)
        if fault != 0:
            return fault, seen, wanted, -1
    negatives, positives = message.sizes[NEGATIVES_AT], message.sizes[POSITIVES_AT]
    begin = negatives if is_custom else negatives + 1
    if begin != 1:  # usually there are no negative buckets, but a zero bucket, and the counts are in place
        _move(counts, 1, begin, positives)
    for i in range(negatives):
        counts[i] = message.negative_counts[negatives - 1 - i]
    if not is_custom:
        counts[negatives] = message.floats[ZERO_COUNT_AT]
    size = begin + positives
    fault, seen, wanted = _check_counts(
        counts[:size], message.floats[OBSERVATIONS_AT], message.floats[SUM_AT], message.integers[IS_FLOAT_AT] != 0
    )
    if fault != 0:
        return fault, seen, wanted, -1
    if is_same:
        return 0, 0.0, 0.0, last_layout
    _keep_layout(message, last)
    zero_at = np.int64(NO_ZERO) if is_custom else negatives
    layout = intern(
        layouts, message.integers[SCHEMA_AT], message.floats[THRESHOLD_AT], zero_at, size, message.sizes[BOUNDS_AT]
    )
    return 0, 0.0, 0.0, layout


@inlined(allocates=False)
def _move(counts: Any, begin: Any, place: Any, size: Any) -> None:
    """Move counts[begin:begin + size] to counts[place:place + size]; the two may overlap."""
    if place < begin:
        for i in range(size):
            counts[place + i] = counts[begin + i]
    else:
        for i in range(size - 1, -1, -1):
            counts[place + i] = counts[begin + i]


@inlined(allocates=False)
def _have_same_layout(message: Message, last: Message) -> Any:
    """Whether all fields that determine a message's layout are as in the last one."""
    if (
        message.integers[SCHEMA_AT] != last.integers[SCHEMA_AT]
        or message.floats[THRESHOLD_AT] != last.floats[THRESHOLD_AT]
    ):
        return False
    for i in range(5):
        if message.sizes[i] != last.sizes[i]:
            return False
    differences = np.int64(0)
    for i in range(message.sizes[NEGATIVE_SPANS_AT]):
        for k in range(2):
            differences |= message.negative_spans[i, k] ^ last.negative_spans[i, k]
    for i in range(message.sizes[POSITIVE_SPANS_AT]):
        for k in range(2):
            differences |= message.positive_spans[i, k] ^ last.positive_spans[i, k]
    for i in range(message.sizes[BOUNDS_AT]):
        differences |= np.int64(message.bounds[i] != last.bounds[i])
    return differences == 0


@inlined(allocates=False)
def _keep_layout(message: Message, last: Message) -> None:
    """Keep the fields that `_have_same_layout` compares."""
    last.integers[SCHEMA_AT], last.floats[THRESHOLD_AT] = message.integers[SCHEMA_AT], message.floats[THRESHOLD_AT]
    for i in range(5):
        last.sizes[i] = message.sizes[i]
    for i in range(message.sizes[NEGATIVE_SPANS_AT]):
        for k in range(2):
            last.negative_spans[i, k] = message.negative_spans[i, k]
    for i in range(message.sizes[POSITIVE_SPANS_AT]):
        for k in range(2):
            last.positive_spans[i, k] = message.positive_spans[i, k]
    for i in range(message.sizes[BOUNDS_AT]):
        last.bounds[i] = message.bounds[i]


@kernel(
    types.Tuple((types.int64, types.float64, types.float64))(MESSAGE, COLLECTION),
    first=True,
    allocates=False,
    error_model="numpy",
)
def _write_candidate(message: Message, layouts: LayoutCollection) -> tuple[int, float, float]:
    """Check the layout of a message, and write its indexes and boundaries after those of the collection. Returns
    (fault or 0, the number seen, the one wanted)."""
    schema, threshold = message.integers[SCHEMA_AT], message.floats[THRESHOLD_AT]
    is_custom = schema == CUSTOM
    if not (is_custom or SCHEMA_MIN <= schema <= SCHEMA_MAX):
        return Fault.SCHEMA.value, float(schema), 0.0
    negatives, positives, bounds = message.sizes[NEGATIVES_AT], message.sizes[POSITIVES_AT], message.sizes[BOUNDS_AT]
    if is_custom and threshold != 0:
        return Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE.value, 0.0, 0.0
    if not 0.0 <= threshold < np.inf:
        return Fault.ZERO_THRESHOLD.value, threshold, 0.0
    if bounds > 0 and not is_custom:
        return Fault.BOUNDS_OF_EXPONENTIAL.value, float(schema), float(bounds)
    bound_at = layouts.bound_start[layouts.used[0]]
    for i in range(bounds):
        bound = message.bounds[i]
        if not -np.inf < bound < np.inf:
            return Fault.BOUND_NOT_FINITE.value, bound, 0.0
        if i > 0 and bound <= message.bounds[i - 1]:
            return Fault.BOUND_ORDER.value, bound, message.bounds[i - 1]
        layouts.bound[bound_at + i] = bound
    first, last = index_range(schema) if not is_custom else (np.int64(0), bounds)
    at = layouts.start[layouts.used[0]]
    begin = at if is_custom else at + negatives + 1
    for side in range(2):
        fault, seen, wanted = _place(
            message.negative_spans if side == 0 else message.positive_spans,
            message.sizes[NEGATIVE_SPANS_AT + side],
            message.sizes[NEGATIVES_AT + side],
            first,
            last,
            layouts.indexes[at : at + negatives] if side == 0 else layouts.indexes[begin : begin + positives],
        )
        if fault != 0:
            return fault, seen, wanted
    for i in range(negatives // 2):
        other = at + negatives - 1 - i
        layouts.indexes[at + i], layouts.indexes[other] = layouts.indexes[other], layouts.indexes[at + i]
    if not is_custom:
        layouts.indexes[at + negatives] = 0
    return 0, 0.0, 0.0


@kernel(
    types.Tuple((types.int64, types.float64, types.float64))(
        types.int64[:, ::1], types.int64, types.int64, types.int64, types.int64, types.int32[::1]
    ),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def _place(
    spans: Any, size: int, buckets: int, first: int, last: int, indexes: NDArray[np.int32]
) -> tuple[int, float, float]:
    """Fill `indexes` with the ascending indexes that the spans (int64[…, 2]: offset, length) give to so many buckets.
    Returns (fault or 0, the number seen, the one wanted)."""
    index, placed = np.int64(0), np.int64(0)
    for i in range(size):
        offset, length = spans[i, 0], spans[i, 1]
        if i > 0 and offset < 0:
            return Fault.SPAN_OFFSET.value, float(offset), 0.0
        index += offset
        if length > buckets - placed:
            return Fault.SPAN_LENGTHS.value, float(placed + length), float(buckets)
        if length > 0 and (index < first or index + length - 1 > last):
            seen = index if index < first else index + length - 1
            return Fault.INDEX.value, float(seen), float(last)
        for k in range(length):
            indexes[placed + k] = index + k
        index += length
        placed += length
    if placed != buckets:
        return Fault.SPAN_LENGTHS.value, float(placed), float(buckets)
    return 0, 0.0, 0.0


@kernel(
    types.Tuple((types.int64, types.float64, types.float64))(
        types.float64[::1], types.float64, types.float64, types.boolean
    ),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def _check_counts(counts: Floats, observations: float, total: float, is_float: bool) -> tuple[int, float, float]:
    """Returns (fault or 0, the number seen, the one wanted). The counts of an integer histogram must add up to its
    number of observations; if its sum is NaN, they may be fewer, because NaN observations are in no bucket. Those of a
    float histogram need not add up, since such sums are rounded."""
    in_buckets = _sum(counts)
    if is_float or np.isnan(in_buckets):
        for count in counts:
            if np.isnan(count) or count < 0:
                return Fault.NOT_A_NUMBER.value if np.isnan(count) else Fault.NEGATIVE_COUNT.value, count, 0.0
        if np.isnan(observations) or observations < 0:
            fault = Fault.NOT_A_NUMBER.value if np.isnan(observations) else Fault.NEGATIVE_COUNT.value
            return fault, observations, 0.0
        return 0, 0.0, 0.0
    # Up to 2^53 the sum is exact in any order; above that, it may have a rounding error.
    slack = 0.0 if in_buckets < 2.0**53 else in_buckets * 2.0**-40
    if in_buckets > observations + slack or (not np.isnan(total) and in_buckets < observations - slack):
        return Fault.COUNT.value, in_buckets, observations
    return 0, 0.0, 0.0


@inlined(allocates=False)
def _sum(counts: Any) -> Any:
    """The sum of the numbers, as four partial sums, so that an addition need not wait for the one before."""
    a = b = c = d = 0.0
    fours_end = counts.size // 4 * 4
    for i in range(0, fours_end, 4):
        a += counts[i]
        b += counts[i + 1]
        c += counts[i + 2]
        d += counts[i + 3]
    for i in range(fours_end, counts.size):
        a += counts[i]
    return (a + b) + (c + d)

"""Maps the buckets of a layout to those of another one: to a smaller schema, a wider zero bucket, fewer boundaries.

A bucket is identified by its **key**, an integer in the order of values: 0 for the zero bucket, ±(index + KEY_OFFSET)
for the others. Mapping keeps the order, so rows are added and compared by walking along two sorted lists of keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.histograms.batch import (
    EDGES,
    FLOATS,
    INTS,
    LAYOUTS,
    ROWS,
    Floats,
    HistogramColumns,
    Ints,
    LayoutColumns,
)
from shared.histograms.schemas import CUSTOM, reduced
from shared.kernels import inlined, kernel, types

KEY_OFFSET = 1 << 32
"""More than the largest index, which is that of the infinite observations of schema 8."""

WRITABLE_INTS, WRITABLE_FLOATS = types.int64[::1], types.float64[::1]


@inlined
def width(layouts: Any, layout: Any) -> Any:
    """The number of buckets of a layout."""
    return layouts.start[layout + 1] - layouts.start[layout]


@kernel(types.void(LAYOUTS, EDGES, types.int64, types.int64, types.float64, FLOATS, WRITABLE_INTS), error_model="numpy")
def map_buckets(
    layouts: LayoutColumns, edges: Floats, layout: int, schema: int, threshold: float, bounds: Floats, keys: Ints
) -> None:
    """Fill `keys` with the key that each bucket of a layout has in a layout with this schema, zero threshold and custom
    boundaries. The schema must not be larger than the layout's, the threshold not smaller, and the boundaries must be
    among the layout's. A bucket that lies within the wider zero bucket becomes part of it."""
    begin, buckets = layouts.start[layout], width(layouts, layout)
    if schema == CUSTOM:
        at = 0
        for i in range(buckets):
            while at < bounds.size and bounds[at] < edges[begin + i, 1]:
                at += 1
            keys[i] = at + KEY_OFFSET
        return
    zero, levels = layouts.zero_at[layout], layouts.schema[layout] - schema
    widens = layouts.zero_threshold[layout] < threshold
    for i in range(buckets):
        key = reduced(layouts.indexes[begin + i], levels) + KEY_OFFSET
        if i == zero or (widens and max(-edges[begin + i, 0], edges[begin + i, 1]) <= threshold):
            key = 0
        keys[i] = -key if i < zero else key


@kernel(types.float64(LAYOUTS, EDGES, ROWS, INTS, types.int64, types.int64, types.float64), error_model="numpy")
def common_threshold(
    layouts: LayoutColumns,
    edges: Floats,
    rows: HistogramColumns,
    members: Ints,
    begin: int,
    end: int,
    threshold: float,
) -> float:
    """The smallest zero threshold from `threshold` on that cuts no populated bucket of those rows of members[begin:end]
    that have a smaller threshold (the specification's section "Zero bucket").

    It is raised to the end of any bucket that it cuts. The new threshold can cut another bucket only in a smaller
    schema, so there are at most as many rounds as schemas.
    """
    is_raised = True
    while is_raised:
        is_raised = False
        for member in members[begin:end]:
            layout = rows.layout[member]
            if layouts.zero_threshold[layout] >= threshold:
                continue
            first, counts, zero = layouts.start[layout], rows.start[member], layouts.zero_at[layout]
            for i in range(width(layouts, layout)):
                left, right = edges[first + i, 0], edges[first + i, 1]
                if i < zero:
                    left, right = -right, -left
                if i != zero and left < threshold < right and rows.counts[counts + i] != 0:
                    threshold = right
                    is_raised = True
    return threshold


@kernel(types.int64(FLOATS, types.int64, WRITABLE_FLOATS), error_model="numpy")
def keep_common(bounds: Floats, kept: int, common: Floats) -> int:
    """Remove those of common[:kept] that are not among `bounds`; both ascend. Returns the number that is left."""
    left = at = 0
    for i in range(kept):
        while at < bounds.size and bounds[at] < common[i]:
            at += 1
        if at < bounds.size and bounds[at] == common[i]:
            common[left] = common[i]
            left += 1
    return left


@kernel(types.int64(WRITABLE_INTS, types.int64, WRITABLE_INTS, types.int64, WRITABLE_INTS), error_model="numpy")
def unite(keys: Ints, size: int, more: Ints, more_size: int, united: Ints) -> int:
    """Fill `united` with the keys of both ascending lists, each once. `more` may repeat keys, `keys` may not. Returns
    their number."""
    i = j = out = 0
    while i < size or j < more_size:
        if j == more_size or (i < size and keys[i] <= more[j]):
            key = keys[i]
            i += 1
        else:
            key = more[j]
            j += 1
        if out == 0 or united[out - 1] != key:
            united[out] = key
            out += 1
    return out


@inlined
def index_of(key: Any) -> Any:
    return np.int32(abs(key) - KEY_OFFSET) if key != 0 else np.int32(0)

"""Counter resets between neighbouring histograms of a series.

Source: the specification's section "Counter reset considerations". Custom boundaries that differ are reconciled first,
as the conformance scripts show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.histograms import alignment
from shared.histograms.alignment import WRITABLE_FLOATS, WRITABLE_INTS, map_buckets, width
from shared.histograms.batch import (
    EDGES,
    HINT,
    HINT_NOT_RESET,
    HINT_RESET,
    INTS,
    LAYOUTS,
    ROWS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    LayoutColumns,
    read_only,
)
from shared.histograms.schemas import CUSTOM
from shared.kernels import inlined, kernel, types


def resets(batch: HistogramBatch, previous: Ints, current: Ints) -> NDArray[np.bool_]:
    """Whether the counter was reset between row previous[i] and row current[i] (bool[…]). The reset hint of the current
    row decides if it is known, otherwise the numbers do. A gauge is treated like a counter. No row may be a stale
    marker.
    """
    result = np.empty(len(current), np.bool_)
    table = batch.layouts.columns
    widest = int(np.diff(table.start).max(initial=0)) + 1
    _detect(
        table, batch.layouts.edges, batch.columns, read_only(previous, np.int64), read_only(current, np.int64),
        np.empty(widest, np.int64), np.empty(widest, np.int64),
        np.empty(int(np.diff(table.bound_start).max(initial=0))), result,
    )  # fmt: skip
    return result


@kernel(
    types.void(
        LAYOUTS, EDGES, ROWS, INTS, INTS, WRITABLE_INTS, WRITABLE_INTS, WRITABLE_FLOATS,
        types.boolean[::1],
    ),
    error_model="numpy",
)  # fmt: skip
def _detect(
    layouts: LayoutColumns,
    edges: Floats,
    rows: HistogramColumns,
    previous: Ints,
    current: Ints,
    old_keys: Ints,
    new_keys: Ints,
    common: Floats,
    result: NDArray[np.bool_],
) -> None:
    """Fill `result`. `old_keys`, `new_keys` and `common` are buffers."""
    for i in range(current.size):
        old, new = previous[i], current[i]
        hint = rows.flags[new] & HINT
        if hint in (HINT_RESET, HINT_NOT_RESET):
            result[i] = hint == HINT_RESET
        elif rows.observations[new] < rows.observations[old]:
            result[i] = True
        elif rows.layout[old] == rows.layout[new]:
            result[i] = _any_falls(rows, old, new)
        else:
            result[i] = _differs_by_reset(layouts, edges, rows, old, new, old_keys, new_keys, common)


@inlined
def _any_falls(rows: Any, old: Any, new: Any) -> Any:
    first, second = rows.start[old], rows.start[new]
    falls = False
    for i in range(rows.start[old + 1] - first):
        falls |= rows.counts[second + i] < rows.counts[first + i]
    return falls


@kernel(
    types.boolean(
        LAYOUTS, EDGES, ROWS, types.int64, types.int64, WRITABLE_INTS, WRITABLE_INTS, WRITABLE_FLOATS
    ),
    error_model="numpy",
)  # fmt: skip
def _differs_by_reset(
    layouts: LayoutColumns,
    edges: Floats,
    rows: HistogramColumns,
    old: int,
    new: int,
    old_keys: Ints,
    new_keys: Ints,
    common: Floats,
) -> bool:
    """Whether the change of the layout is more than a loss of resolution, or the count of a bucket falls."""
    a, b = rows.layout[old], rows.layout[new]
    schema, threshold = layouts.schema[b], layouts.zero_threshold[b]
    if (layouts.schema[a] == CUSTOM) != (schema == CUSTOM):
        return True
    bounds = 0
    if schema == CUSTOM:
        bounds = layouts.bound_start[a + 1] - layouts.bound_start[a]
        common[:bounds] = layouts.bound[layouts.bound_start[a] : layouts.bound_start[a + 1]]
        bounds = alignment.keep_common(
            layouts.bound[layouts.bound_start[b] : layouts.bound_start[b + 1]], bounds, common
        )
    elif layouts.schema[a] < schema or layouts.zero_threshold[a] > threshold:
        return True
    elif layouts.zero_threshold[a] < threshold:
        members = np.array([old])
        if alignment.common_threshold(layouts, edges, rows, members, 0, 1, threshold) != threshold:
            return True
    map_buckets(layouts, edges, a, schema, threshold, common[:bounds], old_keys)
    map_buckets(layouts, edges, b, schema, threshold, common[:bounds], new_keys)
    return _any_key_falls(
        old_keys[: width(layouts, a)],
        rows.counts[rows.start[old] : rows.start[old + 1]],
        new_keys[: width(layouts, b)],
        rows.counts[rows.start[new] : rows.start[new + 1]],
    )


@inlined
def _any_key_falls(old_keys: Any, old: Any, new_keys: Any, new: Any) -> Any:
    """Whether the total count of some key is less in `new` than in `old`; keys ascend and may repeat."""
    i = j = 0
    while i < old_keys.size:
        key, before, after = old_keys[i], 0.0, 0.0
        while i < old_keys.size and old_keys[i] == key:
            before += old[i]
            i += 1
        while j < new_keys.size and new_keys[j] <= key:
            if new_keys[j] == key:
                after += new[j]
            j += 1
        if after < before:
            return True
    return False

"""Kernels that read one data point of an OTLP metrics request."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.otlp.keyed_hash import Keys, keyed_hash, mixed
from coordinator.series.walk_v2 import any_field
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import integer
from shared.xxh64 import Bytes, load64

PLAIN, ODD, BROKEN, TOO_MANY = range(4)
"""What a walk returns."""

METRIC, POINT_BEGIN, POINT_END, KEY, TIME_MS, START_MS, VALUE = range(7)
COUNT, BUCKETS, HAS_SUM, SERIES, STATE, OWN_EXEMPLARS, ENTRY = range(7, 14)
"""Columns of a point. VALUE: the bits of its value, or of a histogram's sum if HAS_SUM; COUNT: a histogram's number of
observations; BUCKETS: offset of its bucket counts; SERIES: number of series that the point becomes."""
POINT_COLUMNS = 14

READY, STALE, BY_HAND, NO_VALUE, BUCKETS_DIFFER, NO_TIME, REFUSED = range(7)
"""STATE: a kernel writes READY and STALE points, the protobuf library reads those BY_HAND; the others are refused."""

NS_PER_MS = 1_000_000

_INTS = types.Array(types.int64, 1, "C")


@inlined(allocates=False)
def next_field(body: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """The field at `at` < `end`: (tag, start of its content, start of the next field). The tag is -1 if the field is
    incomplete."""
    tag = np.int64(body[at])
    if tag < 0x80 and tag >= 8:
        if tag & 7 == 1 and at + 9 <= end:
            return tag, at + 1, at + 9
        if tag & 7 == 2 and at + 1 < end and body[at + 1] < 0x80 and at + 2 + body[at + 1] <= end:
            return tag, at + 2, at + 2 + np.int64(body[at + 1])
    return any_field(body, at, end)


@inlined(allocates=False)
def _time_ms(body: np.ndarray, at: int) -> int:
    return np.int64(load64(body, at) // np.uint64(NS_PER_MS))


@kernel(types.int64(Bytes, types.int64, types.int64, _INTS, Keys), first=True, allocates=False)
def read_number(body: np.ndarray, at: int, end: int, point: np.ndarray, keys: np.ndarray) -> int:
    """Read a NumberDataPoint."""
    point[STATE] = NO_VALUE
    point[SERIES] = 1
    run, run_end = np.int64(0), np.int64(-1)
    key = np.uint64(point[KEY])
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x3A:
            if run_end != at:
                if run_end >= 0:
                    key = keyed_hash(body, run, run_end, key, keys)
                run = at
            run_end = field_end
        elif tag == 0x11:
            point[START_MS] = _time_ms(body, content)
        elif tag == 0x19:
            point[TIME_MS] = _time_ms(body, content)
        elif tag == 0x21:
            point[VALUE] = np.int64(load64(body, content))
            point[STATE] = READY if point[STATE] == NO_VALUE else point[STATE]
        elif tag == 0x31:
            point[VALUE] = np.float64(np.int64(load64(body, content))).view(np.int64)
            point[STATE] = READY if point[STATE] == NO_VALUE else point[STATE]
        elif tag == 0x2A:
            point[OWN_EXEMPLARS] += 1
        elif tag == 0x40:
            flags, _ = integer(body, content, field_end)
            if flags & 1:
                point[STATE] = STALE
        at = field_end
    if point[TIME_MS] == 0 and point[STATE] <= STALE:
        point[STATE] = NO_TIME
    if run_end >= 0:
        key = keyed_hash(body, run, run_end, key, keys)
    point[KEY] = np.int64(key)
    return PLAIN


@kernel(types.int64(Bytes, types.int64, types.int64, _INTS, Keys), first=True, allocates=False)
def read_histogram(body: np.ndarray, at: int, end: int, point: np.ndarray, keys: np.ndarray) -> int:
    """Read a HistogramDataPoint. It becomes a series for its sum, if it has one, for its count, and for each bucket."""
    run, run_end, counts, bounds = np.int64(0), np.int64(-1), np.int64(-1), np.int64(-1)
    key = np.uint64(point[KEY])
    stale = False
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x4A:
            if run_end != at:
                if run_end >= 0:
                    key = keyed_hash(body, run, run_end, key, keys)
                run = at
            run_end = field_end
        elif tag == 0x11:
            point[START_MS] = _time_ms(body, content)
        elif tag == 0x19:
            point[TIME_MS] = _time_ms(body, content)
        elif tag == 0x21:
            point[COUNT] = np.int64(load64(body, content))
        elif tag == 0x29:
            point[VALUE] = np.int64(load64(body, content))
            point[HAS_SUM] = 1
        elif tag == 0x32:
            if counts >= 0 or (field_end - content) % 8 != 0:
                return ODD
            point[BUCKETS], counts = content, (field_end - content) // 8
        elif tag == 0x3A:
            if bounds >= 0 or (field_end - content) % 8 != 0:
                return ODD
            bounds = (field_end - content) // 8
            key = keyed_hash(body, content, field_end, key, keys)
        elif tag == 0x42:
            point[OWN_EXEMPLARS] += 1
        elif tag == 0x50:
            flags, _ = integer(body, content, field_end)
            stale = flags & 1 != 0
        elif tag == 0x31 or tag == 0x39:  # counts or bounds one by one
            return ODD
        at = field_end
    if run_end >= 0:
        key = keyed_hash(body, run, run_end, key, keys)
    counts, bounds = max(counts, np.int64(0)), max(bounds, np.int64(0))
    point[KEY] = np.int64(mixed(key, np.uint64(bounds << 1 | point[HAS_SUM]), keys))
    point[SERIES] = point[HAS_SUM] + 2 + bounds
    point[STATE] = STALE if stale else READY
    if not stale and counts != bounds + 1 and (counts > 0 or bounds > 0):
        point[STATE] = BUCKETS_DIFFER
    if point[TIME_MS] == 0 and point[STATE] <= STALE:
        point[STATE] = NO_TIME
    return PLAIN

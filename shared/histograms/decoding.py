"""Native histograms of remote write: from protobuf messages to a batch, with a fault for each that is not valid.

`prometheus.Histogram` (1.0) and `io.prometheus.write.v2.Histogram` (2.0) have the same fields, but for custom
boundaries and start timestamps, which only 2.0 has. What is valid: the specification's section "Data model". A
histogram with a schema of 9 to 52, which a receiver may reduce, is refused like every other unknown schema.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared import kernel_types as types
from shared.histograms.batch import (
    HINT,
    IS_FLOAT,
    NO_ZERO,
    STALE_SUM_BITS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    read_only,
    sealed,
)
from shared.histograms.fields import BUCKETS_MAX, FAULTS, Fault, Message, new_message, read_message
from shared.histograms.fields import MESSAGE as _MESSAGE
from shared.histograms.frame_layout import digits_of
from shared.histograms.interning import COLLECTION, LayoutCollection, collection, intern, views
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN, index_range
from shared.histograms.text import answer_number
from shared.kernels import inlined, kernel
from shared.xxh64 import Bytes

_INT64, _READ = types.int64[::1], types.Array(types.int64, 1, "C", readonly=True)
_UNSIGNED_LIMIT = 2.0**64


class Decoded(NamedTuple):
    """A row for each message. A row with a fault is an empty histogram."""

    batch: HistogramBatch
    timestamps_ms: Ints
    start_timestamps_ms: Ints
    """0: none."""
    faults: NDArray[np.uint8]
    """uint8[rows]: a Fault, of which 0 is none."""
    seen: Floats
    wanted: Floats
    """float64[rows]: the numbers that the text of a fault names."""
    digits: Ints
    """int64[rows]: what `frame_layout.digits_of` says of the counts."""

    def fault_text(self, row: int) -> str:
        """What is wrong with a histogram that has a fault: the value seen, and what would be right."""
        seen, wanted = (answer_number(float(number)) for number in (self.seen[row], self.wanted[row]))
        return FAULTS[Fault(int(self.faults[row]))].format(seen=seen, wanted=wanted)


class _Output(NamedTuple):
    """Writable columns with room for all rows."""

    layout: NDArray[np.int32]
    flags: NDArray[np.uint8]
    observations: Floats
    sum: Floats
    start: Ints
    timestamps_ms: Ints
    start_timestamps_ms: Ints
    faults: NDArray[np.uint8]
    seen: Floats
    wanted: Floats
    digits: Ints


_OUTPUT = types.NamedTuple(
    (
        types.int32[::1], types.uint8[::1], types.float64[::1], types.float64[::1], _INT64, _INT64, _INT64,
        types.uint8[::1], types.float64[::1], types.float64[::1], _INT64,
    ),
    _Output,
)  # fmt: skip


class _Buffers(threading.local):
    """Those of a thread, which are used again and again: 960 kB, of which few messages touch more than a page or
    two."""

    def __init__(self) -> None:
        self.messages = new_message(), new_message()


_buffers = _Buffers()


def decoded(body: NDArray[np.uint8], begins: Ints, ends: Ints) -> Decoded:
    """The histograms whose messages are body[begins[i]:ends[i]], each 0 ≤ begins[i] ≤ ends[i] ≤ len(body).

    Memory is bounded by the bytes of the messages, whatever they claim: up to 21 bytes for each of theirs, since a
    count and the index of a bucket take a byte at least, and some 160 for each row. The result keeps all of it.
    """
    rows = len(begins)
    out = _Output(
        np.empty(rows, np.int32), np.empty(rows, np.uint8), np.empty(rows), np.empty(rows),
        np.zeros(rows + 1, np.int64), np.empty(rows, np.int64), np.empty(rows, np.int64), np.empty(rows, np.uint8),
        np.empty(rows), np.empty(rows), np.empty(rows, np.int64),
    )  # fmt: skip
    size = int((ends - begins).sum())
    layouts = collection(rows + 1, size + rows + 1, size // 8 + 1)
    counts = np.empty(min(size + rows, max(size // 2, 64 * rows)) + BUCKETS_MAX + 1)
    (message, last), row = _buffers.messages, 0
    begins, ends = read_only(begins, np.int64), read_only(ends, np.int64)
    while True:
        row = _decode(read_only(body, np.uint8), begins, ends, row, message, last, layouts, out, counts)
        if row == rows:
            break
        counts = np.concatenate((counts, np.empty(len(counts))))
    columns = HistogramColumns(out.layout, out.flags, out.observations, out.sum, out.start, counts[: out.start[-1]])
    batch = HistogramBatch(views(layouts), sealed(columns))
    return Decoded(batch, *out[5:])


@kernel(
    types.int64(Bytes, _READ, _READ, types.int64, _MESSAGE, _MESSAGE, COLLECTION, _OUTPUT, types.float64[::1]),
    first=True,
    allocates=False,
    error_model="numpy",
)
def _decode(
    body: NDArray[np.uint8],
    begins: Ints,
    ends: Ints,
    row: int,
    message: Message,
    last: Message,
    layouts: LayoutCollection,
    out: _Output,
    counts: Floats,
) -> int:
    """Decode from message `row` on, until all are done or `counts` may be too short for the next one. Returns the
    number of the next one. `message` is a buffer, and so is `last`, for what gave the last message its layout."""
    last_layout = np.int64(-1)
    while row < begins.size and out.start[row] + BUCKETS_MAX + 1 <= counts.size:
        at = out.start[row]
        fault, seen, wanted = read_message(body, begins[row], ends[row], message, counts[at + 1 :])
        out.timestamps_ms[row] = message.integers[0]
        out.start_timestamps_ms[row] = message.integers[1]
        total = message.floats[0]
        is_stale = message.floats[:1].view(np.int64)[0] == STALE_SUM_BITS
        layout = np.int64(-1)
        if fault == 0 and not is_stale:
            fault, seen, wanted, layout = _validate(
                message, last, last_layout, layouts, counts[at : at + BUCKETS_MAX + 1]
            )
            last_layout = layout if fault == 0 else last_layout
        out.flags[row] = (message.integers[2] & HINT) | (IS_FLOAT if message.integers[3] == 1 else 0)
        out.observations[row], out.sum[row] = message.floats[2], total
        if layout < 0:  # a fault, or a stale marker, of which only the sum counts
            layouts.indexes[layouts.start[layouts.used[0]]] = 0
            layout = intern(layouts, 0, 0.0, 0, 1, 0)
            counts[at] = out.observations[row] = 0.0
            if fault != 0:
                out.sum[row] = 0.0
        out.layout[row] = layout
        out.faults[row], out.seen[row], out.wanted[row] = fault, seen, wanted
        out.start[row + 1] = at + layouts.start[layout + 1] - layouts.start[layout]
        out.digits[row] = digits_of(counts[at : out.start[row + 1]])  # while the processor has them at hand
        row += 1
    return row


@kernel(
    types.Tuple((types.int64, types.float64, types.float64, types.int64))(
        _MESSAGE, _MESSAGE, types.int64, COLLECTION, types.float64[::1]
    ),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def _validate(
    message: Message, last: Message, last_layout: int, layouts: LayoutCollection, counts: Floats
) -> tuple[int, float, float, int]:
    """Check a message, put its counts in order, of which those of positive buckets are at counts[1:], and intern its
    layout, which mostly is `last_layout`, the one that the message `last` has, if any. Returns (fault or 0, the number
    seen, the one wanted, the layout or -1)."""
    is_custom = message.integers[4] == CUSTOM
    if is_custom and (message.floats[3] != 0 or message.sizes[0] > 0 or message.sizes[2] > 0):
        return Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE.value, 0.0, 0.0, -1
    is_same = last_layout >= 0 and _have_same_layout(message, last)
    if not is_same:
        fault, seen, wanted = _write_candidate(message, layouts)
        if fault != 0:
            return fault, seen, wanted, -1
    negatives, positives = message.sizes[2], message.sizes[3]
    begin = negatives if is_custom else negatives + 1
    if begin != 1:  # where they are if there are no negative buckets but a zero bucket, as mostly
        _move(counts, 1, begin, positives)
    for i in range(negatives):
        counts[i] = message.negative_counts[negatives - 1 - i]
    if not is_custom:
        counts[negatives] = message.floats[3]
    size = begin + positives
    fault, seen, wanted = _check_counts(counts[:size], message.floats[2], message.floats[0], message.integers[3] != 0)
    if fault != 0:
        return fault, seen, wanted, -1
    if is_same:
        return 0, 0.0, 0.0, last_layout
    _keep_layout(message, last)
    zero_at = np.int64(NO_ZERO) if is_custom else negatives
    layout = intern(layouts, message.integers[4], message.floats[1], zero_at, size, message.sizes[4])
    return 0, 0.0, 0.0, layout


@inlined(allocates=False)
def _move(counts: Any, begin: Any, place: Any, size: Any) -> None:
    """Move counts[begin:begin + size] to counts[place:place + size], which may overlap."""
    if place < begin:
        for i in range(size):
            counts[place + i] = counts[begin + i]
    else:
        for i in range(size - 1, -1, -1):
            counts[place + i] = counts[begin + i]


@inlined(allocates=False)
def _have_same_layout(message: Message, last: Message) -> Any:
    """Whether all that gives a message its layout is as in the last one."""
    if message.integers[4] != last.integers[4] or message.floats[1] != last.floats[1]:
        return False
    for i in range(5):
        if message.sizes[i] != last.sizes[i]:
            return False
    differences = np.int64(0)
    for i in range(message.sizes[0]):
        for k in range(2):
            differences |= message.negative_spans[i, k] ^ last.negative_spans[i, k]
    for i in range(message.sizes[1]):
        for k in range(2):
            differences |= message.positive_spans[i, k] ^ last.positive_spans[i, k]
    for i in range(message.sizes[4]):
        differences |= np.int64(message.bounds[i] != last.bounds[i])
    return differences == 0


@inlined(allocates=False)
def _keep_layout(message: Message, last: Message) -> None:
    """Keep what `_have_same_layout` compares."""
    last.integers[4], last.floats[1] = message.integers[4], message.floats[1]
    for i in range(5):
        last.sizes[i] = message.sizes[i]
    for i in range(message.sizes[0]):
        for k in range(2):
            last.negative_spans[i, k] = message.negative_spans[i, k]
    for i in range(message.sizes[1]):
        for k in range(2):
            last.positive_spans[i, k] = message.positive_spans[i, k]
    for i in range(message.sizes[4]):
        last.bounds[i] = message.bounds[i]


@kernel(
    types.Tuple((types.int64, types.float64, types.float64))(_MESSAGE, COLLECTION),
    first=True,
    allocates=False,
    error_model="numpy",
)
def _write_candidate(message: Message, layouts: LayoutCollection) -> tuple[int, float, float]:
    """Check the layout of a message, and write its indexes and boundaries behind those of the collection. Returns
    (fault or 0, the number seen, the one wanted)."""
    schema, threshold = message.integers[4], message.floats[1]
    is_custom = schema == CUSTOM
    if not (is_custom or SCHEMA_MIN <= schema <= SCHEMA_MAX):
        return Fault.SCHEMA.value, float(schema), 0.0
    negatives, positives, bounds = message.sizes[2], message.sizes[3], message.sizes[4]
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
            message.sizes[side],
            message.sizes[2 + side],
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
    """Fill `indexes` with those that the spans (int64[…, 2]: offset, length) give to so many buckets, ascending.
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
    """Returns (fault or 0, the number seen, the one wanted). The counts of an integer histogram add up to its number of
    observations; where its sum is NaN, observations of NaN are in no bucket. Those of a float histogram need not, since
    sums of such numbers are rounded."""
    in_buckets = _sum(counts)
    if is_float or np.isnan(in_buckets):
        for count in counts:
            if np.isnan(count) or count < 0:
                return Fault.NOT_A_NUMBER.value if np.isnan(count) else Fault.NEGATIVE_COUNT.value, count, 0.0
        if np.isnan(observations) or observations < 0:
            fault = Fault.NOT_A_NUMBER.value if np.isnan(observations) else Fault.NEGATIVE_COUNT.value
            return fault, observations, 0.0
        return 0, 0.0, 0.0
    # Up to 2^53 the sum is exact in any order; above that it may be off by its rounding.
    slack = 0.0 if in_buckets < 2.0**53 else in_buckets * 2.0**-40
    if in_buckets > observations + slack or (not np.isnan(total) and in_buckets < observations - slack):
        return Fault.COUNT.value, in_buckets, observations
    return 0, 0.0, 0.0


@inlined(allocates=False)
def _sum(counts: Any) -> Any:
    """The sum of these numbers: of four parts, so that an addition need not wait for the one before."""
    a = b = c = d = 0.0
    whole = counts.size // 4 * 4
    for i in range(0, whole, 4):
        a += counts[i]
        b += counts[i + 1]
        c += counts[i + 2]
        d += counts[i + 3]
    for i in range(whole, counts.size):
        a += counts[i]
    return (a + b) + (c + d)

"""Native histograms of remote write: from protobuf messages to a batch, with a fault for each invalid one.

`prometheus.Histogram` (1.0) and `io.prometheus.write.v2.Histogram` (2.0) have the same fields, except for custom
boundaries and start timestamps, which only 2.0 has. Source of what is valid: the specification's section "Data model".
A histogram with a schema of 9 to 52, which a receiver may reduce, is refused like any other unknown schema.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import (
    HINT,
    IS_FLOAT,
    STALE_SUM_BITS,
    Floats,
    HistogramBatch,
    HistogramColumns,
    Ints,
    read_only,
    sealed,
)
from shared.histograms.fields import (
    BUCKETS_MAX,
    FAULTS,
    HINT_AT,
    IS_FLOAT_AT,
    MESSAGE,
    OBSERVATIONS_AT,
    START_AT,
    SUM_AT,
    TIMESTAMP_AT,
    Fault,
    Message,
    new_message,
    read_message,
)
from shared.histograms.frame_layout import digits_of
from shared.histograms.interning import COLLECTION, LayoutCollection, collection, intern, views
from shared.histograms.text import answer_number
from shared.histograms.validation import validate
from shared.kernels import kernel, types
from shared.xxh64 import Bytes

_INT64, _READ = types.int64[::1], types.Array(types.int64, 1, "C", readonly=True)


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
    """float64[rows]: the numbers in the text of a fault."""
    digits: Ints
    """int64[rows]: `frame_layout.digits_of` of the counts."""

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
    """The message buffers of a thread, which are reused: 960 kB, of which most messages touch only a page or two."""

    def __init__(self) -> None:
        self.messages = new_message(), new_message()


_buffers = _Buffers()


def decoded(body: NDArray[np.uint8], begins: Ints, ends: Ints) -> Decoded:
    """The histograms whose messages are body[begins[i]:ends[i]], each 0 ≤ begins[i] ≤ ends[i] ≤ len(body).

    Memory is bounded by the size of the messages, whatever they claim: up to 21 bytes for each of their bytes, since a
    count and the index of a bucket take at least a byte, plus about 160 for each row. The result keeps all of it.
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
    types.int64(Bytes, _READ, _READ, types.int64, MESSAGE, MESSAGE, COLLECTION, _OUTPUT, types.float64[::1]),
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
    """Decode the messages from number `row` on, until all are done or `counts` may be too short for the next one.
    Returns the number of the next one. `message` and `last` are buffers; `last` keeps the fields that determined the
    last message's layout."""
    last_layout = np.int64(-1)
    while row < begins.size and out.start[row] + BUCKETS_MAX + 1 <= counts.size:
        at = out.start[row]
        fault, seen, wanted = read_message(body, begins[row], ends[row], message, counts[at + 1 :])
        out.timestamps_ms[row] = message.integers[TIMESTAMP_AT]
        out.start_timestamps_ms[row] = message.integers[START_AT]
        total = message.floats[SUM_AT]
        is_stale = message.floats[:1].view(np.int64)[0] == STALE_SUM_BITS
        layout = np.int64(-1)
        if fault == 0 and not is_stale:
            fault, seen, wanted, layout = validate(
                message, last, last_layout, layouts, counts[at : at + BUCKETS_MAX + 1]
            )
            last_layout = layout if fault == 0 else last_layout
        out.flags[row] = (message.integers[HINT_AT] & HINT) | (IS_FLOAT if message.integers[IS_FLOAT_AT] == 1 else 0)
        out.observations[row], out.sum[row] = message.floats[OBSERVATIONS_AT], total
        if layout < 0:  # a fault, or a stale marker, of which only the sum matters
            layouts.indexes[layouts.start[layouts.used[0]]] = 0
            layout = intern(layouts, 0, 0.0, 0, 1, 0)
            counts[at] = out.observations[row] = 0.0
            if fault != 0:
                out.sum[row] = 0.0
        out.layout[row] = layout
        out.faults[row], out.seen[row], out.wanted[row] = fault, seen, wanted
        out.start[row + 1] = at + layouts.start[layout + 1] - layouts.start[layout]
        out.digits[row] = digits_of(counts[at : out.start[row + 1]])  # while they are in the CPU's cache
        row += 1
    return row

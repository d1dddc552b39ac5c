"""The native histograms of a remote-write request: found, decoded, and divided by shard into frames.

A request without histograms never comes here. What is not valid is refused, and the rest is stored. Decoding takes some
ten times the bytes of the messages, so it is done in slices.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coordinator.series.histogram_frames import GroupedHistograms, Slice
from coordinator.series.walk import HISTOGRAMS, PLAIN, STATUS
from coordinator.series.walk_v2 import HISTOGRAMS_BEGIN, HISTOGRAMS_END, next_field
from coordinator.series.walked import Walk
from proto.remote_write_v2_pb2 import HistogramStart
from shared import kernel_types as types
from shared.errors import TooLarge
from shared.histograms import decoding
from shared.histograms.decoding import Decoded
from shared.kernels import kernel
from shared.sample_frames import TIME_MS_MAX, TIME_MS_MIN
from shared.xxh64 import Bytes

HISTOGRAMS_MAX = 1 << 18
"""Histograms of one request: each takes some 40 bytes of a frame, besides its buckets."""
BUCKETS_MAX = 1 << 22
"""Buckets of all histograms of one request: each takes up to 8 bytes of a frame."""
SLICE_BYTES = 1 << 20
"""Messages that are decoded at a time, but for a single larger one."""
SLICES_MAX = 16
"""Of a request, about: a shard gets a frame of each, and a message to a worker has at most `wire.FRAMES_MAX`."""
FAULTS_SHOWN_MAX = 5

TAG, TAG_V2 = 0x22, 0x1A
"""The field of a TimeSeries that is a histogram, in version 1.0 and 2.0."""
# What the table of histograms has: the row of the series of each, and its message in the body.
ROW, BEGIN, MESSAGE_END = range(3)
COLUMNS = 3

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")


@kernel(types.void(Bytes, types.int64, _INTS, _INTS, _INTS, _TABLE), first=True, allocates=False)
def _locate(
    body: np.ndarray, wanted: int, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray, table: np.ndarray
) -> None:
    count = 0
    for i in range(len(rows)):
        at = begins[i]
        while at < ends[i]:
            tag, content, at = next_field(body, at, ends[i])
            if tag == wanted:
                table[ROW, count], table[BEGIN, count], table[MESSAGE_END, count] = rows[i], content, at
                count += 1


def locate(
    body: NDArray[np.uint8],
    tag: int,
    rows: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    count: int,
) -> NDArray[np.int64]:
    """int64[COLUMNS, count]: the histograms among the fields body[begins[i]:ends[i]], which are whole, of the series in
    these rows of a walk, of which there are so many. Raises TooLarge for more than HISTOGRAMS_MAX."""
    if count > HISTOGRAMS_MAX:
        raise TooLarge(f"the request has {count} histograms; the limit is {HISTOGRAMS_MAX}, send fewer at a time")
    table = np.empty((COLUMNS, count), dtype=np.int64)
    _locate(body, tag, rows, begins, ends, table)
    return table


def of_spans(walk: Walk, spans: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """The histograms of the plain series of a walk of version 2.0, which are in these `spans` (columns of
    `coordinator.series.walk_v2`), if there are any. Raises TooLarge for more than HISTOGRAMS_MAX."""
    count = int(walk.counts[HISTOGRAMS])
    if not count:
        return None
    rows = np.flatnonzero((walk.table[:, STATUS] == PLAIN) & (spans[:, HISTOGRAMS_END] > 0))
    begins, ends = (spans[rows, column].astype(np.int64) for column in (HISTOGRAMS_BEGIN, HISTOGRAMS_END))
    return locate(walk.body, TAG_V2, rows, begins, ends, count)


def with_start(message: bytes, start_ms: int) -> bytes:
    """The message of a histogram with this start timestamp, unless it has one of its own, which comes later."""
    return HistogramStart(start_timestamp=start_ms).SerializeToString() + message if start_ms else message


@dataclass(slots=True)
class Divided:
    """Histograms divided by shard. `refused`: how many are not valid; `faults`: (row of the series, what is wrong) of
    the first FAULTS_SHOWN_MAX of them."""

    slices: list[Slice] = field(default_factory=list)
    stored: int = 0
    refused: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)


def divide(walk: Walk, located: NDArray[np.int64], shards: int) -> Divided:
    """Decode the located histograms of a walk, and divide them by shard. Raises TooLarge for more than BUCKETS_MAX
    buckets."""
    divided, buckets = Divided(), 0
    for part in _slices(located[MESSAGE_END] - located[BEGIN]):
        rows, begins, ends = located[:, part]
        decoded = decoding.decoded(walk.body, begins, ends)
        buckets += decoded.batch.buckets
        if buckets > BUCKETS_MAX:
            raise TooLarge(
                f"the histograms have more than {BUCKETS_MAX} buckets together, the limit; send fewer at a time"
            )
        grouped = GroupedHistograms.of(walk, rows, decoded, shards)
        refused = grouped.refused()
        for row in refused[: FAULTS_SHOWN_MAX - len(divided.faults)].tolist():
            divided.faults.append((rows.item(row), _fault(decoded, row, grouped.starts_ms.item(row))))
        divided.stored += len(rows) - len(refused)
        divided.refused += len(refused)
        divided.slices.append(grouped.slice(walk, decoded))
    return divided


def _slices(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Consecutive messages, those of a slice with SLICE_BYTES together, or one. Of more than SLICES_MAX times as many
    bytes, the slices are larger, so that there are at most twice SLICES_MAX of them."""
    total = int(sizes.sum())
    if total <= SLICE_BYTES:  # nearly always
        yield slice(0, len(sizes))
        return
    ends = np.cumsum(sizes)
    slice_bytes = max(SLICE_BYTES, total // SLICES_MAX)
    first = 0
    while first < len(sizes):
        before = int(ends[first]) - int(sizes[first])
        end = max(first + 1, int(np.searchsorted(ends, before + slice_bytes, side="right")))
        yield slice(first, end)
        first = end


def _fault(decoded: Decoded, row: int, start_ms: int) -> str:
    """What is wrong with this histogram."""
    time_ms = int(decoded.timestamps_ms[row])
    if decoded.faults[row]:
        return f"the histogram at {time_ms} ms is not valid: {decoded.fault_text(row)}"
    what, seen = ("timestamp", time_ms) if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX else ("start timestamp", start_ms)
    return f"a histogram's {what} is {seen} ms; it must lie within the years 1 to 9999"

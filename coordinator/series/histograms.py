"""Locates and decodes the native histograms of a remote-write request, and writes them as frames by shard.

Not called for requests without histograms. Invalid histograms are refused, and the others are stored. Decoding takes
about ten times the bytes of the messages, so it is done in slices.
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
from shared.errors import TooLarge
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.histograms import decoding
from shared.histograms.decoding import Decoded
from shared.kernels import kernel, types
from shared.xxh64 import Bytes

HISTOGRAMS_MAX = 1 << 18
"""Histograms of one request: each takes about 40 bytes of a frame, besides its buckets."""
BUCKETS_MAX = 1 << 22
"""Buckets of all histograms of one request: each takes up to 8 bytes of a frame."""
SLICE_BYTES = 1 << 20
"""Bytes of the messages that are decoded at a time. A single message may be larger."""
SLICES_MAX = 16
"""About the most slices of a request: each shard gets a frame for each slice, and a message to a worker has at most
`wire.FRAMES_MAX` frames."""
FAULTS_SHOWN_MAX = 5

TAG, TAG_V2 = 0x22, 0x1A
"""The tag of a TimeSeries field that is a histogram, in version 1.0 and in version 2.0."""
# Rows of the table of histograms: the row of the histogram's series, and where its message begins and ends in the body.
ROW, BEGIN, MESSAGE_END = range(3)
COLUMNS = 3

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")


@kernel(types.void(Bytes, types.int64, _INTS, _INTS, _INTS, _TABLE), first=True, allocates=False)
def _locate(
    body: np.ndarray, histogram_tag: int, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray, table: np.ndarray
) -> None:
    count = 0
    for i in range(len(rows)):
        at = begins[i]
        while at < ends[i]:
            tag, content, at = next_field(body, at, ends[i])
            if tag == histogram_tag:
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
    """Locate the `count` histograms among the fields body[begins[i]:ends[i]] of the series in rows[i] of a walk. No
    field may be truncated. Returns int64[COLUMNS, count]. Raises TooLarge for more than HISTOGRAMS_MAX."""
    if count > HISTOGRAMS_MAX:
        raise TooLarge(f"the request has {count} histograms; the limit is {HISTOGRAMS_MAX}, send fewer at a time")
    table = np.empty((COLUMNS, count), dtype=np.int64)
    _locate(body, tag, rows, begins, ends, table)
    return table


def of_spans(walk: Walk, spans: NDArray[np.int32]) -> NDArray[np.int64] | None:
    """Locate the histograms of the plain series of a walk of version 2.0; None if there are none. `spans` says where
    the histograms of each series are (columns of `coordinator.series.walk_v2`). Raises TooLarge for more than
    HISTOGRAMS_MAX."""
    count = int(walk.counts[HISTOGRAMS])
    if not count:
        return None
    rows = np.flatnonzero((walk.table[:, STATUS] == PLAIN) & (spans[:, HISTOGRAMS_END] > 0))
    begins, ends = (spans[rows, column].astype(np.int64) for column in (HISTOGRAMS_BEGIN, HISTOGRAMS_END))
    return locate(walk.body, TAG_V2, rows, begins, ends, count)


def with_start(message: bytes, start_ms: int) -> bytes:
    """The message of a histogram with this start timestamp (Unix ms; 0 for none). A start timestamp in the message
    itself takes precedence, since protobuf uses the last value of a field."""
    return HistogramStart(start_timestamp=start_ms).SerializeToString() + message if start_ms else message


@dataclass(slots=True)
class Divided:
    """Histograms by shard. `stored` and `refused`: how many are valid and invalid. `faults`: (row of the series,
    reason) for the first FAULTS_SHOWN_MAX invalid ones."""

    slices: list[Slice] = field(default_factory=list)
    stored: int = 0
    refused: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)


def divide(walk: Walk, located: NDArray[np.int64], shards: int) -> Divided:
    """Decode the located histograms of a walk, and group them by shard. Raises TooLarge for more than BUCKETS_MAX
    buckets."""
    divided, buckets = Divided(), 0
    for messages in _slices(located[MESSAGE_END] - located[BEGIN]):
        rows, begins, ends = located[:, messages]
        decoded = decoding.decoded(walk.body, begins, ends)
        buckets += decoded.batch.buckets
        if buckets > BUCKETS_MAX:
            raise TooLarge(
                f"the histograms have more than {BUCKETS_MAX} buckets together, the limit; send fewer at a time"
            )
        grouped = GroupedHistograms.of(walk, rows, decoded, shards)
        refused_rows = grouped.refused()
        for row in refused_rows[: FAULTS_SHOWN_MAX - len(divided.faults)].tolist():
            divided.faults.append((rows.item(row), _fault(decoded, row, grouped.starts_ms.item(row))))
        divided.stored += len(rows) - len(refused_rows)
        divided.refused += len(refused_rows)
        divided.slices.append(grouped.slice(walk, decoded))
    return divided


def _slices(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Split consecutive messages into slices of at most SLICE_BYTES, or of a single larger message. If that would give
    more than about SLICES_MAX slices, they are larger, so that there are at most twice SLICES_MAX."""
    total = int(sizes.sum())
    if total <= SLICE_BYTES:  # nearly always
        yield slice(0, len(sizes))
        return
    ends = np.cumsum(sizes)
    slice_bytes = max(SLICE_BYTES, total // SLICES_MAX)
    first = 0
    while first < len(sizes):
        bytes_before = int(ends[first]) - int(sizes[first])
        end = max(first + 1, int(np.searchsorted(ends, bytes_before + slice_bytes, side="right")))
        yield slice(first, end)
        first = end


def _fault(decoded: Decoded, row: int, start_ms: int) -> str:
    """Why this histogram is refused."""
    time_ms = int(decoded.timestamps_ms[row])
    if decoded.faults[row]:
        return f"the histogram at {time_ms} ms is not valid: {decoded.fault_text(row)}"
    is_valid_time = TIME_MS_MIN <= time_ms <= TIME_MS_MAX
    field_name, seen_ms = ("start timestamp", start_ms) if is_valid_time else ("timestamp", time_ms)
    return f"a histogram's {field_name} is {seen_ms} ms; it must lie within the years 1 to 9999"

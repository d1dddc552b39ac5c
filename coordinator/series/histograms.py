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
from numba import types
from numpy.typing import NDArray

from coordinator.series import division
from coordinator.series.walk import CREATED, LABELS, LABELS_END
from coordinator.series.walk_v2 import any_field
from coordinator.series.walked import Walk
from proto.remote_write_v2_pb2 import HistogramStart
from shared.errors import TooLarge
from shared.histograms import decoding, frame_writing
from shared.histograms.batch import STALE_SUM_BITS
from shared.histograms.decoding import Decoded
from shared.histograms.references import reference_bits
from shared.kernels import inlined, kernel
from shared.promql.model import STALE_NAN_BITS
from shared.sample_frames import EXTENDED_MARK, TAIL_WORDS, TIME_MS_MAX, TIME_MS_MIN, frame_words
from shared.wire import Frame
from shared.xxh64 import Bytes, copy_bytes

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
# Columns of the table of histograms: the row of the series, and its message in the body.
ROW, BEGIN, MESSAGE_END = range(3)
COLUMNS = 3
# What is counted of a shard: of OWN_STARTS, only whether there are any matters.
SERIES, OWN_SAMPLES, LABEL_BYTES, OWN_STARTS, ORDER_END, KEPT_END = range(6)
TOTALS = 6

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_STRIDED = types.Array(types.int64, 1, "A")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


@kernel(types.void(Bytes, types.int64, _INTS, _INTS, _INTS, _TABLE), first=True, allocates=False)
def _locate(
    body: np.ndarray, wanted: int, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray, table: np.ndarray
) -> None:
    count = 0
    for i in range(len(rows)):
        at = begins[i]
        while at < ends[i]:
            tag, content, at = any_field(body, at, ends[i])
            if tag == wanted:
                table[count, ROW], table[count, BEGIN], table[count, MESSAGE_END] = rows[i], content, at
                count += 1


def locate(
    body: NDArray[np.uint8],
    tag: int,
    rows: NDArray[np.int64],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    count: int,
) -> NDArray[np.int64]:
    """int64[count, COLUMNS]: the histograms among the fields body[begins[i]:ends[i]], which are whole, of the series in
    these rows of a walk, of which there are so many. Raises TooLarge for more than HISTOGRAMS_MAX."""
    if count > HISTOGRAMS_MAX:
        raise TooLarge(f"the request has {count} histograms; the limit is {HISTOGRAMS_MAX}, send fewer at a time")
    table = np.empty((count, COLUMNS), dtype=np.int64)
    _locate(body, tag, rows, begins, ends, table)
    return table


def with_start(message: bytes, start_ms: int) -> bytes:
    """The message of a histogram with this start timestamp, unless it has one of its own, which comes later."""
    return HistogramStart(start_timestamp=start_ms).SerializeToString() + message if start_ms else message


@dataclass(slots=True)
class Divided:
    """Histograms divided by shard. `refused`: how many are not valid; `faults`: (row of the series, what is wrong) of
    the first FAULTS_SHOWN_MAX of them."""

    frames: list[tuple[int, Frame]] = field(default_factory=list)
    stored: int = 0
    refused: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)


def divide(walk: Walk, located: NDArray[np.int64], shards: int) -> Divided:
    """Decode the located histograms of a walk, and divide them by shard. Raises TooLarge for more than BUCKETS_MAX
    buckets."""
    divided, buckets = Divided(), 0
    for part in _slices(located[:, MESSAGE_END] - located[:, BEGIN]):
        own = located[part]
        decoded = decoding.decoded(walk.body, own[:, BEGIN], own[:, MESSAGE_END])
        buckets += decoded.batch.buckets
        if buckets > BUCKETS_MAX:
            raise TooLarge(
                f"the histograms have more than {BUCKETS_MAX} buckets together, the limit; send fewer at a time"
            )
        by_shard = _ByShard.of(walk, own[:, ROW], decoded, shards)
        refused = by_shard.refused()
        for row in refused[: FAULTS_SHOWN_MAX - len(divided.faults)].tolist():
            divided.faults.append((own.item(row, ROW), _fault(decoded, row, by_shard.starts_ms.item(row))))
        divided.stored += len(own) - len(refused)
        divided.refused += len(refused)
        divided.frames += by_shard.frames(walk, decoded)
    return divided


def _slices(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Consecutive messages, those of a slice with SLICE_BYTES together, or one. Of more than SLICES_MAX times as many
    bytes, the slices are larger, so that there are at most twice SLICES_MAX of them."""
    ends = np.cumsum(sizes)
    slice_bytes = max(SLICE_BYTES, int(sizes.sum()) // SLICES_MAX)
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


@dataclass(frozen=True, slots=True)
class _ByShard:
    """The rows of decoded histograms by shard, those of a series next to each other: rows order[ORDER_END of the shard
    before:ORDER_END]. `kept`, of which there are KEPT_END, has all but the stale markers."""

    sources: NDArray[np.int64]
    """int64[n]: the series of each row, as they follow each other in the walk."""
    starts_ms: NDArray[np.int64]
    shards: NDArray[np.int64]
    """int64[n]: the shard of each row, -1 for one that is not valid."""
    order: NDArray[np.int64]
    kept: NDArray[np.int64]
    totals: NDArray[np.int64]
    """int64[shards, TOTALS]."""

    @classmethod
    def of(cls, walk: Walk, sources: NDArray[np.int64], decoded: Decoded, shards: int) -> _ByShard:
        sources = np.ascontiguousarray(sources)
        starts, own_shards, order, kept = np.empty((4, len(sources)), dtype=np.int64)
        totals = np.zeros((shards, TOTALS), dtype=np.int64)
        sums = decoded.batch.columns.sum.view(np.int64)
        _sort_by_shard(
            walk.table, walk.hashes, sources, decoded.faults, decoded.timestamps_ms, decoded.start_timestamps_ms, sums,
            starts, own_shards, totals, order, kept,
        )  # fmt: skip
        ends = totals[-1]
        return cls(sources, starts, own_shards, order[: ends[ORDER_END]], kept[: ends[KEPT_END]], totals)

    def refused(self) -> NDArray[np.int64]:
        """The rows that are not valid."""
        return np.flatnonzero(self.shards < 0)

    def frames(self, walk: Walk, decoded: Decoded) -> Iterator[tuple[int, Frame]]:
        """(shard, frame) of every shard that has some."""
        plan = frame_writing.Plan.of(decoded.batch, self.kept, self.totals[:, KEPT_END])
        histogram_bytes = plan.table[:, frame_writing.BYTES]
        sizes, places, at = [], [], 0
        for (series, samples, label_bytes, starts, *_), own_bytes in zip(
            self.totals.tolist(), histogram_bytes.tolist(), strict=True
        ):
            own_starts = samples if starts else 0
            before = frame_words(series, samples, label_bytes) + own_starts
            places.append(8 * (at + before))
            sizes.append(before + own_bytes // 8 + TAIL_WORDS if samples else 0)
            at += sizes[-1]
        words = np.empty(at, dtype=np.int64)
        octets = words.view(np.uint8)
        plan.write(octets, np.array(places, dtype=np.int64))
        _fill_frames(
            walk.label_data, walk.table, walk.hashes, self.sources, decoded.timestamps_ms, self.starts_ms,
            decoded.batch.columns.sum.view(np.int64), self.order, self.totals, histogram_bytes, words, octets,
        )  # fmt: skip
        return division.frames_of(words, sizes)


@kernel(
    types.void(_TABLE, _HASHES, _INTS_IN, Bytes, _INTS_IN, _INTS_IN, _INTS_IN, _INTS, _INTS, _TABLE, _INTS, _INTS),
    first=True,
    allocates=False,
)
def _sort_by_shard(
    table: np.ndarray,
    hashes: np.ndarray,
    sources: np.ndarray,
    faults: np.ndarray,
    times: np.ndarray,
    own_starts: np.ndarray,
    sums: np.ndarray,
    starts: np.ndarray,
    shards: np.ndarray,
    totals: np.ndarray,
    order: np.ndarray,
    kept: np.ndarray,
) -> None:
    """Fill in the fields of a `_ByShard`; `totals` has zeros before."""
    last, shard = np.int64(-1), np.int64(-1)
    for row in range(len(sources)):
        source = sources[row]
        start = own_starts[row] if own_starts[row] != 0 else table[source, CREATED]
        starts[row], shards[row] = start, -1
        if faults[row] != 0 or not _is_time(times[row]) or not _is_time(start):
            continue
        if source != last:
            last, shard = source, np.int64(hashes[source] % np.uint64(len(totals)))
            totals[shard, SERIES] += 1
            totals[shard, LABEL_BYTES] += table[source, LABELS_END] - table[source, LABELS]
        shards[row] = shard
        totals[shard, OWN_SAMPLES] += 1
        totals[shard, OWN_STARTS] += np.int64(start != 0)
        totals[shard, KEPT_END] += np.int64(sums[row] != STALE_SUM_BITS)
    first, first_kept = np.int64(0), np.int64(0)
    for shard in range(len(totals)):  # where each begins; the next loop moves that to its end
        totals[shard, ORDER_END] = first
        first += totals[shard, OWN_SAMPLES]
        histograms = totals[shard, KEPT_END]
        totals[shard, KEPT_END] = first_kept
        first_kept += histograms
    for row in range(len(sources)):
        shard = shards[row]
        if shard >= 0:
            order[totals[shard, ORDER_END]] = row
            totals[shard, ORDER_END] += 1
            if sums[row] != STALE_SUM_BITS:
                kept[totals[shard, KEPT_END]] = row
                totals[shard, KEPT_END] += 1


@inlined(allocates=False)
def _is_time(time_ms: int) -> bool:
    return TIME_MS_MIN <= time_ms <= TIME_MS_MAX


@kernel(
    types.void(
        Bytes, _TABLE, _HASHES, _INTS_IN, _INTS_IN, _INTS, _INTS_IN, _INTS, _TABLE, _STRIDED, _INTS, _OUT
    ),
    first=True,
    allocates=False,
)  # fmt: skip
def _fill_frames(
    label_data: np.ndarray,
    table: np.ndarray,
    hashes: np.ndarray,
    sources: np.ndarray,
    times_ms: np.ndarray,
    starts_ms: np.ndarray,
    sums: np.ndarray,
    order: np.ndarray,
    totals: np.ndarray,
    histogram_bytes: np.ndarray,
    words: np.ndarray,
    octets: np.ndarray,
) -> None:
    """Write the frame of each shard (`shared.sample_frames`) one after another into `words`, of whose memory `octets`
    is a view. The bytes of its histograms, of which there are so many, are left as they are."""
    first, at = np.int64(0), np.int64(0)
    for shard in range(len(totals)):
        series, samples, label_bytes = totals[shard, SERIES], totals[shard, OWN_SAMPLES], totals[shard, LABEL_BYTES]
        if samples == 0:
            continue
        own_hashes, offsets, counts, times, values, labels, starts = division.begin_frame(
            words, at, EXTENDED_MARK, series, samples, label_bytes
        )
        octet, run, histograms, last = 8 * labels, np.int64(-1), np.int64(0), np.int64(-1)
        for i in range(samples):
            row = order[first + i]
            source = sources[row]
            if source != last:
                last = source
                run += 1
                size = table[source, LABELS_END] - table[source, LABELS]
                copy_bytes(octets, octet, label_data, table[source, LABELS], size)
                words[own_hashes + run], words[counts + run] = np.int64(hashes[source]), 0
                words[offsets + run] = octet - 8 * labels
                octet += size
            words[counts + run] += 1
            words[times + i] = times_ms[row]
            if sums[row] == STALE_SUM_BITS:
                words[values + i] = STALE_NAN_BITS
            else:
                words[values + i] = reference_bits(histograms)
                histograms += 1
        words[offsets + series] = octet - 8 * labels
        own_starts = samples if totals[shard, OWN_STARTS] > 0 else 0
        for i in range(own_starts):
            words[starts + i] = starts_ms[order[first + i]]
        tail = starts + own_starts + histogram_bytes[shard] // 8
        words[tail], words[tail + 1] = own_starts, histogram_bytes[shard]
        at = tail + TAIL_WORDS
        first += samples

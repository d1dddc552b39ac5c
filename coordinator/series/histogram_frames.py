"""Groups the decoded histograms of a remote-write request by shard, and writes them as frames for the workers.

Series with a known number are sent by this number (`shared.frames.references`), other series with their labels
(`shared.frames.samples`).
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.series import division
from coordinator.series.division import NO_ROWS, Rows
from coordinator.series.walk import CREATED, LABELS, LABELS_END, NUMBERED
from coordinator.series.walked import Walk
from shared.frames.references import COUNT_SHIFT, HISTOGRAMS_HEADER_WORDS, HISTOGRAMS_MARK, histogram_frame_words
from shared.frames.samples import EXTENDED_MARK, TAIL_WORDS, TIME_MS_MAX, TIME_MS_MIN, frame_words
from shared.histograms import frame_writing
from shared.histograms.batch import STALE_SUM_BITS
from shared.histograms.decoding import Decoded
from shared.histograms.references import reference_bits
from shared.kernels import inlined, kernel, types
from shared.promql.model import STALE_NAN_BITS
from shared.wire import Frame
from shared.xxh64 import Bytes, copy_bytes

# Columns of the totals of a group. A group is all series of one shard that are sent with labels, or all that are sent
# by number. OWN_STARTS, the number of start timestamps, only matters as zero or not.
SERIES, OWN_SAMPLES, LABEL_BYTES, OWN_STARTS, ORDER_END, KEPT_END = range(6)
TOTALS = 6

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_STRIDED = types.Array(types.int64, 1, "A")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")
_NO_EPOCHS = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Slice:
    """Some of the histograms of a request, by shard. `frames`: (shard, frame with labels) of the series in `rows` of
    the walk. `frames_of_known`: (shard, frame with series numbers) of `known_series` series."""

    frames: list[tuple[int, Frame]]
    rows: Rows
    frames_of_known: list[tuple[int, Frame]]
    known_series: int


@dataclass(frozen=True, slots=True)
class GroupedHistograms:
    """The rows of decoded histograms, sorted by group, with the rows of one series next to each other.

    A group has the rows from order[ORDER_END of the previous group] to order[ORDER_END]. `kept`, with KEPT_END, has the
    same rows without the staleness markers.
    """

    sources: NDArray[np.int64]
    """int64[n]: the series of each row, in the order of the walk."""
    starts_ms: NDArray[np.int64]
    groups: NDArray[np.int64]
    """int64[n]: the shard of each row, plus the number of shards if the number of its series is known; -1 if the row is
    invalid."""
    order: NDArray[np.int64]
    kept: NDArray[np.int64]
    totals: NDArray[np.int64]
    """int64[2 * shards, TOTALS]."""

    @classmethod
    def of(cls, walk: Walk, sources: NDArray[np.int64], decoded: Decoded, shards: int) -> GroupedHistograms:
        starts, groups, order, kept = np.empty((4, len(sources)), dtype=np.int64)
        totals = np.zeros((2 * shards, TOTALS), dtype=np.int64)
        sums = decoded.batch.columns.sum.view(np.int64)
        _sort(
            walk.table, walk.hashes, sources, decoded.faults, decoded.timestamps_ms, decoded.start_timestamps_ms, sums,
            starts, groups, totals, order, kept,
        )  # fmt: skip
        ends = totals[-1]
        return cls(sources, starts, groups, order[: ends[ORDER_END]], kept[: ends[KEPT_END]], totals)

    def refused(self) -> NDArray[np.int64]:
        """The invalid rows."""
        return NO_ROWS if len(self.order) == len(self.groups) else np.flatnonzero(self.groups < 0)

    def slice(self, walk: Walk, decoded: Decoded) -> Slice:
        shards = len(self.totals) // 2
        frames = list(self._frames(walk, decoded))
        known_series = int(self.totals[shards:, SERIES].sum())
        with_labels = [(group, frame) for group, frame in frames if group < shards]
        by_number = [(group - shards, frame) for group, frame in frames if group >= shards]
        return Slice(with_labels, self._rows_with_labels(shards), by_number, known_series)

    def _rows_with_labels(self, shards: int) -> Rows:
        if not self.totals[shards - 1, ORDER_END]:
            return Rows.none(shards)
        series = self.sources[self.order[: self.totals[shards - 1, ORDER_END]]]
        is_first = np.diff(series, prepend=-1) != 0
        return Rows(series[is_first], self.totals[:shards, [SERIES, OWN_SAMPLES, LABEL_BYTES]])

    def _frames(self, walk: Walk, decoded: Decoded) -> Iterator[tuple[int, Frame]]:
        """Yield (group, frame) for every group that has histograms."""
        plan = frame_writing.Plan.of(decoded.batch, self.kept, self.totals[:, KEPT_END], decoded.digits)
        histogram_bytes = plan.table[:, frame_writing.BYTES]
        sizes, histograms_at, at = [], [], 0
        groups = zip(self.totals.tolist(), histogram_bytes.tolist(), strict=True)
        for group, ((series, samples, label_bytes, starts, *_), group_bytes) in enumerate(groups):
            start_count = samples if starts else 0
            if group < len(self.totals) // 2:
                words_before = frame_words(series, samples, label_bytes) + start_count
                size = words_before + group_bytes // 8 + TAIL_WORDS
            else:
                words_before = histogram_frame_words(series, samples, start_count, 0)
                size = words_before + group_bytes // 8
            histograms_at.append(8 * (at + words_before))
            sizes.append(size if samples else 0)
            at += sizes[-1]
        words = np.empty(at, dtype=np.int64)
        octets = words.view(np.uint8)
        plan.write(octets, np.array(histograms_at, dtype=np.int64))
        epochs = _NO_EPOCHS if walk.epochs is None else walk.epochs  # of known series only
        sums = decoded.batch.columns.sum.view(np.int64)
        at_known = _fill_frames(
            walk.label_data, walk.table, walk.hashes, self.sources, decoded.timestamps_ms, self.starts_ms, sums,
            self.order, self.totals, histogram_bytes, words, octets,
        )  # fmt: skip
        _fill_references(
            walk.table, self.sources, decoded.timestamps_ms, self.starts_ms, sums, self.order, self.totals,
            histogram_bytes, epochs, words, at_known,
        )  # fmt: skip
        return division.frames_of(words, sizes)


@kernel(
    types.void(_TABLE, _HASHES, _INTS_IN, Bytes, _INTS_IN, _INTS_IN, _INTS_IN, _INTS, _INTS, _TABLE, _INTS, _INTS),
    first=True,
    allocates=False,
)
def _sort(
    table: np.ndarray,
    hashes: np.ndarray,
    sources: np.ndarray,
    faults: np.ndarray,
    times: np.ndarray,
    own_starts: np.ndarray,
    sums: np.ndarray,
    starts: np.ndarray,
    groups: np.ndarray,
    totals: np.ndarray,
    order: np.ndarray,
    kept: np.ndarray,
) -> None:
    """Fill in the fields of a `GroupedHistograms`; `totals` must be zeros before."""
    last_source, group, shards = np.int64(-1), np.int64(-1), len(totals) // 2
    for row in range(len(sources)):
        source = sources[row]
        start = own_starts[row] if own_starts[row] != 0 else table[source, CREATED]
        starts[row], groups[row] = start, -1
        if faults[row] != 0 or not _is_time(times[row]) or not _is_time(start):
            continue
        if source != last_source:
            last_source, group = source, np.int64(hashes[source] % np.uint64(shards))
            group += shards if table[source, NUMBERED] > 0 else 0
            totals[group, SERIES] += 1
            totals[group, LABEL_BYTES] += table[source, LABELS_END] - table[source, LABELS]
        groups[row] = group
        totals[group, OWN_SAMPLES] += 1
        totals[group, OWN_STARTS] += np.int64(start != 0)
        totals[group, KEPT_END] += np.int64(sums[row] != STALE_SUM_BITS)
    order_at, kept_at = np.int64(0), np.int64(0)
    # First set ORDER_END and KEPT_END to where each group begins. The loop after this one advances them to the ends.
    for group in range(len(totals)):
        totals[group, ORDER_END] = order_at
        order_at += totals[group, OWN_SAMPLES]
        kept_count = totals[group, KEPT_END]
        totals[group, KEPT_END] = kept_at
        kept_at += kept_count
    for row in range(len(sources)):
        group = groups[row]
        if group >= 0:
            order[totals[group, ORDER_END]] = row
            totals[group, ORDER_END] += 1
            if sums[row] != STALE_SUM_BITS:
                kept[totals[group, KEPT_END]] = row
                totals[group, KEPT_END] += 1


@inlined(allocates=False)
def _is_time(time_ms: int) -> bool:
    return TIME_MS_MIN <= time_ms <= TIME_MS_MAX


@inlined(allocates=False)
def _fill_samples(
    words: Any,
    times_at: Any,
    values_at: Any,
    starts_at: Any,
    start_count: Any,
    times_ms: Any,
    sums: Any,
    starts_ms: Any,
    rows: Any,
) -> None:
    """Write the columns that both kinds of frames have, from words[times_at], words[values_at] and words[starts_at]
    on."""
    histograms = np.int64(0)
    for i, row in enumerate(rows):
        words[times_at + i] = times_ms[row]
        is_stale = sums[row] == STALE_SUM_BITS
        words[values_at + i] = STALE_NAN_BITS if is_stale else reference_bits(histograms)
        histograms += np.int64(not is_stale)
    for i in range(start_count):
        words[starts_at + i] = starts_ms[rows[i]]


@kernel(
    types.int64(
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
) -> int:
    """Write the frames with labels (`shared.frames.samples`) of all shards, one after another, into `words`; `octets`
    is a view of its memory. Returns where the frames end. Space for the bytes of the histograms is left unchanged;
    histogram_bytes[group] is its size."""
    first, at = np.int64(0), np.int64(0)
    for shard in range(len(totals) // 2):
        series, samples, label_bytes = totals[shard, SERIES], totals[shard, OWN_SAMPLES], totals[shard, LABEL_BYTES]
        if samples == 0:
            continue
        hashes_at, offsets_at, counts_at, times_at, values_at, labels_at, starts_at = division.begin_frame(
            words, at, EXTENDED_MARK, series, samples, label_bytes
        )
        octet, run, last = 8 * labels_at, np.int64(-1), np.int64(-1)
        for i in range(samples):
            source = sources[order[first + i]]
            if source != last:
                last = source
                run += 1
                size = table[source, LABELS_END] - table[source, LABELS]
                copy_bytes(octets, octet, label_data, table[source, LABELS], size)
                words[hashes_at + run], words[counts_at + run] = np.int64(hashes[source]), 0
                words[offsets_at + run] = octet - 8 * labels_at
                octet += size
            words[counts_at + run] += 1
        words[offsets_at + series] = octet - 8 * labels_at
        start_count = samples if totals[shard, OWN_STARTS] > 0 else 0
        rows = order[first : first + samples]
        _fill_samples(words, times_at, values_at, starts_at, start_count, times_ms, sums, starts_ms, rows)
        tail = starts_at + start_count + histogram_bytes[shard] // 8
        words[tail], words[tail + 1] = start_count, histogram_bytes[shard]
        at = tail + TAIL_WORDS
        first += samples
    return at


@kernel(
    types.void(_TABLE, _INTS_IN, _INTS_IN, _INTS, _INTS_IN, _INTS, _TABLE, _STRIDED, _INTS, _INTS, types.int64),
    first=True,
    allocates=False,
)
def _fill_references(
    table: np.ndarray,
    sources: np.ndarray,
    times_ms: np.ndarray,
    starts_ms: np.ndarray,
    sums: np.ndarray,
    order: np.ndarray,
    totals: np.ndarray,
    histogram_bytes: np.ndarray,
    epochs: np.ndarray,
    words: np.ndarray,
    at: int,
) -> None:
    """As `_fill_frames`, for the frames with series numbers (`shared.frames.references`), from words[at] on."""
    shards = len(totals) // 2
    first = totals[shards - 1, ORDER_END]
    for shard in range(shards):
        group = shards + shard
        series, samples = totals[group, SERIES], totals[group, OWN_SAMPLES]
        if samples == 0:
            continue
        start_count = samples if totals[group, OWN_STARTS] > 0 else 0
        words[at], words[at + 1], words[at + 2], words[at + 3] = HISTOGRAMS_MARK, epochs[shard], series, samples
        words[at + 4], words[at + 5] = start_count, histogram_bytes[group] // 8
        run = at + HISTOGRAMS_HEADER_WORDS - 1
        times_at = run + 1 + series
        values_at = times_at + samples
        starts_at = values_at + samples
        last = np.int64(-1)
        for i in range(samples):
            source = sources[order[first + i]]
            if source != last:
                last = source
                run += 1
                words[run] = table[last, NUMBERED] - 1
            words[run] += 1 << COUNT_SHIFT
        rows = order[first : first + samples]
        _fill_samples(words, times_at, values_at, starts_at, start_count, times_ms, sums, starts_ms, rows)
        at = starts_at + start_count + histogram_bytes[group] // 8
        first += samples

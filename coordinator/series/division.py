"""Writes the samples of a walked request as frames (`shared.frames.samples`, `shared.frames.references`), by shard."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series.walk import (
    CREATED,
    END,
    FIELDS,
    LABELS,
    LABELS_END,
    NUMBERED,
    PLAIN,
    SAMPLES,
    STARTS,
    STATUS,
    sample,
)
from coordinator.series.walked import Walk
from shared.frames import references as reference_frames
from shared.frames.samples import EXTENDED_MARK, HEADER_WORDS, MARK, TAIL_WORDS, frame_words
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import field_length
from shared.wire import Frame
from shared.xxh64 import Bytes, copy_bytes

_REFERENCES_MARK, _REFERENCES_HEADER = reference_frames.MARK, reference_frames.HEADER_WORDS
_COUNT_SHIFT = reference_frames.COUNT_SHIFT

NO_ROWS = np.empty(0, dtype=np.int64)

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_FLOATS = types.Array(types.float64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


@kernel(
    types.int64(
        Bytes,
        types.int64,
        types.int64,
        _INTS,
        types.int64,
        _FLOATS,
        types.int64,
        types.boolean,
        types.int64,
        types.int64,
    ),
    first=True,
    allocates=False,
)
def _read_row(
    body: np.ndarray,
    at: int,
    end: int,
    words: np.ndarray,
    time_at: int,
    values: np.ndarray,
    value_at: int,
    has_starts: bool,
    start_at: int,
    created: int,
) -> int:
    """Write the samples of a PLAIN series, whose fields are body[at:end]. Times (Unix ms) go to `words` from `time_at`
    on, values to `values` from `value_at` on and, if `has_starts`, start timestamps to `words` from `start_at` on. A
    sample without a start timestamp gets `created`. Returns the number of samples."""
    count = 0
    while at < end:
        tag = body[at]
        size, at = field_length(body, at + 1, end)
        if tag == 0x12:
            _, time, value, start = sample(body, at, at + size)
            words[time_at + count] = time
            values[value_at + count] = value
            if has_starts:
                words[start_at + count] = start if start != 0 else created
            count += 1
        at += size
    return count


@inlined(allocates=False)
def _group(row: np.ndarray, label_hash: np.uint64, shards: int) -> int:
    """The group of a row. For a series with samples it is the shard, plus `shards` if the series' number is known; for
    any other row it is -1."""
    if row[STATUS] != PLAIN or row[SAMPLES] == 0:
        return np.int64(-1)
    shard = np.int64(label_hash % np.uint64(shards))
    return shard + shards if row[NUMBERED] > 0 else shard


@kernel(types.void(_TABLE, _HASHES, _TABLE), first=True, allocates=False)
def _count(table: np.ndarray, hashes: np.ndarray, totals: np.ndarray) -> None:
    """Fill in `totals` (int64[groups, 3], zeros before): how many series, samples and label bytes each group has."""
    for i in range(len(table)):
        group = _group(table[i], hashes[i], len(totals) // 2)
        if group >= 0:
            total = totals[group]
            total[0] += 1
            total[1] += table[i, SAMPLES]
            total[2] += table[i, LABELS_END] - table[i, LABELS]


@kernel(types.void(_TABLE, _HASHES, _INTS, _INTS), first=True, allocates=False)
def _sort(table: np.ndarray, hashes: np.ndarray, next_at: np.ndarray, order: np.ndarray) -> None:
    """Fill in `order` (int64[n]) with the rows, sorted by group; rows of one group keep their order. next_at[group] is
    where the group's first row goes, and then where its next one goes."""
    for i in range(len(table)):
        group = _group(table[i], hashes[i], len(next_at) // 2)
        if group >= 0:
            order[next_at[group]] = i
            next_at[group] += 1


@inlined(allocates=False)
def begin_frame(
    words: np.ndarray, at: int, mark: int, series: int, samples: int, label_bytes: int
) -> tuple[int, int, int, int, int, int, int]:
    """Write the header of a frame from words[at] on. Returns where its columns begin: hashes, offsets, counts, times,
    values and labels, and the position after the labels. The only bytes of the labels written here are the padding."""
    words[at], words[at + 1], words[at + 2], words[at + 3] = mark, series, samples, label_bytes
    hashes = at + HEADER_WORDS
    offsets = hashes + series
    counts = offsets + series + 1
    times = counts + series
    values = times + samples
    labels = values + samples
    following = labels + (label_bytes + 7) // 8
    words[following - 1] = 0  # the padding; this word exists, since a label set is never empty
    return hashes, offsets, counts, times, values, labels, following


@kernel(
    types.void(Bytes, Bytes, _TABLE, _HASHES, _INTS, _TABLE, types.boolean, _INTS, _FLOATS, _OUT),
    first=True,
    allocates=False,
)
def _fill_columns(
    body: np.ndarray,
    labels_data: np.ndarray,
    table: np.ndarray,
    hashes: np.ndarray,
    order: np.ndarray,
    totals: np.ndarray,
    has_starts: bool,
    words: np.ndarray,
    floats: np.ndarray,
    octets: np.ndarray,
) -> None:
    """Write the frames of all shards (`shared.frames.samples`), one after another, into `words`. `floats` and `octets`
    are views of the memory of `words`; `order` and `totals` come from `sort`."""
    first, at = 0, 0
    for shard in range(len(totals)):
        series, samples, label_bytes = totals[shard, 0], totals[shard, 1], totals[shard, 2]
        if series == 0:
            continue
        mark = EXTENDED_MARK if has_starts else MARK
        hashes_at, offsets_at, counts_at, time_at, value_at, labels_at, start_at = begin_frame(
            words, at, mark, series, samples, label_bytes
        )
        at = start_at
        octet = 8 * labels_at
        for i in range(series):
            row = order[first + i]
            label_begin, label_end = table[row, LABELS], table[row, LABELS_END]
            copy_bytes(octets, octet, labels_data, label_begin, label_end - label_begin)
            words[hashes_at + i] = np.int64(hashes[row])
            words[offsets_at + i] = octet - 8 * labels_at
            words[counts_at + i] = table[row, SAMPLES]
            octet += label_end - label_begin
            sample_count = _read_row(
                body, table[row, FIELDS], table[row, END], words, time_at, floats, value_at, has_starts, start_at,
                table[row, CREATED],
            )  # fmt: skip
            time_at += sample_count
            value_at += sample_count
            start_at += sample_count
        words[offsets_at + series] = octet - 8 * labels_at
        if has_starts:
            words[start_at], words[start_at + 1] = samples, 0
            at = start_at + TAIL_WORDS
        first += series


@kernel(types.void(Bytes, _TABLE, _INTS, _TABLE, _INTS, types.boolean, _INTS, _FLOATS), first=True, allocates=False)
def _fill_references(
    body: np.ndarray,
    table: np.ndarray,
    order: np.ndarray,
    totals: np.ndarray,
    epochs: np.ndarray,
    has_starts: bool,
    words: np.ndarray,
    floats: np.ndarray,
) -> None:
    """Write the frames of all shards (`shared.frames.references`), one after another, into `words`. `floats` is a view
    of the memory of `words`; `order` and `totals` come from `sort`."""
    first, at = 0, 0
    for shard in range(len(totals)):
        series, samples = totals[shard, 0], totals[shard, 1]
        if series == 0:
            continue
        starts_count = samples if has_starts else np.int64(0)
        words[at], words[at + 1], words[at + 2] = _REFERENCES_MARK, epochs[shard], series
        words[at + 3], words[at + 4] = samples, starts_count
        runs = at + _REFERENCES_HEADER
        times = runs + series
        values = times + samples
        starts = values + samples
        at = starts + starts_count
        for i in range(series):
            row = table[order[first + i]]
            words[runs + i] = row[NUMBERED] - 1 | row[SAMPLES] << _COUNT_SHIFT
            sample_count = _read_row(
                body, row[FIELDS], row[END], words, times, floats, values, has_starts, starts, row[CREATED]
            )
            times += sample_count
            values += sample_count
            starts += sample_count
        first += series


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a walk, sorted by shard: `order` int64[n]. `totals` int64[shards, 3]: the number of series, samples and
    label bytes of each shard."""

    order: NDArray[np.int64]
    totals: NDArray[np.int64]

    @classmethod
    def none(cls, shards: int) -> Rows:
        return cls(NO_ROWS, np.zeros((shards, 3), dtype=np.int64))

    @property
    def samples(self) -> int:
        return int(self.totals[:, 1].sum())


def sort(walk: Walk, shards: int) -> tuple[Rows, Rows]:
    """The PLAIN series with samples of a walk, by shard: (those to be sent with labels, those to be sent by number)."""
    totals = np.zeros((2 * shards, 3), dtype=np.int64)
    _count(walk.table, walk.hashes, totals)
    if not totals.any():  # for example a request of histograms only
        return Rows.none(shards), Rows.none(shards)
    ends = np.cumsum(totals[:, 0])
    order = np.empty(ends[-1], dtype=np.int64)
    _sort(walk.table, walk.hashes, ends - totals[:, 0], order)
    labelled = ends[shards - 1]
    return Rows(order[:labelled], totals[:shards]), Rows(order[labelled:], totals[shards:])


def frames(walk: Walk, rows: Rows) -> Iterator[tuple[int, Frame]]:
    """Yield (shard, frame with labels) for every shard that has some of these series."""
    has_starts = bool(walk.counts[STARTS])
    sizes = [
        frame_words(*total) + (total[1] + TAIL_WORDS if has_starts else 0) if total[0] else 0
        for total in rows.totals.tolist()
    ]
    words = np.empty(sum(sizes), dtype=np.int64)
    floats, octets = words.view(np.float64), words.view(np.uint8)
    _fill_columns(
        walk.body, walk.label_data, walk.table, walk.hashes, rows.order, rows.totals, has_starts, words, floats, octets
    )  # fmt: skip
    return frames_of(words, sizes)


def frames_of_known(walk: Walk, rows: Rows) -> Iterator[tuple[int, Frame]]:
    """Yield (shard, frame with series numbers) for every shard that has some of these series."""
    assert walk.epochs is not None
    has_starts = bool(walk.counts[STARTS])
    sizes = [
        reference_frames.frame_words(series, samples, samples * has_starts) if series else 0
        for series, samples, _ in rows.totals.tolist()
    ]
    words = np.empty(sum(sizes), dtype=np.int64)
    floats = words.view(np.float64)
    _fill_references(walk.body, walk.table, rows.order, rows.totals, walk.epochs, has_starts, words, floats)
    return frames_of(words, sizes)


def frames_of(words: NDArray[np.int64], sizes: Sequence[int]) -> Iterator[tuple[int, Frame]]:
    """Yield (shard, frame) for every shard whose frame is not empty. The frames are in `words` one after another, and
    sizes[shard] is the number of words of each."""
    octets, at = memoryview(words.view(np.uint8).data), 0
    for shard, size in enumerate(sizes):
        if size:
            yield shard, octets[8 * at : 8 * (at + size)]
            at += size


def add_frame(per_shard: dict[int, list[Frame]], shard: int, frame: Frame) -> int:
    """Append a frame to the frames of its shard. Returns its index among them."""
    shard_frames = per_shard.setdefault(shard, [])
    shard_frames.append(frame)
    return len(shard_frames) - 1

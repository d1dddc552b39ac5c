"""The fast path for requests that consist of samples of known series only, as nearly all requests do.

Such a request is split by shard without building a table of its series. This module reads those of version 1.0;
`coordinator.series.request_templates` reads those of version 2.0.

One kernel finds each series by comparing all bytes of its labels, and reads the samples. Another kernel writes the
frames of the shards (`shared.frames.references`), in which each series has the number that its shard gave it. Several
requests that are sent together share one frame for each shard. Any other request is left to
`coordinator.series.remote_write`: one with another field, a series that is unknown or has no samples, a start
timestamp, or a time out of range. For the requests handled here, that module would produce the same frames.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series.division import frames_of
from coordinator.series.series_references import BEGIN, HASH, TABLES, SeriesReferences, Tables, find, find_next, used
from coordinator.series.series_references import END as END_OF_ROW
from coordinator.series.walk import sample
from shared.frames import references as reference_frames
from shared.frames.samples import TIME_MS_MAX
from shared.histograms.references import refers
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import field_length
from shared.wire import Frame
from shared.xxh64 import Bytes, load64, xxh64

SAMPLES_MAX = 10_000
"""The most samples of a request that is read on the event loop: senders put 500 to 10,000 samples into one request."""
SHARING_SAMPLES_MAX = 50_000
"""The most samples of a request whose frames are written on the event loop, which takes some 0.1 ms."""
SAMPLES_MAX_LARGE = 250_000
"""The most samples of a request that is read in a thread, such as those of a backfill: 8 MB of arrays."""
TABLES_WAIT_S = 0.01
"""How long a thread waits for the tables while another one uses them, such as for another large request."""
BYTES_LEAST = 12
"""The fewest bytes of a request for each sample: a request with fewer is not handled here. With a present-day time, a
sample has at least 11 bytes."""

_MARK, _HEADER_WORDS = reference_frames.MARK, reference_frames.HEADER_WORDS
_COUNT_SHIFT = reference_frames.COUNT_SHIFT

_SERIES, _SAMPLES = 0, 1
"""Columns of the totals of the shards."""
_RUNS, _TIMES, _VALUES = 0, 1, 2
"""Columns of the table of write positions: where the next run, time and value of a shard's frame go."""

_SAMPLE_BYTES = 16
"""Bytes of a sample with a value and a present-day time: two tags, 8 bytes and a varint of 6 bytes."""
_TIME_MASK, _TIME_TAGS = np.uint64(0x808080808080), np.uint64(0x008080808080)
"""A mask of the high bits of such a varint's bytes, and the value of these bits."""
_SEVEN_BITS = np.uint64(0x7F)
assert TIME_MS_MAX >= 1 << 7 * 6

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")


@kernel(types.int64(Bytes, types.int64, types.int64), first=True, allocates=False)
def _labels_end(body: np.ndarray, at: int, end: int) -> int:
    """Where the label fields that begin at body[at] end, in a message that ends at `end`; -1 if one is truncated."""
    while at < end and body[at] == 0x0A:
        size, at = field_length(body, at + 1, end)
        if size < 0 or at + size > end:
            return np.int64(-1)
        at += size
    return at


@inlined(allocates=False)
def _present_time(body: np.ndarray, at: int) -> int:
    """The value of the varint of six bytes at body[at]; -1 if there is no such varint. Reads two bytes beyond it."""
    word = load64(body, at)
    if word & _TIME_MASK != _TIME_TAGS:
        return np.int64(-1)
    time = word & _SEVEN_BITS
    for i in range(1, 6):
        time |= (word >> np.uint64(8 * i) & _SEVEN_BITS) << np.uint64(7 * i)
    return np.int64(time)


@inlined(allocates=False)
def read_sample(body: np.ndarray, at: int, end: int, times: np.ndarray, bits: np.ndarray, place: int) -> bool:
    """Read the Sample message body[at:end] into times[place] and bits[place] (the bits of the value). Returns False if
    it is invalid or has a start timestamp."""
    if end - at == _SAMPLE_BYTES and body[at] == 0x09 and body[at + 9] == 0x10 and at + 18 <= len(body):
        value, time_ms = np.int64(load64(body, at + 1)), _present_time(body, at + 10)
        if time_ms >= 0 and not refers(value):  # every time of six bytes is within the limits
            times[place], bits[place] = time_ms, value
            return True
    is_valid, time, number, start = sample(body, at, end)
    times[place], bits[place] = time, np.float64(number).view(np.int64)
    return is_valid == 1 and start == 0


@kernel(types.int64(Bytes, TABLES, _INTS, _INTS, _INTS, _INTS, _TABLE), first=True, allocates=False)
def _read(
    body: np.ndarray,
    tables: Tables,
    runs: np.ndarray,
    shards: np.ndarray,
    times: np.ndarray,
    bits: np.ndarray,
    totals: np.ndarray,
) -> int:
    """Read a request: for each series the word of its run (`shared.frames.references`) and its shard, and for each
    sample its time and the bits of its value. `totals` (zeros before) gets the numbers of series and samples of each
    shard. Returns the number of series, or -1 if the request is of another kind or does not fit into the arrays."""
    at, end, series_count, sample_count = 0, len(body), 0, 0
    next_known = np.int64(0)
    while at < end:
        if body[at] != 0x0A or series_count == len(runs):
            return np.int64(-1)
        size, at = field_length(body, at + 1, end)
        series_end = at + size
        if size < 0 or series_end > end:
            return np.int64(-1)
        known = next_known
        if not find_next(body, at, series_end, tables, known):
            labels_end = _labels_end(body, at, series_end)
            if labels_end < 0:
                return np.int64(-1)
            known = find(body, at, labels_end, xxh64(body, at, labels_end), tables)
            if known < 0:
                return np.int64(-1)
        next_known = known + 1
        number = used(tables, known)
        at += tables.rows[known, END_OF_ROW] - tables.rows[known, BEGIN]
        first = sample_count
        while at < series_end:
            if body[at] != 0x12 or sample_count == len(times):
                return np.int64(-1)
            size, at = field_length(body, at + 1, series_end)
            if size < 0 or at + size > series_end or not read_sample(body, at, at + size, times, bits, sample_count):
                return np.int64(-1)
            at += size
            sample_count += 1
        if number == 0 or sample_count == first:
            return np.int64(-1)
        shard = np.int64(np.uint64(tables.rows[known, HASH]) % np.uint64(len(totals)))
        runs[series_count], shards[series_count] = number - 1 | (sample_count - first) << _COUNT_SHIFT, shard
        totals[shard, _SERIES] += 1
        totals[shard, _SAMPLES] += sample_count - first
        series_count += 1
    return np.int64(series_count)


@kernel(types.void(_TABLE, _INTS, _TABLE, _INTS), first=True, allocates=False)
def _begin(totals: np.ndarray, epochs: np.ndarray, places: np.ndarray, words: np.ndarray) -> None:
    """Write the frame header of each shard that has series into `words`, which contains the frames one after another.
    Fill in `places` (int64[shards, 3]) with the positions at which the columns of each frame begin."""
    at = 0
    for shard in range(len(totals)):
        series, samples = totals[shard, _SERIES], totals[shard, _SAMPLES]
        if series == 0:
            continue
        words[at], words[at + 1], words[at + 2], words[at + 3], words[at + 4] = _MARK, epochs[shard], series, samples, 0
        runs = at + _HEADER_WORDS
        places[shard, _RUNS], places[shard, _TIMES], places[shard, _VALUES] = (
            runs,
            runs + series,
            runs + series + samples,
        )
        at = runs + series + 2 * samples


@kernel(types.void(_INTS, _INTS, _INTS, _INTS, _TABLE, _INTS), first=True, allocates=False)
def _add(
    runs: np.ndarray, shards: np.ndarray, times: np.ndarray, bits: np.ndarray, places: np.ndarray, words: np.ndarray
) -> None:
    """Append the runs and samples that `_read` has read to the frames, and advance `places`."""
    source = 0
    for i in range(len(runs)):
        shard = shards[i]
        words[places[shard, _RUNS]] = runs[i]
        places[shard, _RUNS] += 1
        time_at, value_at = places[shard, _TIMES], places[shard, _VALUES]
        count = runs[i] >> _COUNT_SHIFT
        for k in range(count):
            words[time_at + k], words[value_at + k] = times[source + k], bits[source + k]
        source += count
        places[shard, _TIMES], places[shard, _VALUES] = time_at + count, value_at + count


@dataclass(frozen=True, slots=True, eq=False)
class KnownSamples:
    """The samples of a request, all of them of known series.

    `runs`: int64[series], the word of each series' run in a frame. `shard_of`: int64[series]. `times` (Unix ms) and
    `bits` (of the values): int64[samples], in the order of the runs. `totals`: int64[shards, 2], the numbers of series
    and samples of each shard. `epochs`: int64[shards], the epochs of the series numbers in the runs.
    """

    runs: NDArray[np.int64]
    shard_of: NDArray[np.int64]
    times: NDArray[np.int64]
    bits: NDArray[np.int64]
    totals: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @property
    def series(self) -> int:
        return len(self.runs)

    @property
    def samples(self) -> int:
        return len(self.times)

    @property
    def shards(self) -> list[int]:
        """The shards that have some of the samples."""
        return [shard for shard, (series, _) in enumerate(self.totals.tolist()) if series]

    @property
    def nbytes(self) -> int:
        return 16 * (len(self.runs) + len(self.times))

    def copied(self) -> KnownSamples:
        """A copy that does not keep larger arrays alive: its arrays are not views."""
        if self.times.base is None:
            return self
        return KnownSamples(
            self.runs.copy(), self.shard_of.copy(), self.times.copy(), self.bits.copy(), self.totals, self.epochs
        )


def read(body: Frame, shards: int, references: SeriesReferences, *, large: bool = False) -> KnownSamples | None:
    """The samples of a decompressed request of version 1.0; None if the request is not of the kind handled here.
    `large`: it may have SAMPLES_MAX_LARGE samples, and this is not the event loop's thread."""
    samples_max = SAMPLES_MAX_LARGE if large else SAMPLES_MAX
    totals = np.zeros((shards, 2), dtype=np.int64)
    runs, shard_of, times, bits = np.empty((4, min(samples_max, len(body) // BYTES_LEAST)), dtype=np.int64)
    with references.lent(TABLES_WAIT_S if large else 0.0) as tables:
        series = _read(np.frombuffer(body, dtype=np.uint8), tables, runs, shard_of, times, bits, totals)
        epochs = references.epochs
    if series <= 0:
        return None
    samples = int(totals[:, _SAMPLES].sum())
    return KnownSamples(runs[:series], shard_of[:series], times[:samples], bits[:samples], totals, epochs)


def frames(requests: Sequence[KnownSamples]) -> dict[int, Frame]:
    """Shard → the frame with its samples of all these requests. The requests must have the same epochs."""
    first_request, *later_requests = requests
    totals = first_request.totals
    for request in later_requests:
        assert request.epochs is first_request.epochs
        totals = totals + request.totals
    by_shard = totals.tolist()
    sizes = [reference_frames.frame_words(series, samples, 0) if series else 0 for series, samples in by_shard]
    words = np.empty(sum(sizes), dtype=np.int64)
    places = np.empty((len(sizes), 3), dtype=np.int64)
    _begin(totals, first_request.epochs, places, words)
    for request in requests:
        _add(request.runs, request.shard_of, request.times, request.bits, places, words)
    return dict(frames_of(words, sizes))

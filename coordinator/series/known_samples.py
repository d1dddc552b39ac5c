"""Requests of nothing but samples of series that were sent before, as nearly all are: cut by shard without a table of
their series. Those of version 2.0 are read by `coordinator.series.request_templates`, those of version 1.0 here.

One kernel finds the series by their labels, all bytes of which it compares, and reads the samples. Another writes the
frames of the shards (`shared.reference_frames`), in which the series have the numbers that their shards gave them: one
frame for each shard, also of several requests that are sent together. What is not such a request is left to
`coordinator.series.remote_write`, which would cut this one into the same frames: one with any other field, a series
that is not known or has no samples, a start timestamp, or a time that is out of range.
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
from shared import kernel_types as types
from shared import reference_frames
from shared.histograms.references import refers
from shared.kernels import inlined, kernel
from shared.protobuf_fields import field_length
from shared.sample_frames import TIME_MS_MAX
from shared.wire import Frame
from shared.xxh64 import Bytes, load64, xxh64

SAMPLES_MAX = 10_000
"""Of a request that is cut here: senders put 500 to 10,000 samples into one."""
BYTES_LEAST = 12
"""Of a sample in a request: one with fewer a sample is not cut here. The least that has a time of today has 11."""

_MARK, _HEADER_WORDS = reference_frames.MARK, reference_frames.HEADER_WORDS
_COUNT_SHIFT = reference_frames.COUNT_SHIFT

_SERIES, _SAMPLES = 0, 1
"""Columns of the totals of the shards."""
_RUNS, _TIMES, _VALUES = 0, 1, 2
"""Columns of the places at which the next words of the shards' frames go."""

_SAMPLE_BYTES = 16
"""Of a sample with a value and a present-day time: two tags, 8 bytes and a varint of 6."""
_TIME_MASK, _TIME_TAGS = np.uint64(0x808080808080), np.uint64(0x008080808080)
"""The high bits of the bytes of such a varint, and what they are."""
_SEVEN_BITS = np.uint64(0x7F)
assert TIME_MS_MAX >= 1 << 7 * 6

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")


@kernel(types.int64(Bytes, types.int64, types.int64), first=True, allocates=False)
def _labels_end(body: np.ndarray, at: int, end: int) -> int:
    """Where the label fields that begin at body[at] end, of a message that ends at `end`; -1 if one is not whole."""
    while at < end and body[at] == 0x0A:
        size, at = field_length(body, at + 1, end)
        if size < 0 or at + size > end:
            return np.int64(-1)
        at += size
    return at


@inlined(allocates=False)
def _present_time(body: np.ndarray, at: int) -> int:
    """The varint of six bytes at body[at], of which two bytes more can be read; -1 if there is none."""
    word = load64(body, at)
    if word & _TIME_MASK != _TIME_TAGS:
        return np.int64(-1)
    time = word & _SEVEN_BITS
    for i in range(1, 6):
        time |= (word >> np.uint64(8 * i) & _SEVEN_BITS) << np.uint64(7 * i)
    return np.int64(time)


@inlined(allocates=False)
def read_sample(body: np.ndarray, at: int, end: int, times: np.ndarray, bits: np.ndarray, place: int) -> bool:
    """Write time and value (its bits) of the Sample message body[at:end] to this place; False if it is not valid or has
    a start timestamp."""
    if end - at == _SAMPLE_BYTES and body[at] == 0x09 and body[at + 9] == 0x10 and at + 18 <= len(body):
        value, time = np.int64(load64(body, at + 1)), _present_time(body, at + 10)
        if time >= 0 and not refers(value):  # six bytes hold no time beyond the latest
            times[place], bits[place] = time, value
            return True
    ok, own_time, number, start = sample(body, at, end)
    times[place], bits[place] = own_time, np.float64(number).view(np.int64)
    return ok == 1 and start == 0


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
    """Read a request: of each series the word of its run (`shared.reference_frames`) and its shard, of each sample time
    and value (its bits), and `totals` (zeros before), how many series and samples each shard has. Returns the number of
    series; -1 if this is another kind of request, or does not fit into the arrays."""
    at, end, run, place = 0, len(body), 0, 0
    following = np.int64(0)
    while at < end:
        if body[at] != 0x0A or run == len(runs):
            return np.int64(-1)
        size, at = field_length(body, at + 1, end)
        series_end = at + size
        if size < 0 or series_end > end:
            return np.int64(-1)
        known = following
        if not find_next(body, at, series_end, tables, known):
            labels_end = _labels_end(body, at, series_end)
            if labels_end < 0:
                return np.int64(-1)
            known = find(body, at, labels_end, xxh64(body, at, labels_end), tables)
            if known < 0:
                return np.int64(-1)
        following = known + 1
        number = used(tables, known)
        at += tables.rows[known, END_OF_ROW] - tables.rows[known, BEGIN]
        first = place
        while at < series_end:
            if body[at] != 0x12 or place == len(times):
                return np.int64(-1)
            size, at = field_length(body, at + 1, series_end)
            if size < 0 or at + size > series_end or not read_sample(body, at, at + size, times, bits, place):
                return np.int64(-1)
            at += size
            place += 1
        if number == 0 or place == first:
            return np.int64(-1)
        shard = np.int64(np.uint64(tables.rows[known, HASH]) % np.uint64(len(totals)))
        runs[run], shards[run] = number - 1 | (place - first) << _COUNT_SHIFT, shard
        totals[shard, _SERIES] += 1
        totals[shard, _SAMPLES] += place - first
        run += 1
    return np.int64(run)


@kernel(types.void(_TABLE, _INTS, _TABLE, _INTS), first=True, allocates=False)
def _begin(totals: np.ndarray, epochs: np.ndarray, places: np.ndarray, words: np.ndarray) -> None:
    """Write the header of the frame of each shard that has series into `words`, where the frames lie one after another,
    and where their columns begin to `places` (int64[shards, 3])."""
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
    """Add what `_read` has read to the frames, and move their `places`."""
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
    """The samples of a request. Of its series, `runs` int64[n] has the words of their runs in a frame and `shard_of`
    int64[n] their shards; `times` and `bits` int64[m] are of the samples of all runs. `totals` int64[shards, 2] has how
    many series and samples each shard has. The numbers in the runs are of these `epochs`, int64[shards]."""

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
        """Those that have some of the samples."""
        return [shard for shard, (series, _) in enumerate(self.totals.tolist()) if series]

    @property
    def nbytes(self) -> int:
        return 16 * (len(self.runs) + len(self.times))

    def copied(self) -> KnownSamples:
        """The same in no more memory than it takes, without views of larger arrays."""
        if self.times.base is None:
            return self
        return KnownSamples(
            self.runs.copy(), self.shard_of.copy(), self.times.copy(), self.bits.copy(), self.totals, self.epochs
        )


def read(body: Frame, shards: int, references: SeriesReferences) -> KnownSamples | None:
    """The samples of the request with this decompressed body; None if it is none of those that are cut here."""
    totals = np.zeros((shards, 2), dtype=np.int64)
    runs, shard_of, times, bits = np.empty((4, min(SAMPLES_MAX, len(body) // BYTES_LEAST)), dtype=np.int64)
    with references.lent() as tables:
        series = _read(np.frombuffer(body, dtype=np.uint8), tables, runs, shard_of, times, bits, totals)
        epochs = references.epochs
    if series <= 0:
        return None
    samples = int(totals[:, _SAMPLES].sum())
    return KnownSamples(runs[:series], shard_of[:series], times[:samples], bits[:samples], totals, epochs)


def frames(requests: Sequence[KnownSamples]) -> dict[int, Frame]:
    """Shard → the frame with its samples of these requests, which have the same epochs."""
    first, *others = requests
    totals = first.totals
    for other in others:
        assert other.epochs is first.epochs
        totals = totals + other.totals
    by_shard = totals.tolist()
    sizes = [reference_frames.frame_words(series, samples, 0) if series else 0 for series, samples in by_shard]
    words = np.empty(sum(sizes), dtype=np.int64)
    places = np.empty((len(sizes), 3), dtype=np.int64)
    _begin(totals, first.epochs, places, words)
    for request in requests:
        _add(request.runs, request.shard_of, request.times, request.bits, places, words)
    return dict(frames_of(words, sizes))

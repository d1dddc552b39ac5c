"""Recent samples in memory: each series has a chain of chunks in shared arenas, and each chunk is twice as long as the
one before it, up to CHUNK_SAMPLES_MAX.

A series that ends after three samples takes 130 bytes, a longer one wastes at most half of its last chunk, and a new
sample is written right after the last one. Each chunk has its earliest and latest time, so that a read of a time range
skips other chunks. Samples are stored in order of arrival. A series with a late sample is sorted when it is read; among
samples with equal times the last one written counts. A series with half of its samples late is rewritten in order with
each time once, so that writing the same times again and again does not slow down reading.

A head is not safe for concurrent use: its owner holds one lock around every call, for about 15 ns per sample. Lock-free
readers would need copies on growth and published lengths and gain little, and a deletion would have to wait for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.kernels import kernel
from shared.promql.model import Samples
from worker.series.growing_array import GrowingArray
from worker.series.pieces import in_order

CHUNK_SAMPLES_MIN = 4
CHUNK_SAMPLES_MAX = 256
ARENA_ROOM_MIN = 4 * CHUNK_SAMPLES_MAX
CHUNK_ROOM_MIN = 64
LATE_CHECK = 512
"""Late samples of a series between two checks of whether to rewrite it."""
CHUNK_BYTES = 36
"""Bytes of a chunk's rows in `shapes` and `places`."""

# The columns of a series' links and of its range; of a chunk's shape and of its place and range; and of the tally.
FIRST, LAST = 0, 1
EARLIEST, LATEST = 0, 1
SIZE, USED, NEXT = 0, 1, 2
PLACE, CHUNK_EARLIEST, CHUNK_LATEST = 0, 1, 2
CHUNKS, ARENA, STORED, CROWDED = 0, 1, 2, 3

NEVER = np.iinfo(np.int64).max
BEFORE = np.iinfo(np.int64).min

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLOATS = types.Array(types.float64, 1, "C")
_FLOATS_IN = types.Array(types.float64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")
_COUNTS = types.Array(types.int32, 1, "C")
_LONGS = types.Array(types.int64, 2, "C")
_SHORTS = types.Array(types.int32, 2, "C")


@kernel(
    types.int64(
        _INTS_IN, _INTS_IN, _FLOATS_IN, types.int64, _SHORTS, _LONGS, _COUNTS, _SHORTS, _LONGS, _INTS, _FLOATS, _INTS
    ),
    first=True,
)
def _append(
    series: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    at: int,
    links: np.ndarray,
    ranges: np.ndarray,
    late: np.ndarray,
    shapes: np.ndarray,
    places: np.ndarray,
    arena_times: np.ndarray,
    arena_values: np.ndarray,
    tally: np.ndarray,
) -> int:
    """Append the samples i ≥ `at`. Returns the first one for which there is no room, or the number of samples if all
    fit."""
    for i in range(at, len(series)):
        s, time = series[i], times[i]
        chunk = links[s, LAST]
        if chunk >= 0:
            last = places[chunk, PLACE] + shapes[chunk, USED] - 1
            if arena_times[last] == time:
                arena_values[last] = values[i]
                continue
        if chunk < 0 or shapes[chunk, USED] == shapes[chunk, SIZE]:
            size: Any = CHUNK_SAMPLES_MIN
            if chunk >= 0:
                size = min(2 * shapes[chunk, SIZE], CHUNK_SAMPLES_MAX)
            fresh = tally[CHUNKS]
            if fresh >= len(shapes) or tally[ARENA] + size > len(arena_times):
                return i
            shapes[fresh, SIZE], shapes[fresh, USED], shapes[fresh, NEXT] = size, 0, -1
            places[fresh, PLACE] = tally[ARENA]
            places[fresh, CHUNK_EARLIEST], places[fresh, CHUNK_LATEST] = NEVER, BEFORE
            if chunk >= 0:
                shapes[chunk, NEXT] = fresh
            else:
                links[s, FIRST] = fresh
            links[s, LAST] = fresh
            tally[CHUNKS] += 1
            tally[ARENA] += size
            chunk = np.int32(fresh)
        place = places[chunk, PLACE] + shapes[chunk, USED]
        arena_times[place] = time
        arena_values[place] = values[i]
        shapes[chunk, USED] += 1
        places[chunk, CHUNK_EARLIEST] = min(places[chunk, CHUNK_EARLIEST], time)
        places[chunk, CHUNK_LATEST] = max(places[chunk, CHUNK_LATEST], time)
        if time <= ranges[s, LATEST]:
            late[s] += 1
            if late[s] % LATE_CHECK == 0:
                tally[CROWDED] += 1
        ranges[s, EARLIEST] = min(ranges[s, EARLIEST], time)
        ranges[s, LATEST] = max(ranges[s, LATEST], time)
        tally[STORED] += 1
    return len(series)


@kernel(types.int64(_INTS_IN, types.int64, types.int64, _SHORTS, _SHORTS, _LONGS), first=True)
def _bound(ids: np.ndarray, start: int, end: int, links: np.ndarray, shapes: np.ndarray, places: np.ndarray) -> int:
    """An upper bound of the number of samples of these series with start ≤ t ≤ end."""
    total = 0
    for i in range(len(ids)):
        chunk = links[ids[i], FIRST]
        while chunk >= 0:
            if places[chunk, CHUNK_LATEST] >= start and places[chunk, CHUNK_EARLIEST] <= end:
                total += shapes[chunk, USED]
            chunk = shapes[chunk, NEXT]
    return total


@kernel(
    types.void(_INTS_IN, types.int64, types.int64, _SHORTS, _SHORTS, _LONGS, _INTS, _FLOATS, _INTS, _INTS, _FLOATS),
    first=True,
)
def _read(
    ids: np.ndarray,
    start: int,
    end: int,
    links: np.ndarray,
    shapes: np.ndarray,
    places: np.ndarray,
    arena_times: np.ndarray,
    arena_values: np.ndarray,
    offsets: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
) -> None:
    """Copy the samples with start ≤ t ≤ end, in order of arrival, to `times` and `values`, and the bounds of each
    series in them to `offsets` (int64[n + 1])."""
    out: Any = 0
    for i in range(len(ids)):
        offsets[i] = out
        chunk = links[ids[i], FIRST]
        while chunk >= 0:
            earliest, latest = places[chunk, CHUNK_EARLIEST], places[chunk, CHUNK_LATEST]
            if latest >= start and earliest <= end:
                place, used = places[chunk, PLACE], np.int64(shapes[chunk, USED])
                if earliest >= start and latest <= end:
                    for j in range(used):
                        times[out + j] = arena_times[place + j]
                        values[out + j] = arena_values[place + j]
                    out += used
                else:
                    for j in range(place, place + used):
                        if start <= arena_times[j] <= end:
                            times[out] = arena_times[j]
                            values[out] = arena_values[j]
                            out += 1
            chunk = shapes[chunk, NEXT]
    offsets[len(ids)] = out


@kernel(types.void(_INTS_IN, _SHORTS, _SHORTS, _INTS))
def _stored(ids: np.ndarray, links: np.ndarray, shapes: np.ndarray, stored: np.ndarray) -> None:
    """Add to stored[i] the number of samples of series ids[i], where samples with equal times all count."""
    for i in range(len(ids)):
        chunk = links[ids[i], FIRST]
        while chunk >= 0:
            stored[i] += shapes[chunk, USED]
            chunk = shapes[chunk, NEXT]


@kernel(types.void(_INTS_IN, types.int64, types.int64, _SHORTS, _SHORTS, _LONGS, _INTS, _FLAGS))
def _any_between(
    ids: np.ndarray,
    start: int,
    end: int,
    links: np.ndarray,
    shapes: np.ndarray,
    places: np.ndarray,
    arena_times: np.ndarray,
    has_sample: np.ndarray,
) -> None:
    """Set has_sample[i] if series ids[i] has a sample with start ≤ t ≤ end. Reads the times of a chunk only if the
    chunk begins before the range and ends after it."""
    for i in range(len(ids)):
        chunk = links[ids[i], FIRST]
        while chunk >= 0 and not has_sample[i]:
            earliest, latest = places[chunk, CHUNK_EARLIEST], places[chunk, CHUNK_LATEST]
            if start <= earliest <= end or start <= latest <= end:
                has_sample[i] = True
            elif earliest < start and latest > end:
                place = places[chunk, PLACE]
                for j in range(place, place + shapes[chunk, USED]):
                    if start <= arena_times[j] <= end:
                        has_sample[i] = True
                        break
            chunk = shapes[chunk, NEXT]


class Head:
    """The samples of series 0 ≤ id < `series`."""

    def __init__(self) -> None:
        self._links = GrowingArray(np.int32, (2,))
        self._ranges = GrowingArray(np.int64, (2,))
        self._late = GrowingArray(np.int32)  # late samples since the series was last in order
        self._shapes = GrowingArray(np.int32, (3,))
        self._places = GrowingArray(np.int64, (3,))
        self._times = GrowingArray(np.int64)
        self._values = GrowingArray(np.float64)
        self._tally = np.zeros(4, dtype=np.int64)

    @property
    def series(self) -> int:
        return self._links.size

    @property
    def samples(self) -> int:
        """Number of samples. A late sample with an existing time counts too until the series is rewritten or sealed; a
        repetition of the series' last time does not count."""
        return int(self._tally[STORED])

    @property
    def size_bytes(self) -> int:
        """Memory of the samples and their chunks, without the fixed cost of each series."""
        return 16 * int(self._tally[ARENA]) + CHUNK_BYTES * int(self._tally[CHUNKS])

    def times(self) -> tuple[int, int]:
        """(earliest, latest) of all samples, in Unix ms; (NEVER, BEFORE) if there are none."""
        ranges = self._ranges.rows()
        return int(ranges[:, EARLIEST].min(initial=NEVER)), int(ranges[:, LATEST].max(initial=BEFORE))

    def extend(self, series: int) -> None:
        """Make room for ids below `series`."""
        more = series - self._links.size
        if more > 0:
            self._links.extend(np.full((more, 2), -1, dtype=np.int32))
            self._ranges.extend(np.broadcast_to(np.array([NEVER, BEFORE]), (more, 2)))
            self._late.extend(np.zeros(more, dtype=np.int32))

    def append(self, series: NDArray[np.int64], times: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Append samples: `series` int64[n] are their ids, `times` int64[n] is in Unix ms, `values` is float64[n]. A
        sample replaces an earlier one with the same time."""
        at = 0
        while True:
            at = _append(
                series,
                times,
                values,
                at,
                self._links.data,
                self._ranges.data,
                self._late.data,
                self._shapes.data,
                self._places.data,
                self._times.data,
                self._values.data,
                self._tally,
            )
            self._shapes.size = self._places.size = int(self._tally[CHUNKS])
            self._times.size = self._values.size = int(self._tally[ARENA])
            if at == len(series):
                break
            for column in (self._shapes, self._places):
                column.reserve(CHUNK_ROOM_MIN)
            for column in (self._times, self._values):
                column.reserve(ARENA_ROOM_MIN)
        if self._tally[CROWDED]:
            self._tally[CROWDED] = 0
            self._settle(np.unique(series))

    def _settle(self, ids: NDArray[np.int64]) -> None:
        """Rewrite those of these series that have at least LATE_CHECK late samples and at least half of their samples
        late. At least half of the rewritten samples have then arrived since the last rewrite, which bounds the cost per
        sample."""
        ids = ids[self._late.data[ids] >= LATE_CHECK]
        stored = self._stored_each(ids)
        ids = ids[2 * self._late.data[ids] >= stored]
        if len(ids):
            self._rewrite(ids, self.read(ids, BEFORE, NEVER))

    def _rewrite(self, ids: NDArray[np.int64], samples: Samples) -> None:
        """Replace all samples of these series with `samples`. The memory of their old chunks is freed only with the
        head."""
        self._tally[STORED] -= self._stored(ids)
        self._links.data[ids] = -1
        self._ranges.data[ids] = (NEVER, BEFORE)
        self._late.data[ids] = 0
        self.append(np.repeat(ids, np.diff(samples.offsets)), samples.timestamps_ms, samples.values)

    def overlapping(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[n]: which series may have samples with start ≤ t ≤ end, because their earliest and latest times overlap
        that range."""
        ranges = self._ranges.data[ids]
        return (ranges[:, EARLIEST] <= end_ms) & (ranges[:, LATEST] >= start_ms)

    def having(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> NDArray[np.bool_]:
        """bool[n]: which series have samples with start ≤ t ≤ end."""
        ranges = self._ranges.data[ids]
        earliest, latest = ranges[:, EARLIEST], ranges[:, LATEST]
        has_samples = ((earliest >= start_ms) & (earliest <= end_ms)) | ((latest >= start_ms) & (latest <= end_ms))
        spanning = np.flatnonzero((earliest < start_ms) & (latest > end_ms))
        if len(spanning):
            has_inner_sample = np.zeros(len(spanning), dtype=np.bool_)
            _any_between(
                ids[spanning],
                start_ms,
                end_ms,
                self._links.data,
                self._shapes.data,
                self._places.data,
                self._times.data,
                has_inner_sample,
            )
            has_samples[spanning] = has_inner_sample
        return has_samples

    def read(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> Samples:
        """The samples of these series with start ≤ t ≤ end, ascending in time, each time once."""
        links, shapes, places = self._links.data, self._shapes.data, self._places.data
        room = _bound(ids, start_ms, end_ms, links, shapes, places)
        offsets = np.empty(len(ids) + 1, dtype=np.int64)
        times, values = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.float64)
        _read(
            ids,
            start_ms,
            end_ms,
            links,
            shapes,
            places,
            self._times.data,
            self._values.data,
            offsets,
            times,
            values,
        )
        samples = Samples(offsets, times[: offsets[-1]], values[: offsets[-1]])
        late = self._late.data[ids] > 0
        return in_order(samples, late) if late.any() else samples

    def delete(self, ids: NDArray[np.int64], start_ms: int, end_ms: int) -> int:
        """Remove the samples of these distinct series with start ≤ t ≤ end. Returns the number of removed samples."""
        ids = ids[self.having(ids, start_ms, end_ms)]
        stored = self.read(ids, BEFORE, NEVER)
        is_deleted = (stored.timestamps_ms >= start_ms) & (stored.timestamps_ms <= end_ms)
        offsets = np.concatenate(([0], np.cumsum(~is_deleted)))[stored.offsets]
        self._rewrite(ids, Samples(offsets, stored.timestamps_ms[~is_deleted], stored.values[~is_deleted]))
        return int(np.count_nonzero(is_deleted))

    def _stored_each(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64[n]: the number of stored samples of each series, where samples with equal times all count."""
        stored = np.zeros(len(ids), dtype=np.int64)
        _stored(ids, self._links.data, self._shapes.data, stored)
        return stored

    def _stored(self, ids: NDArray[np.int64]) -> int:
        return int(self._stored_each(ids).sum())

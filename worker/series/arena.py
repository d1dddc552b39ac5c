"""The kernels of a head (`worker.series.head`): chunks of samples in shared arenas.

The chunks of series s are a linked list that begins with chunk links[s, FIRST]. `ranges` has the earliest and the
latest time of each series, `shapes` and `places` describe each chunk, and `tally` has counters. The arenas hold the
times and the values of all samples and, once a sample has a start timestamp, the start timestamps too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.kernels import inlined, kernel, types

CHUNK_SAMPLES_MIN = 4
CHUNK_SAMPLES_MAX = 256
LATE_CHECK = 512
"""After this many late samples, a series is checked again for whether to rewrite it."""

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
        _INTS_IN, _INTS_IN, _FLOATS_IN, _INTS_IN, types.int64, _SHORTS, _LONGS, _COUNTS, _SHORTS, _LONGS, _INTS,
        _FLOATS, _INTS, _INTS,
    ),
    first=True,
)  # fmt: skip
def append(
    series: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    at: int,
    links: np.ndarray,
    ranges: np.ndarray,
    late: np.ndarray,
    shapes: np.ndarray,
    places: np.ndarray,
    arena_times: np.ndarray,
    arena_values: np.ndarray,
    arena_starts: np.ndarray,
    tally: np.ndarray,
) -> int:
    """Append the samples i ≥ `at`. Returns the first one for which there is no room, or the number of samples if all
    fit. `arena_starts` is empty until a sample has a start timestamp, and `starts` is empty if none of these samples
    has one."""
    has_starts, keeps_starts = len(starts) > 0, len(arena_starts) > 0
    i = at
    while i < len(series):
        s, time = series[i], times[i]
        chunk = links[s, LAST]
        if chunk >= 0 and time <= ranges[s, LATEST]:  # a time after the latest one is no repetition
            last = places[chunk, PLACE] + shapes[chunk, USED] - 1
            if arena_times[last] == time:
                arena_values[last] = values[i]
                if keeps_starts:
                    arena_starts[last] = starts[i] if has_starts else 0
                i += 1
                continue
        if chunk < 0 or shapes[chunk, USED] == shapes[chunk, SIZE]:
            size: Any = CHUNK_SAMPLES_MIN
            if chunk >= 0:
                size = min(2 * shapes[chunk, SIZE], CHUNK_SAMPLES_MAX)
            new_chunk = tally[CHUNKS]
            if new_chunk >= len(shapes) or tally[ARENA] + size > len(arena_times):
                return i
            shapes[new_chunk, SIZE], shapes[new_chunk, USED], shapes[new_chunk, NEXT] = size, 0, -1
            places[new_chunk, PLACE] = tally[ARENA]
            places[new_chunk, CHUNK_EARLIEST], places[new_chunk, CHUNK_LATEST] = NEVER, BEFORE
            if chunk >= 0:
                shapes[chunk, NEXT] = new_chunk
            else:
                links[s, FIRST] = new_chunk
            links[s, LAST] = new_chunk
            tally[CHUNKS] += 1
            tally[ARENA] += size
            chunk = np.int32(new_chunk)
        place = places[chunk, PLACE] + shapes[chunk, USED]
        arena_times[place] = time
        arena_values[place] = values[i]
        if keeps_starts:
            arena_starts[place] = starts[i] if has_starts else 0
        places[chunk, CHUNK_EARLIEST] = min(places[chunk, CHUNK_EARLIEST], time)
        ranges[s, EARLIEST] = min(ranges[s, EARLIEST], time)
        i += 1
        count = 1
        if time <= ranges[s, LATEST]:
            late[s] += 1
            if late[s] % LATE_CHECK == 0:
                tally[CROWDED] += 1
        elif i < len(series) and series[i] == s:  # the rest of a run
            end = i + min(shapes[chunk, SIZE] - shapes[chunk, USED] - 1, len(series) - i)
            while i < end and series[i] == s and times[i] > time:
                time = times[i]
                arena_times[place + count] = time
                arena_values[place + count] = values[i]
                if keeps_starts:
                    arena_starts[place + count] = starts[i] if has_starts else 0
                i += 1
                count += 1
        shapes[chunk, USED] += count
        places[chunk, CHUNK_LATEST] = max(places[chunk, CHUNK_LATEST], time)
        ranges[s, LATEST] = max(ranges[s, LATEST], time)
        tally[STORED] += count
    return len(series)


@kernel(types.int64(_INTS_IN, types.int64, types.int64, _SHORTS, _SHORTS, _LONGS), first=True)
def bound(ids: np.ndarray, start: int, end: int, links: np.ndarray, shapes: np.ndarray, places: np.ndarray) -> int:
    """An upper bound for the number of samples of these series with start ≤ t ≤ end."""
    total = 0
    for i in range(len(ids)):
        chunk = links[ids[i], FIRST]
        while chunk >= 0:
            if places[chunk, CHUNK_LATEST] >= start and places[chunk, CHUNK_EARLIEST] <= end:
                total += shapes[chunk, USED]
            chunk = shapes[chunk, NEXT]
    return total


@inlined(allocates=False)
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array to one of the same length: the compiler sees that no index is negative, and copies several numbers
    at a time."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel(
    types.boolean(
        _INTS_IN, types.int64, types.int64, _SHORTS, _COUNTS, _SHORTS, _LONGS, _INTS, _FLOATS, _INTS, _INTS, _INTS,
        _FLOATS, _INTS,
    ),
    first=True,
    allocates=False,
)  # fmt: skip
def read(
    ids: np.ndarray,
    start: int,
    end: int,
    links: np.ndarray,
    late: np.ndarray,
    shapes: np.ndarray,
    places: np.ndarray,
    arena_times: np.ndarray,
    arena_values: np.ndarray,
    arena_starts: np.ndarray,
    offsets: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
) -> bool:
    """Copy the samples with start ≤ t ≤ end in order of arrival to `times`, `values` and, unless `arena_starts` is
    empty, `starts`. Fill `offsets` (int64[n + 1]) with the bounds of each series in them. Returns whether any of the
    series has late samples."""
    out: Any = 0
    any_late = False
    has_starts = len(arena_starts) > 0
    for i in range(len(ids)):
        offsets[i] = out
        any_late |= late[ids[i]] > 0
        chunk = links[ids[i], FIRST]
        while chunk >= 0:
            earliest, latest = places[chunk, CHUNK_EARLIEST], places[chunk, CHUNK_LATEST]
            if latest >= start and earliest <= end:
                place, used = places[chunk, PLACE], np.int64(shapes[chunk, USED])
                if earliest >= start and latest <= end:
                    _copy(arena_times[place : place + used], times[out : out + used])
                    _copy(arena_values[place : place + used], values[out : out + used])
                    if has_starts:
                        _copy(arena_starts[place : place + used], starts[out : out + used])
                    out += used
                else:
                    for j in range(place, place + used):
                        if start <= arena_times[j] <= end:
                            times[out] = arena_times[j]
                            values[out] = arena_values[j]
                            if has_starts:
                                starts[out] = arena_starts[j]
                            out += 1
            chunk = shapes[chunk, NEXT]
    offsets[len(ids)] = out
    return any_late


@kernel(types.boolean(_INTS_IN, types.int64, types.int64, _LONGS), first=True, allocates=False)
def all_overlap(ids: np.ndarray, start: int, end: int, ranges: np.ndarray) -> bool:
    """Whether the earliest and latest times of each of these series overlap start ≤ t ≤ end."""
    overlap = True
    for i in range(len(ids)):
        overlap &= ranges[ids[i], EARLIEST] <= end and ranges[ids[i], LATEST] >= start
    return overlap


@kernel(types.void(_INTS_IN, _SHORTS, _SHORTS, _INTS))
def count_stored(ids: np.ndarray, links: np.ndarray, shapes: np.ndarray, stored: np.ndarray) -> None:
    """Add to stored[i] the number of samples of series ids[i], where samples with equal times all count."""
    for i in range(len(ids)):
        chunk = links[ids[i], FIRST]
        while chunk >= 0:
            stored[i] += shapes[chunk, USED]
            chunk = shapes[chunk, NEXT]


@kernel(types.void(_INTS_IN, types.int64, types.int64, _SHORTS, _SHORTS, _LONGS, _INTS, _FLAGS))
def any_between(
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

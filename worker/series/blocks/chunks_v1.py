"""Reads chunks of version 1, which earlier releases wrote: about 65,000 samples of neighbouring series, compressed.

Times are differences from the first time of their run. A run with the same times as the run before it (a series of the
same target) takes one bit. A run of equal values is stored as a single value. The other values are compressed by pcodec
(https://github.com/pcodec/pcodec), which finds deltas and common factors itself. Runs of whole numbers are compressed
as integers, apart from the others, and each long run on its own, because samples of one series are the most similar.
All values are exact to the last bit, including the payloads of NaNs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from worker.series.blocks.compression import fill

ALONE_SAMPLES = 2048
"""A run of at least this many samples is compressed on its own; shorter runs are compressed together. This number is
part of the format: a reader uses it to find the runs."""

_HEADER = struct.Struct("<BBHIIIII")
"""Version, whether the constants are integers, zero; the bytes of the times, of the constants, of the runs that are
together as integers, and of those that are together as doubles; the number of times."""
_VERSION = 1

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")

Flags = NDArray[np.bool_]


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _FLAGS, _INTS))
def _unfold(
    since: np.ndarray, firsts: np.ndarray, bounds: np.ndarray, has_same_times: np.ndarray, times: np.ndarray
) -> None:
    """Fill `times`. firsts[r] is the first time of run r. `since`: the differences of the later times from it, for the
    runs that do not have the same times as the run before."""
    at = 0
    for r in range(len(has_same_times)):
        a, b = bounds[r], bounds[r + 1]
        times[a] = firsts[r]
        if has_same_times[r]:
            before = bounds[r - 1]
            for j in range(1, b - a):
                times[a + j] = times[before + j]
            continue
        for j in range(a + 1, b):
            times[j] = firsts[r] + since[at]
            at += 1


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _FLAGS, types.int64, types.int64, _FLAGS))
def _seek(
    since: np.ndarray,
    firsts: np.ndarray,
    bounds: np.ndarray,
    has_same_times: np.ndarray,
    start_ms: int,
    end_ms: int,
    has_time: np.ndarray,
) -> None:
    """has_time[r]: whether run r has a time with start ≤ t ≤ end. Times ascend within a run, so a run takes a binary
    search; a run with the same times as the run before takes that run's result."""
    at = 0
    for r in range(len(has_same_times)):
        if has_same_times[r]:
            has_time[r] = has_time[r - 1]
            continue
        low, high = at, at + bounds[r + 1] - bounds[r] - 1
        at = high
        if firsts[r] >= start_ms:
            has_time[r] = firsts[r] <= end_ms
            continue
        while low < high:
            middle = (low + high) >> 1
            if firsts[r] + since[middle] < start_ms:
                low = middle + 1
            else:
                high = middle
        has_time[r] = low < at and firsts[r] + since[low] <= end_ms


def decode(
    data: bytes, counts: NDArray[np.int64], firsts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(times_ms int64[n], values float64[n]) of a chunk whose checksum is right. `counts` and `firsts`, int64[runs],
    are the lengths and the first times of its runs. Raises ValueError or struct.error if the bytes are not a valid
    chunk."""
    preamble = _preamble(data, counts)
    is_constant, is_integer, at = preamble.is_constant, preamble.is_integer, preamble.end
    is_alone = ~is_constant & (counts >= ALONE_SAMPLES)
    is_together = ~is_constant & ~is_alone
    lone_runs = np.flatnonzero(is_alone).tolist()
    lengths = np.frombuffer(data, dtype="<u4", count=len(lone_runs), offset=at).tolist()
    at += 4 * len(lone_runs)
    ends = np.cumsum([at, *preamble.sizes, *lengths]).tolist()
    pieces = [data[start:end] for start, end in pairwise(ends)]

    bounds = np.concatenate(([0], np.cumsum(counts)))
    n = int(bounds[-1])
    since, times = np.empty(preamble.time_count, dtype=np.int64), np.empty(n, dtype=np.int64)
    fill(pieces[0], since)
    _unfold(since, np.ascontiguousarray(firsts), bounds, preamble.has_same_times, times)

    values = np.empty(n, dtype=np.float64)
    constants = _decompressed(pieces[1], int(is_constant.sum()), preamble.has_integer_constants)
    values[np.repeat(is_constant, counts)] = np.repeat(constants, counts[is_constant])
    for piece, is_in_piece, are_whole in (
        (pieces[2], is_together & is_integer, True),
        (pieces[3], is_together & ~is_integer, False),
    ):
        if is_in_piece.any():
            samples_in_piece = np.repeat(is_in_piece, counts)
            values[samples_in_piece] = _decompressed(piece, int(counts[is_in_piece].sum()), are_whole)
    for piece, run in zip(pieces[4:], lone_runs, strict=True):
        values[bounds[run] : bounds[run + 1]] = _decompressed(piece, int(counts[run]), bool(is_integer[run]))
    return times, values


def between(data: bytes, counts: NDArray[np.int64], firsts: NDArray[np.int64], start_ms: int, end_ms: int) -> Flags:
    """bool[runs]: which runs of the chunk have a time with start ≤ t ≤ end. Decompresses only the times. Raises
    ValueError or struct.error as `decode` does."""
    has_time = np.zeros(len(counts), dtype=np.bool_)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    preamble = _preamble(data, counts)
    at = preamble.end + 4 * int((~preamble.is_constant & (counts >= ALONE_SAMPLES)).sum())
    since = np.empty(preamble.time_count, dtype=np.int64)
    fill(data[at : at + preamble.sizes[0]], since)
    _seek(since, np.ascontiguousarray(firsts), bounds, preamble.has_same_times, start_ms, end_ms, has_time)
    return has_time


@dataclass(frozen=True, slots=True)
class _Preamble:
    """What precedes the compressed numbers of a chunk, up to the byte `end`; see `_HEADER`. `has_same_times`,
    `is_constant` and `is_integer`, bool[runs]: which runs have the times of the run before, a single value, and whole
    numbers."""

    has_integer_constants: bool
    sizes: list[int]
    time_count: int
    has_same_times: Flags
    is_constant: Flags
    is_integer: Flags
    end: int


def _preamble(data: bytes, counts: NDArray[np.int64]) -> _Preamble:
    """Raises ValueError or struct.error if these bytes are not the preamble of a chunk with such runs. The kernels stay
    within their arrays for every preamble that this accepts."""
    version, has_integer_constants, _, *sizes, time_count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"chunk version {version} is not known to this release")
    flag_bytes = (len(counts) + 7) // 8
    flags = np.frombuffer(data, dtype=np.uint8, count=3 * flag_bytes, offset=_HEADER.size).reshape(3, flag_bytes)
    has_same_times, is_constant, is_integer = np.unpackbits(flags, axis=1, count=len(counts)).astype(np.bool_)
    if has_same_times[0] or (has_same_times[1:] & (counts[1:] != counts[:-1])).any():
        raise ValueError("it has a run with the times of the run before it, which has another number of samples")
    if time_count != int((counts[~has_same_times] - 1).sum()):
        raise ValueError(f"it has {time_count} times, which is not the number that its runs have")
    return _Preamble(
        bool(has_integer_constants),
        sizes,
        time_count,
        has_same_times,
        is_constant,
        is_integer,
        _HEADER.size + 3 * flag_bytes,
    )


def _decompressed(data: bytes, count: int, is_integer: bool) -> NDArray:
    out = np.empty(count, dtype=np.int64 if is_integer else np.float64)
    fill(data, out)
    return out

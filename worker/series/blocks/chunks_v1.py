"""Reads chunks of version 1, which earlier releases wrote: about 65,000 samples of neighbouring series, compressed.

Times are differences from the first time of their run. A run with the same times as the run before it (a series of the
same target) takes one bit. A run of equal values is stored as a single value. The other values are compressed by pcodec
(https://github.com/pcodec/pcodec), which finds deltas and common factors itself. Runs of whole numbers are compressed
as integers, apart from the others, and each long run on its own, since similar samples are mostly those of one series.
All values are exact to the last bit, including the payloads of NaNs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shared import kernel_types as types
from shared.kernels import kernel
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
def _unfold(since: np.ndarray, firsts: np.ndarray, bounds: np.ndarray, same: np.ndarray, times: np.ndarray) -> None:
    """Fill `times`. firsts[r] is the first time of run r; `since` has the differences of the later ones from it, of the
    runs that do not have the same times as the run before."""
    at = 0
    for r in range(len(same)):
        a, b = bounds[r], bounds[r + 1]
        times[a] = firsts[r]
        if same[r]:
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
    same: np.ndarray,
    start_ms: int,
    end_ms: int,
    inside: np.ndarray,
) -> None:
    """inside[r]: whether run r has a time with start ≤ t ≤ end. Times ascend within a run, so a
    run takes a binary search; a run with the same times as the run before takes that run's result."""
    at = 0
    for r in range(len(same)):
        if same[r]:
            inside[r] = inside[r - 1]
            continue
        low, high = at, at + bounds[r + 1] - bounds[r] - 1
        at = high
        if firsts[r] >= start_ms:
            inside[r] = firsts[r] <= end_ms
            continue
        while low < high:
            middle = (low + high) >> 1
            if firsts[r] + since[middle] < start_ms:
                low = middle + 1
            else:
                high = middle
        inside[r] = low < at and firsts[r] + since[low] <= end_ms


def decode(
    data: bytes, counts: NDArray[np.int64], firsts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(times_ms int64[n], values float64[n]) of a chunk whose checksum is right. `counts` and `firsts`, int64[runs],
    are the lengths and the first times of its runs. Raises ValueError or struct.error if the bytes are not a valid
    chunk."""
    head = _head(data, counts)
    constant, whole, at = head.constant, head.whole, head.end
    alone = ~constant & (counts >= ALONE_SAMPLES)
    together = ~constant & ~alone
    runs = np.flatnonzero(alone).tolist()
    lengths = np.frombuffer(data, dtype="<u4", count=len(runs), offset=at).tolist()
    at += 4 * len(runs)
    ends = np.cumsum([at, *head.sizes, *lengths]).tolist()
    pieces = [data[start:end] for start, end in pairwise(ends)]

    bounds = np.concatenate(([0], np.cumsum(counts)))
    n = int(bounds[-1])
    since, times = np.empty(head.used, dtype=np.int64), np.empty(n, dtype=np.int64)
    fill(pieces[0], since)
    _unfold(since, np.ascontiguousarray(firsts), bounds, head.same, times)

    values = np.empty(n, dtype=np.float64)
    constants = _decompressed(pieces[1], int(constant.sum()), head.whole_constants)
    values[np.repeat(constant, counts)] = np.repeat(constants, counts[constant])
    for piece, runs_in_piece, are_whole in ((pieces[2], together & whole, True), (pieces[3], together & ~whole, False)):
        if runs_in_piece.any():
            samples_in_piece = np.repeat(runs_in_piece, counts)
            values[samples_in_piece] = _decompressed(piece, int(counts[runs_in_piece].sum()), are_whole)
    for piece, run in zip(pieces[4:], runs, strict=True):
        values[bounds[run] : bounds[run + 1]] = _decompressed(piece, int(counts[run]), bool(whole[run]))
    return times, values


def between(data: bytes, counts: NDArray[np.int64], firsts: NDArray[np.int64], start_ms: int, end_ms: int) -> Flags:
    """bool[runs]: which runs of the chunk have a time with start ≤ t ≤ end. Decompresses only the times. Raises
    ValueError or struct.error as `decode` does."""
    inside = np.zeros(len(counts), dtype=np.bool_)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    head = _head(data, counts)
    at = head.end + 4 * int((~head.constant & (counts >= ALONE_SAMPLES)).sum())
    since = np.empty(head.used, dtype=np.int64)
    fill(data[at : at + head.sizes[0]], since)
    _seek(since, np.ascontiguousarray(firsts), bounds, head.same, start_ms, end_ms, inside)
    return inside


@dataclass(frozen=True, slots=True)
class _Head:
    """What precedes the compressed numbers of a chunk, up to the byte `end`; see `_HEADER`. `same`, `constant` and
    `whole`, bool[runs]: which runs have the times of the run before, a single value, and whole numbers."""

    whole_constants: bool
    sizes: list[int]
    used: int
    same: Flags
    constant: Flags
    whole: Flags
    end: int


def _head(data: bytes, counts: NDArray[np.int64]) -> _Head:
    """Raises ValueError or struct.error if it is not the head of a chunk with such runs. The kernels read within their
    arrays for every head that this accepts."""
    version, whole_constants, _, *sizes, used = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"chunk version {version} is not known to this release")
    flag_bytes = (len(counts) + 7) // 8
    flags = np.frombuffer(data, dtype=np.uint8, count=3 * flag_bytes, offset=_HEADER.size).reshape(3, flag_bytes)
    same, constant, whole = np.unpackbits(flags, axis=1, count=len(counts)).astype(np.bool_)
    if same[0] or (same[1:] & (counts[1:] != counts[:-1])).any():
        raise ValueError("it has a run with the times of the run before it, which has another number of samples")
    if used != int((counts[~same] - 1).sum()):
        raise ValueError(f"it has {used} times, which is not the number that its runs have")
    return _Head(bool(whole_constants), sizes, used, same, constant, whole, _HEADER.size + 3 * flag_bytes)


def _decompressed(data: bytes, count: int, whole: bool) -> NDArray:
    out = np.empty(count, dtype=np.int64 if whole else np.float64)
    fill(data, out)
    return out

"""Chunks as former releases wrote them: times as differences of differences, values of all runs together."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray
from pcodec import standalone

VERSION = 1
_HEADER = struct.Struct("<BBHIII")
"""Version, kind of values, zero, bytes of the times, of the values, number of steps."""
_FLOATS_KIND, _INTEGERS_KIND = 0, 1


def decode(
    data: bytes, counts: NDArray[np.int64], firsts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """As `chunks.decode`. Compaction writes what is read here anew."""
    _, kind, _, times_bytes, _, used = _HEADER.unpack_from(data)
    if kind not in (_FLOATS_KIND, _INTEGERS_KIND):
        raise ValueError(f"values of kind {kind} are not known to this release")
    at = _HEADER.size
    flag_bytes = (len(counts) + 7) // 8
    flags = np.frombuffer(data, dtype=np.uint8, count=flag_bytes, offset=at)
    same = np.unpackbits(flags, count=len(counts)).tolist()
    at += flag_bytes
    try:
        steps = standalone.simple_decompress(data[at : at + times_bytes]) if used else np.zeros(0, dtype=np.int64)
        values = standalone.simple_decompress(data[at + times_bytes :])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"pcodec: {error}") from error
    if steps is None or values is None or len(steps) != used or len(values) != int(counts.sum()):
        raise ValueError("it has not as many numbers as its runs")
    return _times(steps, counts.tolist(), firsts.tolist(), same), values.astype(np.float64, copy=False)


def _times(steps: NDArray[np.int64], counts: list[int], firsts: list[int], same: list[int]) -> NDArray[np.int64]:
    runs: list[NDArray[np.int64]] = []
    at, delta = 0, np.int64(0)
    for count, first, alike in zip(counts, firsts, same, strict=True):
        if alike:
            runs.append(runs[-1])
            continue
        deltas = delta + np.cumsum(steps[at : at + count - 1])
        at += count - 1
        runs.append(np.concatenate(([first], first + np.cumsum(deltas))))
        if count > 1:
            delta = deltas[0]
    return np.concatenate(runs)

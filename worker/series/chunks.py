"""A chunk: some 32,000 samples of neighbouring series, compressed.

Times become differences of differences, so that a regular scrape is a row of zeros, and a run with the times of the run
before it (series of one target) is one bit. Values that are whole numbers are compressed as integers, others as
doubles, by pcodec (https://github.com/pcodec/pcodec), which finds the deltas and multiples itself. Both are exact to
the last bit, payloads of NaNs included.
"""

from __future__ import annotations

import struct

import numpy as np
from numba import types
from numpy.typing import NDArray
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, standalone

from shared.kernels import kernel

CHUNK_SAMPLES = 32_768
"""Long enough for pcodec's statistics (a header is some 100 bytes), short enough to decode in 0.2 ms."""

_HEADER = struct.Struct("<BBHIII")
"""Version, kind of values, zero, bytes of the times, of the values, number of steps."""
_VERSION = 1
_FLOATS_KIND, _INTEGERS_KIND = 0, 1

_TIMES = ChunkConfig(mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.no_op())
_VALUES = ChunkConfig()

_INTS = types.Array(types.int64, 1, "C")
_INTS_IN = types.Array(types.int64, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")


@kernel(types.int64(_INTS_IN, _INTS_IN, _FLAGS, _INTS))
def _fold(times: np.ndarray, bounds: np.ndarray, same: np.ndarray, steps: np.ndarray) -> int:
    """same[r]: whether run r, times[bounds[r]:bounds[r + 1]], has the times of the run before; the steps of the other
    runs go to `steps`, first times excepted. Returns how many there are. Sums may wrap, and wrap back in `_unfold`."""
    out = 0
    first = np.int64(0)
    for r in range(len(same)):
        a, b = bounds[r], bounds[r + 1]
        same[r] = False
        if r > 0 and b - a == a - bounds[r - 1]:
            before = bounds[r - 1]
            alike = True
            for j in range(b - a):
                if times[a + j] != times[before + j]:
                    alike = False
                    break
            same[r] = alike
        if same[r]:
            continue
        delta = first
        for j in range(a + 1, b):
            step = times[j] - times[j - 1]
            steps[out] = step - delta
            delta = step
            out += 1
        if b - a > 1:
            first = times[a + 1] - times[a]
    return out


@kernel(types.void(_INTS_IN, _INTS_IN, _INTS_IN, _FLAGS, _INTS))
def _unfold(steps: np.ndarray, firsts: np.ndarray, bounds: np.ndarray, same: np.ndarray, times: np.ndarray) -> None:
    """Inverse of `_fold`; firsts[r] is the first time of run r."""
    at = 0
    first = np.int64(0)
    for r in range(len(same)):
        a, b = bounds[r], bounds[r + 1]
        if same[r]:
            before = bounds[r - 1]
            for j in range(b - a):
                times[a + j] = times[before + j]
            continue
        delta = first
        time = firsts[r]
        times[a] = time
        for j in range(a + 1, b):
            delta += steps[at]
            time += delta
            times[j] = time
            at += 1
        if b - a > 1:
            first = times[a + 1] - times[a]


def encode(counts: NDArray[np.int64], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> bytes:
    """Runs of counts[r] ≥ 1 samples, one after another, times ascending within each."""
    bounds = np.concatenate(([0], np.cumsum(counts)))
    same, steps = np.zeros(len(counts), dtype=np.bool_), np.empty(len(times_ms), dtype=np.int64)
    used = int(_fold(times_ms, bounds, same, steps))
    times = standalone.simple_compress(steps[:used], _TIMES) if used else b""
    whole = _integers(values)
    kind = _FLOATS_KIND if whole is None else _INTEGERS_KIND
    packed = standalone.simple_compress(values if whole is None else whole, _VALUES)
    header = _HEADER.pack(_VERSION, kind, 0, len(times), len(packed), used)
    return b"".join((header, np.packbits(same).tobytes(), times, packed))


def decode(
    data: bytes, counts: NDArray[np.int64], firsts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(times_ms int64[n], values float64[n]) of a chunk whose checksum is right; `counts` and `firsts` (first times)
    are its runs'. Raises ValueError where it makes no sense all the same."""
    version, kind, _, times_bytes, values_bytes, used = _HEADER.unpack_from(data)
    if version != _VERSION or kind not in (_FLOATS_KIND, _INTEGERS_KIND):
        raise ValueError(f"chunk version {version} with values of kind {kind} is not known to this release")
    at = _HEADER.size
    flag_bytes = (len(counts) + 7) // 8
    flags = np.frombuffer(data, dtype=np.uint8, count=flag_bytes, offset=at)
    same = np.unpackbits(flags, count=len(counts)).astype(np.bool_)
    at += flag_bytes
    bounds = np.concatenate(([0], np.cumsum(counts)))
    n = int(bounds[-1])
    steps = np.empty(used, dtype=np.int64)
    if used:
        _fill(data[at : at + times_bytes], steps)
    at += times_bytes
    values = np.empty(n, dtype=np.float64 if kind == _FLOATS_KIND else np.int64)
    _fill(data[at : at + values_bytes], values)
    times = np.empty(n, dtype=np.int64)
    _unfold(steps, np.ascontiguousarray(firsts), bounds, same, times)
    return times, values.astype(np.float64, copy=False)


def _fill(data: bytes, out: NDArray) -> None:
    try:
        progress = standalone.simple_decompress_into(data, out)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"pcodec: {error}") from error
    if progress.n_processed != len(out) or not progress.finished:
        raise ValueError(f"{progress.n_processed} of {len(out)} numbers are there")


def _integers(values: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """The values as integers if each comes back from them bit for bit (so no −0, no NaN), else None."""
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    exact = whole.astype(np.float64).view(np.int64) == values.view(np.int64)
    return whole if exact.all() else None

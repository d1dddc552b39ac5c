"""Writes chunks of version 1, as earlier releases did, for tests of their reader."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from worker.series.blocks import chunks_v1
from worker.series.blocks.chunks import _integers
from worker.series.blocks.compression import compressed


def encode(counts: NDArray[np.int64], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> bytes:
    """Encode runs of counts[r] ≥ 1 samples, one after another, with times ascending within each run."""
    bounds = np.concatenate(([0], np.cumsum(counts)))
    same, since = _differences(times_ms, bounds)
    starts = bounds[:-1]
    bits = values.view(np.int64)
    constant = np.logical_and.reduceat(bits == np.repeat(bits[starts], counts), starts)
    numbers, exact = _integers(values)
    whole = np.logical_and.reduceat(exact, starts)
    alone = ~constant & (counts >= chunks_v1.ALONE_SAMPLES)
    together = ~constant & ~alone
    whole_constants = bool(whole[constant].all())
    of_constants = starts[constant]
    parts = [
        compressed(since),
        compressed((numbers if whole_constants else values)[of_constants]),
        compressed(numbers[np.repeat(together & whole, counts)]),
        compressed(values[np.repeat(together & ~whole, counts)]),
    ]
    streams = [
        compressed((numbers if whole[r] else values)[bounds[r] : bounds[r + 1]]) for r in np.flatnonzero(alone).tolist()
    ]
    header = chunks_v1._HEADER.pack(1, whole_constants, 0, *map(len, parts), len(since))
    flags = [np.packbits(flag).tobytes() for flag in (same, constant, whole)]
    lengths = np.array([len(stream) for stream in streams], dtype="<u4").tobytes()
    return b"".join((header, *flags, lengths, *parts, *streams))


def _differences(times: NDArray[np.int64], bounds: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """(bool[runs], which runs have the times of the run before; the differences of the later times of all other runs
    from their first one)."""
    own = [times[begin:end] for begin, end in pairwise(bounds)]
    same = np.array([r > 0 and np.array_equal(run, own[r - 1]) for r, run in enumerate(own)])
    since = [run[1:] - run[0] for run, is_same in zip(own, same, strict=True) if not is_same]
    return same, np.concatenate(since)

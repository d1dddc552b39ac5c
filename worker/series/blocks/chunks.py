"""A chunk: about 65,536 samples of neighbouring series, compressed in pages that can be decoded on their own.

A page has some 8,192 samples: those of several short runs, or of one long run. For each run, the chunk has a few
numbers: the predictors of its times and of its values (`integer_runs`). The residuals of all runs of a page are
compressed together (`compression`). A run with the same times as the run before it, which may be in an earlier page,
has no predictor for them. Values that are not whole numbers are compressed as doubles, and if a run has only one such
value, it is stored once. All values are exact to the last bit.

Chunks of version 1 are read by `chunks_v1`, those of version 3 by `paged_chunk`. Version 2 is that of `sections`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, DeltaSpec, ModeSpec

from shared.histograms.batch import INTS, Ints
from shared.kernels import kernel, types
from worker.series.blocks import chunks_v1
from worker.series.blocks.chunk_layout import (
    CONSTANT,
    FLOATS,
    HEADER,
    PAGE_NUMBERS,
    SAME,
    STREAMS,
    TIMES_WALK,
    VALUES_SHIFT,
    VALUES_WALK,
    VERSION,
)
from worker.series.blocks.compression import compressed
from worker.series.blocks.integer_runs import NARROW, WIDE, fold
from worker.series.blocks.paged_chunk import Flags, PagedChunk

CHUNK_SAMPLES = 65_536
"""Samples that are read from the disk and checked at once."""
PAGE_SAMPLES = 8192
"""Enough that the header of a compressed array (some 40 bytes, and 3 µs to read) costs little, and few enough that
reading one series of a page costs little more than the series."""
RUN_SAMPLES_MAX = PAGE_SAMPLES
"""Writers cut longer runs, so that the directory tells which parts of a series a range of time needs."""
_NARROW_CONFIG = ChunkConfig(compression_level=6, delta_spec=DeltaSpec.no_op(), mode_spec=ModeSpec.classic())
"""For residuals of values, which are differences already. Level 8 would take 0.5 % less space, and a sixth more time to
decode. Times are few, since neighbours share them."""
_CONFIG = ChunkConfig()

_FLAGS = types.Array(types.boolean, 1, "C")


def encode(counts: Ints, times_ms: Ints, values: NDArray[np.float64]) -> bytes:
    """Encode runs of counts[r] ≥ 1 samples, one after another, with times ascending within each run."""
    assert len(counts) and int(counts.min()) >= 1, "a chunk has runs, and each run has samples"
    assert times_ms.dtype == np.int64 and values.dtype == np.float64
    bounds = np.concatenate(([0], np.cumsum(counts)))
    assert int(bounds[-1]) == len(times_ms) == len(values)
    times_ms, values = np.ascontiguousarray(times_ms), np.ascontiguousarray(values)
    page_ends = _page_ends(counts)
    has_same_times = np.empty(len(counts), dtype=np.bool_)
    _mark_same(times_ms, bounds, has_same_times)
    time_predictors = _Predictors(times_ms, bounds, has_same_times, are_times=True)
    time_predictors.kinds[has_same_times] = SAME

    starts = bounds[:-1]
    bits = values.view(np.int64)
    numbers, converts_back = _integers(values)
    is_integer = np.logical_and.reduceat(converts_back, starts)
    is_constant = ~is_integer & np.logical_and.reduceat(bits == np.repeat(bits[starts], counts), starts)
    value_predictors = _Predictors(numbers, bounds, ~is_integer, are_times=False)
    value_predictors.kinds[~is_integer] = FLOATS
    value_predictors.kinds[is_constant] = CONSTANT

    kinds = time_predictors.kinds + TIMES_WALK * time_predictors.walks
    kinds += (value_predictors.kinds + VALUES_WALK * value_predictors.walks) << VALUES_SHIFT
    columns = [
        compressed(kinds.astype(np.uint16)),
        compressed(time_predictors.slopes[~has_same_times]),
        compressed(value_predictors.bases[is_integer]),
        compressed(value_predictors.slopes[is_integer]),
        compressed(values[starts[is_constant]]),
    ]
    floats = values[np.repeat(value_predictors.kinds == FLOATS, counts)]
    streams = [
        *_by_page(time_predictors.narrow, time_predictors.kinds == NARROW, counts, page_ends),
        *_by_page(time_predictors.wide, time_predictors.kinds == WIDE, counts, page_ends),
        *_by_page(value_predictors.narrow, value_predictors.kinds == NARROW, counts, page_ends, _NARROW_CONFIG),
        *_by_page(value_predictors.wide, value_predictors.kinds == WIDE, counts, page_ends),
        *_by_page(floats, value_predictors.kinds == FLOATS, counts, page_ends),
    ]
    pages = len(page_ends)
    table = np.empty((pages, PAGE_NUMBERS), dtype="<u4")
    table[:, 0] = page_ends
    table[:, 1:] = np.array([len(stream) for stream in streams]).reshape(len(STREAMS), pages).T
    by_page = [streams[kind * pages + page] for page in range(pages) for kind in range(len(STREAMS))]
    header = HEADER.pack(VERSION, 0, 0, pages, *map(len, columns))
    return b"".join((header, table.tobytes(), *columns, *by_page))


def decode(data: bytes, counts: Ints, firsts: Ints) -> tuple[Ints, NDArray[np.float64]]:
    """(times_ms int64[n], values float64[n]) of a chunk whose checksum is right. `counts` and `firsts`, int64[runs],
    are the lengths and the first times of its runs. Raises ValueError or struct.error if the bytes are not a valid
    chunk."""
    if not is_paged(data):
        return chunks_v1.decode(data, counts, firsts)
    return PagedChunk(data, counts, firsts).decode_all()


def between(data: bytes, counts: Ints, firsts: Ints, start_ms: int, end_ms: int) -> Flags:
    """bool[runs]: which runs of the chunk have a time with start ≤ t ≤ end. Decompresses only the times. Raises
    ValueError or struct.error as `decode` does."""
    if not is_paged(data):
        return chunks_v1.between(data, counts, firsts, start_ms, end_ms)
    return PagedChunk(data, counts, firsts).between(start_ms, end_ms)


def is_paged(data: bytes) -> bool:
    """Whether the chunk has pages, like all chunks that this release writes."""
    return data[:1] == bytes([VERSION])


class _Predictors:
    """The predictors of the runs that are not `skipped`, and their residuals."""

    def __init__(self, numbers: Ints, bounds: Ints, skipped: Flags, *, are_times: bool) -> None:
        runs, size = len(skipped), len(numbers)
        self.kinds, self.walks = np.zeros(runs, np.int64), np.zeros(runs, np.bool_)
        self.bases, self.slopes = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
        self.narrow, self.wide = np.empty(size, np.int16), np.empty(size, np.int64)
        fold(
            numbers, bounds, skipped, are_times, self.kinds, self.walks, self.bases, self.slopes, self.narrow, self.wide
        )


def _page_ends(counts: Ints) -> list[int]:
    """Where the runs of each page end. A run that no longer fits in a page begins the next one."""
    samples_before = np.concatenate(([0], np.cumsum(counts)))
    ends, first = list[int](), 0
    while first < len(counts):
        first = max(
            first + 1, int(np.searchsorted(samples_before, samples_before[first] + PAGE_SAMPLES, side="right")) - 1
        )
        ends.append(first)
    return ends


def _by_page(
    numbers: NDArray, has_numbers: Flags, counts: Ints, page_ends: list[int], config: ChunkConfig = _CONFIG
) -> list[bytes]:
    """The numbers of each page, compressed. `has_numbers`, bool[runs]: the runs that have one for each sample."""
    ends = np.concatenate(([0], np.cumsum(np.where(has_numbers, counts, 0))))[[0, *page_ends]].tolist()
    return [compressed(numbers[begin:end], config) for begin, end in pairwise(ends)]


@kernel(types.void(INTS, INTS, _FLAGS), allocates=False)
def _mark_same(times: Ints, bounds: Ints, has_same_times: Flags) -> None:
    """has_same_times[r]: whether run r has the same times as the run before it."""
    has_same_times[0] = False
    for r in range(1, len(has_same_times)):
        begin, previous = bounds[r], bounds[r - 1]
        differs = (bounds[r + 1] - begin) ^ (begin - previous)
        if differs == 0:
            for i in range(begin - previous):
                differs |= times[begin + i] ^ times[previous + i]
        has_same_times[r] = differs == 0


def _integers(values: NDArray[np.float64]) -> tuple[Ints, Flags]:
    """(int64[n], the values as integers; bool[n], which of these convert back to the same bits, so neither −0 nor
    NaN)."""
    with np.errstate(invalid="ignore"):
        integers = values.astype(np.int64)
    return integers, integers.astype(np.float64).view(np.int64) == values.view(np.int64)

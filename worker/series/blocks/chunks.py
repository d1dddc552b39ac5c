"""A chunk: about 65,536 samples of neighbouring series, compressed in pages that can be decoded on their own.

A page has some 8,192 samples: those of several short runs, or of one long run. Of each run the chunk has a few numbers:
the rules of its times and of its values (`integer_runs`). What these rules leave over of all runs of a page is
compressed together (`compression`). A run with the same times as the run before it, which may be in an earlier page,
has no rule for them. Values that are not whole numbers are compressed as doubles, and if a run has only one such value,
it is stored once. All values are exact to the last bit.

Chunks of version 1 are read by `chunks_v1`, those of version 3 by `paged_chunk`. Version 2 is that of `sections`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, DeltaSpec, ModeSpec

from shared import kernel_types as types
from shared.histograms.batch import INTS, Ints
from shared.kernels import kernel
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
"""What is read from the disk, and checked, at once."""
PAGE_SAMPLES = 8192
"""Enough that the header of a compressed array (some 40 bytes, and 3 µs to read) costs little, and few enough that
reading one series of a page costs little more than the series."""
RUN_SAMPLES_MAX = PAGE_SAMPLES
"""Writers cut longer runs, so that the directory tells which parts of a series a range of time needs."""
_NARROW_CONFIG = ChunkConfig(compression_level=6, delta_spec=DeltaSpec.no_op(), mode_spec=ModeSpec.classic())
"""For rests of values, which are differences already. Level 8 would take 0.5 % less space, and a sixth more time to
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
    same = np.empty(len(counts), dtype=np.bool_)
    _mark_same(times_ms, bounds, same)
    of_times = _Rules(times_ms, bounds, same, are_times=True)
    of_times.kinds[same] = SAME

    starts = bounds[:-1]
    bits = values.view(np.int64)
    numbers, exact = _integers(values)
    whole = np.logical_and.reduceat(exact, starts)
    constant = ~whole & np.logical_and.reduceat(bits == np.repeat(bits[starts], counts), starts)
    of_values = _Rules(numbers, bounds, ~whole, are_times=False)
    of_values.kinds[~whole] = FLOATS
    of_values.kinds[constant] = CONSTANT

    kinds = of_times.kinds + TIMES_WALK * of_times.walks
    kinds += (of_values.kinds + VALUES_WALK * of_values.walks) << VALUES_SHIFT
    columns = [
        compressed(kinds.astype(np.uint16)),
        compressed(of_times.slopes[~same]),
        compressed(of_values.bases[whole]),
        compressed(of_values.slopes[whole]),
        compressed(values[starts[constant]]),
    ]
    floats = values[np.repeat(of_values.kinds == FLOATS, counts)]
    streams = [
        *_by_page(of_times.narrow, of_times.kinds == NARROW, counts, page_ends),
        *_by_page(of_times.wide, of_times.kinds == WIDE, counts, page_ends),
        *_by_page(of_values.narrow, of_values.kinds == NARROW, counts, page_ends, _NARROW_CONFIG),
        *_by_page(of_values.wide, of_values.kinds == WIDE, counts, page_ends),
        *_by_page(floats, of_values.kinds == FLOATS, counts, page_ends),
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
    return PagedChunk(data, counts, firsts).whole()


def between(data: bytes, counts: Ints, firsts: Ints, start_ms: int, end_ms: int) -> Flags:
    """bool[runs]: which runs of the chunk have a time with start ≤ t ≤ end. Decompresses only the times. Raises
    ValueError or struct.error as `decode` does."""
    if not is_paged(data):
        return chunks_v1.between(data, counts, firsts, start_ms, end_ms)
    return PagedChunk(data, counts, firsts).between(start_ms, end_ms)


def is_paged(data: bytes) -> bool:
    """Whether the chunk has pages, as all have that this release writes."""
    return data[:1] == bytes([VERSION])


class _Rules:
    """The rules of the runs that are not `skipped`, and what these leave over."""

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
    before = np.concatenate(([0], np.cumsum(counts)))
    ends, first = list[int](), 0
    while first < len(counts):
        first = max(first + 1, int(np.searchsorted(before, before[first] + PAGE_SAMPLES, side="right")) - 1)
        ends.append(first)
    return ends


def _by_page(
    numbers: NDArray, has_some: Flags, counts: Ints, page_ends: list[int], config: ChunkConfig = _CONFIG
) -> list[bytes]:
    """The numbers of each page, compressed. `has_some`, bool[runs]: the runs that have one for each sample."""
    ends = np.concatenate(([0], np.cumsum(np.where(has_some, counts, 0))))[[0, *page_ends]].tolist()
    return [compressed(numbers[begin:end], config) for begin, end in pairwise(ends)]


@kernel(types.void(INTS, INTS, _FLAGS), allocates=False)
def _mark_same(times: Ints, bounds: Ints, same: Flags) -> None:
    """same[r]: whether run r has the same times as the run before it."""
    same[0] = False
    for r in range(1, len(same)):
        begin, before = bounds[r], bounds[r - 1]
        differs = (bounds[r + 1] - begin) ^ (begin - before)
        if differs == 0:
            for i in range(begin - before):
                differs |= times[begin + i] ^ times[before + i]
        same[r] = differs == 0


def _integers(values: NDArray[np.float64]) -> tuple[Ints, Flags]:
    """(int64[n], the values as integers; bool[n], which of these convert back to the same bits, so neither −0 nor
    NaN)."""
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    return whole, whole.astype(np.float64).view(np.int64) == values.view(np.int64)

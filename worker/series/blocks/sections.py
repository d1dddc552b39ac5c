"""Chunks whose samples have start times or are histograms: a chunk of times and values (`chunks`), and a section for
each of the two.

All samples that are histograms have the same value in the chunk of values, a reference to row 0, which takes at most a
bit each. The histograms are in their section in the order of these values. Chunks without start times and histograms
are written as `chunks` writes them.

A start time is stored as its difference from the start time before it, or from the time of the sample before it,
whichever is more often 0 in its run. The former is 0 while a counter keeps counting, the latter where each sample
counts from the one before it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import INTS, HistogramBatch, Ints
from shared.histograms.interning import with_distinct_layouts
from shared.histograms.references import (
    is_reference,
    references,
    rows_of,
    stacked,
    used_only,
    without_references,
)
from shared.kernels import kernel, types
from worker.series.blocks import chunks, histograms
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.compression import compressed, fill
from worker.series.blocks.paged_chunk import Flags, PagedChunk

_HEADER = struct.Struct("<BBHIII")
"""Version, two zeros; the bytes of the chunk of times and values, of the start times and of the histograms. A missing
section has no bytes."""
_VERSION = 2
EDGES_BYTES = 16
"""Size of the two boundaries of a bucket of a layout."""
_START_TIMES = struct.Struct("<I")
"""The size of the first start times; the differences follow them."""

_FLAGS = types.Array(types.boolean, 1, "C")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The samples of a chunk's runs, one run after another: int64[n], float64[n] and int64[n], read-only. See
    `Samples`."""

    times_ms: Ints
    values: NDArray[np.float64]
    start_timestamps_ms: Ints | None = None
    histograms: HistogramBatch | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays, and of the boundaries of the buckets, which are computed when they are needed."""
        arrays = (self.times_ms, self.values, self.start_timestamps_ms, self.histograms)
        edges = 0 if self.histograms is None else EDGES_BYTES * len(self.histograms.layouts.columns.indexes)
        return int(edges + sum(array.nbytes for array in arrays if array is not None))

    def samples(self, first: int, last: int) -> Chunk:
        """The samples from `first` up to `last`, without the histograms of the others."""
        values, batch = used_only(self.values[first:last], self.histograms)
        start_times = self.start_timestamps_ms
        return Chunk(self.times_ms[first:last], values, None if start_times is None else start_times[first:last], batch)

    def numbers(self) -> Ints:
        """int64[n]: how much of CHUNK_NUMBERS each sample takes."""
        sizes = np.zeros(len(self.values), np.int64)
        if self.histograms is not None:
            is_histogram = is_reference(self.values)
            sizes[is_histogram] = histograms.weights(self.histograms, rows_of(self.values[is_histogram]))
        return sizes


def joined(parts: Sequence[Chunk]) -> Chunk:
    """The samples of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    values, batch = stacked([(part.values, part.histograms) for part in parts])
    if batch is not None:
        batch = with_distinct_layouts(batch)
    start_times = None
    if any(part.start_timestamps_ms is not None for part in parts):
        start_times = np.concatenate(
            [
                np.zeros(len(part.values), np.int64) if part.start_timestamps_ms is None else part.start_timestamps_ms
                for part in parts
            ]
        )
    return Chunk(np.concatenate([part.times_ms for part in parts]), np.concatenate(values), start_times, batch)


def encode(counts: Ints, chunk: Chunk) -> bytes:
    """Encode runs of counts[r] ≥ 1 samples, one after another, with times ascending within each run."""
    values, start_times, batch = chunk.values, chunk.start_timestamps_ms, chunk.histograms
    sections = [b"", b""]
    if start_times is not None and start_times.any():
        sections[0] = _encode_start_times(counts, chunk.times_ms, start_times)
    if batch is not None:
        is_histogram = is_reference(values)
        if is_histogram.any():
            per_run = np.add.reduceat(is_histogram, np.cumsum(counts) - counts, dtype=np.int64)
            sections[1] = histograms.encode(batch.take(rows_of(values[is_histogram])), per_run)
            values = np.where(is_histogram, references(np.zeros(1, np.int64)), values)
    data = chunks.encode(counts, chunk.times_ms, values)
    if not any(sections):
        return data
    return b"".join((_HEADER.pack(_VERSION, 0, 0, len(data), *map(len, sections)), data, *sections))


def opened(data: bytes, counts: Ints, firsts: Ints, cache: DecodedCache) -> Chunk | PagedChunk:
    """A chunk whose checksum is right, decoded unless it has pages; pages that are read again stay decompressed while
    `cache` has room. `counts` and `firsts`, int64[runs], are the lengths and the first times of its runs. Raises
    ValueError or struct.error if the bytes are not a valid chunk."""
    return PagedChunk(data, counts, firsts, cache) if chunks.is_paged(data) else decode(data, counts, firsts)


def decode(data: bytes, counts: Ints, firsts: Ints) -> Chunk:
    """The samples of a chunk whose checksum is right. Raises as `opened` does."""
    body, start_section, histogram_section = _split(data)
    times_ms, values = chunks.decode(body, counts, firsts)
    batch = None
    if histogram_section:
        is_histogram = is_reference(values)
        rows = int(np.count_nonzero(is_histogram))
        batch = histograms.decode(histogram_section, rows)
        values[is_histogram] = references(np.arange(rows))
    start_times = _decode_start_times(start_section, counts, times_ms) if start_section else None
    return _read_only(times_ms, values, start_times, batch)


def decode_paged(chunk: PagedChunk) -> Chunk:
    """All samples of a chunk with pages. Raises ValueError if they cannot be decoded."""
    return _read_only(*chunk.decode_all())


def _read_only(
    times_ms: Ints,
    values: NDArray[np.float64],
    start_times: Ints | None = None,
    batch: HistogramBatch | None = None,
) -> Chunk:
    if batch is None:
        values = without_references(values)  # floats written before references existed may have such bits
    for array in (times_ms, values, *(() if start_times is None else (start_times,))):
        array.flags.writeable = False
    return Chunk(times_ms, values, start_times, batch)


def between(data: bytes, counts: Ints, firsts: Ints, start_ms: int, end_ms: int) -> Flags:
    """bool[runs]: which runs of the chunk have a time with start ≤ t ≤ end. Decompresses only the times. Raises
    ValueError or struct.error as `decode` does."""
    return chunks.between(_split(data)[0], counts, firsts, start_ms, end_ms)


def _split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """(the chunk of times and values, the start times, the histograms) of a chunk of any version."""
    if data[:1] != bytes([_VERSION]):
        return data, b"", b""
    *_, body, start_times, batch = _HEADER.unpack_from(data)
    first, second = _HEADER.size + body, _HEADER.size + body + start_times
    if second + batch != len(data):
        raise ValueError(f"its sections end at byte {second + batch} of {len(data)}")
    return data[_HEADER.size : first], data[first:second], data[second:]


def _encode_start_times(counts: Ints, times_ms: Ints, start_times: Ints) -> bytes:
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    follows, since = np.zeros(len(counts), np.bool_), np.empty(len(times_ms) - len(counts), np.int64)
    _differences(times_ms, start_times, bounds, follows, since)
    firsts = compressed(start_times[bounds[:-1]])
    return b"".join((_START_TIMES.pack(len(firsts)), np.packbits(follows).tobytes(), firsts, compressed(since)))


def _decode_start_times(data: bytes, counts: Ints, times_ms: Ints) -> Ints:
    (size,) = _START_TIMES.unpack_from(data)
    flag_bytes = (len(counts) + 7) // 8
    flags = np.frombuffer(data, np.uint8, flag_bytes, _START_TIMES.size)
    at = _START_TIMES.size + flag_bytes
    firsts, since = np.empty(len(counts), np.int64), np.empty(len(times_ms) - len(counts), np.int64)
    fill(data[at : at + size], firsts)
    fill(data[at + size :], since)
    start_times = np.empty(len(times_ms), np.int64)
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    follows = np.unpackbits(flags, count=len(counts)).astype(np.bool_)
    _add_differences(times_ms, since, firsts, bounds, follows, start_times)
    return start_times


@kernel(types.void(INTS, INTS, INTS, _FLAGS, types.int64[::1]), allocates=False)
def _differences(times: Ints, start_times: Ints, bounds: Ints, follows: Flags, since: Ints) -> None:
    """follows[r]: whether the differences of run r are from the times of the previous samples. `since`: the differences
    of all start times except the first of each run. They may wrap around."""
    out = 0
    for run in range(len(follows)):
        begin, end = bounds[run], bounds[run + 1]
        lead = 0
        for i in range(begin + 1, end):
            lead += (start_times[i] == times[i - 1]) - (start_times[i] == start_times[i - 1])
        follows[run] = lead > 0
        for i in range(begin + 1, end):
            since[out] = start_times[i] - (times[i - 1] if lead > 0 else start_times[i - 1])
            out += 1


@kernel(types.void(INTS, INTS, INTS, INTS, _FLAGS, types.int64[::1]), allocates=False)
def _add_differences(times: Ints, since: Ints, firsts: Ints, bounds: Ints, follows: Flags, start_times: Ints) -> None:
    """Inverse of `_differences`: fills `start_times`. firsts[r] is the first start time of run r."""
    at = 0
    for run in range(len(follows)):
        begin, end = bounds[run], bounds[run + 1]
        start_times[begin] = firsts[run]
        for i in range(begin + 1, end):
            start_times[i] = since[at] + (times[i - 1] if follows[run] else start_times[i - 1])
            at += 1

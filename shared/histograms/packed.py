"""Histograms as they came: the words of frames (`shared.histograms.frames`), checked but not decoded.

Whoever keeps histograms or passes them on needs no count of theirs. A worker writes these words to its journal and
copies them into its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from shared.histograms import frames
from shared.histograms.batch import INTS, NO_ZERO, HistogramBatch, Ints, concatenated
from shared.histograms.frames import INDEX_MAX, Frame
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN
from shared.kernels import inlined, kernel

_HEADER_WORDS = 4
_BYTES, _CODES = 0xFF, 4
_HALF, _LOW = 32, 0xFFFF_FFFF


class Sections(NamedTuple):
    """The numbers in the header of a frame, and behind them the word at which each of its arrays begins; `end` is the
    word behind the last one."""

    rows: int
    layouts: int
    buckets: int
    bounds: int
    counts: int
    count_code: int
    observation_code: int
    zero_thresholds: int
    bound_at: int
    sums: int
    counts_at: int
    observations: int
    zero_places: int
    layout_sizes: int
    bound_sizes: int
    indexes: int
    layout: int
    schemas: int
    flags: int
    end: int


SECTIONS = types.NamedUniTuple(types.int64, len(Sections._fields), Sections)


@inlined(allocates=False)
def _after(place: Any, items: Any, size: Any) -> Any:
    """The word behind an array of so many items of this size in bytes."""
    return place + ((items * size + 7) >> 3)


@inlined(allocates=False)
def size_of(code: Any) -> Any:
    """The bytes of a number of the type with this code."""
    return np.int64(8) if code == 3 else np.int64(1) << code


@inlined(allocates=False)
def number(words: Any, code: Any, place: Any, i: Any) -> Any:
    """Number i, as float64, of the array of the type with this code that begins at word `place`."""
    if code == 0:
        return np.float64(words.view(np.uint8)[8 * place + i])
    if code == 1:
        return np.float64(words.view(np.uint16)[4 * place + i])
    if code == 2:
        return np.float64(words.view(np.uint32)[2 * place + i])
    return words.view(np.float64)[place + i]


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def sections(words: Ints) -> Sections:
    """Where the arrays of the frame are that these words begin with, from its header, which must be there."""
    first, second, third, counts = words[0], words[1], words[2], words[3]
    rows, layouts = second & _LOW, second >> _HALF & _LOW
    buckets, bounds = third & _LOW, third >> _HALF & _LOW
    observation_code, count_code = first >> 8 & _BYTES, first >> 16 & _BYTES
    zero_thresholds: Any = np.int64(_HEADER_WORDS)
    bound_at = _after(zero_thresholds, layouts, 8)
    sums = _after(bound_at, bounds, 8)
    counts_at = _after(sums, rows, 8)
    observations = _after(counts_at, counts, size_of(count_code))
    zero_places = _after(observations, rows, size_of(observation_code))
    layout_sizes = _after(zero_places, layouts, 4)
    bound_sizes = _after(layout_sizes, layouts, 4)
    indexes = _after(bound_sizes, layouts, 4)
    layout = _after(indexes, buckets, 4)
    schemas = _after(layout, rows, 4)
    flags = _after(schemas, layouts, 1)
    end = _after(flags, rows, 1)
    return Sections(
        rows, layouts, buckets, bounds, counts, count_code, observation_code, zero_thresholds, bound_at, sums,
        counts_at, observations, zero_places, layout_sizes, bound_sizes, indexes, layout, schemas, flags, end,
    )  # fmt: skip


_NO_FRAME = Sections(*[-1] * len(Sections._fields))


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def _checked(words: Ints) -> Sections:
    """Those of the frame that these words begin with, or _NO_FRAME if there is none that `frames.decode` would take."""
    if words.size < _HEADER_WORDS:
        return _NO_FRAME
    version, observation_code, count_code = words[0] & _BYTES, words[0] >> 8 & _BYTES, words[0] >> 16 & _BYTES
    if version != frames.VERSION or max(observation_code, count_code) >= _CODES:
        return _NO_FRAME
    if words[3] < 0 or words[3] > 8 * words.size:
        return _NO_FRAME
    own = sections(words)
    if own.end > words.size:
        return _NO_FRAME
    ints, octets = words.view(np.int32), words.view(np.int8)
    sizes, bound_sizes = ints[2 * own.layout_sizes :], ints[2 * own.bound_sizes :]
    zero_places, indexes = ints[2 * own.zero_places :], ints[2 * own.indexes :]
    bucket, bounds, faults = np.int64(0), np.int64(0), np.int64(0)
    for layout in range(own.layouts):
        schema, zero_at = octets[8 * own.schemas + layout], zero_places[layout]
        size, bound_size = np.int64(sizes[layout]), np.int64(bound_sizes[layout])
        if min(size, bound_size) < 0 or bucket + size > own.buckets:
            return _NO_FRAME
        first, last = np.int64(-INDEX_MAX), np.int64(INDEX_MAX)
        if schema == CUSTOM:
            first, last = np.int64(0), bound_size
            faults += zero_at != NO_ZERO
        else:
            faults += (schema < SCHEMA_MIN) | (schema > SCHEMA_MAX) | (zero_at < 0) | (zero_at >= size)
        for i in range(bucket, bucket + size):
            faults += (indexes[i] < first) | (indexes[i] > last)
        bucket += size
        bounds += bound_size
    counts, own_layouts = np.int64(0), ints[2 * own.layout :]
    for row in range(own.rows):
        layout = own_layouts[row]
        if layout < 0 or layout >= own.layouts:
            return _NO_FRAME
        counts += sizes[layout]
    if faults or bucket != own.buckets or bounds != own.bounds or counts != own.counts:
        return _NO_FRAME
    return own


class PackedFrame(NamedTuple):
    """A whole frame: int64[words], and what they are."""

    words: Ints
    sections: Sections


@dataclass(frozen=True, slots=True, eq=False)
class PackedHistograms:
    """The histograms of whole frames: row r is a row of the first frame, or else of the next."""

    frames: tuple[PackedFrame, ...]
    rows: int

    @classmethod
    def of_words(cls, words: Ints) -> PackedHistograms:
        """Those of the frames, at least one, that these words are, and of which views are kept. Raises ValueError if
        they are anything else."""
        found, at, rows = list[PackedFrame](), 0, 0
        while at < len(words) or not found:
            own = _checked(words[at:])
            if own.end < 0:
                raise ValueError(f"{words.nbytes} bytes hold something else than histograms from byte {8 * at} on")
            found.append(PackedFrame(words[at : at + own.end], own))
            rows += own.rows
            at += own.end
        return cls(tuple(found), rows)

    @classmethod
    def of(cls, batch: HistogramBatch) -> PackedHistograms:
        return cls.of_words(np.frombuffer(frames.encode(batch), np.int64))

    def __len__(self) -> int:
        return self.rows

    @property
    def nbytes(self) -> int:
        return 8 * sum(frame.sections.end for frame in self.frames)

    def bytes(self) -> list[Frame]:
        """The frames one after another: what `of_words` reads."""
        return [frame.words.data for frame in self.frames]

    def unpacked(self) -> HistogramBatch:
        """The same histograms decoded."""
        batches = [frames.decode(frame.words.data) for frame in self.frames]
        return batches[0] if len(batches) == 1 else concatenated(batches)


def joined(parts: Sequence[PackedHistograms]) -> PackedHistograms:
    """The rows of all parts, one part after another."""
    return PackedHistograms(tuple(frame for part in parts for frame in part.frames), sum(map(len, parts)))


def aligned_words(octets: memoryview) -> NDArray[np.int64]:
    """The bytes, a multiple of 8 of them, as words: a view where they lie at the address of a word, or else a copy."""
    return np.require(np.frombuffer(octets, np.int64), requirements="A")

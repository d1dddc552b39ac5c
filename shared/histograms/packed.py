"""Histograms as they came: the words of frames (`shared.histograms.frames`), checked but not decoded.

Whoever keeps histograms or passes them on needs no count of theirs. A worker writes these words to its journal and
copies them into its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared import kernel_types as types
from shared.histograms import frames
from shared.histograms.batch import INTS, NO_ZERO, HistogramBatch, Ints, concatenated
from shared.histograms.frame_layout import NO_SECTIONS, SECTIONS, Sections, sections_within
from shared.histograms.frames import INDEX_MAX, Frame
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN
from shared.kernels import kernel

_FACTS = types.Array(types.int64, 1, "C")
SECTIONS_COUNT = len(Sections._fields)


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def _checked(words: Ints) -> Sections:
    """Those of the frame that these words begin with, or NO_SECTIONS if there is none that `frames.decode` would
    take."""
    own = sections_within(words)
    if own.end < 0:
        return NO_SECTIONS
    ints, octets = words.view(np.int32), words.view(np.int8)
    sizes, bound_sizes = ints[2 * own.layout_sizes :], ints[2 * own.bound_sizes :]
    zero_places, indexes = ints[2 * own.zero_places :], ints[2 * own.indexes :]
    bucket, bounds, faults = np.int64(0), np.int64(0), np.int64(0)
    for layout in range(own.layouts):
        schema, zero_at = octets[8 * own.schemas + layout], zero_places[layout]
        size, bound_size = np.int64(sizes[layout]), np.int64(bound_sizes[layout])
        if min(size, bound_size) < 0 or bucket + size > own.buckets:
            return NO_SECTIONS
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
            return NO_SECTIONS
        counts += sizes[layout]
    if faults or bucket != own.buckets or bounds != own.bounds or counts != own.counts:
        return NO_SECTIONS
    return own


@kernel(types.int64(INTS, types.int64, _FACTS), first=True, allocates=False, error_model="numpy")
def check(words: Ints, begin: int, facts: Ints) -> int:
    """Where the frame ends that begins at this word, or -1 if there is none that `frames.decode` would take. Its
    sections go to `facts`: an array, since a tuple of as many numbers takes Python longer than all the rest."""
    own = _checked(words[begin:])
    for i in range(len(facts)):
        facts[i] = own[i]
    return begin + own.end if own.end >= 0 else own.end


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
        facts = np.empty(SECTIONS_COUNT, dtype=np.int64)
        while at < len(words) or not found:
            end = check(words, at, facts)
            if end < 0:
                raise ValueError(f"{words.nbytes} bytes hold something else than histograms from byte {8 * at} on")
            own = Sections._make(facts.tolist())
            found.append(PackedFrame(words[at:end], own))
            rows += own.rows
            at = end
        return cls(tuple(found), rows)

    @classmethod
    def of_checked(cls, words: Ints, sections: Sequence[int]) -> PackedHistograms:
        """As `of_words`, if `check` has given these sections for the first frame of the words: mostly the only one."""
        own = Sections._make(sections)
        return cls((PackedFrame(words, own),), own.rows) if own.end == len(words) else cls.of_words(words)

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
    if len(parts) == 1:
        return parts[0]
    return PackedHistograms(tuple(frame for part in parts for frame in part.frames), sum(map(len, parts)))


def aligned_words(octets: memoryview) -> NDArray[np.int64]:
    """The bytes, a multiple of 8 of them, as words: a view where they lie at the address of a word, or else a copy."""
    return np.require(np.frombuffer(octets, np.int64), requirements="A")

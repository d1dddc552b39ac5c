"""Histograms as received: the words of frames (`shared.histograms.frames`), checked but not decoded.

Keeping histograms or passing them on does not require their counts. A worker writes these words to its journal and
copies them into its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms import frames
from shared.histograms.batch import INTS, NO_ZERO, HistogramBatch, Ints, concatenated
from shared.histograms.frame_layout import NO_SECTIONS, SECTIONS, Sections, sections_within
from shared.histograms.frames import INDEX_MAX, Frame
from shared.histograms.schemas import CUSTOM, SCHEMA_MAX, SCHEMA_MIN
from shared.kernels import kernel, types

_FACTS = types.Array(types.int64, 1, "C")
SECTIONS_COUNT = len(Sections._fields)


@kernel(SECTIONS(INTS), first=True, allocates=False, error_model="numpy")
def _checked(words: Ints) -> Sections:
    """The sections of the frame that begins with these words, or NO_SECTIONS if there is none that `frames.decode`
    would accept."""
    sections = sections_within(words)
    if sections.end < 0:
        return NO_SECTIONS
    ints, octets = words.view(np.int32), words.view(np.int8)
    sizes, bound_sizes = ints[2 * sections.layout_sizes :], ints[2 * sections.bound_sizes :]
    zero_places, indexes = ints[2 * sections.zero_places :], ints[2 * sections.indexes :]
    bucket, bounds, faults = np.int64(0), np.int64(0), np.int64(0)
    for layout in range(sections.layouts):
        schema, zero_at = octets[8 * sections.schemas + layout], zero_places[layout]
        size, bound_size = np.int64(sizes[layout]), np.int64(bound_sizes[layout])
        if min(size, bound_size) < 0 or bucket + size > sections.buckets:
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
    counts, layout_of_row = np.int64(0), ints[2 * sections.layout :]
    for row in range(sections.rows):
        layout = layout_of_row[row]
        if layout < 0 or layout >= sections.layouts:
            return NO_SECTIONS
        counts += sizes[layout]
    if faults or bucket != sections.buckets or bounds != sections.bounds or counts != sections.counts:
        return NO_SECTIONS
    return sections


@kernel(types.int64(INTS, types.int64, _FACTS), first=True, allocates=False, error_model="numpy")
def check(words: Ints, begin: int, facts: Ints) -> int:
    """The end of the frame that begins at this word, or -1 if there is none that `frames.decode` would accept. Its
    sections are written to `facts`, an array, since a tuple of that many numbers costs Python more than all the
    rest."""
    sections = _checked(words[begin:])
    for i in range(len(facts)):
        facts[i] = sections[i]
    return begin + sections.end if sections.end >= 0 else sections.end


class PackedFrame(NamedTuple):
    """A complete frame: int64[words], and its sections."""

    words: Ints
    sections: Sections


@dataclass(frozen=True, slots=True, eq=False)
class PackedHistograms:
    """The histograms of complete frames. Rows are numbered from one frame to the next."""

    frames: tuple[PackedFrame, ...]
    rows: int

    @classmethod
    def of_words(cls, words: Ints) -> PackedHistograms:
        """The histograms of the frames, at least one, that these words consist of. Keeps views of the words. Raises
        ValueError if they are anything else."""
        packed, at, rows = list[PackedFrame](), 0, 0
        facts = np.empty(SECTIONS_COUNT, dtype=np.int64)
        while at < len(words) or not packed:
            end = check(words, at, facts)
            if end < 0:
                raise ValueError(f"{words.nbytes} bytes hold something else than histograms from byte {8 * at} on")
            sections = Sections._make(facts.tolist())
            packed.append(PackedFrame(words[at:end], sections))
            rows += sections.rows
            at = end
        return cls(tuple(packed), rows)

    @classmethod
    def of_checked(cls, words: Ints, sections: Sequence[int]) -> PackedHistograms:
        """As `of_words`; `sections`: what `check` returned for the first frame of the words, usually the only one."""
        first = Sections._make(sections)
        return cls((PackedFrame(words, first),), first.rows) if first.end == len(words) else cls.of_words(words)

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
        """The same histograms, decoded."""
        batches = [frames.decode(frame.words.data) for frame in self.frames]
        return batches[0] if len(batches) == 1 else concatenated(batches)


def joined(parts: Sequence[PackedHistograms]) -> PackedHistograms:
    """The rows of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    return PackedHistograms(tuple(frame for part in parts for frame in part.frames), sum(map(len, parts)))


def aligned_words(octets: memoryview) -> NDArray[np.int64]:
    """The bytes, whose number is a multiple of 8, as words: a view if they are aligned, otherwise a copy."""
    return np.require(np.frombuffer(octets, np.int64), requirements="A")

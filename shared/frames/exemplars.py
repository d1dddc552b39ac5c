"""The layout of exemplars on the wire: a shard's part of a remote-write request, as columns in one frame.

The coordinator checks the exemplars and writes the frame (`coordinator.series.exemplars`). A worker distinguishes it
from a frame of samples (`shared.frames.samples`) by its mark.

A frame (`shared.frames.runs`) begins with mark, series n, exemplars m, label bytes of series b, label bytes of
exemplars c. After the values come m + 1 offsets of the exemplars' label bytes, the label bytes of the series, and those
of the exemplars, each padded with zeros to a whole word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.frames.runs import Runs, are_offsets, has_mark, read_runs, read_words
from shared.wire import Frame

MARK = int.from_bytes(b"exempla1", "little")
HEADER_WORDS = 5

LABEL_CHARACTERS_MAX = 128
"""The most characters of the names and values of an exemplar's labels together: the limit of OpenMetrics."""


def frame_words(series: int, exemplars: int, series_bytes: int, label_bytes: int) -> int:
    """The number of words of a frame with this many series, exemplars and bytes of labels."""
    columns = 3 * series + 1 + 3 * exemplars + 1
    return HEADER_WORDS + columns + (series_bytes + 7) // 8 + (label_bytes + 7) // 8


@dataclass(frozen=True, slots=True)
class ExemplarColumns(Runs):
    """Runs of exemplars. The labels of exemplar i are labels[label_offsets[i]:label_offsets[i + 1]], in canonical
    form."""

    label_offsets: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.times_ms)


def is_exemplars(frame: Frame) -> bool:
    """Whether a frame of a write contains exemplars rather than samples."""
    return has_mark(frame, MARK)


def parse(frame: Frame) -> ExemplarColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    words, numbers = read_words(frame, MARK, HEADER_WORDS, frame_words, __name__)
    series, exemplars, series_bytes, label_bytes = numbers
    octets, labels = frame_words(series, exemplars, 0, 0), frame_words(series, exemplars, series_bytes, 0)
    runs = read_runs(words, HEADER_WORDS, series, exemplars, slice(octets, labels), series_bytes, __name__)
    offsets = words[octets - exemplars - 1 : octets]
    if not are_offsets(offsets, label_bytes):
        raise Internal(f"a frame of {words.nbytes} bytes for series.write is not in the form of {__name__}")
    return ExemplarColumns(*runs, offsets, words[labels:].view(np.uint8)[:label_bytes])


def joined_labels(
    offsets: Sequence[NDArray[np.int64]], labels: Sequence[NDArray[np.uint8]]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(offsets, labels) of the exemplars of all parts, concatenated."""
    shifts = np.cumsum([0, *map(len, labels)])
    shifted = [part_offsets[:-1] + shift for part_offsets, shift in zip(offsets, shifts, strict=False)]
    return np.concatenate([*shifted, shifts[-1:]]), np.concatenate(labels)

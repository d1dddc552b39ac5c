"""The layout of samples of known series on the wire: a shard's part of a remote-write request, with a number for each
series instead of its labels.

The worker assigns the numbers in its reply to the first request with these series. They are valid as long as the worker
has the shard open. Each opening has a new random `epoch`. A frame with the epoch of an earlier opening is not stored;
the worker returns it, and the coordinator sends the labels.

A frame consists of 64-bit words: mark, epoch, series n, samples m, start timestamps s (m or 0); then n words with the
number of a series in the lower half and its count of samples in the upper half; m times; m values; and s start
timestamps. A frame with histograms has another mark, one more header word h, and at its end the h words of the
histograms (`shared.histograms.frames`) to which its values refer; values of other frames refer to none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.frames.runs import aligned_words, mark_of
from shared.frames.start_timestamps import StartTimestamps
from shared.histograms.packed import SECTIONS_COUNT, PackedHistograms, check
from shared.histograms.references import refers, row_of
from shared.kernels import inlined, kernel, types
from shared.wire import Frame

MARK, HISTOGRAMS_MARK = (int.from_bytes(text, "little") for text in (b"arrival3", b"arrival4"))
HEADER_WORDS, HISTOGRAMS_HEADER_WORDS = 5, 6
COUNT_SHIFT = 32
NUMBER = np.int64((1 << COUNT_SHIFT) - 1)

_WORDS = types.Array(types.int64, 1, "C")
_FACTS = 8
# What a kernel reports about a frame: the header words after the mark, with 0 words of histograms if it has no such
# word; the largest number of a series, or -1; the latest time, or the least int64; and the last row of the histograms
# to which a value refers, or -1.
_EPOCH, _RUNS, _SAMPLES, _STARTS, _HISTOGRAM_WORDS, _NUMBER_MAX, _LATEST, _LAST_ROW = range(_FACTS)


def new_epoch() -> int:
    """A random number that no other opening of a shard has. Never 0, the epoch with which a coordinator begins."""
    return int.from_bytes(os.urandom(8), "little") >> 2 | 1


def frame_words(series: int, samples: int, starts: int) -> int:
    """The number of words of a frame with this many series, samples and start timestamps, and no histograms."""
    return HEADER_WORDS + series + 2 * samples + starts


def histogram_frame_words(series: int, samples: int, starts: int, histogram_words: int) -> int:
    """As `frame_words`, for a frame with histograms of this many words."""
    return HISTOGRAMS_HEADER_WORDS + series + 2 * samples + starts + histogram_words


@dataclass(slots=True, eq=False)
class ReferenceColumns:
    """A frame, int64[words], with `samples` samples in `runs` runs, whose words begin at `begin`. Run i is counts[i]
    samples of the series with the number series[i]. `number_max` is the largest number, `latest_ms` the latest time.
    `series` and `counts` int64[runs], `times_ms` int64[samples], `values` float64[samples], which may refer to rows of
    `histograms`, `start_timestamps_ms` int64[samples]. The words may be a view of the message, so they must not outlive
    the request."""

    words: NDArray[np.int64]
    begin: int
    epoch: int
    runs: int
    samples: int
    has_starts: bool
    number_max: int
    latest_ms: int
    histograms: PackedHistograms | None = None

    @property
    def series(self) -> NDArray[np.int64]:
        return self.words[self.begin : self.begin + self.runs] & NUMBER

    @property
    def counts(self) -> NDArray[np.int64]:
        return self.words[self.begin : self.begin + self.runs] >> COUNT_SHIFT

    @property
    def times_ms(self) -> NDArray[np.int64]:
        return self._of_samples(0)

    @property
    def values(self) -> NDArray[np.float64]:
        return self._of_samples(1).view(np.float64)

    @property
    def start_timestamps_ms(self) -> StartTimestamps:
        return self._of_samples(2) if self.has_starts else None

    def _of_samples(self, column: int) -> NDArray[np.int64]:
        begin = self.begin + self.runs + column * self.samples
        return self.words[begin : begin + self.samples]


def is_references(frame: Frame) -> bool:
    """Whether a frame of a write has the numbers of series instead of their labels."""
    return mark_of(frame) in (MARK, HISTOGRAMS_MARK)


def parse(frame: Frame) -> ReferenceColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    words, has_histograms = aligned_words(frame), mark_of(frame) == HISTOGRAMS_MARK
    facts = np.empty(_FACTS + SECTIONS_COUNT if has_histograms else _FACTS, dtype=np.int64)
    if words is None or not (_look_with_histograms if has_histograms else _look)(words, facts):
        raise Internal(f"a frame of {memoryview(frame).nbytes} bytes for series.write is not in the form of {__name__}")
    epoch, runs, samples, starts, histogram_words, number_max, latest_ms, last_row, *sections = facts.tolist()
    begin = HISTOGRAMS_HEADER_WORDS if has_histograms else HEADER_WORDS
    columns = ReferenceColumns(words, begin, epoch, runs, samples, starts > 0, number_max, latest_ms)
    rows = 0
    if histogram_words:  # otherwise all histograms are stale markers
        try:
            columns.histograms = PackedHistograms.of_checked(words[len(words) - histogram_words :], sections)
        except ValueError as error:
            raise Internal(f"a frame of {words.nbytes} bytes for series.write: {error}") from error
        rows = len(columns.histograms)
    if last_row >= rows:
        raise Internal(f"{samples} samples refer to histograms that are not there, of {rows}")
    return columns


@inlined(allocates=False)
def _read_header(words: Any, mark: Any, header_words: Any, facts: Any) -> Any:
    """Whether the words are a frame with this mark, this many header words and the size that the header implies. Fills
    in `facts` up to _HISTOGRAM_WORDS."""
    if len(words) < header_words or words[0] != mark:
        return False
    facts[_HISTOGRAM_WORDS] = 0
    for i in range(1, header_words):
        facts[_EPOCH + i - 1] = words[i]
        if words[i] < 0 or (i > 1 and words[i] > len(words)):  # so that no sum of them overflows
            return False
    runs, samples, starts = facts[_RUNS], facts[_SAMPLES], facts[_STARTS]
    size = header_words + runs + 2 * samples + starts + facts[_HISTOGRAM_WORDS]
    return size == len(words) and (starts == 0 or starts == samples)


@inlined(allocates=False)
def _look_at_runs(words: Any, begin: Any, facts: Any) -> Any:
    """Whether each run has samples, and the counts of all runs add up to the frame's samples. The runs begin at word
    `begin`. Fills in _NUMBER_MAX and _LATEST."""
    runs, samples = facts[_RUNS], facts[_SAMPLES]
    total, fewest, number_max = np.int64(0), np.int64(1), np.int64(-1)
    for i in range(begin, begin + runs):
        count = words[i] >> COUNT_SHIFT
        total += count
        fewest = min(fewest, count)
        number_max = max(number_max, words[i] & NUMBER)
    latest = np.int64(np.iinfo(np.int64).min)
    for i in range(begin + runs, begin + runs + samples):
        latest = max(latest, words[i])
    facts[_NUMBER_MAX], facts[_LATEST] = number_max, latest
    return total == samples and fewest >= 1


@kernel(types.boolean(_WORDS, _WORDS), first=True, allocates=False)
def _look(words: np.ndarray, facts: np.ndarray) -> bool:
    """Whether these words are a valid frame without histograms. Fills in `facts`."""
    facts[_LAST_ROW] = -1
    if not _read_header(words, MARK, HEADER_WORDS, facts):
        return False
    return bool(_look_at_runs(words, HEADER_WORDS, facts))


@kernel(types.boolean(_WORDS, _WORDS), first=True, allocates=False)
def _look_with_histograms(words: np.ndarray, facts: np.ndarray) -> bool:
    """As `_look`, for a frame with histograms. `facts` is followed by the sections of the first frame of histograms
    (`shared.histograms.packed.check`)."""
    if not _read_header(words, HISTOGRAMS_MARK, HISTOGRAMS_HEADER_WORDS, facts):
        return False
    values = HISTOGRAMS_HEADER_WORDS + facts[_RUNS] + facts[_SAMPLES]
    last_row: Any = np.int64(-1)
    for i in range(values, values + facts[_SAMPLES]):
        last_row = max(last_row, row_of(words[i]) if refers(words[i]) else -1)
    facts[_LAST_ROW] = last_row
    if facts[_HISTOGRAM_WORDS] > 0:
        check(words, len(words) - facts[_HISTOGRAM_WORDS], facts[_FACTS:])
    return bool(_look_at_runs(words, HISTOGRAMS_HEADER_WORDS, facts))

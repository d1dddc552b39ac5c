"""The layout of samples of known series on the wire: a shard's part of a remote-write request, with a number for each
series instead of its labels.

The worker gave the numbers, in its answer to the first request with these series. They are valid as long as it has the
shard open: each opening has another random `epoch`, and a frame with the epoch of an earlier one is not stored but sent
back, for the coordinator to send the labels.

A frame consists of words of 64 bits: mark, epoch, series n, samples m, start timestamps s, which are m or none; then n
words with the number of a series in the lower half and its count of samples in the upper one; m times; m values; and s
start timestamps. A frame with histograms has another mark, one more number in its header, h, and at its end the h words
of the histograms (`shared.histograms.frames`) that its values refer to; those of other frames refer to none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared import kernel_types as types
from shared.errors import Internal
from shared.histograms.packed import SECTIONS_COUNT, PackedHistograms, check
from shared.histograms.references import refers, row_of
from shared.kernels import inlined, kernel
from shared.run_frames import has_mark, read_words
from shared.start_timestamps import StartTimestamps
from shared.wire import Frame

MARK, HISTOGRAMS_MARK = (int.from_bytes(text, "little") for text in (b"arrival3", b"arrival4"))
HEADER_WORDS, HISTOGRAMS_HEADER_WORDS = 5, 6
COUNT_SHIFT = 32
NUMBER = np.int64((1 << COUNT_SHIFT) - 1)

_WORDS = types.Array(types.int64, 1, "C")
_FACTS = 3
# What a kernel says of a frame: the largest number of a series, or -1, the latest time, or the earliest there is, and
# the last row of the histograms that a value refers to, or -1.
_NUMBER_MAX, _LATEST, _LAST_ROW = range(_FACTS)


def new_epoch() -> int:
    """A number that no other opening of a shard has, nor the first epoch of a coordinator, 0."""
    return int.from_bytes(os.urandom(8), "little") >> 2 | 1


def frame_words(series: int, samples: int, starts: int) -> int:
    """The number of words of a frame with this many series, samples and start timestamps, and no histograms."""
    return HEADER_WORDS + series + 2 * samples + starts


def histogram_frame_words(series: int, samples: int, starts: int, histogram_words: int) -> int:
    """As `frame_words`, of a frame with histograms that take so many words."""
    return HISTOGRAMS_HEADER_WORDS + series + 2 * samples + starts + histogram_words


def _words(epoch: int, series: int, samples: int, starts: int) -> int:
    """As `frame_words`, of the numbers in a header."""
    return frame_words(series, samples, starts)


def _words_with_histograms(epoch: int, series: int, samples: int, starts: int, histogram_words: int) -> int:
    """As `histogram_frame_words`, of the numbers in a header."""
    return histogram_frame_words(series, samples, starts, histogram_words)


@dataclass(slots=True, eq=False)
class ReferenceColumns:
    """A frame, int64[words], of `runs` runs with `samples` samples: run i is counts[i] samples of the series with the
    number series[i], none of which is above `number_max`, and none of the times after `latest_ms`; the runs are in the
    words from `begin` on. `series` and `counts` int64[runs], `times_ms` int64[samples], `values` float64[samples] that
    may refer to rows of `histograms`, `start_timestamps_ms` int64[samples]. The words may be those of the message: they
    are not kept longer than the request."""

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
    """Whether a frame of a write has numbers of series, and not their labels."""
    return has_mark(frame, MARK) or has_mark(frame, HISTOGRAMS_MARK)


def parse(frame: Frame) -> ReferenceColumns:
    """Parse a frame that was written for one shard. Raises Internal for anything else."""
    if has_mark(frame, HISTOGRAMS_MARK):
        return _parse_with_histograms(frame)
    words, (epoch, runs, samples, starts) = read_words(frame, MARK, HEADER_WORDS, _words, __name__, is_kept=False)
    facts = np.empty(_FACTS, dtype=np.int64)
    is_valid = _look(words, HEADER_WORDS, runs, samples, facts) and starts in (0, samples)
    return _columns(words, HEADER_WORDS, (epoch, runs, samples, starts), facts.tolist(), is_valid)


def _parse_with_histograms(frame: Frame) -> ReferenceColumns:
    words, (epoch, runs, samples, starts, histogram_words) = read_words(
        frame, HISTOGRAMS_MARK, HISTOGRAMS_HEADER_WORDS, _words_with_histograms, __name__, is_kept=False
    )
    begin = len(words) - histogram_words
    facts = np.empty(_FACTS + SECTIONS_COUNT, dtype=np.int64)
    is_valid = _look_with_histograms(words, HISTOGRAMS_HEADER_WORDS, runs, samples, begin, facts)
    number_max, latest_ms, last_row, *sections = facts.tolist()
    columns = _columns(
        words, HISTOGRAMS_HEADER_WORDS, (epoch, runs, samples, starts), (number_max, latest_ms, last_row),
        is_valid and starts in (0, samples),
    )  # fmt: skip
    if histogram_words:  # otherwise all are stale markers
        try:
            columns.histograms = PackedHistograms.of_checked(words[begin:], sections)
        except ValueError as error:
            raise Internal(f"a frame of {words.nbytes} bytes for series.write: {error}") from error
    rows = 0 if columns.histograms is None else len(columns.histograms)
    if last_row >= rows:
        raise Internal(f"{samples} samples refer to histograms that are not there, of {rows}")
    return columns


def _columns(
    words: NDArray[np.int64],
    begin: int,
    header: tuple[int, int, int, int],
    facts: Sequence[int],
    is_valid: bool,
) -> ReferenceColumns:
    """Those of a frame whose runs are in the words from `begin` on. Raises Internal if they do not fit together."""
    if not is_valid:
        raise Internal(f"a frame of {words.nbytes} bytes for series.write is not in the form of {__name__}")
    epoch, runs, samples, starts = header
    return ReferenceColumns(words, begin, epoch, runs, samples, starts > 0, facts[_NUMBER_MAX], facts[_LATEST])


@inlined(allocates=False)
def _look_at_runs(words: Any, begin: Any, runs: Any, samples: Any, facts: Any) -> Any:
    """Whether each of the runs in the words from `begin` on has samples, and all have `samples` together. Fills in the
    `facts` but for _LAST_ROW."""
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


@kernel(types.boolean(_WORDS, types.int64, types.int64, types.int64, _WORDS), first=True, allocates=False)
def _look(words: np.ndarray, begin: int, runs: int, samples: int, facts: np.ndarray) -> bool:
    """See `_look_at_runs`."""
    facts[_LAST_ROW] = -1
    return bool(_look_at_runs(words, begin, runs, samples, facts))


@kernel(types.boolean(_WORDS, types.int64, types.int64, types.int64, types.int64, _WORDS), first=True, allocates=False)
def _look_with_histograms(
    words: np.ndarray, begin: int, runs: int, samples: int, histograms: int, facts: np.ndarray
) -> bool:
    """As `_look`, of a frame with histograms, in the words from `histograms` on. Behind the facts follow the sections
    of the first frame of these (`shared.histograms.packed.check`)."""
    last_row: Any = np.int64(-1)
    for i in range(begin + runs + samples, begin + runs + 2 * samples):
        last_row = max(last_row, row_of(words[i]) if refers(words[i]) else -1)
    facts[_LAST_ROW] = last_row
    if histograms < len(words):
        check(words, histograms, facts[_FACTS:])
    return bool(_look_at_runs(words, begin, runs, samples, facts))

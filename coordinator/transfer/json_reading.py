"""JSON lines of samples (`coordinator.transfer.json_lines`) read into arrays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.parsing.body_errors import explained
from coordinator.series.label_sets import Limits, problem_of, shown
from coordinator.transfer import line_walk
from coordinator.transfer.histograms import Histogram, message_of
from coordinator.transfer.line_walk import (
    BAD_TIME,
    BAD_VALUE,
    BEGIN,
    BLANK,
    BROKEN,
    COLUMNS,
    COUNT,
    END,
    FIRST,
    HISTOGRAMS,
    METRIC,
    METRIC_END,
    NO_METRIC,
    NO_SAMPLES,
    SAMPLES,
    STATUS,
    UNEQUAL,
    WRONG_AT,
)
from coordinator.transfer.refusals import HISTOGRAM_BYTE_US, LABEL_SET_US, NUMBER_US, Refusals
from coordinator.transfer.series_body import SeriesArrays
from shared import labels
from shared.errors import BadData

LABEL_SETS_MAX = 50_000
"""Label sets that are kept while one import is read, by their text: the lines of a series follow one another in few
files, but come again and again in files that are written by time."""
EXCERPT_BYTES = 40

_FAULTS = {
    BROKEN: "it is no JSON object, from {text!r} on",
    NO_METRIC: 'it has no `metric`, such as {{"__name__":"up"}}',
    NO_SAMPLES: "it lacks `values` or `timestamps`",
    BAD_VALUE: 'a value is {text!r}; it must be a number, null, "NaN", "Infinity", "-Infinity" or "stale"',
    BAD_TIME: "a timestamp is {text!r}; it must be a whole number of Unix milliseconds",
    UNEQUAL: "it has {values} values and {times} timestamps",
}


class HistogramLine(msgspec.Struct):
    """A line with native histograms."""

    metric: dict[str, str]
    histograms: list[Histogram]
    timestamps: list[int]


_DECODE_LABELS = msgspec.json.Decoder(dict[str, str]).decode
_DECODE_HISTOGRAMS = msgspec.json.Decoder(HistogramLine).decode


class LabelSets:
    """Canonical label bytes of label sets, by the text that they have in an import."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._made = 0
        self._known: dict[bytes, bytes] = {}

    def take_work_us(self) -> float:
        """The work of all sets that were made since the last call, in µs."""
        made, self._made = self._made, 0
        return LABEL_SET_US * made

    def of_json(self, text: bytes) -> bytes:
        """Of a JSON object. Raises BadData for labels that are not valid."""
        known = self._known.get(text)
        if known is None:
            try:
                known = self.of(_DECODE_LABELS(text))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise BadData(f"`metric` is not an object of texts: {explained(error, dict[str, str])}") from error
            if len(self._known) >= LABEL_SETS_MAX:
                self._known.clear()
            self._known[text] = known
        return known

    def of_pairs(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """Of names and values. Raises BadData for labels that are not valid."""
        if len(dict(pairs)) != len(pairs):
            raise BadData("a label name appears twice")
        if any(value is None for _, value in pairs):
            raise BadData("the value of a label is null")
        return self.of(dict(pairs))

    def of(self, label_set: dict[str, str]) -> bytes:
        """Raises BadData for labels that are not valid."""
        self._made += 1
        try:
            pairs = [(name.encode(), value.encode()) for name, value in label_set.items()]
        except UnicodeEncodeError as error:
            raise BadData(f"a label is not UTF-8: {error.reason}") from None
        problem = problem_of(pairs, self._limits)
        if problem:
            raise BadData(f"{shown(pairs)}: {problem}")
        return labels.encode(tuple((name, value) for name, value in label_set.items() if value))


def read(text: bytes, first_line: int, label_sets: LabelSets, refusals: Refusals) -> tuple[SeriesArrays, list[int]]:
    """(The series of these whole lines, whose first is number `first_line`; the number of the line of each series).
    Lines that are not valid go to `refusals`. Work for a thread."""
    data = np.frombuffer(text, dtype=np.uint8)
    table = np.zeros((int(np.count_nonzero(data == 10)) + 1, COLUMNS), dtype=np.int64)
    numbers = int(np.count_nonzero(data == ord(","))) + len(table)  # an array has one number more than commas
    values, times = np.empty(numbers + len(table)), np.empty(numbers + len(table), dtype=np.int64)
    long = np.empty((min(len(text) // 5, numbers) + len(table), 3), dtype=np.int64)
    count, longs = line_walk.walk(data, table, values, values.view(np.int64), times, long)
    refusals.spend(NUMBER_US * longs)
    for place, begin, end in long[:longs].tolist():
        values[place] = float(text[begin:end])
    status = table[:, STATUS]
    series, lines = list[bytes](), list[int]()
    firsts, counts = list[int](), list[int]()
    histograms, histogram_lines = list[tuple[bytes, list[bytes]]](), list[int]()
    wrong = np.flatnonzero((status != SAMPLES) & (status != BLANK) & (status != HISTOGRAMS)).tolist()
    refusals.add_all(wrong, lambda row: f"line {first_line + row}: {_fault(text, table[row])}")
    for row in np.flatnonzero(status == HISTOGRAMS).tolist():
        begin, end = table[row, [BEGIN, END]].tolist()
        refusals.spend(HISTOGRAM_BYTE_US * (end - begin))
        try:
            histograms.append(_histograms(text[begin:end], label_sets))
            histogram_lines.append(first_line + row)
        except BadData as error:
            refusals.add(f"line {first_line + row}: {error}")
    samples = np.flatnonzero(status == SAMPLES)
    columns = (table[samples, column].tolist() for column in (METRIC, METRIC_END, FIRST, COUNT))
    for row, begin, end, first, own in zip(samples.tolist(), *columns, strict=True):
        try:
            series.append(label_sets.of_json(text[begin:end]))
        except BadData as error:
            refusals.add(f"line {first_line + row}: {error}")
            continue
        lines.append(first_line + row)
        firsts.append(first)
        counts.append(own)
    assert count <= len(values)
    refusals.spend(label_sets.take_work_us())
    return SeriesArrays(series, _ints(firsts), _ints(counts), times, values, histograms), lines + histogram_lines


def _histograms(text: bytes, label_sets: LabelSets) -> tuple[bytes, list[bytes]]:
    try:
        line = _DECODE_HISTOGRAMS(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadData(f"it is no line of histograms: {explained(error, HistogramLine)}") from error
    if len(line.histograms) != len(line.timestamps):
        raise BadData(f"it has {len(line.histograms)} histograms and {len(line.timestamps)} timestamps")
    pairs = zip(line.histograms, line.timestamps, strict=True)
    return label_sets.of(line.metric), [message_of(histogram, time_ms) for histogram, time_ms in pairs]


def _fault(text: bytes, row: NDArray[np.int64]) -> str:
    at = int(row[WRONG_AT])
    excerpt = text[at : min(int(row[END]), at + EXCERPT_BYTES)].decode(errors="replace")
    return _FAULTS[int(row[STATUS])].format(text=excerpt, values=row[FIRST], times=row[COUNT])


def _ints(numbers: Sequence[int]) -> NDArray[np.int64]:
    return np.array(numbers, dtype=np.int64)

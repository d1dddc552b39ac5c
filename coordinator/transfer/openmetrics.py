"""OpenMetrics text with a time for every sample, read into series.

Format: https:

prometheus.io/docs/specs/om/open_metrics_spec/, and for quoted names https:

prometheus.io/docs/instrumenting/exposition_formats/. Comments, metadata and exemplars are ignored.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from coordinator.transfer.openmetrics_walk import COLUMNS, LINE, ODD, SERIES, gather, walk
from coordinator.transfer.series_body import SeriesArrays
from shared import labels
from shared.labels import METRIC_NAME

_LINE = re.compile(rb'([^\s{#]*+(?:\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\})?+)[ \t]+(\S+)[ \t]+(\S+)[ \t]*(?:#.*)?\r?')
_LABEL = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([a-zA-Z_:][a-zA-Z0-9_:.]*))\s*(?:=\s*"((?:[^"\\]|\\.)*)")?\s*(,|$)')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
SERIES_MAX = 100_000
"""Series that are remembered by their text."""
END = b"# EOF"
SECONDS_MAX = 1e12
SHOWN_BYTES = 80


class Reader:
    """Reads slices of complete lines. `has_ended`: whether the line `# EOF` has been read. Raises ValueError for a
    wrong line, with its number."""

    def __init__(self) -> None:
        self.has_ended = False
        self._line = 1
        self._known: dict[bytes, bytes] = {}

    def read(self, text: bytes) -> SeriesArrays:
        """The series of some lines, in the order of their first lines. Takes some 60 bytes of memory for each line."""
        lines = text.count(b"\n") + 1
        rows, firsts = np.empty((lines, COLUMNS), dtype=np.int64), np.empty(lines, dtype=np.int64)
        values, seconds, summary = np.empty(lines), np.zeros(lines), np.empty(3, dtype=np.int64)
        slots = np.zeros(1 << (2 * lines).bit_length(), dtype=np.int64)
        data = np.frombuffer(text, dtype=np.uint8)
        walk(data, self.has_ended, slots, rows, firsts, values, seconds, summary)
        count, texts, line_breaks = summary.tolist()
        rows, values, seconds = rows[:count], values[:count], seconds[:count]
        numbers = dict[bytes, int]()
        of_texts = np.empty(texts, dtype=np.int64)
        is_odd = rows[:, SERIES] == ODD
        series = np.full(count, ODD)
        for row in np.sort(np.concatenate([firsts[:texts], np.flatnonzero(is_odd)])).tolist():
            own, begin, end, line = rows[row].tolist()
            if own != ODD:
                label_bytes = self._label_bytes(text[begin:end], self._line + line)
                of_texts[own] = numbers.setdefault(label_bytes, len(numbers))
            elif fields := self._fields(text[begin:end], self._line + line):
                label_bytes = self._label_bytes(fields[0], self._line + line)
                series[row] = numbers.setdefault(label_bytes, len(numbers))
                values[row], seconds[row] = self._numbers(fields, self._line + line)
        series[~is_odd] = of_texts[rows[~is_odd, SERIES]]
        arrays = self._arrays(list(numbers), rows, series, values, seconds)
        self._line += line_breaks
        return arrays

    def _fields(self, line: bytes, number: int) -> list[bytes]:
        """The series, the value and the time of a line; nothing for a line that is no sample."""
        match = _LINE.fullmatch(line)
        if match is None:
            self._other(line, number)
            return []
        if self.has_ended:
            raise ValueError(f"line {number} comes behind '# EOF', which is to be the last line")
        return list(match.groups())

    def _other(self, line: bytes, number: int) -> None:
        stripped = line.strip()
        if stripped == END:
            self.has_ended = True
        elif stripped and not stripped.startswith(b"#"):
            text = stripped[:SHOWN_BYTES].decode(errors="replace")
            raise ValueError(f"line {number} is {text!r}; it must be a sample with its time, such as up 1 1700000000")

    def _label_bytes(self, head: bytes, number: int) -> bytes:
        label_bytes = self._known.get(head)
        if label_bytes is None:
            if len(self._known) >= SERIES_MAX:
                self._known.clear()
            try:
                label_bytes = self._known[head] = labels.encode(tuple(_labels(head.decode()).items()))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return label_bytes

    def _numbers(self, fields: list[bytes], number: int) -> tuple[float, float]:
        try:
            return float(fields[1]), float(fields[2])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None

    def _arrays(
        self,
        label_sets: list[bytes],
        rows: NDArray[np.int64],
        series: NDArray[np.int64],
        values: NDArray[np.float64],
        seconds: NDArray[np.float64],
    ) -> SeriesArrays:
        is_sample = series != ODD
        is_wrong = is_sample & ~(np.abs(seconds) < SECONDS_MAX)
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise ValueError(
                f"line {self._line + rows[row, LINE]}: a time is {seconds[row]:g}; it must be Unix seconds"
            )
        counts = np.bincount(series[is_sample], minlength=len(label_sets))
        firsts = np.cumsum(counts) - counts
        times_ms, gathered = np.empty(int(counts.sum()), dtype=np.int64), np.empty(int(counts.sum()))
        gather(series, firsts.copy(), np.rint(seconds * 1000).astype(np.int64), values, times_ms, gathered)
        return SeriesArrays(label_sets, firsts, counts, times_ms, gathered)


def _labels(head: str) -> dict[str, str]:
    """The labels of a series as it is written before its value. Raises ValueError."""
    name, brace, rest = head.partition("{")
    label_set = {METRIC_NAME: name} if name else {}
    text, at = rest[:-1] if brace else "", 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError(f"the labels {head[:80]!r} cannot be read, from {text[at : at + 20]!r} on")
        quoted, plain, value, _ = match.groups()
        label = _unescaped(quoted) if plain is None else plain
        if value is None:
            label, value = METRIC_NAME, label
        if label in label_set:
            raise ValueError(f"the label {label!r} appears twice")
        label_set[label] = _unescaped(value)
        at = match.end()
    if not label_set.get(METRIC_NAME):
        raise ValueError(f"{head[:80]!r} has no metric name")
    return {label: value for label, value in label_set.items() if value}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED.get(match[1], match[0]), text) if "\\" in text else text

"""OpenMetrics text with a time for every sample, read into series.

Format: https://prometheus.io/docs/specs/om/open_metrics_spec/, and for quoted names
https://prometheus.io/docs/instrumenting/exposition_formats/. Comments, metadata and exemplars are passed over.
"""

from __future__ import annotations

import re

import numpy as np

from coordinator.transfer.series_body import SeriesArrays
from shared import labels
from shared.labels import METRIC_NAME

_LINE = re.compile(rb'([^\s{#]*+(?:\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\})?+)[ \t]+(\S+)[ \t]+(\S+)[ \t]*(?:#.*)?\r?')
_LABEL = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([a-zA-Z_:][a-zA-Z0-9_:.]*))\s*(?:=\s*"((?:[^"\\]|\\.)*)")?\s*(,|$)')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
SERIES_MAX = 100_000
"""Series that are kept by their text."""
END = b"# EOF"


class Reader:
    """Reads slices of whole lines. `has_ended`: the end of the text was there. Raises ValueError for a line that is
    wrong, with its number."""

    def __init__(self) -> None:
        self.has_ended = False
        self._line = 0
        self._known: dict[bytes, bytes] = {}

    def read(self, text: bytes) -> SeriesArrays:
        """The series of some lines."""
        known = self._known
        series: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
        for line in text.split(b"\n"):
            self._line += 1
            # Nearly every line is a known series, its value and its time; the expression takes ten times as long.
            fields = line.rsplit(b" ", 2)
            label_bytes = known.get(fields[0]) if len(fields) == 3 and not self.has_ended else None
            if label_bytes is None:
                fields = self._fields(line)
                if not fields:
                    continue
                label_bytes = known.get(fields[0]) or self._learn(fields[0])
            own = series.get(label_bytes)
            if own is None:
                own = series[label_bytes] = [], []
            own[0].append(fields[2])
            own[1].append(fields[1])
        self._line -= 1  # behind the last line break there is none
        return self._arrays(series)

    def _fields(self, line: bytes) -> list[bytes]:
        """The series, the value and the time of a line; nothing for one that is no sample."""
        found = _LINE.fullmatch(line)
        if found is None:
            self._other(line)
            return []
        if self.has_ended:
            raise ValueError(f"line {self._line} comes behind '# EOF', which is to be the last line")
        return list(found.groups())

    def _other(self, line: bytes) -> None:
        stripped = line.strip()
        if stripped == END:
            self.has_ended = True
        elif stripped and not stripped.startswith(b"#"):
            shown = stripped[:80].decode(errors="replace")
            raise ValueError(
                f"line {self._line} is {shown!r}; it must be a sample with its time, such as up 1 1700000000"
            )

    def _learn(self, head: bytes) -> bytes:
        if len(self._known) >= SERIES_MAX:
            self._known.clear()
        try:
            label_bytes = self._known[head] = labels.encode(tuple(_labels(head.decode()).items()))
        except ValueError as error:
            raise ValueError(f"line {self._line}: {error}") from None
        return label_bytes

    def _arrays(self, series: dict[bytes, tuple[list[bytes], list[bytes]]]) -> SeriesArrays:
        counts = np.array([len(times) for times, _ in series.values()], dtype=np.int64)
        try:
            times = [float(time) for times, _ in series.values() for time in times]
            values = [float(value) for _, values in series.values() for value in values]
        except ValueError as error:
            raise ValueError(f"before line {self._line + 1}: {error}") from None
        seconds = np.array(times, dtype=np.float64)
        if not (np.abs(seconds) < 1e12).all():
            raise ValueError(
                f"before line {self._line + 1}: a time is {seconds[~(np.abs(seconds) < 1e12)][0]:g}; "
                "it must be Unix seconds"
            )
        times_ms = np.rint(seconds * 1000).astype(np.int64)
        return SeriesArrays(list(series), np.cumsum(counts) - counts, counts, times_ms, np.array(values, np.float64))


def _labels(head: str) -> dict[str, str]:
    """The labels of a series as it stands before its value. Raises ValueError."""
    name, brace, rest = head.partition("{")
    label_set = {METRIC_NAME: name} if name else {}
    text, at = rest[:-1] if brace else "", 0
    while at < len(text.rstrip()):
        found = _LABEL.match(text, at)
        if found is None:
            raise ValueError(f"the labels {head[:80]!r} cannot be read, from {text[at : at + 20]!r} on")
        quoted, plain, value, _ = found.groups()
        label = _unescaped(quoted) if plain is None else plain
        if value is None:
            label, value = METRIC_NAME, label
        if label in label_set:
            raise ValueError(f"the label {label!r} appears twice")
        label_set[label] = _unescaped(value)
        at = found.end()
    if not label_set.get(METRIC_NAME):
        raise ValueError(f"{head[:80]!r} has no metric name")
    return {label: value for label, value in label_set.items() if value}


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED.get(match[1], match[0]), text) if "\\" in text else text

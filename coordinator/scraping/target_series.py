"""The series of one target: the labels of its lines, and which of them were stored last.

A line that was in the last scrape is recognised by its text. Its labels, combined with those of the target and
relabelled, are then known by a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client.utils import floatToGoString

from coordinator.scraping import series_text
from coordinator.scraping.labelling import Labelling, Unusable
from coordinator.scraping.series_text import Exemplar, Family
from coordinator.scraping.text_lines import (
    COLUMNS,
    COMMENTS,
    EOF_END,
    EXEMPLAR,
    IS_SLOW,
    LINE_END,
    MATCHED,
    NO_TIME,
    SAMPLES,
    SUMMARY,
    TEXT,
    TEXT_END,
    TIME,
    TIME_AT,
    TIME_END,
    TIME_FORM,
    TIME_TEXT,
    VALUE,
    VALUE_END,
    WRONG_AT,
    read_lines,
)
from shared import labels
from shared.errors import BadData
from shared.labels import METRIC_NAME

LINES_MAX = 1 << 20
"""The limit on the lines of one scrape: reading takes 112 bytes for each."""
SPARE_SERIES = 1_000
"""The limit on remembered series, beyond twice those of the last scrape. Above it, all but the live ones are
forgotten."""
DROPPED = -1
"""The number of the series that relabelling drops."""
SHOWN_CHARS = 100

_BELONGING = {
    "counter": ("_total", ""),
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("_count", "_sum", ""),
}
"""Suffixes of the series that have a creation time, by the type of their family."""
_CREATED = "_created"
_PARTS = ("le", "quantile")

Ints = NDArray[np.int64]


class Line(NamedTuple):
    """A known line: the number of its series; which lines have the same creation time, or 0; and whether it is the line
    that gives this time."""

    number: int
    group: int = 0
    is_created: bool = False


@dataclass(slots=True)
class Samples:
    """What a scrape has: `numbers` int64[n] of series, `values` float64[n], `times_ms` int64[n], `is_timed` bool[n]
    (whether the target gave the time), `starts_ms` int64[n] or None. `total`: before relabelling. `families`: None if
    they are those of the last scrape."""

    numbers: Ints
    values: NDArray[np.float64]
    times_ms: Ints
    is_timed: NDArray[np.bool_]
    starts_ms: Ints | None
    total: int
    exemplars: list[tuple[int, Exemplar]] = field(default_factory=list)
    histograms: list[tuple[int, bool, bytes]] = field(default_factory=list)
    """(number, whether the target gave the time, message of remote write)."""
    families: Mapping[str, Family] | None = None


@dataclass(slots=True)
class _Scrape:
    """The text of the last scrape, the places of its series in it (int64[n, 2]), and the columns of their `Line`s."""

    body: NDArray[np.uint8]
    spans: Ints
    numbers: Ints
    groups: Ints
    is_created: NDArray[np.bool_]


def _nothing() -> _Scrape:
    none = np.empty(0, np.int64)
    return _Scrape(np.empty(0, np.uint8), np.empty((0, 2), np.int64), none, none, np.empty(0, np.bool_))


class TargetSeries:
    """For one thread at a time, apart from `live_labels`."""

    def __init__(self, labelling: Labelling) -> None:
        self._labelling = labelling
        self.labels: list[bytes] = []
        """Canonical label bytes by number."""
        self.live: Ints = np.empty(0, np.int64)
        """Numbers of the series that were stored last without a staleness marker."""
        self._by_labels: dict[bytes, int] = {}
        self._renumbering = Lock()
        self._lines: dict[bytes, Line] = {}
        self._groups: dict[tuple[str, ...], int] = {}
        self._exemplars: dict[int, object] = {}
        self._new_exemplars: dict[int, object] = {}
        self._says_created = False
        self._last = _nothing()
        self._comments: list[bytes] = []
        self._new_comments: list[bytes] | None = None
        self._known = 0

    def begin(self) -> None:
        """Begin to read a scrape. What the last one told counts only if it was accepted."""
        self._new_exemplars, self._new_comments = {}, None
        self.tidy()
        self._known = len(self.labels)

    def accept(self) -> None:
        """Note that the last scrape is stored, so that its exemplars and comments need not be stored again."""
        self._exemplars.update(self._new_exemplars)
        if self._new_comments is not None:
            self._comments = self._new_comments

    def unknown(self, numbers: Ints) -> int:
        """How many of these series were not remembered when the reading of the scrape began."""
        return len(np.unique(numbers[numbers >= self._known]))

    def number(self, label_bytes: bytes) -> int:
        """The number of the series with these canonical labels."""
        number = self._by_labels.get(label_bytes)
        if number is None:
            number = self._by_labels[label_bytes] = len(self.labels)
            self.labels.append(label_bytes)
        return number

    def line(self, key: bytes, exposed: Callable[[], dict[str, str]], types: Mapping[str, Family]) -> Line:
        """The line with this text (or another key of it). The labels of a new line are learned. Raises BadData if they
        are not valid."""
        line = self._lines.get(key)
        if line is None:
            exposed_labels = _with_usual_numbers(exposed(), types)
            series_labels = self._labelling.of(exposed_labels)
            number = DROPPED if series_labels is None else self.number(labels.encode(tuple(series_labels.items())))
            line = self._lines[key] = Line(number, *self._created(exposed_labels, types))
        return line

    def _created(self, exposed: Mapping[str, str], types: Mapping[str, Family]) -> tuple[int, bool]:
        name = exposed[METRIC_NAME]
        if not self._says_created:
            return 0, False
        for kind, suffixes in _BELONGING.items():
            for suffix in (_CREATED, *suffixes):
                family = name.removesuffix(suffix)
                if name.endswith(suffix) and family in types and types[family].type == kind:
                    rest = (
                        part
                        for pair in sorted(exposed.items())
                        if pair[0] not in (METRIC_NAME, *_PARTS)
                        for part in pair
                    )
                    group = self._groups.setdefault((family, *rest), len(self._groups) + 1)
                    return group, suffix == _CREATED
        return 0, False

    def tidy(self) -> None:
        """Forget all but the live series if too many others are remembered."""
        most = 2 * max(len(self._last.numbers), len(self.live)) + SPARE_SERIES
        if len(self._lines) <= most and len(self.labels) <= most:
            return
        live = self.live_labels()
        by_labels = {label_bytes: number for number, label_bytes in enumerate(live)}
        with self._renumbering:
            self.labels, self._by_labels, self.live = live, by_labels, np.arange(len(live), dtype=np.int64)
        self._lines, self._groups, self._exemplars, self._last = {}, {}, {}, _nothing()

    def live_labels(self) -> list[bytes]:
        """Canonical labels of the series that were stored last without a staleness marker. For any thread: a loop that
        is stopped may have a scrape in its thread still."""
        with self._renumbering:
            label_bytes, numbers = self.labels, self.live
        return [label_bytes[number] for number in numbers.tolist()]

    def is_news(self, number: int, exemplar: object) -> bool:
        """Whether this is not the latest exemplar of the series; it is once the scrape is accepted."""
        is_new = self._new_exemplars.get(number, self._exemplars.get(number)) != exemplar
        self._new_exemplars[number] = exemplar
        return is_new

    def read_text(self, body: bytes, *, is_openmetrics: bool, time_ms: int) -> Samples:
        """The samples of a text exposition. Those without a time have this one. Raises BadData, which names the line,
        for an answer that is not in the format."""
        self.begin()
        if is_openmetrics and not self._says_created and _CREATED.encode() in body:
            self._says_created, self._lines, self._last = True, {}, _nothing()  # lines are learned with their groups
        data = np.frombuffer(body, np.uint8)
        lines = body.count(b"\n") + 1
        if lines > LINES_MAX:
            raise BadData(f"the answer has {lines} lines; the limit is {LINES_MAX}")
        rows, values = np.empty((lines, COLUMNS), np.int64), np.empty(lines)
        comment_spans, summary = np.empty((lines, 2), np.int64), np.empty(SUMMARY, np.int64)
        read_lines(data, is_openmetrics, self._last.body, self._last.spans, rows, values, comment_spans, summary)
        if summary[WRONG_AT] >= 0:
            raise _wrong_line(body, int(summary[WRONG_AT]), "")
        if is_openmetrics and summary[EOF_END] < 0:
            raise BadData("the answer does not end with # EOF, as OpenMetrics does; it may have been cut off")
        rows, values = rows[: summary[SAMPLES]], values[: summary[SAMPLES]]
        comments = [body[begin:end] for begin, end in comment_spans[: summary[COMMENTS]].tolist()]
        has_changed = comments != self._comments
        families = {}
        if has_changed or (rows[:, MATCHED] < 0).any():
            families = series_text.families(comments, is_openmetrics=is_openmetrics)
        scrape = self._scrape(body, data, rows, families)
        _read_odd_numbers(body, rows, values)
        times_ms, is_timed = _times(body, rows, time_ms)
        starts_ms = _starts(scrape, values)
        is_kept = scrape.numbers != DROPPED
        exemplars = self._read_exemplars(body, rows, scrape.numbers, times_ms)
        self._last, self._new_comments = scrape, comments
        return Samples(
            scrape.numbers[is_kept],
            values[is_kept],
            times_ms[is_kept],
            is_timed[is_kept],
            None if starts_ms is None else starts_ms[is_kept],
            len(rows),
            exemplars,
            families=families if has_changed else None,
        )

    def _scrape(self, body: bytes, data: NDArray[np.uint8], rows: Ints, families: Mapping[str, Family]) -> _Scrape:
        """The known lines. Those that were not in the last scrape are learned."""
        last, matched = self._last, rows[:, MATCHED]
        numbers, groups = np.empty(len(rows), np.int64), np.zeros(len(rows), np.int64)
        is_created = np.zeros(len(rows), np.bool_)
        is_known = matched >= 0
        numbers[is_known] = last.numbers[matched[is_known]]
        groups[is_known], is_created[is_known] = last.groups[matched[is_known]], last.is_created[matched[is_known]]
        new = np.flatnonzero(~is_known)
        for row, begin, end in zip(new.tolist(), *rows[new][:, [TEXT, TEXT_END]].T.tolist(), strict=True):
            text = body[begin:end]
            try:
                line = self.line(text, lambda text=text: series_text.series(text), families)  # type: ignore[misc]
            except BadData as error:
                wrong = _wrong_line(body, begin, str(error))
                if isinstance(error, Unusable):
                    kept = numbers[:row][numbers[:row] != DROPPED]
                    raise Unusable(str(wrong), row + 1, len(kept), kept) from None
                raise wrong from None
            numbers[row], groups[row], is_created[row] = line
        spans = np.ascontiguousarray(rows[:, [TEXT, TEXT_END]])
        return _Scrape(data, spans, numbers, groups, is_created)

    def _read_exemplars(self, body: bytes, rows: Ints, numbers: Ints, times_ms: Ints) -> list[tuple[int, Exemplar]]:
        """The exemplars that are not the latest of their series already."""
        news = []
        for row in np.flatnonzero((rows[:, EXEMPLAR] >= 0) & (numbers != DROPPED)).tolist():
            number, text = int(numbers[row]), body[rows[row, EXEMPLAR] : rows[row, LINE_END]]
            if self.is_news(number, text):
                try:
                    read = series_text.exemplar(text)
                except BadData as error:
                    raise _wrong_line(body, int(rows[row, TEXT]), str(error)) from None
                news.append((number, read if read.time_ms is not None else _at(read, int(times_ms[row]))))
        return news


def _with_usual_numbers(exposed: dict[str, str], types: Mapping[str, Family]) -> dict[str, str]:
    """Buckets and quantiles as OpenMetrics writes them, so that a series has one name in all formats: le="1.0"."""
    name = exposed[METRIC_NAME]
    for label, kind, family in (("le", "histogram", name.removesuffix("_bucket")), ("quantile", "summary", name)):
        if label in exposed and family in types and types[family].type == kind:
            with suppress(ValueError):
                exposed[label] = floatToGoString(float(exposed[label]))
    return exposed


def _at(exemplar: Exemplar, time_ms: int) -> Exemplar:
    return Exemplar(exemplar.labels, exemplar.value, time_ms)


def _read_odd_numbers(body: bytes, rows: Ints, values: NDArray[np.float64]) -> None:
    for row in np.flatnonzero(rows[:, IS_SLOW]).tolist():
        text = body[rows[row, VALUE] : rows[row, VALUE_END]]
        try:
            values[row] = series_text.number(text.decode(errors="replace"))
        except BadData as error:
            raise _wrong_line(body, int(rows[row, TEXT]), str(error)) from None


def _times(body: bytes, rows: Ints, time_ms: int) -> tuple[Ints, NDArray[np.bool_]]:
    """(times in ms, which of them the target gave)."""
    form = rows[:, TIME_FORM]
    times_ms = np.where(form == NO_TIME, time_ms, rows[:, TIME])
    for row in np.flatnonzero(form == TIME_TEXT).tolist():
        text = body[rows[row, TIME_AT] : rows[row, TIME_END]]
        try:
            times_ms[row] = series_text.seconds_ms(text.decode(errors="replace"))
        except BadData as error:
            raise _wrong_line(body, int(rows[row, TEXT]), str(error)) from None
    return times_ms, form != NO_TIME


def _starts(scrape: _Scrape, values: NDArray[np.float64]) -> Ints | None:
    """The creation time of each line's series in ms, 0 where none is given; None if no line gives any."""
    said = values[scrape.is_created]
    if not len(said):
        return None
    created = np.zeros(int(scrape.groups.max()) + 1, np.int64)
    is_time = (said > 0) & (said < 1e11)
    created[scrape.groups[scrape.is_created]] = np.where(is_time, said * 1000, 0).astype(np.int64)
    starts = created[scrape.groups]
    starts[(scrape.groups == 0) | scrape.is_created] = 0
    return starts


def _wrong_line(body: bytes, at: int, why: str) -> BadData:
    line = (
        body[at:].partition(b"\n")[0]
        if len(body) - at < SHOWN_CHARS
        else body[at : at + SHOWN_CHARS].partition(b"\n")[0]
    )
    shown = line.decode(errors="replace")
    reason = why or 'it is not a sample such as name{label="value"} 1.5'
    return BadData(f"line {body.count(bytes([10]), 0, at) + 1} is {shown!r}: {reason}")

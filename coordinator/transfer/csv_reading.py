"""CSV read into series: by the columns that a header names, or by a description of the columns as in VictoriaMetrics
(https://docs.victoriametrics.com/victoriametrics/#how-to-import-csv-data):

    format=2:metric:ask,3:metric:bid,1:label:ticker,4:time:unix_s

Each `metric` column makes a sample of its own. The types of a time are `unix_s`, `unix_ms`, `unix_us`, `unix_ns` and
`rfc3339`; without a time, samples get the time at which they are imported.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, TextIO

import msgspec
import numpy as np

from coordinator.series import own_samples
from coordinator.transfer.csv_rows import STALE, TIMESTAMP, VALUE
from coordinator.transfer.histograms import Histogram, message_of
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import ROW_US, Refusals
from coordinator.transfer.series_body import SeriesArrays
from shared.errors import BadData, TooLarge
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.labels import METRIC_NAME

ROWS_AT_ONCE, SAMPLES_AT_ONCE = 50_000, 200_000
LINE_CHARACTERS_MAX = 1 << 20
"""The limit on the columns of a row, because each field becomes an object."""
BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets write a byte order mark in front of the text."""
COLUMNS_MAX = 1000

csv.field_size_limit(LINE_CHARACTERS_MAX)  # of the process; by default it is less than a histogram may have

_DECODE_HISTOGRAM = msgspec.json.Decoder(Histogram).decode

ReadTime = Callable[[str], int]


def _rfc3339(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return round(moment.timestamp() * 1000)


TIMES: dict[str, ReadTime] = {
    "unix_s": lambda text: round(float(text) * 1000),
    "unix_ms": lambda text: int(text),
    "unix_us": lambda text: int(text) // 1000,
    "unix_ns": lambda text: int(text) // 1_000_000,
    "rfc3339": _rfc3339,
}


@dataclass(slots=True)
class Columns:
    """What the columns of a row mean, by their position from 0. `metrics`: position → name of the metric; None: the
    labels contain the name."""

    labels: list[tuple[int, str]] = field(default_factory=list)
    metrics: list[tuple[int, str | None]] = field(default_factory=list)
    time_at: int | None = None
    read_time: ReadTime = TIMES["unix_ms"]

    @property
    def width(self) -> int:
        positions = [at for at, _ in (*self.labels, *self.metrics)]
        return 1 + max([*positions, -1 if self.time_at is None else self.time_at])

    @classmethod
    def of_header(cls, names: Sequence[str]) -> Columns:
        """The columns of a header as exports write it: it has both columns of the sample, and all others are labels,
        whatever their names are. Raises BadData."""
        if list(names[-2:]) == [TIMESTAMP, VALUE]:
            time_at, value_at = len(names) - 2, len(names) - 1
        else:
            for column in (TIMESTAMP, VALUE):
                if names.count(column) != 1:
                    raise BadData(
                        f"the header must have the column {column} once, and is {','.join(names)[:200]!r}; describe "
                        "other files with the parameter 'format', such as 1:label:job,2:metric:up,3:time:unix_ms"
                    )
            time_at, value_at = names.index(TIMESTAMP), names.index(VALUE)
        columns = cls([(at, name) for at, name in enumerate(names) if at not in (time_at, value_at)])
        columns.metrics = [(value_at, None)]
        columns.time_at = time_at
        columns._require_labels_once("the header")
        return columns

    @classmethod
    def of_format(cls, text: str) -> Columns:
        """The columns that the parameter `format` describes. Raises BadData."""
        columns = cls()
        seen = set[int]()
        for column in text.split(","):
            position, _, type_and_meaning = column.partition(":")
            kind, _, meaning = type_and_meaning.partition(":")
            if not position.isdecimal() or not 1 <= int(position[:9]) <= COLUMNS_MAX or not meaning:
                raise BadData(
                    f"parameter 'format' has {column!r}; it must be position:type:meaning, such as 1:label:job, with "
                    f"positions from 1 to {COLUMNS_MAX}"
                )
            at = int(position) - 1
            if at in seen:
                raise BadData(f"parameter 'format' has position {position} twice; a column has one meaning")
            seen.add(at)
            if kind == "label":
                columns.labels.append((at, meaning))
            elif kind == "metric":
                columns.metrics.append((at, meaning))
            elif kind == "time" and meaning in TIMES and columns.time_at is None:
                columns.time_at, columns.read_time = at, TIMES[meaning]
            else:
                raise BadData(
                    f"parameter 'format' has {column!r}; types are label, metric and, once, time, which is one of "
                    f"{', '.join(TIMES)}"
                )
        if not columns.metrics:
            raise BadData(f"parameter 'format' is {text!r}; it must have a metric, such as 2:metric:up")
        columns._require_labels_once("parameter 'format'")
        return columns

    def _require_labels_once(self, where: str) -> None:
        """Raises BadData, whose text begins with `where`, for two columns of one label."""
        seen = set[str]()
        for _, name in self.labels:
            if name in seen:
                raise BadData(f"{where} has the label {name[:200]!r} twice; a label has one column")
            seen.add(name)


def read(
    text: TextIO, columns: Columns | None, label_sets: LabelSets, refusals: Refusals
) -> Iterator[tuple[SeriesArrays, list[int]]]:
    """(The series of the next rows, ROWS_AT_ONCE at most; the number of the first line of each); `columns` None: the
    first row is a header. Invalid rows are added to `refusals`. Work for a thread. Raises BadData for an invalid
    header."""
    rows = csv.reader(_lines(text))
    if columns is None:
        try:
            columns = Columns.of_header(next(rows, []))
        except csv.Error as error:
            raise BadData(f"the header is no CSV: {error}") from error
    now_ms = int(time.time() * 1000)
    while True:
        gathered = _Gathered(columns, label_sets, now_ms)
        for line, row in islice(_numbered(rows, refusals), ROWS_AT_ONCE):
            gathered.add(line, row, refusals)
            if gathered.samples >= SAMPLES_AT_ONCE:
                break
        if not gathered.rows:
            return
        refusals.spend(ROW_US * max(gathered.rows, gathered.samples) + label_sets.take_work_us())
        yield gathered.arrays(), gathered.lines()


def _lines(text: TextIO) -> Iterator[str]:
    """The lines of a text, without a byte order mark in front of it. Raises TooLarge for a long one."""
    number = 1
    while line := text.readline(LINE_CHARACTERS_MAX + 1):
        if len(line) > LINE_CHARACTERS_MAX:
            raise TooLarge(f"line {number} has more than {LINE_CHARACTERS_MAX} characters, the limit")
        yield line if number > 1 else line.removeprefix(BYTE_ORDER_MARK)
        number += 1


def _numbered(rows: Any, refusals: Refusals) -> Iterator[tuple[int, list[str]]]:
    """(Number of its last line, fields) of each row that is valid CSV. `rows`: a csv.reader."""
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            refusals.add(f"line {rows.line_num}: it is no CSV: {error}")
            continue
        if row:
            yield rows.line_num, row


class _Gathered:
    """Samples by series."""

    def __init__(self, columns: Columns, label_sets: LabelSets, now_ms: int) -> None:
        self._columns = columns
        self._label_sets = label_sets
        self._now_ms = now_ms
        self._series: dict[tuple[str | None, ...], _Series] = {}
        self._histograms: list[tuple[bytes, list[bytes]]] = []
        self._histogram_lines: list[int] = []
        self.rows = self.samples = 0

    def add(self, line: int, row: Sequence[str], refusals: Refusals) -> None:
        columns = self._columns
        self.rows += 1
        try:
            if len(row) < columns.width:
                raise BadData(f"it has {len(row)} fields; {columns.width} are needed")
            time_ms = self._now_ms if columns.time_at is None else self._time(row[columns.time_at])
            self.samples += len(columns.metrics)
            values = [(name, _value(row[at], time_ms)) for at, name in columns.metrics if row[at]]
            texts = [row[at] for at, _ in columns.labels]
            for name, value in values:
                series = self._of(name, texts, line)
                if isinstance(value, bytes):
                    self._histograms.append((series.label_bytes, [value]))
                    self._histogram_lines.append(line)
                else:
                    series.times_ms.append(time_ms)
                    series.values.append(value)
        except BadData as error:
            refusals.add(f"line {line}: {error}")

    def _time(self, text: str) -> int:
        try:
            if "_" in text:  # which Python's numbers may have
                raise ValueError(text)
            time_ms = self._columns.read_time(text)
        except (ValueError, OverflowError):
            raise BadData(f"its time is {text[:40]!r}, which cannot be read") from None
        if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX:
            raise BadData(f"its time is {text[:40]!r}; it must lie within the years 1 to 9999")
        return time_ms

    def _of(self, name: str | None, texts: Sequence[str], line: int) -> _Series:
        key = (name, *texts)
        series = self._series.get(key)
        if series is None:
            label_set = {label: text for (_, label), text in zip(self._columns.labels, texts, strict=True) if text}
            if name is not None:
                label_set[METRIC_NAME] = name
            series = self._series[key] = _Series(self._label_sets.of(label_set), line)
        return series

    def arrays(self) -> SeriesArrays:
        series = list(self._series.values())
        counts = np.array([len(each.values) for each in series], dtype=np.int64)
        return SeriesArrays(
            [each.label_bytes for each in series],
            np.cumsum(counts) - counts,
            counts,
            np.array([time_ms for each in series for time_ms in each.times_ms], dtype=np.int64),
            np.array([value for each in series for value in each.values], dtype=np.float64),
            self._histograms,
        )

    def lines(self) -> list[int]:
        """The number of the line of each series; for a series with native histograms, the line of one of them."""
        return [series.line for series in self._series.values()] + self._histogram_lines


@dataclass(slots=True)
class _Series:
    label_bytes: bytes
    line: int
    times_ms: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def _value(text: str, time_ms: int) -> float | bytes:
    """A float, or the message of a native histogram."""
    try:
        if text.startswith("{"):
            return message_of(_DECODE_HISTOGRAM(text), time_ms)
        if "_" not in text:
            return own_samples.STALE if text == STALE else float(text)
    except ValueError:
        pass
    except msgspec.MsgspecError as error:
        raise BadData(f"a value is no histogram: {error}") from error
    raise BadData(f"a value is {text[:40]!r}; it must be a number, NaN, +Inf, -Inf or {STALE}")

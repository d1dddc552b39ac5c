"""promqltest scripts as lists of commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shared.labels import Labels
from tests.conformance.custom_buckets import with_custom_buckets
from tests.conformance.series_text import (
    Histogram,
    Point,
    is_number,
    parse_labels,
    parse_points,
    parse_start_offsets_ms,
    parse_time_ms,
    split_series,
    unquote,
)


@dataclass(slots=True)
class LoadedSeries:
    """Points one interval apart, the first at t=0; `start_offsets_ms` as in `parse_start_offsets_ms`."""

    points: list[Point]
    start_offsets_ms: list[int | None] | None = None


@dataclass(slots=True)
class Load:
    line: int
    interval_ms: int
    series: dict[Labels, LoadedSeries] = field(default_factory=dict)


@dataclass(slots=True)
class Clear:
    line: int


@dataclass(frozen=True, slots=True)
class Remark:
    """An expected warning, info or failure; without text or pattern any will do."""

    text: str | None = None
    pattern: str | None = None

    def matches(self, seen: str) -> bool:
        if self.pattern is not None:
            return re.search(self.pattern, seen) is not None
        return self.text is None or self.text == seen


@dataclass(slots=True)
class Times:
    start_ms: int
    end_ms: int
    step_ms: int


@dataclass(slots=True)
class Eval:
    """One evaluation and what is expected of it. `times` is None for an instant, whose time is then `time_ms`."""

    line: int
    query: str
    time_ms: int = 0
    times: Times | None = None
    ordered: bool = False
    fail: list[Remark] = field(default_factory=list)
    warn: list[Remark] = field(default_factory=list)
    info: list[Remark] = field(default_factory=list)
    no_warn: bool = False
    no_info: bool = False
    string: str | None = None
    scalar: float | None = None
    range_vector: Times | None = None
    series: list[tuple[Labels, list[Point]]] = field(default_factory=list)

    @property
    def holds_histograms(self) -> bool:
        return any(isinstance(point, Histogram) for _, points in self.series for point in points)


Command = Load | Clear | Eval

_INSTANT = re.compile(r"eval(?:_(fail|warn|info|ordered))?\s+instant\s+at\s+(\S+)\s+(.+)")
_RANGE = re.compile(r"eval(?:_(fail|warn|info|ordered))?\s+range\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)\s+(.+)")
_LOAD = re.compile(r"load(_with_nhcb)?\s+(\S+)")
_EXPECT = re.compile(r"expect\s+(fail|warn|info|no_warn|no_info|ordered)(?:\s+(msg|regex)\s*:\s*(.*))?")
_RANGE_VECTOR = re.compile(r"expect\s+range\s+vector\s+from\s+(\S+)\s+to\s+(\S+)\s+step\s+(\S+)")
_OLD_FAILURE = re.compile(r"expected_fail_(message|regexp)\s+(.*)")


class ScriptError(Exception):
    """A script that does not follow the language; the message names file and line."""


def parse_script(path: Path) -> list[Command]:
    """Raises ScriptError."""
    commands: list[Command] = []
    for line, block in _blocks(path.read_text()):
        try:
            commands.append(_command(line, block))
        except ValueError as error:
            raise ScriptError(f"{path.name}:{line}: {error}") from error
    return commands


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Runs of lines up to an empty one or a comment, with the number of the first; `clear` is a block of its own."""
    block: list[str] = []
    first = 0
    for number, raw in enumerate([*text.split("\n"), ""], 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            if block:
                yield first, block
            block = []
        elif line == "clear" and not block:
            yield number, [line]
        else:
            first = first if block else number
            block.append(line)


def _command(line: int, block: list[str]) -> Command:
    head, body = block[0], block[1:]
    if head == "clear":
        return Clear(line)
    if load := _LOAD.fullmatch(head):
        return _load(Load(line, parse_time_ms(load[2])), body, with_nhcb=load[1] is not None)
    if instant := _INSTANT.fullmatch(head):
        return _expectations(Eval(line, instant[3], time_ms=parse_time_ms(instant[2])), instant[1], body)
    if ranged := _RANGE.fullmatch(head):
        times = Times(parse_time_ms(ranged[2]), parse_time_ms(ranged[3]), parse_time_ms(ranged[4]))
        return _expectations(Eval(line, ranged[5], times=times), ranged[1], body)
    raise ValueError(f"{head!r} is not a command")


def _load(load: Load, body: list[str], with_nhcb: bool) -> Load:
    offsets: dict[str, list[int | None]] = {}
    for text in body:
        metric, points = split_series(text)
        if metric.endswith("@st"):
            offsets[metric.removesuffix("@st")] = parse_start_offsets_ms(points)
            continue
        labels = parse_labels(metric)
        load.series[labels] = LoadedSeries(parse_points(points), offsets.pop(metric, None))
    if offsets:
        raise ValueError(f"start timestamps without a series: {', '.join(offsets)}")
    if with_nhcb:
        found = with_custom_buckets({labels: series.points for labels, series in load.series.items()})
        load.series |= {labels: LoadedSeries(points) for labels, points in found.items()}
    return load


def _expectations(case: Eval, old_form: str | None, body: list[str]) -> Eval:
    if old_form == "ordered":
        case.ordered = True
    elif old_form:
        _remarks(case, old_form).append(Remark())
    for text in body:
        if text.startswith(("expect ", "expected_fail_")):
            _expect(case, text)
        elif case.times is None and case.range_vector is None and is_number(text):
            case.scalar = float(text)
        else:
            metric, points = split_series(text)
            case.series.append((parse_labels(metric), parse_points(points)))
    return case


def _remarks(case: Eval, kind: str) -> list[Remark]:
    return {"fail": case.fail, "warn": case.warn, "info": case.info}[kind]


def _expect(case: Eval, text: str) -> None:
    if times := _RANGE_VECTOR.fullmatch(text):
        case.range_vector = Times(parse_time_ms(times[1]), parse_time_ms(times[2]), parse_time_ms(times[3]))
    elif text.startswith("expect string "):
        case.string = unquote(text.removeprefix("expect string ").strip())
    elif failure := _OLD_FAILURE.fullmatch(text):
        case.fail[:] = [_remark("msg" if failure[1] == "message" else "regex", failure[2])]
    elif expect := _EXPECT.fullmatch(text):
        kind = expect[1]
        if kind in ("fail", "warn", "info"):
            _remarks(case, kind).append(_remark(expect[2], expect[3]))
        elif kind == "ordered":
            case.ordered = True
        elif kind == "no_warn":
            case.no_warn = True
        else:
            case.no_info = True
    else:
        raise ValueError(f"{text!r} is not an expectation")


def _remark(form: Literal["msg", "regex"] | str | None, text: str | None) -> Remark:
    if form == "msg":
        return Remark(text=text)
    return Remark(pattern=text) if form == "regex" else Remark()

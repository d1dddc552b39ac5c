"""Samples as lines: Prometheus's text format, and VictoriaMetrics's export format in JSON.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format, with names in UTF-8 quoted as in its
version 1.0.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

METRIC_NAME = "__name__"
TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
"""Metric types, in the order of their numbers in remote write."""
TIME_MS_BITS = 63
FAMILIES_MAX = 10_000
"""How many metrics' types and help texts are remembered; the two are on different lines."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(rf"[ \t]*({_NAME})?[ \t]*(\{{)?")
_END_OF_LABELS = re.compile(r"[ \t]*\}")
_LABEL = re.compile(rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|({_QUOTED}))[ \t]*(?:=[ \t]*({_QUOTED}))?[ \t]*(,|(?=\}}))")
_SAMPLE = re.compile(r"[ \t]*([^\s_]+)(?:[ \t]+([+-]?[0-9]{1,19}))?[ \t]*")
_COMMENT = re.compile(rf"# *(TYPE|HELP) +({_NAME}|{_QUOTED}) *(.*)")
_ESCAPES = {"\\n": "\n", "\\\\": "\\", '\\"': '"'}

Labels = tuple[tuple[str, str], ...]
"""Label pairs, sorted by name, with the metric name among them."""


@dataclass(slots=True)
class Family:
    """A metric's comments. `type`: an index into TYPES."""

    type: int = 0
    help: str = ""


@dataclass(slots=True)
class Samples:
    """The content of lines. `series`: (Unix ms, value) by labels. `families`: those with a comment in these lines.

    `known`: the families of earlier lines, to which those of these lines are added.
    """

    known: dict[str, Family] = field(default_factory=dict)
    series: dict[Labels, list[tuple[int, float]]] = field(default_factory=dict)
    families: dict[str, Family] = field(default_factory=dict)
    count: int = 0

    def read(self, line: bytes, now_ms: int, labels: Mapping[str, str]) -> None:
        """Add the content of a line. A sample without a time gets `now_ms`, and every series gets `labels`.

        Raises ValueError, which says what is wrong with the line, and then adds nothing of it.
        """
        text = line.decode().strip()
        if text.startswith("#"):
            self._read_comment(text)
        elif text.startswith("{") and text.endswith("}"):  # a line of the text format ends with a number
            line_labels, samples = _json_samples(line, now_ms)
            self._add(line_labels, labels, samples)
        elif text:
            line_labels, time_ms, value = parse(text)
            self._add(line_labels, labels, [(now_ms if time_ms is None else time_ms, value)])

    def _add(self, own: dict[str, str], more: Mapping[str, str], samples: list[tuple[int, float]]) -> None:
        for time_ms, _ in samples:
            if time_ms.bit_length() > TIME_MS_BITS:
                raise ValueError(f"the time is {str(time_ms)[:30]}; it must be Unix milliseconds")
        self.series.setdefault(tuple(sorted({**own, **more}.items())), []).extend(samples)
        self.count += len(samples)

    def _read_comment(self, text: str) -> None:
        comment = _COMMENT.fullmatch(text)
        if comment is None:
            return
        kind, name, rest = comment.groups()
        name = _unquoted(name) if name.startswith('"') else name
        if len(self.known) >= FAMILIES_MAX:
            self.known.clear()
        family = self.families[name] = self.known.setdefault(name, Family())
        if kind == "HELP":
            family.help = re.sub(r"\\[\\n]", _unescaped, rest)
        elif rest in TYPES:
            family.type = TYPES.index(rest)


def parse(text: str) -> tuple[dict[str, str], int | None, float]:
    """(labels, Unix ms or None, value) of a line of the text format. Raises ValueError."""
    head = _HEAD.match(text)
    assert head is not None  # it may be empty
    labels = {METRIC_NAME: head[1]} if head[1] else {}
    at = head.end()
    if head[2]:
        at = _read_labels(text, at, labels)
    if METRIC_NAME not in labels:
        raise ValueError('it has no metric name; a sample is such as name{label="value"} 1.5')
    sample = _SAMPLE.fullmatch(text, at)
    if sample is None or text[at - 1] not in " \t}":
        raise ValueError(f"{text[at : at + 50]!r} is not a value with an optional time in Unix milliseconds")
    try:
        return labels, int(sample[2]) if sample[2] else None, float(sample[1])
    except ValueError:
        raise ValueError(f"{sample[1][:50]!r} is not a number") from None


def _read_labels(text: str, at: int, labels: dict[str, str]) -> int:
    """Reads the labels after an opening bracket. Returns the position after the closing one."""
    while (end := _END_OF_LABELS.match(text, at)) is None:
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError(f'{text[at : at + 50]!r} is not a label; it must be name="value", or a closing bracket')
        plain, quoted, value, _ = label.groups()
        name = plain or _unquoted(quoted)
        if value is None and plain:
            raise ValueError(f"the label {plain!r} has no value")
        if value is None:  # the metric name, in quotes
            name, value = METRIC_NAME, quoted
        if name in labels:
            raise ValueError(f"the label {name!r} appears twice")
        labels[name] = _unquoted(value)
        at = label.end()
    return end.end()


def _unquoted(text: str) -> str:
    return re.sub(r"\\.", _unescaped, text[1:-1]) if "\\" in text else text[1:-1]


def _unescaped(found: re.Match[str]) -> str:
    if found[0] not in _ESCAPES:
        raise ValueError(f'{found[0]!r} is not an escape; these are: \\n, \\\\ and \\"')
    return _ESCAPES[found[0]]


Number = float | str | None


class _Line(msgspec.Struct):
    metric: dict[str, str]
    values: list[Number] = []
    timestamps: list[int] = []
    value: Number | msgspec.UnsetType = msgspec.UNSET
    timestamp: int | None = None


_DECODER = msgspec.json.Decoder(_Line)


def _json_samples(line: bytes, now_ms: int) -> tuple[dict[str, str], list[tuple[int, float]]]:
    """Returns (labels, samples) of a line with `values` and `timestamps` (Unix ms), or with one `value` and perhaps its
    `timestamp`. Raises ValueError."""
    try:
        read = _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if len(read.values) != len(read.timestamps):
        raise ValueError(f"it has {len(read.values)} values and {len(read.timestamps)} timestamps")
    samples = [(time_ms, _number(value)) for time_ms, value in zip(read.timestamps, read.values, strict=True)]
    if read.value is not msgspec.UNSET:
        samples.append((now_ms if read.timestamp is None else read.timestamp, _number(read.value)))
    if not samples:
        raise ValueError("it has neither `values` with `timestamps` nor a `value`")
    return read.metric, samples


def _number(value: Number) -> float:
    return math.nan if value is None else float(value)

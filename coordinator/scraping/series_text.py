"""Parses the parts of a text exposition that interpreted code reads: new series, exemplars, comments, unusual numbers.

Grammar: https:

prometheus.io/docs/instrumenting/exposition_formats/ (also names in quotes, of version 1.0.0) and the OpenMetrics 1.0
specification. Numbers are those of Go's ParseFloat without hexadecimal ones and underscores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shared.errors import BadData
from shared.labels import METRIC_NAME

SHOWN_CHARS = 100
LABELS_MAX = 1_000
"""The limit on the labels of one series before relabelling."""
TEXT_BYTES_MAX = 1 << 20
"""The limit on the bytes of one series, exemplar or comment."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = r'"((?:[^"\\\n]|\\[^\n])*)"'
_LABEL = re.compile(rf"[ \t]*(?:{_QUOTED}|([a-zA-Z_][a-zA-Z0-9_]*))[ \t]*(?:(=)[ \t]*{_QUOTED}[ \t]*)?(,|\Z)")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))|(?i:[+-]?nan)")
_COMMENT = re.compile(
    r'#[ \t]+(TYPE|HELP|UNIT)[ \t]+(?:"((?:[^"\\\n]|\\[^\n])*)"|([^ \t"]+))(?:[ \t]+(.*))?', re.DOTALL
)
_SUFFIXES = {"counter": "_total", "info": "_info"}
TYPES = ("counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown")


@dataclass(slots=True)
class Family:
    """What comments say about a metric family. `suffix`: of the names of its samples, where OpenMetrics adds one."""

    type: str = "unknown"
    help: str = ""
    unit: str = ""
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Exemplar:
    """An exemplar; `time_ms` is None if it has no time."""

    labels: tuple[tuple[str, str], ...]
    value: float
    time_ms: int | None


def is_plain_metric_name(name: str) -> bool:
    """Whether a metric may have this name in every version of the text format."""
    return _NAME.fullmatch(name) is not None


def number(text: str) -> float:
    """The number in a text. Raises BadData if it is none."""
    if not _FLOAT.fullmatch(text):
        raise BadData(f"{text[:SHOWN_CHARS]!r} is not a number")
    return float(text)


def seconds_ms(text: str) -> int:
    """Milliseconds of a time in seconds. Raises BadData."""
    value = number(text) * 1000
    if not abs(value) < 2**62:
        raise BadData(f"{text[:SHOWN_CHARS]!r} is not a time")
    return int(value)


def series(text: bytes) -> dict[str, str]:
    """The labels of a series in its text, including the metric name and labels with empty values. Raises BadData."""
    shown = _text(text)
    name, brace, rest = shown.partition("{")
    name = name.rstrip(" \t")
    labels: dict[str, str] = {}
    if name:
        if not is_plain_metric_name(name):
            raise BadData(f"{name[:SHOWN_CHARS]!r} is not a metric name; one that is not plain stands in quotes")
        labels[METRIC_NAME] = name
    if brace:
        _add_labels(labels, rest.removesuffix("}"), may_name=not name)
    if not labels.get(METRIC_NAME):
        raise BadData(f"{shown[:SHOWN_CHARS]!r} has no metric name")
    return labels


def _add_labels(labels: dict[str, str], text: str, *, may_name: bool) -> None:
    """Add the labels between braces. `may_name`: one name in quotes without a value is the name of the metric."""
    at, end = 0, len(text.rstrip(" \t"))
    while at < end:
        if len(labels) > LABELS_MAX:
            raise BadData(f"a series has more than {LABELS_MAX} labels")
        match = _LABEL.match(text, at)
        if match is None:
            raise BadData(f'{text[at : at + SHOWN_CHARS]!r} is no label such as name="value"')
        quoted, plain, equals, value, _ = match.groups()
        name = plain if quoted is None else _unescaped(quoted)
        if equals is None:
            if quoted is None or not may_name or METRIC_NAME in labels:
                raise BadData(f"{match[0][:SHOWN_CHARS]!r} is a label without a value")
            name, value = METRIC_NAME, quoted
        elif not name:
            raise BadData("a label name is empty")
        elif name in labels:
            raise BadData(f"label name {name[:SHOWN_CHARS]!r} appears twice")
        labels[name] = _unescaped(value)
        at = match.end()


def exemplar(text: bytes) -> Exemplar:
    """An exemplar such as `# {trace_id="a"} 0.5 1700000000.5`. Raises BadData."""
    shown = _text(text)
    head, brace, rest = shown.partition("{")
    end = _closing(rest)
    if head.strip(" \t") != "#" or not brace or end < 0:
        raise BadData(f'{shown[:SHOWN_CHARS]!r} is no exemplar such as # {{trace_id="a"}} 0.5')
    labels: dict[str, str] = {}
    _add_labels(labels, rest[:end], may_name=False)
    values = rest[end + 1 :].split()
    if len(values) not in (1, 2):
        raise BadData(f"{shown[:SHOWN_CHARS]!r} is an exemplar without a value, or with more than a value and a time")
    time_ms = seconds_ms(values[1]) if len(values) == 2 else None
    return Exemplar(tuple(sorted(labels.items())), number(values[0]), time_ms)


def families(comments: Sequence[bytes], *, is_openmetrics: bool) -> dict[str, Family]:
    """Read the lines `# TYPE`, `# HELP` and `# UNIT`; other comments have no meaning."""
    by_name: dict[str, Family] = {}
    for comment in comments:
        match = _COMMENT.fullmatch(_text(comment))
        if match is None:
            continue
        what, quoted, plain, text = match.groups()
        family = by_name.setdefault(plain if quoted is None else _unescaped(quoted), Family())
        text = text or ""
        if what == "TYPE":
            kind = text.strip(" \t")
            family.type = kind if kind in TYPES else "unknown"  # `untyped` in Prometheus's own format
            family.suffix = _SUFFIXES.get(kind, "") if is_openmetrics else ""
        elif what == "HELP":
            family.help = _unescaped(text)
        else:
            family.unit = text.strip(" \t")
    return by_name


def _closing(text: str) -> int:
    """The position of the first `}` outside quotes; -1 without one."""
    is_quoted, at = False, 0
    while at < len(text):
        if is_quoted and text[at] == "\\":
            at += 1
        elif text[at] == '"':
            is_quoted = not is_quoted
        elif text[at] == "}" and not is_quoted:
            return at
        at += 1
    return -1


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


def _text(raw: bytes) -> str:
    if len(raw) > TEXT_BYTES_MAX:
        raise BadData(
            f"{raw[:SHOWN_CHARS].decode(errors='replace')!r}… has {len(raw)} bytes, of {TEXT_BYTES_MAX} allowed"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadData(f"{raw[:SHOWN_CHARS].decode(errors='replace')!r} is not UTF-8 at byte {error.start}") from None

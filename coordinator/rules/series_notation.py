"""Series in the notation of unit tests of rules: `metric{a="b"} 0+10x5 _ stale`.

https:

prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/#series.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TypeVar

from coordinator.series.own_samples import STALE
from shared.labels import METRIC_NAME, Labels

H = TypeVar("H")

POINTS_MAX = 10_000_000
"""The limit on the points of one series."""
NUMBER = r"(?:inf|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
_POINTS = re.compile(rf"([+-]?{NUMBER})([+-]{NUMBER})?(?:x([0-9]{{1,9}}))?", re.IGNORECASE)
_GAPS = re.compile(r"_x([0-9]{1,9})")
_WORD = re.compile(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x[0-9]+)?|\S+")
_QUOTED = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)"""
_LABEL = re.compile(rf"\s*(?:([A-Za-z_]\w*)|{_QUOTED})\s*(?:=\s*{_QUOTED})?\s*,?")


def unquote(text: str) -> str:
    """A string literal in any of PromQL's three quotings."""
    return text[1:-1] if text.startswith("`") else str(ast.literal_eval(text))


def parse_labels(text: str) -> Labels:
    """`name{a="b"}`, `{a="b"}` or `{"a quoted.name", a="b"}`. Raises ValueError."""
    name, brace, inner = text.partition("{")
    labels = {METRIC_NAME: name.strip()}
    if brace:
        inner = inner.rstrip().removesuffix("}")
        at = 0
        while inner[at:].strip():
            match = _LABEL.match(inner, at)
            if match is None:
                raise ValueError(f"{text!r} is not a series")
            bare, quoted, value = match.groups()
            if value is None:
                if quoted is None:
                    raise ValueError(f"{text!r} is not a series")
                labels[METRIC_NAME] = unquote(quoted)
            else:
                labels[bare or unquote(quoted)] = unquote(value)
            at = match.end()
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def parse_points(text: str, histograms: Callable[[str], list[H]]) -> list[float | H | None]:
    """`1 _ _x3 stale a+bxN axN {{…}}` → one entry for each point, None for a gap. `histograms`: reads a word such as
    `{{…}}`. Raises ValueError."""
    points: list[float | H | None] = []
    for word in _WORD.findall(text):
        match = _POINTS.fullmatch(word)
        gaps = _GAPS.fullmatch(word)
        count = int((gaps and gaps[1]) or (match and match[3]) or 0)
        if len(points) + count > POINTS_MAX:
            raise ValueError(f"{word!r} makes more than {POINTS_MAX} points")
        if word == "_":
            points.append(None)
        elif gaps:
            points.extend([None] * count)
        elif word == "stale":
            points.append(STALE)
        elif word.startswith("{{"):
            points.extend(histograms(word))
        elif match:
            value, step = float(match[1]), float(match[2] or 0)
            for _ in range(1 + count):
                points.append(value)
                value += step
        else:
            raise ValueError(f"{word!r} is not a point")
    return points

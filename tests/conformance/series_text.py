"""Series as promqltest scripts write them: `metric{a="b"} 0+10x5 _ stale`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coordinator.rules import series_notation
from coordinator.rules.series_notation import NUMBER, parse_labels, unquote
from coordinator.series.own_samples import STALE
from tests.conformance.histogram_notation import parse_histograms
from tests.oracle_native_histograms import NativeHistogram

__all__ = ["STALE", "Histogram", "Point", "parse_labels", "unquote"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(ms|[smhdwy])")
_OFFSET = r"(?:[0-9]+(?:ms|[smhdwy])?)"
_OFFSETS = re.compile(rf"([+-]?{_OFFSET})([+-]{_OFFSET})?(?:x([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Histogram:
    """`names_hint`: whether the script says what the counter reset hint is."""

    value: NativeHistogram
    names_hint: bool = False


Point = float | Histogram | None
"""None is a gap."""


def parse_time_ms(text: str) -> int:
    """A duration (`1h30m`, `-5m`, `10s53ms`) or a number of seconds. Raises ValueError for anything else."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    parts = _DURATION.findall(digits)
    if parts and "".join(number + unit for number, unit in parts) == digits:
        return sign * round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
    return sign * round(float(digits) * 1000)


def is_number(text: str) -> bool:
    return re.fullmatch(rf"[+-]?{NUMBER}", text, re.IGNORECASE) is not None


def split_series(line: str) -> tuple[str, str]:
    """`metric{…} points` → its two halves; spaces and braces inside quoted values do not count."""
    quote = ""
    depth = at = 0
    while at < len(line):
        char = line[at]
        if quote:
            if char == "\\" and quote != "`":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "\"'`":
            quote = char
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        elif char.isspace() and depth == 0:
            rest = line[at:].lstrip()
            if rest.startswith("{") and not rest.startswith("{{") and "{" not in line[:at]:
                at = line.index("{", at)
                continue
            return line[:at], rest
        at += 1
    return line, ""


def parse_points(text: str) -> list[Point]:
    """`1 _ _x3 stale a+bxN axN {{…}}` → one entry a point. Raises ValueError."""
    return series_notation.parse_points(text, _histograms)


def _histograms(word: str) -> list[Histogram]:
    return [Histogram(one, "counter_reset_hint" in word) for one in parse_histograms(word)]


def parse_start_offsets_ms(text: str) -> list[int | None]:
    """The points of an `@st` line: milliseconds from the sample to its start timestamp, None for no start timestamp."""
    offsets: list[int | None] = []
    for word in text.split():
        match = _OFFSETS.fullmatch(word)
        if word == "_":
            offsets.append(None)
        elif match:
            offset, step = parse_time_ms(match[1]), parse_time_ms(match[2] or "0")
            offsets.extend(offset + i * step for i in range(1 + int(match[3] or 0)))
        else:
            raise ValueError(f"{word!r} is not a start timestamp")
    return offsets

"""Durations as text: `1h30m`, with the units y w d h m s ms in descending order, each at most once."""

from __future__ import annotations

import re

_UNITS_MS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_DURATION = re.compile("".join(f"(?:([0-9]+){unit})?" for unit in _UNITS_MS))


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a duration. Raises ValueError for text that is not one."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        if text == "0":
            return 0
        raise ValueError(f"{text!r} is not a duration such as 5m or 1h30m")
    return sum(int(n) * ms for n, ms in zip(match.groups(), _UNITS_MS.values(), strict=True) if n)


def format_duration(ms: int) -> str:
    """A duration as text, with a whole number of every unit: 5400000 → `1h30m`."""
    if ms == 0:
        return "0s"
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    parts = []
    for unit, size in _UNITS_MS.items():
        # Years and weeks are used only if they divide the remainder: 15d reads better than 2w1d.
        if unit in ("y", "w") and ms % size:
            continue
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts)

"""Converts values of settings from the text of a variable or a TOML value (`convert`), and back to text (`as_text`).

The functions for one type raise ValueError for values of other types.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from shared.durations import format_duration, parse_duration_ms
from shared.errors import ConfigError

BYTE_UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "b": 1}


def convert(name: str, hint: Any, value: Any, where: str) -> Any:
    """Convert the value of a setting to its type. Raises ConfigError, which says what is valid; `where` names the
    setting."""
    try:
        if hint is bool:
            return boolean(value)
        if hint == tuple[str, ...]:
            return names(value)
        if hint in (Path, str):
            return hint(text(value))
        if isinstance(value, str) and name.endswith("_ms"):
            return parse_duration_ms(value)
        if isinstance(value, str) and "_bytes" in name:
            return byte_count(value)
        if hint is float:
            return number(value)
        return whole(value)
    except (ValueError, OverflowError) as error:  # a size may be infinite
        expected = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            tuple[str, ...]: "names with commas between them",
        }.get(hint, "text")
        if name.endswith("_ms"):
            expected = "a duration such as 30s"
        elif "_bytes" in name:
            expected = "a size such as 64MB"
        raise ConfigError(f"{where} is {value!r}; it must be {expected}") from error


def as_text(name: str, value: Any) -> str:
    """The value of the field `name` as text for its variable."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if name.endswith("_ms"):
        return format_duration(value)
    return _size(value) if "_bytes" in name else str(value)


def _size(count: int) -> str:
    for unit in ("tb", "gb", "mb", "kb"):
        if count and count % BYTE_UNITS[unit] == 0:
            return f"{count // BYTE_UNITS[unit]}{unit.upper()}"
    return str(count)


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
    if str(value).lower() not in known:
        raise ValueError(value)
    return known[str(value).lower()]


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def whole(value: Any) -> int:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, str) and not (is_number and int(value) == value):
        raise ValueError(value)
    return int(value)


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not math.isfinite(float(value)):
        raise ValueError(value)
    return float(value)


def names(value: Any) -> tuple[str, ...]:
    """Names from text with commas between them, or from a list."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(value)
    return tuple(name.strip() for name in names if name.strip())


def byte_count(text: str) -> int:
    lower = text.strip().lower()
    for unit, factor in BYTE_UNITS.items():
        if lower.endswith(unit):
            return int(float(lower.removesuffix(unit)) * factor)
    return int(lower)

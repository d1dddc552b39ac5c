"""Parses values of settings, from the text of a variable or a TOML value. Each function raises ValueError for
others."""

from __future__ import annotations

import math
from typing import Any

BYTE_UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "b": 1}


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

"""Numbers as text, in the notation of the language (the formats of Go's strconv)."""

from __future__ import annotations

import math

import numpy as np

_PLAIN_MIN = 1e-4
_PLAIN_MAX = 1e6


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def plain(value: float) -> str:
    """The shortest decimal text without an exponent that reads back as `value`."""
    return _special(value) or np.format_float_positional(value, unique=True, trim="-")


def general(value: float) -> str:
    """The shortest text that reads back as `value`, with an exponent outside 1e-4 ≤ |value| < 1e6."""
    special = _special(value)
    if special is not None:
        return special
    if value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_MAX:
        return plain(value)
    return np.format_float_scientific(value, unique=True, trim="-", exp_digits=2)

"""The warnings of an answer about what is missing from it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from triptych.errors import PartialAnswer


def announce(texts: Iterable[str]) -> None:
    """Warn the caller of what is missing from a result, with Python's warnings."""
    for text in texts:
        warnings.warn(text, PartialAnswer, stacklevel=_outside())


def _outside() -> int:
    """How many frames lie between `announce` and the first one of another package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("triptych."):
        level, frame = level + 1, frame.f_back
    return level

"""What an answer says of itself: warnings of what is missing from it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from triptych.errors import PartialAnswer


def announce(texts: Iterable[str]) -> None:
    """Tell the caller what is missing from a result as Python tells of things that are not errors."""
    for text in texts:
        warnings.warn(text, PartialAnswer, stacklevel=_outside())


def _outside() -> int:
    """How many frames lie between `announce` and the first one of another package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("triptych."):
        level, frame = level + 1, frame.f_back
    return level

"""What is said of a path that no endpoint has."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from shared.errors import UnknownPath

PATH_CHARS_MAX = 64
"""A longer path is near to none that is known, and is shown cut to this length."""
LIKENESS_MIN = 0.85
"""Of difflib's ratio: one letter left out or two changed places in a path of ten, not another word."""


def unknown_path(path: str, known: Iterable[str]) -> UnknownPath:
    """The error for a request to `path`, which names the nearest of the paths that are `known`."""
    near = _nearest(path, tuple(known)) if len(path) <= PATH_CHARS_MAX else None
    return UnknownPath(f"there is no {path[:PATH_CHARS_MAX]}; {f'did you mean {near}?' if near else '/docs lists all'}")


@lru_cache(1024)
def _nearest(path: str, known: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(path, known, 1, LIKENESS_MIN)), None)

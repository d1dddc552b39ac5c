"""The error for requests to paths that no endpoint has."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from shared.errors import UnknownPath

PATH_CHARS_MAX = 64
"""A longer path is not similar to any known one, and is shown truncated to this length."""
LIKENESS_MIN = 0.85
"""The lowest similarity, as difflib's ratio: allows one missing letter or two swapped letters in a path of ten, but not
another word."""


def unknown_path(path: str, known: Iterable[str]) -> UnknownPath:
    """The error for a request to `path`. It names the most similar of the `known` paths."""
    near = _nearest(path, tuple(known)) if len(path) <= PATH_CHARS_MAX else None
    return UnknownPath(f"there is no {path[:PATH_CHARS_MAX]}; {f'did you mean {near}?' if near else '/docs lists all'}")


@lru_cache(1024)
def _nearest(path: str, known: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(path, known, 1, LIKENESS_MIN)), None)

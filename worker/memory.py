"""Giving memory back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _trimmer() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


_TRIM = _trimmer()


def trim() -> None:
    """Have the C library return what is free. It keeps arrays of up to 32 MB for reuse, and after a start or a sealing
    that is most of what was in use: half of a worker's memory at a million series. Elsewhere than on glibc: nothing."""
    if _TRIM is not None:
        _TRIM(0)

"""The release."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    from importlib import metadata  # takes 15 ms, for which a start need not wait

    try:
        return metadata.version("triptych")
    except metadata.PackageNotFoundError:
        return "unknown"

"""The version of this release."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    from importlib import metadata  # takes 15 ms, which would delay the start

    try:
        return metadata.version("triptych")
    except metadata.PackageNotFoundError:
        return "unknown"

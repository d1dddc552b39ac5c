"""The release."""

from __future__ import annotations

from importlib import metadata


def _version() -> str:
    try:
        return metadata.version("triptych")
    except metadata.PackageNotFoundError:
        return "unknown"


VERSION = _version()

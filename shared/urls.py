"""URLs as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"


def without_secrets(text: str) -> str:
    """A URL without its credentials and its query, which may have a key; any other text as it is."""
    if "://" not in text:
        return text
    return ",".join(_without_secrets(part) for part in text.split(","))


def _without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    _, at, host = parts.netloc.rpartition("@")
    netloc = f"{HIDDEN}@{host}" if at else host
    return urlunsplit((parts.scheme, netloc, parts.path, HIDDEN if parts.query else "", ""))

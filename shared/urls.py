"""URLs without secrets, for logs and messages."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"


def without_secrets(text: str) -> str:
    """A URL, or several separated by commas, without credentials and query, which may contain a key. Other text is
    returned unchanged."""
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

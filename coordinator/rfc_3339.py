"""Times in responses and messages (https://www.rfc-editor.org/rfc/rfc3339)."""

from __future__ import annotations

from datetime import UTC, datetime

NEVER = "0001-01-01T00:00:00Z"
"""The time that Prometheus reports for an event that has not happened yet."""


def time_text(seconds: float) -> str:
    """Unix seconds as text in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

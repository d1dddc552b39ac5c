"""Classifies requests by their paths: reads, writes, and requests about the state of the service."""

from __future__ import annotations

STATUS_PATHS = tuple(
    f"/api/v1/status/{name}"
    for name in ("buildinfo", "runtimeinfo", "walreplay", "flags", "config", "settings", "memory")
)
"""The paths under /api/v1/status/ that are answered at once. `tsdb` is not among them, since it counts all series."""
STATE_PATHS = ("/-/", "/ui/", "/metrics", *STATUS_PATHS, "/api/v1/cluster", "/api/v1/queries", "/api/v1/debug/")
PAGE_PATHS = frozenset(("/", "/graph", "/query"))
OTLP_PATHS = frozenset(f"{prefix}/v1/{signal}" for prefix in ("", "/api/v1/otlp") for signal in ("metrics", "logs"))
WRITE_PATHS = frozenset(
    (
        *(
            f"/api/v1/{name}"
            for name in ("write", "import", "import/csv", "log/append", "vector/write", "vector/update")
        ),
        *OTLP_PATHS,
    )
)


def is_state(path: str) -> bool:
    """Whether a request to this path is answered at once, without the workers, and is never refused: health, state, the
    page and its files."""
    return path in PAGE_PATHS or path.startswith(STATE_PATHS)


def is_read(path: str) -> bool:
    """Whether a request to this path is a read. The number of concurrent reads is limited."""
    return path not in WRITE_PATHS and not is_state(path)

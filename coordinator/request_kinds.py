"""Which requests are reads, writes, or about the state of the service: by their paths."""

from __future__ import annotations

from coordinator.otlp import answers as otlp

STATUS_PATHS = tuple(
    f"/api/v1/status/{name}"
    for name in ("buildinfo", "runtimeinfo", "walreplay", "flags", "config", "settings", "memory")
)
"""Those under /api/v1/status/ that are answered at once: tsdb counts all series."""
STATE_PATHS = ("/-/", "/ui/", "/metrics", *STATUS_PATHS, "/api/v1/cluster", "/api/v1/queries", "/api/v1/debug/")
PAGE_PATHS = frozenset(("/", "/graph", "/query"))
WRITE_PATHS = frozenset(
    (
        *(
            f"/api/v1/{name}"
            for name in ("write", "import", "import/csv", "log/append", "vector/write", "vector/update")
        ),
        *otlp.PATHS,
    )
)


def is_state(path: str) -> bool:
    """Whether a request to this path is answered at once, without the workers, and never refused: health, state, the
    page and its files."""
    return path in PAGE_PATHS or path.startswith(STATE_PATHS)


def is_read(path: str) -> bool:
    """Whether a request to this path is a read, of which only so many may begin at a time."""
    return path not in WRITE_PATHS and not is_state(path)

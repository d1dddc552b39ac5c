"""Holds back requests that change the content of shards, so that all shards can be frozen at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

WRITES = frozenset(
    {
        "series.write",
        "series.delete",
        "series.metadata_put",
        "log.append",
        "log.sync",
        "log.revoke",
        "log.drop",
        "log.trim",
        "log.cursor_put",
        "log.cursor_delete",
        "log.group_put",
        "log.group_delete",
        "vector.write",
        "vector.delete",
        "vector.delete_matching",
        "vector.update",
        "vector.drop",
    }
)
"""The worker methods that change something (`worker.methods`, kind "write")."""


class Barrier:
    """For the event loop's thread only. The code that closes the barrier must limit for how long."""

    def __init__(self) -> None:
        self._opened: asyncio.Event | None = None

    @property
    def is_closed(self) -> bool:
        return self._opened is not None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """For the duration of a `with` block, hold back every write that is not on its way to the workers yet."""
        assert self._opened is None, "two things hold writes back at once"
        opened = self._opened = asyncio.Event()
        try:
            yield
        finally:
            self._opened = None
            opened.set()

    async def passed(self, method: str) -> None:
        """Return when a request for this method of the workers may be sent."""
        while self._opened is not None and method in WRITES:
            await self._opened.wait()

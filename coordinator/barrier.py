"""Holds back the requests that change what shards hold, so that all shards can be frozen at one moment."""

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
"""The methods of workers that change something (`worker.methods`, kind "write")."""


class Barrier:
    """For the event loop's thread only. Whoever closes it bounds how long."""

    def __init__(self) -> None:
        self._opened: asyncio.Event | None = None

    @property
    def is_closed(self) -> bool:
        return self._opened is not None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Hold back every write that is not on its way to the workers yet, for the duration of a `with` block."""
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

"""Writes of the log's state file, one at a time, to a disk that may stop answering.

The thread of a write that hangs cannot be ended. So there is at most one such thread: later writes wait for it on the
event loop, and once it has taken too long, appends are refused instead of waiting as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class StateWrites:
    """For the event loop's thread only."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._since: float | None = None

    async def run(self, write: Callable[[], None]) -> None:
        """Run `write` in a thread; raises what it raises. A caller that is cancelled does not stop it."""
        writing = asyncio.create_task(self._write(write))
        writing.add_done_callback(_seen)
        await asyncio.shield(writing)

    async def _write(self, write: Callable[[], None]) -> None:
        async with self._turn:
            self._since = time.monotonic()
            try:
                await asyncio.to_thread(write)
            finally:
                self._since = None

    def held(self) -> asyncio.Lock:
        """The turn to write: no write begins while another task has it."""
        return self._turn

    @property
    def overdue(self) -> str:
        """Why the state cannot be written at the moment: the disk does not answer; "" when it does."""
        if self._since is None or time.monotonic() - self._since < self._patience_s:
            return ""
        waited_s = time.monotonic() - self._since
        return f"the disk of the log's state has not answered a write for {waited_s:.1f} s"


def _seen(task: asyncio.Task[None]) -> None:
    """Mark the task's error as retrieved: its waiter may have been cancelled."""
    if not task.cancelled():
        task.exception()

"""Files for the rest of long answers whose clients do not take them: there they take no memory of the service.

A file has no name, so nothing of it is left when the process ends. Files are written and read in threads of their own:
a slow disk delays nobody but the clients that were late themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from coordinator.connections import Waiting
from shared.telemetry import event

T = TypeVar("T")
Piece = bytes | memoryview

THREADS = 2
GRANT_BYTES = 4 << 20
"""An answer is given room by so much, and written for so long before others have their turn."""
READ_BYTES = 256 << 10
IO_TIMEOUT_S = 30.0
"""A disk that takes longer for GRANT_BYTES is broken."""
FAILED_LOG_INTERVAL_S = 10.0

EndSlowest = Callable[[Container[Waiting]], Waiting | None]
"""End the connection among these whose client has taken nothing for the longest time; None if there is none."""


class Spool:
    """The files of all answers, within `bytes_max`. For the event loop's thread only."""

    def __init__(self, directory: Path, bytes_max: int, end_slowest: EndSlowest) -> None:
        self.bytes = 0
        self._directory = directory
        self._bytes_max = bytes_max
        self._end_slowest = end_slowest
        self._files: dict[Waiting, SpoolFile] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="spool")
        self._failed_logged_at = -FAILED_LOG_INTERVAL_S

    @asynccontextmanager
    async def file(self, connection: Waiting) -> AsyncIterator[SpoolFile]:
        """An empty file for the connection's answer, which is gone when the context ends."""
        file = self._files[connection] = SpoolFile(self, self._directory)
        try:
            yield file
        finally:
            self._free(file)
            if self._files.get(connection) is file:
                del self._files[connection]
            self._pool.submit(file.close)  # to free the disk's blocks takes time

    def grant(self, file: SpoolFile, size: int) -> bool:
        """Whether there is room for `size` more bytes of the file, for which others may have had to end."""
        while self.bytes + size > self._bytes_max:
            connection = self._end_slowest(self._files)
            if connection is None:
                self.say("answers that clients do not take stay in memory: TRIPTYCH_SPOOL_BYTES_MAX is reached")
                return False
            self._free(self._files.pop(connection))
        self.bytes += size
        file.granted += size
        return True

    def restore(self, file: SpoolFile, size: int) -> None:
        """Give back `size` bytes of what was granted to the file."""
        size = min(size, file.granted)
        file.granted -= size
        self.bytes -= size

    def _free(self, file: SpoolFile) -> None:
        self.restore(file, file.granted)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Raises OSError, also (TimeoutError) when the disk does not answer."""
        async with asyncio.timeout(IO_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def say(self, what: str, **details: object) -> None:
        now = time.monotonic()
        if now - self._failed_logged_at >= FAILED_LOG_INTERVAL_S:
            self._failed_logged_at = now
            event(logging.WARNING, what, limit=self._bytes_max, bytes=self.bytes, **details)


class SpoolFile:
    """The rest of one answer. `granted`: the bytes that it may take on disk; `size`: those that it has."""

    def __init__(self, spool: Spool, directory: Path) -> None:
        self.granted = 0
        self.size = 0
        self._spool = spool
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    async def fill(self, pieces: deque[Piece], following: Callable[[], Piece | None]) -> bool:
        """Move the pieces and all that follow to the file. False if there was no room for the first of `pieces` in the
        spool or on the disk. `following` is called in a thread. Raises OSError when the disk does not answer."""
        while True:
            grant = max(GRANT_BYTES, len(pieces[0]) if pieces else 0)
            if not self._spool.grant(self, grant):
                return False
            size_before = self.size
            is_done, error = await self._spool.in_thread(partial(self._write, pieces, following, grant))
            self._spool.restore(self, grant - (self.size - size_before))
            if error is not None:
                self._spool.say("answers that clients do not take stay in memory: the disk fails", why=error)
                return False
            if is_done:
                return True

    async def pieces(self) -> AsyncIterator[bytes]:
        """What was written. Raises OSError."""
        for start in range(0, self.size, READ_BYTES):
            yield await self._spool.in_thread(partial(self._read, start))

    def close(self) -> None:
        """Work for a thread, as is the rest: it waits for what another one does with the file."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def _write(
        self, pieces: deque[Piece], following: Callable[[], Piece | None], bytes_max: int
    ) -> tuple[bool, OSError | None]:
        """Move pieces as long as they fit; (whether all are in the file, why the disk refused one)."""
        with self._lock:
            while not self._is_closed:
                if not pieces:
                    piece = following()
                    if piece is None:
                        return True, None
                    pieces.append(piece)
                if len(pieces[0]) > bytes_max:
                    break
                try:
                    self._append(pieces[0])
                except OSError as error:
                    return False, error
                bytes_max -= len(pieces.popleft())
        return False, None

    def _append(self, piece: Piece) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory, prefix="spool-", buffering=0)  # noqa: SIM115
        left, at = memoryview(piece), self.size
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            left, at = left[written:], at + written
        self.size = at

    def _read(self, start: int) -> bytes:
        with self._lock:
            if self._is_closed or self._file is None:
                raise OSError("the file of an answer is closed")
            length = min(READ_BYTES, self.size - start)
            piece = os.pread(self._file.fileno(), length, start)
        if len(piece) != length:
            raise OSError(f"the file of an answer has {len(piece)} bytes at {start}, it must have {length}")
        return piece

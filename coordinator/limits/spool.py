"""Temporary files for the rest of long responses that clients do not read, so that they take no memory of the service.

The files have no names, so nothing is left of them when the process ends. They are written and read in separate
threads, so that a slow disk only delays the clients that are slow themselves.
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

from coordinator.limits.connections import Waiting
from shared.telemetry import event

T = TypeVar("T")
Piece = bytes | memoryview

THREADS = 2
GRANT_BYTES = 4 << 20
"""The unit in which a response gets room, and the bytes that are written before other responses have their turn."""
READ_BYTES = 256 << 10
IO_TIMEOUT_S = 30.0
"""A disk that takes longer for GRANT_BYTES is considered broken."""
FAILED_LOG_INTERVAL_S = 10.0

EndSlowest = Callable[[Container[Waiting]], Waiting | None]
"""Ends the connection among these whose client has read nothing for the longest time. Returns it, or None if there is
none."""


class Spool:
    """The files of all responses, with at most `bytes_max` together. For the event loop's thread only."""

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
        """An empty file for the connection's response. It is deleted when the context ends."""
        file = self._files[connection] = SpoolFile(self, self._directory)
        try:
            yield file
        finally:
            self._free(file)
            if self._files.get(connection) is file:
                del self._files[connection]
            self._pool.submit(file.close)  # in a thread, since freeing the blocks on disk takes time

    def grant(self, file: SpoolFile, size: int) -> bool:
        """Reserve `size` more bytes for the file. May end other connections to make room. Returns whether there is
        room."""
        while self.bytes + size > self._bytes_max:
            connection = self._end_slowest(self._files)
            if connection is None:
                self.log("responses that clients do not read stay in memory: TRIPTYCH_SPOOL_BYTES_MAX is reached")
                return False
            self._free(self._files.pop(connection))
        self.bytes += size
        file.granted += size
        return True

    def restore(self, file: SpoolFile, size: int) -> None:
        """Release `size` of the bytes that were granted to the file."""
        size = min(size, file.granted)
        file.granted -= size
        self.bytes -= size

    def _free(self, file: SpoolFile) -> None:
        self.restore(file, file.granted)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run `call` in a thread of the spool. Raises OSError; TimeoutError if the disk does not respond."""
        async with asyncio.timeout(IO_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def log(self, what: str, **details: object) -> None:
        """Log a warning, at most one in FAILED_LOG_INTERVAL_S."""
        now = time.monotonic()
        if now - self._failed_logged_at >= FAILED_LOG_INTERVAL_S:
            self._failed_logged_at = now
            event(logging.WARNING, what, limit=self._bytes_max, bytes=self.bytes, **details)


class SpoolFile:
    """The rest of one response. `granted`: the bytes that it may take on disk. `size`: the bytes that it has."""

    def __init__(self, spool: Spool, directory: Path) -> None:
        self.granted = 0
        self.size = 0
        self._spool = spool
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    async def fill(self, pieces: deque[Piece], next_piece: Callable[[], Piece | None]) -> bool:
        """Move the pieces, and all that `next_piece` produces after them, to the file. Returns False if there was no
        room in the spool or on the disk for the first of `pieces`. `next_piece` is called in a thread. Raises OSError
        if the disk does not respond."""
        while True:
            grant = max(GRANT_BYTES, len(pieces[0]) if pieces else 0)
            if not self._spool.grant(self, grant):
                return False
            size_before = self.size
            is_done, error = await self._spool.in_thread(partial(self._write, pieces, next_piece, grant))
            self._spool.restore(self, grant - (self.size - size_before))
            if error is not None:
                self._spool.log("responses that clients do not read stay in memory: the disk fails", why=error)
                return False
            if is_done:
                return True

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the content of the file. Raises OSError."""
        for start in range(0, self.size, READ_BYTES):
            yield await self._spool.in_thread(partial(self._read, start))

    def close(self) -> None:
        """Close the file. Like the methods below, this must run in a thread, since it waits for other threads that use
        the file."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def _write(
        self, pieces: deque[Piece], next_piece: Callable[[], Piece | None], bytes_max: int
    ) -> tuple[bool, OSError | None]:
        """Move pieces to the file as long as they fit. Returns (whether all are in the file, error of the disk or
        None)."""
        with self._lock:
            while not self._is_closed:
                if not pieces:
                    piece = next_piece()
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
        remaining, at = memoryview(piece), self.size
        while remaining:
            written = os.pwrite(self._file.fileno(), remaining, at)
            remaining, at = remaining[written:], at + written
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

"""Decodes large bodies in threads, a few at a time. Small bodies are decoded on the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from coordinator.limits.clients import CURRENT_CLIENT
from shared.errors import TriptychError, Unavailable

LARGE_DECODINGS_MAX = 2
"""The most large bodies that are decoded at the same time. They compete with the event loop for the interpreter lock,
and a decoded body can take several times its size."""
HUGE_BYTES_MIN = 64 << 20
"""Only one body of at least this size (decompressed) is decoded at a time."""
DECODING_WAIT_S = 10.0
"""How long a large body may wait for its turn: as long as a write may take."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Turn:
    """One decoding. `client`: the name of the client that sent the body. `granted` is set when the
    decoding may begin."""

    client: str
    is_huge: bool
    granted: asyncio.Future[None]


class Decodings:
    """The decodings of large bodies in this process. The client with the fewest running decodings has the next turn, so
    that a client that sends many bodies does not keep the others waiting. For the event loop's thread only."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LARGE_DECODINGS_MAX, thread_name_prefix="decode")
        self._running: list[_Turn] = []
        self._waiting: list[_Turn] = []  # in the order of arrival

    async def run(self, size_bytes: int, decode: Callable[[], T]) -> T:
        """Run `decode()` in a thread, for a body of `size_bytes`. Raises Unavailable if its turn does not come within
        DECODING_WAIT_S."""
        turn = _Turn(CURRENT_CLIENT.get(), size_bytes >= HUGE_BYTES_MIN, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._grant()
        try:
            async with asyncio.timeout(DECODING_WAIT_S):
                await turn.granted
        except TimeoutError:
            self._end(turn)
            raise Unavailable(
                f"{LARGE_DECODINGS_MAX} large bodies are being decoded, which is the limit, and others waited "
                f"longer than {DECODING_WAIT_S:g} s; try again later, or with smaller bodies"
            ) from None
        except asyncio.CancelledError:
            self._end(turn)
            raise
        work = asyncio.get_running_loop().run_in_executor(self._pool, _outcome, decode)
        # A turn ends with the work, not with the request: a thread cannot be stopped when its client goes away.
        work.add_done_callback(lambda _: self._end(turn))
        try:
            return await asyncio.shield(work)
        finally:
            del work  # otherwise an error in it would form a reference cycle with this frame

    def _grant(self) -> None:
        """Let waiting decodings begin as long as threads are free."""
        while len(self._running) < LARGE_DECODINGS_MAX:
            is_huge_running = any(turn.is_huge for turn in self._running)
            eligible = [
                turn
                for turn in self._waiting
                if not (turn.is_huge and is_huge_running) and not turn.granted.cancelled()
            ]
            if not eligible:
                return
            running = Counter(turn.client for turn in self._running)
            turn = min(eligible, key=lambda turn: running[turn.client])  # the first one of equals
            self._waiting.remove(turn)
            self._running.append(turn)
            turn.granted.set_result(None)

    def _end(self, turn: _Turn) -> None:
        """The decoding has ended, or its caller no longer waits for it."""
        (self._running if turn in self._running else self._waiting).remove(turn)
        self._grant()


def _outcome(decode: Callable[[], T]) -> T:
    try:
        return decode()
    except TriptychError as error:
        # The traceback would keep the frames alive, and with them the body and the decoded objects.
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None)  # noqa: B904

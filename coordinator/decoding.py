"""Where bodies are decoded: small ones on the event loop, large ones in threads of their own, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shared.errors import TriptychError, Unavailable

LARGE_DECODINGS_MAX = 2
"""Large bodies decoded at once. They compete with the event loop for the interpreter, and what is made of a body can
be several times its size."""
HUGE_BYTES_MIN = 64 << 20
"""Of the bodies that have this many bytes once they are decompressed, one is decoded at a time."""
DECODING_WAIT_S = 10.0
"""How long a large body waits for its turn: the time that a write may take."""

T = TypeVar("T")


class Decodings:
    """The large bodies of one process. For the event loop's thread only."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LARGE_DECODINGS_MAX, thread_name_prefix="decode")
        self._turns = asyncio.Semaphore(LARGE_DECODINGS_MAX)
        self._huge_turn = asyncio.Semaphore(1)

    async def run(self, size_bytes: int, decode: Callable[[], T]) -> T:
        """`decode()` in a thread, for a body of so many bytes. Raises Unavailable when too many others come first."""
        turns = (self._huge_turn, self._turns) if size_bytes >= HUGE_BYTES_MIN else (self._turns,)
        taken: list[asyncio.Semaphore] = []
        try:
            async with asyncio.timeout(DECODING_WAIT_S):
                for turn in turns:
                    await turn.acquire()
                    taken.append(turn)
        except TimeoutError:
            _release(taken)
            raise Unavailable(
                f"{LARGE_DECODINGS_MAX} large bodies are being decoded, which is the limit, and others waited "
                f"longer than {DECODING_WAIT_S:g} s; try again later, or with smaller bodies"
            ) from None
        except asyncio.CancelledError:
            _release(taken)
            raise
        work = asyncio.get_running_loop().run_in_executor(self._pool, _outcome, decode)
        # A turn ends with the work, not with the request: a thread cannot be stopped when its client goes away.
        work.add_done_callback(lambda _: _release(taken))
        try:
            return await asyncio.shield(work)
        finally:
            del work  # an error it holds would hold this frame, in a circle


def _outcome(decode: Callable[[], T]) -> T:
    try:
        return decode()
    except TriptychError as error:
        # The frames that an error has passed would be kept with it, and in them the body and what was made of it.
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None)  # noqa: B904


def _release(taken: list[asyncio.Semaphore]) -> None:
    for turn in taken:
        turn.release()

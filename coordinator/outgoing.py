"""Threads for blocking work of requests to other services: resolving host names and reading files of secrets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from aiohttp.abc import AbstractResolver, ResolveResult

BLOCKING_THREADS = 8
"""Threads of each pool. Their work may hang, for example on a name server or a network file system, so requests to this
service use other threads."""
SCRAPES, ALERTS = "outgoing", "outgoing-alerts"
"""The pools. There are many scrape targets, and resolving their names may block all threads, so alerts have a pool of
their own."""

T = TypeVar("T")


async def blocking(function: Callable[[], T], pool: str = SCRAPES) -> T:
    """Run `function()` in a daemon thread of the pool, since it may hang, and must not keep the process from ending."""
    result: Future[T] = Future()

    def run() -> None:
        if result.set_running_or_notify_cancel():
            try:
                result.set_result(function())
            except Exception as error:
                result.set_exception(error)

    _work(pool).put(run)
    return await asyncio.wrap_future(result)


@cache
def _work(pool: str) -> SimpleQueue[Callable[[], None]]:
    """The work queue of a pool. The first call starts its threads."""
    work: SimpleQueue[Callable[[], None]] = SimpleQueue()
    for number in range(BLOCKING_THREADS):
        Thread(target=_serve, args=(work,), name=f"{pool}-{number}", daemon=True).start()
    return work


def _serve(work: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()


class Resolver(AbstractResolver):
    """Resolves host names with the system's resolver."""

    def __init__(self, pool: str = SCRAPES) -> None:
        self._pool = pool

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        find = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=str(address[0]), port=int(address[1]), family=kind, proto=protocol, flags=flags
            )
            for kind, _, protocol, _, address in await blocking(find, self._pool)
        ]

    async def close(self) -> None:
        """Does nothing."""

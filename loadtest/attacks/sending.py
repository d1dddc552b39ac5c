"""How attackers send: prepared requests, again and again over their own connections, or raw bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp

from loadtest.attacks.target import Target

ANSWER_WITHIN_S = 30.0
"""An attacker goes away when it has waited this long."""
PIECE_BYTES = 1 << 16
MESSAGE_BYTES = 160
REFUSED_PAUSE_S = 0.05
"""Between a refusal and the next attempt, so that an attack does not become a flood of light requests."""

Run = Callable[["Answers", float], Coroutine[Any, Any, None]]
"""Attack for that many seconds, noting the answers."""
Prepare = Callable[[Target], Run]
"""Makes everything that an attack needs beforehand, such as its bodies."""


@dataclass(slots=True)
class Answers:
    """How the attacker's own requests were answered: numbers by status or failure, the first message of each, and the
    longest wait."""

    count: dict[str, int] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    longest_s: float = 0.0

    def note(self, outcome: str, message: str = "", took_s: float = 0.0) -> None:
        self.count[outcome] = self.count.get(outcome, 0) + 1
        self.messages.setdefault(outcome, message)
        self.longest_s = max(self.longest_s, took_s)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def form(path: str, **parameters: object) -> Request:
    """A POST of parameters; `match` is sent as `match[]`."""
    pairs = {("match[]" if name == "match" else name): value for name, value in parameters.items()}
    return Request("POST", path, urlencode(pairs).encode(), {"Content-Type": "application/x-www-form-urlencoded"})


def repeated(requests: Callable[[Target], Sequence[Request]]) -> Prepare:
    """Each request over a connection of its own, and again as soon as it is answered."""

    def prepare(target: Target) -> Run:
        prepared = requests(target)

        async def run(answers: Answers, seconds: float) -> None:
            stop = time.monotonic() + seconds
            timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(target.url, timeout=timeout, connector=connector) as session:
                await asyncio.gather(*(_repeat(session, request, answers, stop) for request in prepared))

        return run

    return prepare


async def _repeat(session: aiohttp.ClientSession, request: Request, answers: Answers, stop: float) -> None:
    while time.monotonic() < stop:
        started = time.perf_counter()
        outcome, message = await _ask(session, request)
        answers.note(outcome, message, time.perf_counter() - started)
        if not outcome.startswith("2"):
            await asyncio.sleep(REFUSED_PAUSE_S)


async def _ask(session: aiohttp.ClientSession, request: Request) -> tuple[str, str]:
    """(status or kind of failure, the beginning of an error's text). A good answer is read and dropped."""
    try:
        async with session.request(
            request.method, request.path, data=request.body or None, headers=request.headers
        ) as response:
            message = b""
            async for piece in response.content.iter_chunked(PIECE_BYTES):
                if response.status >= 300 and len(message) < MESSAGE_BYTES:
                    message += piece
            return str(response.status), message[:MESSAGE_BYTES].decode(errors="replace")
    except (aiohttp.ClientError, OSError) as error:
        return type(error).__name__, str(error)[:MESSAGE_BYTES]

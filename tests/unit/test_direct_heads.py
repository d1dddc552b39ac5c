"""Remote writes as they come over the wire, whatever their heads are and however they are cut in pieces: the same is
answered, byte by byte, stored and counted with aiohttp and without."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import snappy

from coordinator.api import write
from coordinator.direct import requests as direct_requests
from coordinator.direct.requests import DirectRequests
from coordinator.direct.writes import PATH
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2, body, body_v2
from tests.unit.direct_service import WITHIN_S, Service
from tests.unit.test_direct_writes_v2 import COUNTERS, Workers

NOW_MS = int(time.time() * 1000)
SAMPLES = [({"__name__": "m", "i": str(n)}, [(NOW_MS, 1.0 + n)]) for n in range(20)]
FIRST, SECOND = bytes(snappy.compress(body(SAMPLES))), bytes(snappy.compress(body_v2(SAMPLES)))
REST_WITHIN_S, LONGER_S = 0.01, 0.03
QUIET_LOOKS, LOOK_S = 5, 0.004
"""An exchange is over when the service has been at rest, and has answered nothing more, in so many looks."""
_CHANGING = re.compile(rb"(Date: [^\r]*|X-Request-Id: [0-9a-f]{8}-[0-9a-f]+)\r\n")
"""Lines of an answer that no two have in common."""

Field = tuple[str, str]
ODD_LENGTHS = (
    "{0}", "00{0}", " {0} ", "\t{0}", "+{0}", "-{0}", "{0}.0", "0x{0:x}", "{0}, {0}", "{1}", "{2}", "", "0", "1e2",
    "99999999999999999999",
)  # fmt: skip
"""Of a body of {0} bytes; {1} is one more, {2} one less."""
ODD_FIELDS: dict[str, Sequence[str]] = {
    "Content-Encoding": ("SNAPPY", "identity", "gzip", "snappy, gzip", "", "snappy;q=1", "\tsnappy\t"),
    "Content-Type": ("", "application/json", "text/plain", "application/x-protobuf;", "APPLICATION/X-PROTOBUF"),
    "Host": ("", "elsewhere.example", "localhost:9090", "127.0.0.1", "a\x00b", "[::1]", "localhost:x"),
    "Connection": ("close", "Close", "keep-alive", "Keep-Alive", "keep-alive, close", "upgrade", "", "TE"),
    "Expect": ("100-continue", "100-Continue", "x", ""),
    "Transfer-Encoding": ("chunked", "identity", "chunked, identity", "x"),
    "Upgrade": ("websocket", "h2c"),
    "Accept": ("*/*", "application/json", "application/x-protobuf", ""),
    "Accept-Encoding": ("gzip", "identity", "gzip;q=0", ""),
    "Origin": ("http://localhost", "http://elsewhere.example", "null"),
    "Sec-Fetch-Site": ("cross-site", "same-origin"),
    "User-Agent": ("\xff", "a\x7fb", "a\x01b", "a\tb", "\ta", "x" * 900),
    "X-Request-Id": ("mine", "a b", "", "x" * 64, "x" * 65, "é"),
    "traceparent": ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",),
    "Authorization": ("Bearer x",),
    "Retry-Attempt": ("1",),
    "X-Other": ("1", "y" * 2000),
    " X-Folded": ("1",),
    "Host ": ("localhost",),
    "": ("1",),
}
ODD_LINES = (
    "GET {} HTTP/1.1", "PUT {} HTTP/1.1", "HEAD {} HTTP/1.1", "OPTIONS {} HTTP/1.1", "post {} HTTP/1.1",
    "POST  {} HTTP/1.1", " POST {} HTTP/1.1", "POST {}? HTTP/1.1", "POST {}?a=1 HTTP/1.1", "POST {}#a HTTP/1.1",
    "POST {}/ HTTP/1.1", "POST /{} HTTP/1.1", "POST http://localhost{} HTTP/1.1", "POST {}?%zz HTTP/1.1",
    "POST {} HTTP/1.0", "POST {} HTTP/1.2", "POST {} HTTP/2.0", "POST {} http/1.1", "POST {} HTTP/1.1 ", "POST {}",
)  # fmt: skip


def wire(fields: Sequence[Field], content: bytes, line: str = "POST {} HTTP/1.1", end: str = "\r\n") -> bytes:
    lines = [line.format(PATH), *(f"{name}: {value}" for name, value in fields), "", ""]
    return end.join(lines).encode("latin-1") + content


def usual(chance: random.Random) -> tuple[list[Field], bytes]:
    """The header and the body of a request as senders send it."""
    is_second = chance.random() < 0.4
    content = SECOND if is_second else FIRST
    fields = [("Host", "localhost"), *(HEADERS_V2 if is_second else HEADERS).items()]
    fields.append(("Content-Length", str(len(content))))
    return fields, content


def plain(chance: random.Random) -> bytes:
    fields, content = usual(chance)
    chance.shuffle(fields)
    name_of = chance.choice((str, str.lower, str.upper))
    return wire([(name_of(name), value) for name, value in fields], content)


def odd(chance: random.Random) -> bytes:
    """A request of which something is not usual."""
    fields, content = usual(chance)
    kind = chance.choice(("length", "field", "field", "field", "twice", "missing", "line", "body", "end"))
    at = chance.randrange(len(fields))
    if kind == "length":
        size = len(content)
        fields[-1] = ("Content-Length", chance.choice(ODD_LENGTHS).format(size, size + 1, size - 1))
    elif kind == "field":
        name = chance.choice(list(ODD_FIELDS))
        fields = [one for one in fields if one[0] != name]
        fields.insert(at, (name, chance.choice(ODD_FIELDS[name])))
        if name == "Transfer-Encoding" and chance.random() < 0.7:
            fields.pop()
            content = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    elif kind == "twice":
        fields.insert(at, fields[chance.randrange(len(fields))])
    elif kind == "missing":
        del fields[at]
    elif kind == "line":
        return wire(fields, content, chance.choice(ODD_LINES))
    elif kind == "body":
        content = chance.choice((b"", b"\x80", b"\x05no snappy", b"\r\n\r\n" + content, content[: len(content) // 2]))
        fields[-1] = ("Content-Length", str(len(content)))
    else:
        return wire(fields, content, end=chance.choice(("\n", "\r", "\r\r\n")))
    return wire(fields, content)


def cut(chance: random.Random, data: bytes, pieces_max: int) -> list[tuple[bytes, float]]:
    """(A piece, the pause behind it) of all the pieces of the data."""
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(pieces_max)))
    bounds = zip([0, *places], [*places, len(data)], strict=True)
    return [(data[begin:end], chance.choice((0.0, 0.001, LONGER_S))) for begin, end in bounds if begin < end]


@dataclass
class Way:
    """A service, and what has come back over the client's connection to it. `direct`: requests served without
    aiohttp."""

    service: Service
    workers: Workers = field(default_factory=Workers)
    answered: bytearray = field(default_factory=bytearray)
    is_ended: bool = False
    direct: int = 0
    writer: Any = None

    async def connect(self) -> None:
        reader, self.writer = await asyncio.open_connection("127.0.0.1", self.service.runner.addresses[0][1])
        self.reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.answered += data
        except ConnectionError:
            pass
        self.is_ended = True

    async def send(self, pieces: Sequence[tuple[bytes, float]]) -> None:
        for piece, pause_s in pieces:
            if not self.is_ended:
                self.writer.write(piece)
            await asyncio.sleep(pause_s)
        await self.settled()

    async def settled(self) -> None:
        looks, before = 0, -1
        async with asyncio.timeout(WITHIN_S):
            while looks < QUIET_LOOKS:
                await asyncio.sleep(LOOK_S)
                looks = looks + 1 if self.service.is_at_rest and len(self.answered) == before else 0
                before = len(self.answered)

    @property
    def outcome(self) -> tuple[Any, ...]:
        telemetry = self.service.context.telemetry
        counts = {name: getattr(telemetry, name) for name in COUNTERS}
        return _CHANGING.sub(b"", self.answered), self.is_ended, self.workers.messages, counts, telemetry._requests


@pytest.fixture
async def ways(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Way, Way]]:
    """Without aiohttp, where that is possible, and with it."""
    monkeypatch.setattr(direct_requests, "REST_WITHIN_S", REST_WITHIN_S)
    direct, by_aiohttp = (Way(Service(PATH, write.ROUTES)) for _ in range(2))
    begin = DirectRequests.begin

    def begin_direct(requests: DirectRequests, *arguments: Any) -> Any:
        answer = begin(requests, *arguments) if requests._context is direct.service.context else None
        direct.direct += answer is not None
        return answer

    monkeypatch.setattr(DirectRequests, "begin", begin_direct)
    for way in (direct, by_aiohttp):
        way.service.context.samples = way.workers  # type: ignore[assignment]
        await way.service.start()
        await way.connect()
    yield direct, by_aiohttp
    for way in (direct, by_aiohttp):
        way.writer.close()
        await way.service.stop()
        await way.reading


async def exchange(ways: tuple[Way, Way], pieces: Sequence[tuple[bytes, float]]) -> None:
    """What the pieces lead to is the same."""
    await asyncio.gather(*(way.send(pieces) for way in ways))
    direct, by_aiohttp = ways
    assert direct.outcome == by_aiohttp.outcome


def statuses(way: Way) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", bytes(way.answered))]


@pytest.mark.parametrize("seed", range(15))
async def test_requests_that_follow_each_other_in_any_pieces_are_answered_in_order(
    ways: tuple[Way, Way], seed: int
) -> None:
    chance = random.Random(seed)
    sent = 0
    for _ in range(3):
        count = chance.choice((1, 1, 2, 4))
        await exchange(ways, cut(chance, b"".join(plain(chance) for _ in range(count)), pieces_max=8))
        sent += count
    assert statuses(ways[0]) == [204] * sent


@pytest.mark.parametrize("seed", range(80))
async def test_a_request_that_is_not_usual_is_answered_as_by_aiohttp(ways: tuple[Way, Way], seed: int) -> None:
    chance = random.Random(seed)
    await exchange(ways, cut(chance, plain(chance), pieces_max=2))
    following = plain(chance) if chance.random() < 0.5 else b""
    await exchange(ways, cut(chance, odd(chance) + following, pieces_max=3))
    await exchange(ways, cut(chance, plain(chance), pieces_max=2))


async def test_a_request_may_be_cut_at_every_byte(ways: tuple[Way, Way]) -> None:
    message = plain(random.Random(0))
    for at in range(1, len(message)):
        for piece in (message[:at], message[at:]):
            for way in ways:
                way.writer.write(piece)
            await asyncio.sleep(0)
        for way in ways:
            await way.service.until(lambda way=way, count=at: len(statuses(way)) == count)
    await exchange(ways, [])
    assert statuses(ways[0]) == [204] * (len(message) - 1)
    assert ways[0].direct > len(FIRST) // 2  # most of those that are cut in the body


@pytest.mark.parametrize("header", [[], [("X-Other", "1")]], ids=["direct", "by aiohttp"])
@pytest.mark.parametrize(
    "at",
    [5, 60, -len(FIRST) - 2, -len(FIRST), -len(FIRST) + 1, -3],
    ids=[
        "in its first line",
        "in its head",
        "before the last line end",
        "behind the head",
        "in the body",
        "at the end",
    ],
)
async def test_requests_before_a_malformed_one_are_answered_wherever_the_first_is_cut(
    ways: tuple[Way, Way], header: list[Field], at: int
) -> None:
    fields = [("Host", "localhost"), *HEADERS.items(), *header, ("Content-Length", str(len(FIRST)))]
    message = wire(fields, FIRST)
    await exchange(ways, [(message[:at], LONGER_S), (message[at:] + 2 * message + b"no HTTP\r\n\r\n", 0.0)])
    for way in ways:
        assert (statuses(way), way.service.context.telemetry.samples_in) == ([204, 204, 204, 400], 3 * len(SAMPLES))

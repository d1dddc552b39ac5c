"""Remote writes that are served without aiohttp: which these are, and that nothing else about them is different. Those
of version 2.0 are in tests/unit/test_direct_writes_v2.py."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import snappy

from coordinator.api import write
from coordinator.direct.writes import PATH
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.limits.clients import CURRENT_CLIENT
from coordinator.series import known_samples
from coordinator.series.known_samples import KnownSamples
from coordinator.series.lessons import EMPTY_RECEIPT, Receipt
from loadtest.harness.remote_write_bodies import body
from shared.errors import Unavailable
from shared.frames import samples as sample_frames
from shared.frames.references import is_references, parse
from shared.wire import Frame
from tests.unit.direct_service import Service, prompt

PLAIN = (
    "Host: localhost",
    "Content-Type: application/x-protobuf",
    "Content-Encoding: snappy",
    "X-Prometheus-Remote-Write-Version: 0.1.0",
    "User-Agent: Prometheus/2.53.0",
)
USUAL = (*PLAIN, "X-Other: of aiohttp")
NOW_MS = int(time.time() * 1000)
SERIES = 50


def raw(count: int = SERIES, first: int = 0, samples: int = 1) -> bytes:
    points = [(NOW_MS + i, 1.0) for i in range(samples)]
    return bytes(snappy.compress(body([({"__name__": "m", "i": str(first + n)}, points) for n in range(count)])))


def request(headers: Iterable[str] = PLAIN, content: bytes = b"", path: str = PATH) -> bytes:
    content = content or raw()
    return (
        "\r\n".join([f"POST {path} HTTP/1.1", *headers, f"Content-Length: {len(content)}", "", ""]).encode() + content
    )


class Samples:
    """Stands in for `SampleWrites`: gives series numbers, and can take a shard for one that was opened anew."""

    def __init__(self) -> None:
        self.known: list[KnownSamples] = []
        self.labelled: list[Mapping[int, Sequence[Frame]]] = []
        self.epoch = 5
        self.error: Exception | None = None
        self.held: asyncio.Future[None] | None = None
        self.clients: list[str] = []
        """The client that each write was made for."""

    def submit(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> PromptFuture[Receipt]:
        return prompt(self.write(parts, known))

    async def write(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> Receipt:
        self.clients.append(CURRENT_CLIENT.get())
        if self.held is not None:
            await self.held
        if self.error is not None:
            raise self.error
        if known is not None:
            self.known.append(known)
            frames = known_samples.frames([known])
            stale = {(n, 0) for n, frame in frames.items() if parse(bytes(frame)).epoch != self.epoch}
            return Receipt(dict.fromkeys(frames, self.epoch), frozenset(stale)) if stale else EMPTY_RECEIPT
        self.labelled.append(parts)
        numbers = {}
        for shard, (frame,) in parts.items():
            if not is_references(frame):
                numbers[shard, 0] = np.arange(len(sample_frames.parse(bytes(frame)).counts), dtype=np.int32)
        return Receipt(dict.fromkeys(parts, self.epoch), numbers=numbers)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service(PATH, write.ROUTES)
    service.context.samples = Samples()  # type: ignore[assignment]
    await service.start()
    yield service
    await service.stop()


def samples_of(service: Service) -> Samples:
    return service.context.samples  # type: ignore[return-value]


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that aiohttp has read."""
    seen: list[str] = []
    held = write._held_body

    async def noted(request: Any) -> Any:
        seen.append(request.path)
        return await held(request)

    monkeypatch.setattr(write, "_held_body", noted)
    return seen


async def test_both_ways_give_the_same_answer(service: Service, usual: list[str]) -> None:
    service.context.access.headers = {"X-Frame-Options": "deny"}
    client = await service.client()
    for expected_usual in ([], []):
        direct = await client.ask(request((*PLAIN, "X-Request-Id: mine")))
        assert usual == expected_usual
    assert (len(samples_of(service).labelled), len(samples_of(service).known)) == (1, 1)
    other = await client.ask(request((*USUAL, "X-Request-Id: mine")))
    assert (usual, len(samples_of(service).known)) == ([PATH], 2)
    for _, headers, _ in (direct, other):
        headers.pop("Date")
    assert direct == other
    assert list(direct[1]) == list(other[1])
    assert (direct[0], direct[1]["X-Prometheus-Remote-Write-Samples-Written"]) == (204, str(SERIES))
    telemetry = service.context.telemetry
    assert (service.served(204), telemetry.samples_in, telemetry.series_by_number) == (3, 3 * SERIES, 2 * SERIES)
    assert service.is_at_rest


async def test_the_client_is_known_while_its_write_is_served_either_way(service: Service, usual: list[str]) -> None:
    client = await service.client()
    await client.ask(request())
    await client.ask(request(USUAL))
    assert (usual, samples_of(service).clients) == ([PATH], ["127.0.0.1"] * 2)
    assert CURRENT_CLIENT.get() == ""


@pytest.mark.parametrize(
    "content",
    [
        b"\x05no snappy",
        b"\xff\xff\xff\xff\x0fxx",
        snappy.compress(b"no protobuf"),
        snappy.compress(body([({"__name__": "m"}, [(NOW_MS, 1.0)]), ({"a": "without a name"}, [(NOW_MS, 1.0)])])),
        snappy.compress(body([({"__name__": "m"}, [(1 << 60, 1.0)])])),
        b"\x80",
    ],
    ids=["no snappy", "no end of the length", "no protobuf", "no name", "no such time", "no length"],
)
async def test_both_ways_find_the_same_faults(service: Service, content: bytes) -> None:
    client = await service.client()
    answers = [await client.ask(request((*headers, "X-Request-Id: mine"), content)) for headers in (PLAIN, USUAL)]
    for _, headers, _ in answers:
        headers.pop("Date")
    assert answers[0] == answers[1]
    assert answers[0][0] in (400, 413)
    assert "X-Prometheus-Remote-Write-Samples-Written" in answers[0][1]
    assert service.is_at_rest


@pytest.mark.parametrize(
    "message",
    [
        request((*PLAIN[:1], "Content-Type: application/x-protobuf;proto=io.prometheus.write.v3.Request", *PLAIN[2:])),
        request((*PLAIN[:1], "Content-Type: application/json", *PLAIN[2:])),
        request((*PLAIN[:2], *PLAIN[3:])),
        request((*PLAIN[:2], "Content-Encoding: gzip", *PLAIN[3:])),
        request((*PLAIN, "Authorization: Bearer x")),
        request((*PLAIN, "Retry-Attempt: 1")),
        request(content=raw(5000, samples=12)),
        request(path="/api/v1/log/append"),
    ],
)
async def test_everything_else_is_left_to_aiohttp(
    service: Service, message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.direct.writes._WriteWork.begin", lambda self, holder: 1 // 0)
    client = await service.client()
    assert (await client.ask(message))[0] != 500


@pytest.mark.parametrize("is_shared", [True, False])
async def test_known_samples_of_a_large_write_are_read_in_one_pass(
    service: Service, usual: list[str], monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setattr(known_samples, "SHARING_SAMPLES_MAX", 30_000 if is_shared else 29_999)
    client, content = await service.client(), raw(500, samples=60)
    assert len(snappy.uncompress(content)) > write.INLINE_BYTES_MAX
    for _ in range(2):
        status, headers, _ = await client.ask(request(content=content))
        assert (status, headers["X-Prometheus-Remote-Write-Samples-Written"]) == (204, "30000")
    assert usual == []
    by_number = [frame for frames in samples_of(service).labelled[1:] for own in frames.values() for frame in own]
    assert [known.samples for known in samples_of(service).known] == [30_000] * is_shared
    assert sum(parse(bytes(frame)).samples for frame in by_number) == 30_000 * (not is_shared)


async def test_what_a_shard_opened_anew_does_not_know_is_sent_with_labels(service: Service) -> None:
    client = await service.client()
    for _ in range(2):
        assert (await client.ask(request()))[0] == 204
    samples_of(service).epoch = 9
    status, headers, _ = await client.ask(request())
    assert (status, headers["X-Prometheus-Remote-Write-Samples-Written"]) == (204, str(SERIES))
    assert (len(samples_of(service).labelled), service.context.telemetry.stale_writes) == (2, 1)
    again = samples_of(service).labelled[1]
    assert sum(sample_frames.parse(bytes(frame)).samples for (frame,) in again.values()) == SERIES


async def test_bytes_are_held_while_the_request_is_under_way(service: Service) -> None:
    client = await service.client()
    await client.ask(request())
    samples = samples_of(service)
    samples.held = asyncio.get_running_loop().create_future()
    client.writer.write(request())
    await service.until(lambda: service.context.admission.requests == 1)
    content = raw()
    assert service.context.admission.body_bytes == len(content) + len(snappy.uncompress(content))
    samples.held.set_result(None)
    assert (await client.answer())[0] == 204
    assert service.is_at_rest


async def test_a_write_beyond_the_bound_of_bytes_is_refused_before_it_is_decompressed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.context.admission.bytes_max = len(raw()) + 1
    service.context.admission.body_bytes = 1  # of another one
    monkeypatch.setattr("coordinator.direct.writes.decompression.decompress", lambda *_: 1 // 0)
    client = await service.client()
    status, _, text = await client.ask(request())
    assert (status, b"TRIPTYCH_BODIES_BYTES_MAX" in text) == (503, True)
    service.context.admission.body_bytes -= 1
    assert service.is_at_rest


@pytest.mark.parametrize(("error", "status"), [(Unavailable("shard 3 is down"), 503), (ZeroDivisionError(), 500)])
async def test_a_write_that_fails_is_answered_with_its_error(service: Service, error: Exception, status: int) -> None:
    client = await service.client()
    await client.ask(request())
    samples_of(service).error = error
    answers = [await client.ask(request((*headers, "X-Request-Id: mine"))) for headers in (PLAIN, USUAL)]
    for _, headers, _ in answers:
        headers.pop("Date")
        headers.pop("Retry-After", None)
    assert answers[0] == answers[1]
    assert answers[0][0] == status
    assert "X-Prometheus-Remote-Write-Samples-Written" not in answers[0][1]
    assert json.loads(answers[0][2])["status"] == "error"
    assert service.is_at_rest


async def test_a_body_that_comes_in_pieces_is_put_together(service: Service, usual: list[str]) -> None:
    client = await service.client()
    message = request(content=raw(4000))
    for begin in range(0, len(message), 5_000):
        client.writer.write(message[begin : begin + 5_000])
        await asyncio.sleep(0.001)
    status, headers, _ = await client.answer()
    assert (status, headers["X-Prometheus-Remote-Write-Samples-Written"], usual) == (204, "4000", [])
    assert service.is_at_rest


async def test_there_is_nothing_to_write_to_where_it_is_turned_off() -> None:
    service = Service(PATH, [])
    await service.start()
    try:
        client = await service.client()
        assert [(await client.ask(request(headers)))[0] for headers in (PLAIN, USUAL)] == [404, 404]
    finally:
        await service.stop()

"""Small appends that are served without aiohttp: which these are, and that nothing else about them is different."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from coordinator.api.log import append
from coordinator.direct import requests as direct_requests
from coordinator.direct.appends import PATH
from coordinator.direct.plain_heads import LINES_BYTES_MAX
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.log.records import Append
from shared.errors import Unavailable
from tests.unit.direct_service import PLAIN, USUAL, Service

BODY = b'{"records": [{"keyText": "user-7", "text": "hello"}], "awaitDurable": true}'


def request(headers: Iterable[str] = PLAIN, body: bytes = BODY, line: str = f"POST {PATH} HTTP/1.1") -> bytes:
    return "\r\n".join([line, *headers, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Log:
    """Stands in for the area of the log. `direct`, `usual`: the batches that came either way."""

    def __init__(self) -> None:
        self.knows_state = True
        self.direct: list[Append] = []
        self.usual: list[Append] = []
        self.answers: list[PromptFuture[int]] = []
        self.held = False

    def begin(self, batch: Append) -> PromptFuture[int]:
        self.direct.append(batch)
        answer = PromptFuture[int]()
        self.answers.append(answer)
        if not self.held:
            answer.set_result(41)
        return answer

    async def append(self, batch: Append) -> tuple[int, int]:
        self.usual.append(batch)
        return 41, batch.count


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service(PATH, append.ROUTES, log=Log())
    await service.start()
    yield service
    await service.stop()


async def test_both_ways_give_the_same_answer(service: Service) -> None:
    client = await service.client()
    direct = await client.ask(request((*PLAIN, "X-Request-Id: mine")))
    usual = await client.ask(request((*USUAL, "X-Request-Id: mine")))
    for _, headers, _ in (direct, usual):
        headers.pop("Date")
    assert direct == usual
    assert list(direct[1]) == list(usual[1])
    assert json.loads(direct[2]) == {"status": "success", "recordsAppended": 1, "startSequence": 41}
    log = service.log
    assert (len(log.direct), len(log.usual)) == (1, 1)
    for batch in (*log.direct, *log.usual):
        assert (batch.records.key(0), batch.records.value(0), batch.durable) == (b"user-7", b"hello", True)
    assert service.served(200) == 2
    assert service.context.telemetry.records_in == 2
    assert service.is_at_rest
    assert list(service.context.connections.idle)


async def test_headers_of_every_answer_are_those_in_force_when_it_is_given(service: Service) -> None:
    client = await service.client()
    assert "X-Frame-Options" not in (await client.ask(request()))[1]
    service.context.access.headers = {"X-Frame-Options": "deny"}  # as after web.yml was read again
    assert (await client.ask(request()))[1]["X-Frame-Options"] == "deny"
    assert len(service.log.direct) == 2


@pytest.mark.parametrize(
    "message",
    [
        request(line=f"POST {PATH}?echo=true HTTP/1.1"),
        request(line=f"POST {PATH} HTTP/1.0"),
        request((*PLAIN, "Origin: http://elsewhere.example")),
        request((*PLAIN, "Authorization: Bearer x")),
        request((*PLAIN, "Expect: 100-continue")),
        request((*PLAIN, "Connection: close")),
        request((*PLAIN, "Content-Encoding: gzip")),
        request((*PLAIN, "Host: localhost")),
        request((*PLAIN, " folded: x")),
        request((*PLAIN, "X-Request-Id: \x01")),
        request(PLAIN[1:]),
        request((*PLAIN[:2], "Accept: application/protobuf")),
        request((PLAIN[0], "Content-Type: text/plain")),
        request((*PLAIN[:3], "User-Agent: " + "x" * LINES_BYTES_MAX)),
        request(("Host: rebound.example", *PLAIN[1:])),
        request(body=BODY[:-1]),
        request(body=b'{"records": []}'),
        request(body=BODY[:-1] + b', "producerId": "p", "producerSeq": 1}'),
        request(body=BODY[:-1] + b"," + b" " * 9000 + b'"producerId": "p", "producerSeq": 1' + b" " * 9000 + b"}"),
        request(body=b'{"records": [{"key": "user", "text": ""}]}'),
        request(body=BODY + b" " * append.WALKED_BYTES_MAX),
        request(body=BODY.replace(b"hello", rb"\n" + b"x" * append.INLINE_BYTES_MAX)),
        request()[:-1],
        request()[:20],
        request() + request(),
    ],
)
async def test_everything_else_is_left_to_aiohttp(service: Service, message: bytes) -> None:
    client = await service.client()
    client.writer.write(message)
    await asyncio.sleep(0.05)
    assert service.log.direct == []


async def test_requests_that_come_in_pieces_are_answered(service: Service) -> None:
    client = await service.client()
    for begin in (7, len(request()) - 3):
        client.writer.write(request()[:begin])
        await asyncio.sleep(0.01)
        assert (await client.ask(request()[begin:]))[0] == 200
        assert (await client.ask(request()))[0] == 200
    assert (len(service.log.usual), len(service.log.direct)) == (1, 3)  # aiohttp reads a head that came in pieces


async def test_a_body_that_comes_after_its_head_is_put_together(service: Service) -> None:
    body = b'{"records": [' + b", ".join([b'{"keyText": "k", "text": "%b"}' % (b"v" * 100)] * 1500) + b"]}"
    assert append.INLINE_BYTES_MAX < len(body) < append.WALKED_BYTES_MAX
    message = request(body=body)
    client = await service.client()
    for begin in range(0, len(message), 50_000):
        client.writer.write(message[begin : begin + 50_000])
        await asyncio.sleep(0.001)
    assert json.loads((await client.answer())[2])["recordsAppended"] == 1500
    (batch,) = service.log.direct
    assert (batch.count, batch.records.value(1499)) == (1500, b"v" * 100)
    assert service.is_at_rest


async def test_a_body_that_does_not_follow_soon_is_left_to_aiohttp(service: Service) -> None:
    client = await service.client()
    client.writer.write(request()[:-5])
    await service.until(lambda: service.context.connections.bodies)  # aiohttp waits for it, within its bounds
    assert (await client.ask(request()[-5:]))[0] == 200
    assert (len(service.log.usual), len(service.log.direct)) == (1, 0)
    assert (await client.ask(request()))[0] == 200
    assert len(service.log.direct) == 1


async def test_what_follows_an_awaited_body_is_answered_too(service: Service) -> None:
    client = await service.client()
    client.writer.write(request()[:-5])
    await asyncio.sleep(0.01)
    assert (await client.ask(request()[-5:] + request()))[0] == 200
    assert (await client.answer())[0] == 200


async def test_bodies_that_are_awaited_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_requests, "PIECES_BYTES_MAX", len(request()))
    monkeypatch.setattr(direct_requests, "REST_WITHIN_S", 60)
    first, second = await service.client(), await service.client()
    for client in (first, second):
        client.writer.write(request()[:-5])
        await asyncio.sleep(0.01)
    assert (await second.ask(request()[-5:]))[0] == 200
    assert (len(service.log.usual), len(service.log.direct)) == (1, 0)
    first.writer.close()  # and gives its room back
    await service.until(lambda: len(service.context.connections.open) == 1)
    second.writer.write(request()[:-5])
    await asyncio.sleep(0.01)
    assert (await second.ask(request()[-5:]))[0] == 200
    assert len(service.log.direct) == 1


async def test_a_request_is_not_left_to_aiohttp_because_it_came_early(service: Service) -> None:
    """aiohttp begins to wait for the next request only in a later turn of the event loop."""
    client = await service.client()
    (connection,) = service.context.connections.open
    waiter, connection._waiter = connection._waiter, None  # type: ignore[attr-defined]
    assert (await client.ask(request()))[0] == 200
    assert len(service.log.direct) == 1
    connection._waiter = waiter  # type: ignore[attr-defined]
    assert (await client.ask(request((*USUAL, "Connection: close"))))[0] == 200
    assert not connection.is_between_requests  # type: ignore[attr-defined]


async def test_what_comes_behind_a_request_waits_for_its_answer(service: Service) -> None:
    service.log.held = True
    client = await service.client()
    client.writer.write(request())
    await service.until(lambda: service.log.answers)
    client.writer.write(request(USUAL)[:30])
    await asyncio.sleep(0.02)
    client.writer.write(request(USUAL)[30:])
    await asyncio.sleep(0.02)
    assert service.log.usual == []
    service.log.answers[0].set_result(7)
    assert json.loads((await client.answer())[2])["startSequence"] == 7
    assert json.loads((await client.answer())[2])["startSequence"] == 41
    assert (await client.ask(request(USUAL)))[0] == 200


async def test_a_client_that_leaves_takes_its_append_back(service: Service) -> None:
    service.log.held = True
    client = await service.client()
    client.writer.write(request())
    await service.until(lambda: service.log.answers)
    assert service.context.admission.requests == 1
    assert service.context.admission.body_bytes == len(BODY)
    client.writer.close()
    await service.until(lambda: service.log.answers[0].cancelled())
    await service.until(lambda: service.served(499) == 1)
    assert service.is_at_rest


async def test_an_append_that_fails_is_answered_with_its_error(service: Service) -> None:
    service.log.held = True
    client = await service.client()
    client.writer.write(request())
    await service.until(lambda: service.log.answers)
    service.log.answers[0].set_exception(Unavailable("shard 3 is down"))
    status, headers, body = await client.answer()
    assert (status, json.loads(body)) == (503, {"status": "error", "message": "shard 3 is down"})
    assert re.fullmatch(r"[1-9]", headers["Retry-After"])
    client.writer.write(request())
    await service.until(lambda: len(service.log.answers) == 2)
    service.log.answers[1].set_exception(ZeroDivisionError())
    assert (await client.answer())[0] == 500
    assert (service.served(503), service.served(500)) == (1, 1)
    assert service.context.telemetry.refused["unavailable"] == 1
    assert service.is_at_rest


async def test_a_defect_is_answered_and_leaves_nothing_behind(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.log, "begin", lambda batch: 1 // 0)
    client = await service.client()
    assert (await client.ask(request()))[0] == 500
    assert service.is_at_rest
    assert (await client.ask(request(USUAL)))[0] == 200


async def test_requests_beyond_the_bound_are_refused(service: Service) -> None:
    service.context.admission.requests_max = 0
    client = await service.client()
    status, _, body = await client.ask(request())
    assert (status, service.log.direct) == (503, [])
    assert b"TRIPTYCH_REQUESTS_IN_FLIGHT_MAX" in body
    service.context.admission.requests_max = 1
    assert (await client.ask(request()))[0] == 200
    assert service.is_at_rest


async def test_a_request_waits_for_its_turn_under_pressure(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.log.held = True
    pressure = service.context.pressure
    pressure._limit, pressure.is_on = 1.0, True
    first, second = await service.client(), await service.client()
    first.writer.write(request())
    await service.until(lambda: service.log.answers)
    second.writer.write(request())
    await service.until(lambda: len(service.context.waiting_room) == 1)
    service.log.answers[0].set_result(1)
    assert (await first.answer())[0] == 200
    await service.until(lambda: len(service.log.answers) == 2)
    service.log.answers[1].set_result(2)
    assert (await second.answer())[0] == 200
    assert service.log.usual == []


async def test_a_stop_waits_for_an_append_under_way(service: Service) -> None:
    service.log.held = True
    client = await service.client()
    client.writer.write(request())
    await service.until(lambda: service.log.answers)
    stopping = asyncio.create_task(service.runner.cleanup())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    service.log.answers[0].set_result(5)
    assert (await client.answer())[0] == 200
    await stopping


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_log_without_its_state_is_waited_for_by_aiohttp(service: Service, is_known: bool) -> None:
    service.log.knows_state = is_known
    client = await service.client()
    assert (await client.ask(request()))[0] == 200
    assert bool(service.log.direct) is is_known


@pytest.mark.parametrize(
    ("text", "size", "is_handed_over"),
    [
        ("v", append.WALKED_BYTES_MAX, False),
        ("v", append.WALKED_BYTES_MAX + 1, True),
        ("\\n", append.INLINE_BYTES_MAX, False),
        ("\\n", append.INLINE_BYTES_MAX + 1, True),
    ],
)
async def test_a_body_is_read_in_a_thread_if_it_is_large_for_its_reader(
    service: Service, text: str, size: int, is_handed_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = service.context.decodings.run

    async def noted(size_bytes: int, decode: Any) -> Any:
        sizes.append(size_bytes)
        return await run(size_bytes, decode)

    monkeypatch.setattr(service.context.decodings, "run", noted)
    record = f'{{"keyText": "k", "text": "{text}"}}'.encode()
    count = (size - 100) // (len(record) + 1)
    body = b'{"records": [' + b",".join([record] * count)
    body += b" " * (size - len(body) - 2) + b"]}"
    client = await service.client()
    assert json.loads((await client.ask(request(USUAL, body)))[2])["recordsAppended"] == count
    assert sizes == ([size] if is_handed_over else [])

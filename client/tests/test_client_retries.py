"""What is sent again, and what is not."""

from __future__ import annotations

import asyncio
import ssl

import httpx
import pytest
from client_server import FakeServer, data, pauses, reply

import triptych
from triptych.calls import Call
from triptych.retrying import Attempts

__all__ = ["pauses"]
FULL = reply(503, {"status": "error", "message": "no room"}, Retry_After="2")
THROTTLED = reply(429, {"status": "error", "message": "too many"})
APPENDED = reply(200, {"status": "success", "recordsAppended": 1, "startSequence": 7})
VECTOR = {"resultType": "vector", "result": []}
LOST = httpx.ReadError("the connection is gone")
REFUSED = httpx.ConnectError("nobody listens")
RECORDS = [("key", "value")]


def test_a_read_is_repeated_after_what_retry_after_says(pauses):
    server = FakeServer(FULL, LOST, data(VECTOR))
    assert server.client().metrics.query("up").type == "vector"
    assert len(server.requests) == 3
    assert 2 < pauses[0] < 2.2
    assert pauses[1] < 0.3


def test_samples_are_sent_again_since_that_stores_them_once(pauses):
    server = FakeServer(LOST, reply(204, b""))
    assert server.client().metrics.write([({"__name__": "m"}, 1.0)]).samples == 1
    assert server.requests[0].content == server.requests[1].content


@pytest.mark.parametrize("failure", [FULL, LOST])
def test_an_append_that_may_have_been_made_is_not_repeated(pauses, failure):
    server = FakeServer(failure, APPENDED)
    with pytest.raises(triptych.TriptychError):
        server.client().log.append(RECORDS)
    assert len(server.requests) == 1


@pytest.mark.parametrize("failure", [REFUSED, THROTTLED])
def test_an_append_that_was_not_made_is_repeated(pauses, failure):
    server = FakeServer(failure, APPENDED)
    assert server.client().log.append(RECORDS).start_sequence == 7


@pytest.mark.parametrize("ask", [lambda log: log.frontier(), lambda log: next(log.follow(key="k", start=0))])
def test_a_server_that_is_not_trusted_is_not_asked_again(pauses, ask):
    refused = httpx.ConnectError("certificate verify failed: self-signed certificate")
    refused.__cause__ = OSError()
    refused.__cause__.__context__ = ssl.SSLCertVerificationError()
    server = FakeServer(refused, refused, APPENDED)
    with pytest.raises(
        triptych.NotTrusted, match=r"GET /api/v1/log/.*: no connection to the server: certificate verify"
    ):
        ask(server.client().log)
    assert len(server.requests) == 1


def test_a_query_that_ran_out_of_time_or_was_canceled_is_not_asked_again(pauses):
    server = FakeServer(reply(503, {"status": "error", "errorType": "canceled", "error": "it was canceled"}))
    with pytest.raises(triptych.OutOfTime, match="it was canceled"):
        server.client().metrics.query("up")
    assert len(server.requests) == 1


def test_a_write_that_ran_out_of_time_is_completed_by_a_repeat(pauses):
    late = reply(503, {"status": "error", "errorType": "unavailable", "error": "the shard is busy"})
    server = FakeServer(late, reply(204, b""))
    assert server.client().metrics.write([({"__name__": "m"}, 1.0)]).samples == 1


def test_a_proxy_that_has_no_server_is_asked_again(pauses):
    server = FakeServer(reply(503, b"<html>"), reply(502, b""), data(VECTOR))
    assert server.client().metrics.query("up").type == "vector"


def test_a_producer_repeats_its_appends(pauses):
    server = FakeServer(LOST, FULL, APPENDED)
    assert server.client().log.producer("p").append(RECORDS).start_sequence == 7
    assert len({request.content for request in server.requests}) == 1


def test_a_batch_that_failed_keeps_its_number_and_another_gets_the_next():
    server = FakeServer(reply(400, {"message": "no"}), reply(400, {"message": "no"}), APPENDED)
    producer = server.client().log.producer("p", sequence=5)
    for _ in range(2):
        with pytest.raises(triptych.BadRequest):
            producer.append(RECORDS)
    assert producer.numbers.next_sequence == 5
    producer.append([("key", "other")])
    assert producer.numbers.next_sequence == 7
    assert server.requests[0].content == server.requests[1].content


def test_a_cursor_with_an_expectation_is_set_once(pauses):
    server = FakeServer(LOST, reply(200, {"status": "success"}))
    with pytest.raises(triptych.ConnectionFailed):
        server.client().log.set_cursor("c", {"k": 3}, expected={"k": 2})
    server.client().log.set_cursor("c", {"k": 3})


@pytest.mark.parametrize("failure", [FULL, LOST])
def test_a_group_that_may_have_been_deleted_is_not_deleted_again(pauses, failure):
    """A second attempt would not find it, and would raise NotFound although the first has deleted it."""
    server = FakeServer(failure, reply(404, {"status": "error", "message": "there is no such group"}))
    with pytest.raises((triptych.ConnectionFailed, triptych.Unavailable)):
        server.client().log.delete_group("g")
    assert len(server.requests) == 1


def test_a_request_is_given_up_when_the_pause_would_pass_its_deadline(pauses):
    server = FakeServer(FULL)
    with pytest.raises(triptych.Unavailable) as caught:
        server.client(timeout=1).metrics.query("up")
    assert (caught.value.status, str(caught.value), caught.value.retry_after_s) == (503, "no room", 2.0)
    assert len(server.requests) == 1


def test_pauses_grow_to_a_bound_and_an_endless_call_goes_on():
    call = Call("GET", "/", lambda answer: None, endless=True)
    attempts = Attempts(call, 1.0)
    pauses_s = [attempts.pause_s(triptych.Unavailable()) for _ in range(20)]
    assert pauses_s[0] <= 0.1
    assert 2.5 <= pauses_s[-1] <= 5
    assert attempts.left_s() == 30


def test_no_attempt_begins_after_the_deadline():
    now = [0.0]
    attempts = Attempts(Call("GET", "/x", lambda answer: None, wait_s=5), 10, clock=lambda: now[0])
    assert attempts.left_s() == 15
    now[0] = 15.0
    with pytest.raises(triptych.TimedOut, match="/x has taken 10 s"):
        attempts.left_s()


async def test_an_answer_whose_headers_drip_is_given_up_in_time(monkeypatch):
    """Each byte is there in time, and the end of the headers never is."""
    monkeypatch.delenv("TRIPTYCH_TOKEN", raising=False)
    dripped = 0

    async def drip(reader, writer):
        nonlocal dripped
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not reader.at_eof():
            writer.write(b"x")
            dripped += 1
            await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    [address] = [socket.getsockname() for socket in server.sockets]
    async with triptych.AsyncClient(f"http://127.0.0.1:{address[1]}", timeout=0.1) as client:
        with pytest.raises(triptych.TimedOut, match="/api/v1/log/frontier: the answer is not complete in time"):
            await asyncio.wait_for(client.log.frontier(), 10)
    assert dripped
    server.close()


async def test_the_async_client_repeats_in_the_same_way():
    server = FakeServer(LOST, data(VECTOR))
    async with server.async_client() as client:
        assert (await client.metrics.query("up")).type == "vector"
    failing = FakeServer(LOST, APPENDED)
    async with failing.async_client() as client:
        with pytest.raises(triptych.ConnectionFailed):
            await client.log.append(RECORDS)

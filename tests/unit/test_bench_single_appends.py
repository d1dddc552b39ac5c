"""The benchmark's client of small appends checks every answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from socket import create_server
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.bench.log_single import small_appends

APPENDED = b'{"status":"success","recordsAppended":1,"startSequence":7}'


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


@contextmanager
def answering(*first: list[bytes]) -> Iterator[Any]:
    """A server for one connection: the pieces of its first answers, and then an append's over and over."""
    with create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                for pieces in chain(first, repeat([answer("200 OK", APPENDED)])):
                    if not connection.recv(1 << 16):
                        return
                    for piece in pieces:
                        connection.sendall(piece)
                        threading.Event().wait(0.01 * (len(pieces) > 1))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SimpleNamespace(port=listening.getsockname()[1])
        thread.join(5)


def test_appends_and_refusals_are_counted_apart() -> None:
    whole = answer("200 OK", APPENDED)
    with answering([answer("503 Service Unavailable", b"{}")], [whole[:9], whole[9:-3], whole[-3:]]) as cluster:
        appends = small_appends(cluster, 1, 0.1)
    assert appends.refused == 1
    assert len(appends.times) > 1
    assert appends.times[0] >= 20, "an answer in pieces is whole with its last one"
    assert appends.rate == pytest.approx(len(appends.times) / appends.took_s)


@pytest.mark.parametrize(
    "wrong",
    [
        answer("200 OK", APPENDED.replace(b"1", b"2")),
        answer("400 Bad Request", APPENDED),
        answer("200 OK", b'{"status":"success"}'),
    ],
)
def test_any_other_answer_is_an_error(wrong: bytes) -> None:
    with answering([wrong]) as cluster, pytest.raises(AssertionError):
        small_appends(cluster, 1, 0.1)

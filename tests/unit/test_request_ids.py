"""Which id a request has, and where it is found again."""

from __future__ import annotations

import logging
import re

import pytest
from multidict import CIMultiDict

from coordinator.headers.request_ids import id_in, id_of
from shared import telemetry
from shared.telemetry import REQUEST_ID, event

NEW = re.compile(r"[0-9a-f]{8}-[0-9a-f]+")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def head_of(*lines: str) -> bytes:
    return "\r\n".join(["POST / HTTP/1.1", *lines, "", ""]).encode()


@pytest.mark.parametrize("given", ["a", "A-Z.a_z:0-9", "x" * 64])
def test_a_client_may_choose_the_id(given: str) -> None:
    assert id_of(CIMultiDict({"x-request-id": given})) == given
    assert id_in(b"GET / HTTP/1.1\r\nHost: h\r\nx-REQUEST-id: \t%b \r\n\r\n" % given.encode()) == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\tb", 'a"b', "a=b", "é", "a/b", "a\nb", "<script>"])
def test_an_id_that_a_log_would_have_to_quote_is_replaced(given: str) -> None:
    assert NEW.fullmatch(id_of(CIMultiDict({"X-Request-Id": given})))
    assert NEW.fullmatch(id_in(f"GET / HTTP/1.1\r\nX-Request-Id: {given}\r\n\r\n".encode()))


def test_the_trace_of_a_client_is_its_id_unless_it_names_another() -> None:
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    assert id_of(CIMultiDict({"traceparent": parent})) == TRACE
    assert id_of(CIMultiDict({"traceparent": parent, "X-Request-Id": "mine"})) == "mine"
    assert id_in(head_of(f"Traceparent:  {parent}\t")) == TRACE
    assert id_in(head_of(f"traceparent: {parent}", "X-Request-Id: mine")) == "mine"
    for wrong in ("", parent[:-3], parent.upper(), f"00-{TRACE}x-00f067aa0ba902b7-01"):
        assert NEW.fullmatch(id_of(CIMultiDict({"traceparent": wrong})))
        assert NEW.fullmatch(id_in(head_of(f"traceparent: {wrong}")))


def test_a_body_names_no_id() -> None:
    body = b"\r\nX-Request-Id: other\r\n\r\n"
    assert NEW.fullmatch(id_in(head_of("Host: h") + body))
    assert id_in(head_of("X-Request-Id: mine") + body) == "mine"


def test_no_two_requests_get_the_same_id() -> None:
    assert len({id_of(CIMultiDict()) for _ in range(1000)}) == 1000


def test_a_line_of_the_log_names_the_request_it_is_written_for(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info")
    event(logging.INFO, "before")
    token = REQUEST_ID.set("a-1")
    event(logging.INFO, "within", shard=1)
    REQUEST_ID.reset(token)
    said = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["info before", "info within shard=1 request=a-1"]

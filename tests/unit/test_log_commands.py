"""`triptych log scan` and `tail`: what they ask for, and that records are printed as they were sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from coordinator import cli
from coordinator.command_client import Answer, Away, Client, CommandError
from coordinator.commands import repeating

DIGITS = "1" * 5000
RECORDS = [
    f'{{"sequence":0,"keyText":"k","json":[{DIGITS}]}}',
    '{"sequence":1,"keyText":"k","json":1e999}',
    '{"sequence":2,"keyText":"k","json":{"a":1,"a":2.50}}',
    '{"sequence":3,"keyText":"k","text":"ü"}',
]


class LogServer(ThreadingHTTPServer):
    """`scans`: the bodies that answer scans, the last one again and again."""

    def __init__(self, scans: list[str]) -> None:
        self.scans = scans
        self.encoding = "utf-8"
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        super().__init__(("127.0.0.1", 0), Answering)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def body(self, target: str) -> str:
        parts = urlsplit(target)
        self.asked.append((parts.path, parse_qs(parts.query, keep_blank_values=True)))
        if parts.path == "/api/v1/log/frontier":
            return '{"readableSequence":9}'
        if parts.path == "/api/v1/log/offsets":
            return '{"sequence":7}'
        return self.scans.pop(0) if len(self.scans) > 1 else self.scans[0]


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LogServer

    def do_GET(self) -> None:
        body = self.server.body(self.path).encode(self.server.encoding)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def page(*records: str, following: int) -> str:
    return f'{{"status":"success","records":[{",".join(records)}],"nextSequence":{following},"logStartSequence":0}}'


@pytest.fixture
def server() -> Iterator[LogServer]:
    with LogServer([page(*RECORDS, following=4), page(following=4)]) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_records_are_printed_as_the_interface_sends_them(server: LogServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", "scan", "--key", "k", "--json", "--encoding", "json", "--url", server.url]) == 0
    assert capsys.readouterr().out.splitlines() == RECORDS
    assert server.asked[0][1]["encoding"] == ["json"]
    assert server.asked[1][1]["start_seq"] == ["4"]


def test_a_tail_from_a_time_asks_for_the_place_with_the_selection_alone(
    server: LogServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the records are searched for, and their form, are no parameters of `/log/offsets`."""
    search = ["--grep", "a", "--grep-not", "b", "--where", '$.c = "d"', "--json"]
    assert cli.main(["log", "tail", "--key", "k", "--since", "0", "--limit", "4", *search, "--url", server.url]) == 0
    assert capsys.readouterr().out.splitlines() == RECORDS
    (_, place), (_, scan) = server.asked[1:]
    assert place == {"time": ["0"], "key_base64": ["aw=="]}
    assert scan.keys() >= {"key_base64", "grep", "grep_not", "where", "encoding", "follow"}
    assert scan["start_seq"] == ["7"]


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b"<html>", []),
        (b"<html>", ["--json"]),
        (b'{"records":[1,]}', ["--json"]),
        (b'{"records":["\xff"],"nextSequence":1,"\xff":0}', ["--json"]),
        (b"{}", ["--json"]),
        (b"[" * 9999, []),
    ],
)
def test_an_answer_that_cannot_be_read_ends_a_tail_as_it_would_come_again(
    server: LogServer, capsys: pytest.CaptureFixture[str], body: bytes, options: list[str]
) -> None:
    server.scans = [body.decode("latin-1")]
    server.encoding = "latin-1"
    assert cli.main(["log", "tail", "--key", "k", "--start", "0", *options, "--url", server.url]) == 1
    assert capsys.readouterr().err.startswith(f"triptych: {server.url} answers with ")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_tail_asks_again_after_an_answer_that_breaks_off(
    server: LogServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Behind a proxy that speaks HTTP/1.0 to the cluster, a crash ends a long answer as if it were complete."""
    monkeypatch.setattr(repeating, "BACK_OFF_MAX_S", 0.001)
    records = ['{"sequence":0,"key":"aw==","value":"dg=="}', '{"sequence":1,"key":"aw==","value":"dg=="}']
    whole = page(*records, following=2)
    cuts = [0, 5, whole.index(",", 40), whole.index("}") + 1, len(whole) - 1]
    server.scans = [*(whole[:length] for length in cuts), whole]
    tail = ["log", "tail", "--key", "k", "--start", "0", "--limit", "2", *options, "--url", server.url]
    assert cli.main(tail) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == (records if options else ["0\tk\tv", "1\tk\tv"])
    assert captured.err.startswith(f"triptych: {server.url} answers with ")


@pytest.mark.parametrize(
    ("status", "body", "refusal"),
    [
        (200, b"<html>", CommandError),
        (200, b"[1,]", CommandError),
        (200, b'{"records":[{}', Away),
        (302, b"", CommandError),
        (404, b"<html>", CommandError),
        (404, b'{"message":"no', CommandError),
        (429, b"<html>", Away),
        (429, b"{}", Away),
        (500, b"{}", CommandError),
        (502, b"<html>", Away),
        (503, b'{"message":"full"}', Away),
    ],
)
def test_what_may_be_answered_later_is_told_from_what_would_come_again(
    status: int, body: bytes, refusal: type[CommandError]
) -> None:
    """Proxies answer in HTML, and with the part of an answer that they have."""
    with pytest.raises(CommandError) as raised:
        Client("http://127.0.0.1:9").content(Answer(status, body))
    assert type(raised.value) is refusal


def test_lines_have_number_key_and_value(server: LogServer, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    record = {"sequence": 5, "key": "aw==", "value": "/w==", "timeMs": 0}
    server.scans = [page(json.dumps(record), json.dumps({**record, "tombstone": True}), following=6)]
    server.scans.append(page(following=6))
    assert cli.main(["log", "scan", "--key", "k", "--times", "--url", server.url]) == 0
    assert capsysbinary.readouterr().out == b"5\t1970-01-01T00:00:00.000Z\tk\t\xff\n" + (
        b"5\t1970-01-01T00:00:00.000Z\tk\t\xff\ttombstone\n"
    )

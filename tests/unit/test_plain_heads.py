"""Heads that are read without aiohttp: whatever is read here, aiohttp and yarl read in the same way."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from coordinator.api.parameters import first_of_each
from coordinator.direct.plain_heads import HEAD_BYTES_MAX, LINES_BYTES_MAX, PlainHead, plain_head
from coordinator.http.bodies import Malformed
from shared.errors import BadData

PATH = "/api/v1/log/append"
HOST = "Host: localhost"
USUAL_LINES = ["Host: localhost", "Content-Length: 5", "Content-Type: application/json"]
OTHER_LINES = [
    *("Host: localhost", "host:a:1", "Host : b", "Host: a b", "HOST: \u00e4"),
    *("Content-Length: 5", "content-length:0005", "Content-Length: +5", "Content-Length: 5 ", "Content-Length: 5, 5"),
    *("Content-Length: 0x5", "Content-Length: 5_0", "Content-Length:", "Transfer-Encoding: chunked"),
    *("Content-Type: application/json", "content-type: APPLICATION/JSON;x=1", "Content-Type: text/plain"),
    *("Accept: */*", "Accept: application/protobuf;q=0", "Accept: a\tb", "User-Agent:", "User-Agent: \x00"),
    *("Connection: keep-alive", "Connection: Keep-Alive", "Connection: close", "Connection: keep-alive, close"),
    *("X-Request-Id: a", "X-Other: b", " folded", "\tfolded: x", "", "nothing", "User-Agent: a\rb", "Accept: a\nb"),
]
REQUEST_LINES = [
    *5 * [f"POST {PATH} HTTP/1.1"],
    f"post {PATH} HTTP/1.1",
    f"POST {PATH}  HTTP/1.1",
    f"PUT {PATH} HTTP/1.1",
    *3 * [f"GET {PATH}?query=a%2B%7B%7D&time=1.5 HTTP/1.1"],
    f"GET {PATH} HTTP/1.1",
    f"GET {PATH}?a=b#fragment HTTP/1.1",
    f"GET {PATH}?a=b c HTTP/1.1",
    f"GET {PATH}?a=b HTTP/1.0",
    f"GET {PATH}/../x?a=b HTTP/1.1",
    f"GET http://localhost{PATH} HTTP/1.1",
]


def test_a_head_that_is_read_here_is_the_same_for_aiohttp() -> None:
    draw = random.Random(20)
    loop = asyncio.new_event_loop()
    protocol = SimpleNamespace(_reading_paused=False, resume_reading=lambda **options: None)
    read_here = 0
    for _ in range(3000):
        lines = [*draw.sample(USUAL_LINES, draw.choice((2, 3, 3, 3))), *draw.choices(OTHER_LINES, k=draw.randrange(4))]
        draw.shuffle(lines)
        head = "\r\n".join([draw.choice(REQUEST_LINES), *lines, "", ""]).encode("latin-1")
        plain = plain_head(head)
        if plain is None:
            continue
        read_here += 1
        parser = HttpRequestParser(protocol, loop, 1 << 16)  # type: ignore[arg-type]
        ((message, _),), is_upgraded, rest = parser.feed_data(head + b"x" * plain.body_bytes)
        target = plain.path + ("?" + plain.query.decode() if plain.query else "")
        assert (message.method, message.path, message.version) == (plain.method, target, (1, 1))
        assert (message.should_close, message.chunked, message.compression) == (False, False, None)
        assert (is_upgraded, rest) == (False, b"")
        fields = message.headers
        assert (fields["Host"], int(fields.get("Content-Length", "0"))) == (plain.host, plain.body_bytes)
        assert fields.get("Content-Type", "").partition(";")[0].lower() == plain.media_type
    loop.close()
    assert read_here > 300


def test_a_head_says_what_it_says_in_any_case() -> None:
    lines = ("host:localhost:9090", "CONTENT-LENGTH: 12", "content-type: Application/JSON; charset=utf-8")
    others = ("x-request-ID:mine", "accept-ENCODING: GZIP", "content-encoding:  Snappy")
    head = "\r\n".join([f"POST {PATH} HTTP/1.1", *lines, *others, "", ""])
    expected = ("POST", PATH, b"", "localhost:9090", "application/json", " charset=utf-8", "snappy", 12, True, "mine")
    assert plain_head(head.encode()) == PlainHead(*expected)


def test_a_query_string_is_left_as_it_came() -> None:
    found = plain_head(f"GET /api/v1/query?query=up%7B%7D&time=1.5 HTTP/1.1\r\n{HOST}\r\n\r\n".encode())
    assert found == PlainHead("GET", "/api/v1/query", b"query=up%7B%7D&time=1.5", "localhost", "", "", "", 0, False)


@pytest.mark.parametrize("media_type", ["text/event-stream", "application/vnd.apache.arrow.stream"])
def test_an_answer_that_is_not_json_is_left_to_aiohttp(media_type: str) -> None:
    lines = (f"GET {PATH} HTTP/1.1", HOST, f"Accept: text/plain, {media_type.upper()};q=0.1", "", "")
    assert plain_head("\r\n".join(lines).encode()) is None


def test_bounds() -> None:
    def lines_of(size: int) -> str:
        return f"{HOST}\r\nUser-Agent: ".ljust(size - 4, "x") + "\r\n\r\n"

    assert plain_head(f"GET {PATH} HTTP/1.1\r\n{lines_of(LINES_BYTES_MAX)}".encode()) is not None
    assert plain_head(f"GET {PATH} HTTP/1.1\r\n{lines_of(LINES_BYTES_MAX + 1)}".encode()) is None
    long_query = "a" * (HEAD_BYTES_MAX - LINES_BYTES_MAX)
    assert plain_head(f"GET {PATH}?{long_query} HTTP/1.1\r\n{lines_of(100)}".encode()) is not None


QUERIES = st.text("ab=&&==+%%%2BbC3a9.;:[]", max_size=30) | st.lists(
    st.sampled_from(["a=1", "a", "=", "b=%C3%A4", "a=%2B+", "&", "a=b=c", "%61=x", "a=%ff", "b=%4", ";", "b=%00"]),
    max_size=6,
).map("&".join)


@given(QUERIES)
@example("query=up%7Bjob%3D%22a+b%22%7D&time=1.5")
def test_parameters_are_those_that_aiohttp_reads(query: str) -> None:
    head = plain_head(f"GET {PATH}?{query} HTTP/1.1\r\n{HOST}\r\n\r\n".encode())
    if head is None:
        return
    try:
        fields = first_of_each(head.query)
    except (BadData, Malformed):
        return  # aiohttp reads it, and names what is wrong
    usual = URL(f"{PATH}?{query}", encoded=True).query
    assert fields == {name: usual.getone(name) for name in usual}


def test_heads_of_posts_that_differ_have_their_own_content() -> None:
    def posted(path: str, size: int) -> bytes:
        return f"POST {path} HTTP/1.1\r\n{HOST}\r\nContent-Length: {size}\r\n\r\n".encode()

    for _ in range(2):
        for path in (PATH, f"{PATH}/other"):
            for size in (1, 2):
                plain = plain_head(posted(path, size))
                assert plain is not None
                assert (plain.path, plain.body_bytes) == (path, size)
    assert plain_head(posted(PATH, 1)) is plain_head(posted(PATH, 1))


def test_only_short_heads_of_posts_are_cached_as_a_whole() -> None:
    """Those with parameters differ with every request, and would take the place of others."""
    lines = f"{HOST}\r\nContent-Length: 0\r\n\r\n"
    for line in (f"GET {PATH}", f"POST {PATH}?query={'a' * LINES_BYTES_MAX}"):
        first, second = (plain_head(f"{line} HTTP/1.1\r\n{lines}".encode()) for _ in range(2))
        assert first == second is not None
        assert first is not second

"""Every endpoint of a cluster of real processes, over raw sockets.

A failure is a 5xx other than a 503 with a reason, no answer within `ANSWER_WITHIN_S` to a request that is complete, a
process that has ended, a traceback in a log, an error of more than `ERROR_BYTES_MAX`, or memory beyond
`MEMORY_GROWTH_BYTES_MAX`.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psutil
import snappy
from hypothesis import strategies as st

from coordinator.headers.negotiation import ARROW, EVENTS, FORM, JSON, PROTOBUF, PROTOBUF_JSON, REMOTE_WRITE
from loadtest.harness.cluster import Cluster
from tests.conformance.generation import queries
from tests.fuzz.target import Target
from tests.fuzz.targets import log_bodies, otlp, remote_read, remote_write, vector_bodies

ANSWER_WITHIN_S = 2.0
INCOMPLETE_S = 0.1
"""How long an answer is awaited to a request of which something is missing, or that waits for records."""
MEMORY_GROWTH_BYTES_MAX = 1 << 30
ERROR_BYTES_MAX = 64 << 10
CHECK_EVERY = 500
"""Requests between two checks of the processes."""
SETTINGS = {
    "TRIPTYCH_SELF_SCRAPE": "0",
    "TRIPTYCH_QUERY_TIMEOUT": "1s",
    "TRIPTYCH_LOG_SCAN_TIMEOUT": "1s",
    "TRIPTYCH_VECTOR_TIMEOUT": "1s",
    "TRIPTYCH_QUERY_SAMPLES_MAX": "1000000",
    "TRIPTYCH_BODY_BYTES_MAX": "1MB",
    "TRIPTYCH_LOG_RETENTION_BYTES": "64MB",
}
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9})\r\n", re.IGNORECASE)
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "FOO")


class Watched:
    """A cluster, and what its processes were when it was ready."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.coordinator is not None and cluster.supervisor is not None
        self.port = cluster.port
        self._cluster = cluster
        pids = (cluster.coordinator.pid, cluster.supervisor.pid, *cluster.worker_pids().values())
        self._processes = [psutil.Process(pid) for pid in pids]
        self._memory = {process: process.memory_info().rss for process in self._processes}
        self._requests = 0

    def count(self) -> None:
        """Count a request; look at the processes from time to time."""
        self._requests += 1
        if self._requests % CHECK_EVERY == 0:
            self.check()

    def check(self) -> None:
        for process in self._processes:
            assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE, f"{process} has ended"
            grown = process.memory_info().rss - self._memory[process]
            assert grown < MEMORY_GROWTH_BYTES_MAX, f"{process} has grown by {grown >> 20} MB"
        for module in ("coordinator", "worker"):
            log = self._cluster.log(module)
            at = log.find("Traceback (most recent call last)")
            assert at < 0, f"{module}: {log[max(0, at - 500) : at + 4000]}"


_watched: list[Watched] = []


@contextmanager
def running() -> Iterator[None]:
    """A cluster for the requests, with a few series, records and vectors."""
    with tempfile.TemporaryDirectory(prefix="fuzz-cluster-") as directory:
        cluster = Cluster(Path(directory), shards=2, workers=2, settings=SETTINGS)
        try:
            cluster.start()
            for method, path, headers, body in _contents():
                assert cluster.request(method, path, body, headers).status < 300, path
            _watched.append(Watched(cluster))
            yield
        finally:
            _watched.clear()
            cluster.stop()


def _contents() -> Iterator[tuple[str, str, dict[str, str], bytes]]:
    metrics = {"Content-Type": REMOTE_WRITE, "Content-Encoding": "snappy"}
    yield "POST", "/api/v1/write", metrics, snappy.compress(next(remote_write.bodies()))
    yield "POST", "/api/v1/log/append", {"Content-Type": JSON}, next(log_bodies.json_bodies())
    yield "POST", "/api/v1/vector/write", {"Content-Type": JSON}, next(vector_bodies.writes())


def _request(data: bytes) -> None:
    watched = _watched[0]
    watched.count()
    is_complete = _is_complete(data)
    with socket.create_connection(("127.0.0.1", watched.port), timeout=ANSWER_WITHIN_S) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(2 * ANSWER_WITHIN_S if is_complete else INCOMPLETE_S)
            _judge(connection, data.split(b" ", 1)[0].decode("latin-1"))
        except TimeoutError:
            assert not is_complete, f"no answer within {2 * ANSWER_WITHIN_S:g} s"
        except (ConnectionError, http.client.HTTPException):
            # What is no HTTP may end the connection without an answer, also while it is being sent.
            time.sleep(0)


def _judge(connection: socket.socket, method: str) -> None:
    answer = http.client.HTTPResponse(connection, method=method)
    answer.begin()
    if answer.headers.get_content_type() == EVENTS:
        return
    body = answer.read()
    assert answer.status < 500 or answer.status == 503, f"{answer.status}: {body[:2000]!r}"
    assert answer.status < 400 or len(body) <= ERROR_BYTES_MAX, f"{answer.status} in {len(body)} bytes: {body[:2000]!r}"
    if answer.status == 503 and method != "HEAD":
        content = json.loads(body)
        assert content.get("error") or content.get("message"), f"a 503 without a reason: {body[:500]!r}"


def _is_complete(data: bytes) -> bool:
    """Whether an answer is due at once."""
    head, end, body = data.partition(b"\r\n\r\n")
    lengths = _LENGTH.findall(head + b"\r\n")
    if not end or b"follow" in head or b"transfer-encoding" in head.lower() or EVENTS.encode() in head:
        return False
    return not lengths if b"content-length" not in head.lower() else len(lengths) == 1 and int(lengths[0]) <= len(body)


# Requests

_TEXTS = st.sampled_from(("", "0", "1", "-1", "5m", "1e9", "NaN", "inf", "é", "a", "up", "true", "\0", "9" * 30, "k"))
_NAMES = (
    "query", "time", "start", "end", "step", "timeout", "match[]", "limit", "partial_response", "explain", "stats",
    "lookback_delta", "key", "key_base64", "prefix", "start_seq", "end_seq", "follow", "reverse", "after", "metric",
    "collection", "start_segment", "end_segment", "limit_per_metric", "topN", "focusLabel",
    "type", "exclude_alerts", "group_limit", "group_next_token", "match_target",
)  # fmt: skip
_LOG_NAMES = (
    "key", "key_base64", "prefix", "start_seq", "end_seq", "limit", "reverse", "follow", "timeout", "encoding", "grep",
    "grep_not", "where", "value_bytes",
)  # fmt: skip
"""What a scan knows: with another name it is refused at once."""
_LOG_TEXTS = st.sampled_from(("", "0", "1", "k", "text", "json", "true", "(", "a.*b", "$.a = 1", "exists $.a", "\0"))
_QUERY_PATHS = (
    "query",
    "query_range",
    "series",
    "labels",
    "label/job/values",
    "metadata",
    "status/tsdb",
    "format_query",
    "parse_query",
)
_FEDERATE = "../../federate"
_READS = (
    "log/scan", "log/offsets", "log/keys", "log/count", "log/segments", "log/frontier", "log/cursors/c",
    "log/cursors", "log/groups", "log/groups/g",
    "vector/vectors/v1", "vector/stats",
    "vector/collections", "vector/collections/default", "status/buildinfo", "status/memory", "cluster",
    "status/runtimeinfo", "status/walreplay", "status/flags", "status/config", "status/settings",
    "rules", "targets/metadata", "features", "export", _FEDERATE,
)  # fmt: skip


def _form(draw: Callable[..., Any]) -> str:
    fields = draw(_FIELDS)
    if draw(_BOOLEANS):
        fields += [("query", draw(_QUERIES)), ("match[]", draw(_SELECTORS))]
    if draw(_BOOLEANS):
        fields += [("start", "1735689600"), ("end", "1735689900"), ("step", "15"), ("key", "k0")]
    return urlencode(fields)


def _scan(draw: Callable[..., Any]) -> str:
    return urlencode([("prefix", "k"), *draw(_LOG_FIELDS)])


_VECTOR_BODIES = (
    b'{"ids":["v1","x"]}', b'{"text":{"field":"name","query":"a"}}', b'{"filter":{"exists":"name"}}', b"{}",
    b'{"limit":1,"orderBy":{"field":"n","direction":"desc"}}', b'{"field":"name"}',
    b'{"filter":{"exists":"n"},"set":{"name":"b"},"unset":["n"]}', b'{"vector":[1,2,3],"groupBy":{"field":"name"}}',
)  # fmt: skip


_OTLP_PATHS = ("/v1/metrics", "/v1/logs")
_OTLP_BODIES = (*otlp.metric_bodies(), *otlp.log_bodies())
_GROUP_PATHS = tuple(f"/api/v1/log/groups/g/{act}" for act in ("join", "poll", "commit", "leave"))


def _group_bodies() -> st.SearchStrategy[bytes]:
    """Of a member whose generation is right now and then."""
    values: st.SearchStrategy[Any] = st.sampled_from(
        (0, 1, 2, 3, -1, 1 << 63, "a", "", "latest", None, True, [], 1.5)
    ) | st.integers(0, 200)
    names = ("prefix", "prefixText", "sessionTimeoutMs", "startFrom", "after", "commit", "max", "upTo", "x")
    options = st.dictionaries(st.sampled_from(names), values, max_size=3)
    members = st.tuples(st.sampled_from(("a", "b", "", 1)), st.integers(-1, 30))
    return st.tuples(members, options).map(
        lambda drawn: json.dumps({"member": drawn[0][0], "generation": drawn[0][1], **drawn[1]}).encode()
    ) | st.just(b'{"member": "a"}')


_IMPORT_TYPES = st.sampled_from(("application/json", "text/csv", "application/vnd.apache.arrow.stream"))
_IMPORTS = st.sampled_from(
    (b'{"metric":{"__name__":"up"},"values":[1],"timestamps":[1]}', b"1\n2\n", b"x")
) | st.binary(max_size=40)


def _posts() -> st.SearchStrategy[tuple[str, str, bytes]]:
    """(path, content type, body)."""
    write = remote_write.strategy().map(lambda body: ("/api/v1/write", REMOTE_WRITE, bytes(snappy.compress(body))))
    read = remote_read.strategy().map(lambda body: ("/api/v1/read", REMOTE_WRITE, bytes(snappy.compress(body))))
    search = vector_bodies.filter_strategy().map(lambda text: b'{"vector":[1,2,3],"filter":%s}' % text)
    json_type = st.sampled_from((JSON, JSON, PROTOBUF_JSON))
    return st.one_of(
        write,
        st.tuples(st.sampled_from(_OTLP_PATHS), st.just(REMOTE_WRITE), st.sampled_from(_OTLP_BODIES)),
        st.tuples(st.just("/api/v1/log/append"), json_type, log_bodies.json_strategy()),
        st.tuples(st.just("/api/v1/log/append"), st.just(PROTOBUF), st.binary(max_size=40)),
        st.tuples(st.sampled_from(_GROUP_PATHS), st.just(JSON), _group_bodies()),
        st.tuples(st.just("/api/v1/vector/write"), json_type, vector_bodies.write_strategy()),
        st.tuples(st.just("/api/v1/vector/search"), json_type, search),
        st.tuples(
            st.sampled_from(
                [
                    f"/api/v1/vector/{name}"
                    for name in ("search", "get", "delete", "scroll", "count", "facets", "update")
                ]
            ),
            st.sampled_from((JSON, PROTOBUF)),
            st.sampled_from(_VECTOR_BODIES) | st.binary(max_size=30),
        ),
        st.tuples(
            st.sampled_from(("/api/v1/import", "/api/v1/import/csv?format=1:metric:up")), _IMPORT_TYPES, _IMPORTS
        ),
        st.tuples(st.just("/api/v1/admin/tsdb/delete_series"), st.just(FORM), st.just(b"match[]=nothing")),
        read,
    )


_QUERIES = queries()
_SELECTORS = st.sampled_from(("up", '{job=~".+"}', "{", "gauge"))
_FIELDS = st.lists(st.tuples(st.sampled_from(_NAMES), _TEXTS), max_size=4)
_LOG_FIELDS = st.lists(st.tuples(st.sampled_from(_LOG_NAMES), _LOG_TEXTS), max_size=4)
_BOOLEANS = st.booleans()
_POSTS = _posts()
_CHANCES = st.integers(0, 15)
"""One draw decides which of several rare things happens, since each draw costs a tenth of a request."""


@st.composite
def requests(draw: Callable[..., Any]) -> bytes:
    """A request that is nearly right: mostly complete, sometimes with bytes of its head or its body changed."""
    kind = draw(st.integers(0, 3))
    headers = {"Host": "localhost", "Connection": "close"}
    body = b""
    if kind == 0:
        path, content_type, body = draw(_POSTS)
        method, headers["Content-Type"] = "POST", content_type
        if path == "/api/v1/write":
            headers["Content-Encoding"] = "snappy"
    elif kind == 1:
        read = draw(st.sampled_from(_READS))
        base = "/federate" if read == _FEDERATE else f"/api/v1/{read}"
        method, path = "GET", f"{base}?{_scan(draw) if read == 'log/scan' else _form(draw)}"
    elif kind == 2:
        method, path, body = "POST", f"/api/v1/{draw(st.sampled_from(_QUERY_PATHS))}", _form(draw).encode()
        headers["Content-Type"] = FORM
    else:
        method, path = "GET", f"/api/v1/{draw(st.sampled_from(_QUERY_PATHS))}?{_form(draw)}"
    chance = draw(_CHANCES)
    if chance == 1:
        method = draw(st.sampled_from(_METHODS))
    if chance == 2:
        path += quote(draw(st.text(max_size=3)))
    if chance == 3:
        name = draw(
            st.sampled_from(("Accept", "Content-Encoding", "Expect", "Last-Event-ID", "Accept-Encoding", "Range"))
        )
        values = (
            PROTOBUF,
            ARROW,
            "gzip",
            "*/*;q=0",
            "100-continue",
            "5",
            "bytes=0-",
            "application/openmetrics-text;version=x",
        )
        headers[name] = draw(st.sampled_from(values))
    if body or method in ("POST", "PUT"):
        headers["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    data = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
    if chance > 12:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + draw(st.integers(0, 3)) :]
    return data


def _seeds() -> Iterator[bytes]:
    own = ("-/healthy", "-/ready", "metrics", "federate")
    for path in (*own, *(f"api/v1/{path}" for path in _READS if path != _FEDERATE)):
        yield f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


TARGETS = [Target("endpoints", _request, _seeds, requests, refusals=(), service=running, is_guided=False)]

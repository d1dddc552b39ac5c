"""POST /api/v1/read: raw samples for a Prometheus, as samples or as streamed chunks."""

from __future__ import annotations

import itertools
import json
import math
import struct
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import snappy

from coordinator.remote_read import frames
from coordinator.remote_read.parts import parts_of
from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.ports import free_port
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from proto import remote_write_pb2
from shared.labels import LabelFrame, Symbols
from shared.promql.model import RangeVector, Samples
from tests import remote_read_answers as answers
from tests.cluster.prometheus import needs_prometheus, prometheus
from tests.histogram_batches import message_of
from tests.oracle_native_histograms import NativeHistogram
from tests.remote_read_answers import XOR, Series, comparable, query_of, request_body, vector_of

SAMPLES, STREAMED = 0, 1
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
T = 1_700_000_000_000
CHUNK_RANGE_MS = 7_200_000
"""Prometheus ends its chunks at multiples of this, of Unix time."""
CHUNKS_EVENED_MS = 1_800_000
"""Chunks that end earlier than this before such a time are hardly longer than usual."""
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"remote_{next(_numbers)}"


def write(cluster: Cluster, series: Series) -> None:
    pairs: list[Any] = [(dict(labels), samples) for labels, samples in series.items()]
    assert cluster.request("POST", "/api/v1/write", compressed(pairs), HEADERS).status == 204


def read(cluster: Cluster, *queries: Any, accepted: Sequence[int] = (), **fields: str) -> Response:
    path = f"/api/v1/read?{urllib.parse.urlencode(fields)}"
    return cluster.request("POST", path, request_body(*queries, accepted=accepted), HEADERS)


def results(answer: Response, queries: int = 1) -> list[Series]:
    assert answer.status == 200, answer.body
    if answer.headers["content-type"] == "application/x-protobuf":
        assert answer.headers["content-encoding"] == "snappy"
        return answers.of_samples(answer.body)
    assert answer.headers["content-type"] == "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
    assert "content-encoding" not in answer.headers
    return answers.of_frames(answer.body, queries)


def labels_of(name: str, **pairs: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"__name__": name, **pairs}.items()))


@pytest.mark.parametrize("form", [SAMPLES, STREAMED])
def test_the_samples_of_a_time_range_are_read_with_all_their_bits(cluster: Cluster, name: str, form: int) -> None:
    values = [0.0, -0.0, math.nan, STALE, math.inf, 1 / 3, 1e300]
    series: Series = {
        labels_of(name, i=f"{i:02}"): [(T + 15_000 * k + i, values[(k + i) % 7]) for k in range(200)] for i in range(40)
    }
    write(cluster, series)
    start_ms, end_ms = T + 15_000 * 10, T + 15_000 * 150 + 39
    by_name = query_of([("__name__", "=", name)], start_ms, end_ms)
    narrowed = query_of(
        [("__name__", "=~", f"{name}|x"), ("i", "!~", "0.*|1.")], T, T + 10**8, start_ms=T, end_ms=T + 20, func="rate"
    )
    nothing = query_of([("__name__", "=", "nothing_has_this_name")], start_ms, end_ms)
    within = {labels: [own for own in samples if start_ms <= own[0] <= end_ms] for labels, samples in series.items()}
    first = {labels: samples[:1] for labels, samples in series.items() if 20 <= int(dict(labels)["i"]) <= 20}
    found = results(read(cluster, by_name, narrowed, nothing, accepted=[form]), queries=3)
    assert comparable(found) == comparable([within, first, {}])
    assert list(found[0]) == sorted(within)


def test_a_long_answer_comes_in_pieces(cluster: Cluster, name: str) -> None:
    series: Series = {
        labels_of(name, i=f"{i:04}", x="x" * 50): [(T + 1000 * k, math.sin(i * k)) for k in range(100)]
        for i in range(1000)
    }
    write(cluster, series)
    query = query_of([("__name__", "=", name)], T, T + 10**6)
    for form in (SAMPLES, STREAMED):
        answer = read(cluster, query, accepted=[form])
        assert answer.headers["transfer-encoding"] == "chunked"
        assert results(answer) == [series]


def test_a_client_that_asks_for_series_gets_no_samples(cluster: Cluster, name: str) -> None:
    write(cluster, {labels_of(name, i="1"): [(T, 1.0)], labels_of(name, i="2"): [(T + 10_000, 1.0)]})
    query = query_of([("__name__", "=", name)], T - 10, T + 10, func="series")
    assert results(read(cluster, query)) == [{labels_of(name, i="1"): []}]


def test_native_histograms_are_read_in_both_forms(cluster: Cluster, name: str) -> None:
    request = remote_write_pb2.WriteRequest()
    entry = request.timeseries.add()
    entry.labels.add(name="__name__", value=name)
    for k in range(5):
        entry.histograms.append(
            histogram_message(
                timestamp=T + k, schema=1, count_int=8 + 3 * k, sum=1.5 * k, zero_threshold=2.0**-128,
                zero_count_int=k, positive_spans=[(-3, 2), (5, 1)], positive_deltas=[1 + k, 1, -1],
                negative_spans=[(2, 1)], negative_deltas=[4 - k],
            )
        )  # fmt: skip
    entry.samples.add(timestamp=T + 10, value=7.5)
    raw = snappy.compress(request.SerializeToString())
    assert cluster.request("POST", "/api/v1/write", raw, HEADERS).status == 204
    query = query_of([("__name__", "=", name)], T, T + 100)
    (sampled,), (streamed,) = (results(read(cluster, query, accepted=[form])) for form in (SAMPLES, STREAMED))
    for found in (sampled, streamed):
        *histograms, last = found[labels_of(name)]
        assert last == (T + 10, 7.5)
        assert [at for at, _ in histograms] == [T + k for k in range(5)]
        shown = [own for _, own in histograms if isinstance(own, NativeHistogram)]
        assert [own.count for own in shown] == [8.0 + 3 * k for k in range(5)]
        assert [own.positive for own in shown] == [{-3: 1.0 + k, -2: 2.0 + k, 4: 1.0 + k} for k in range(5)]
        assert [own.negative for own in shown] == [{2: 4.0 - k} for k in range(5)]


@pytest.mark.parametrize(
    ("body", "fields", "status", "why"),
    [
        (b"\xff", {}, 400, "not snappy"),
        (snappy.compress(b"\xff\xff"), {}, 400, "not a prometheus.ReadRequest"),
        (request_body(accepted=[9]), {}, 400, "accepted_response_types"),
        (request_body(query_of([], 1, 2)), {}, 400, "matchers"),
        (request_body(query_of([("a", "=~", ".*")], 1, 2)), {}, 400, "matchers"),
        (request_body(query_of([("a", "=~", "(")], 1, 2)), {}, 400, "matchers"),
        (request_body(query_of([("a", "=", "b")], 2, 1)), {}, 400, "must not end before it starts"),
        (request_body(), {"timeout": "-1s"}, 400, "timeout"),
        (request_body(), {"partial_response": "maybe"}, 400, "partial_response"),
        (snappy.compress(b"\x0a\x00" * (1 << 20)), {}, 413, "limit is 1048576"),
        (request_body(), {}, 200, ""),
    ],
)
def test_what_is_wrong_is_named(cluster: Cluster, body: bytes, fields: dict[str, str], status: int, why: str) -> None:
    answer = cluster.request("POST", f"/api/v1/read?{urllib.parse.urlencode(fields)}", body, HEADERS)
    assert answer.status == status, answer.body
    assert why in answer.body.decode()


def test_a_read_has_the_bounds_of_a_query(new_cluster) -> None:
    cluster = new_cluster(shards=2, workers=1, settings={"TRIPTYCH_QUERY_SAMPLES_MAX": "1000"}).start()
    write(cluster, {labels_of("m"): [(T + k, 1.0) for k in range(2000)]})
    query = query_of([("__name__", "=", "m")], T, T + 2000)
    answer = read(cluster, query, accepted=[STREAMED])
    assert answer.status == 422
    assert "TRIPTYCH_QUERY_SAMPLES_MAX" in answer.json()["error"]


@pytest.fixture(scope="module")
def reader(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Prometheus that reads from the cluster what it does not have itself."""
    port = free_port()
    remote = {"url": f"{cluster.url}/api/v1/read", "read_recent": True}
    directory, arguments = tmp_path_factory.mktemp("prometheus"), ["--web.enable-remote-write-receiver"]
    url = f"http://127.0.0.1:{port}"
    with prometheus(directory, {"remote_read": [remote]}, "native-histograms", port, arguments) as running:
        running.wait_for(lambda: _is_ready(url))
        yield url


def _is_ready(url: str) -> bool:
    try:
        return urllib.request.urlopen(f"{url}/-/ready", timeout=5).status == 200
    except OSError:
        return False


def ask(url: str, path: str, **fields: Any) -> Any:
    query = urllib.parse.urlencode(fields, doseq=True)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=20) as answer:
        return json.load(answer)["data"]


@needs_prometheus
def test_queries_through_a_prometheus_give_what_direct_ones_do(cluster: Cluster, name: str, reader: str) -> None:
    end_ms = int(time.time() * 1000) // 60_000 * 60_000
    write(
        cluster,
        {
            labels_of(name, job="a" if i < 20 else "b", i=str(i)): [
                (end_ms - 15_000 * (100 - k) - i, float(k * i + (k % 7) / 3)) for k in range(100)
            ]
            for i in range(1, 31)  # none at the edge of a window, which Prometheus 2 counts on both sides
        },
    )
    fields = {"start": end_ms / 1000 - 1500, "end": end_ms / 1000, "step": 30}
    for query in (
        name,
        f"sum by (job) (rate({name}[5m]))",
        f'quantile_over_time(0.9, {name}{{job="b"}}[4m] offset 1m)',
        f'count({name}{{i=~"1.*", job!="b"}})',
        f"max_over_time({name}[2m:30s]) - {name} offset 7m",
    ):
        direct = ask(cluster.url, "query_range", query=query, **fields)
        assert direct["result"], query
        through = ask(reader, "query_range", query=query, **fields)
        through["result"].sort(key=lambda series: sorted(series["metric"].items()))
        assert _rounded(through) == _rounded(direct), query
    selection = {"match[]": name, "start": fields["start"], "end": fields["end"]}
    assert ask(reader, "series", **selection) == ask(cluster.url, "series", **selection)


def _rounded(answer: Any) -> Any:
    """Order of addition may differ in the last digits."""
    return [
        (series["metric"], [(at, float(f"{float(value):.12g}")) for at, value in series["values"]])
        for series in answer["result"]
    ]


@needs_prometheus
def test_chunks_are_those_that_a_prometheus_streams(cluster: Cluster, name: str, reader: str) -> None:
    """Byte for byte, where a chunk of Prometheus begins and ends as one of ours."""
    now_ms = within_a_range(int(time.time() * 1000), 1_400_000)
    random = np.random.default_rng(7)
    shapes = [
        np.cumsum(random.poisson(50, 300)).astype(float),
        random.normal(size=300),
        np.round(random.normal(size=300), 2),
        np.where(random.random(300) < 0.9, 5.0, 1e-9),
        np.array([0.0, -0.0, math.nan, STALE, math.inf, 1e300] * 50),
    ]
    gaps = [np.full(300, 1000), random.integers(990, 1010, 300), random.choice([1, 900, 20_000, 100_000], 300)]
    series: Series = {}
    for i, (values, steps) in enumerate(itertools.product(shapes, gaps)):
        times = now_ms - np.cumsum(steps[::-1])[::-1] // (1 + steps.mean() // 5000)
        pairs = zip(np.unique(times.astype(int)).tolist(), values.tolist(), strict=False)
        series[labels_of(name, i=f"{i:02}")] = list(pairs)
    pairs_sent: list[Any] = [(dict(labels), samples) for labels, samples in series.items()]
    body = streamed(reader, name, compressed(pairs_sent))
    assert comparable(answers.of_frames(body, 1)) == comparable([series])
    compared = 0
    for message in answers.frames(body):
        for chunk in message.chunked_series[0].chunks:
            samples = answers.chunk_samples(XOR, chunk.data)
            ours = _chunks(samples)
            compared += len(ours) == 1
            assert len(ours) > 1 or chunk.data in (ours[0], ours[0] + b"\0")
    assert compared >= len(series)


@needs_prometheus
def test_chunks_of_float_histograms_are_those_that_a_prometheus_streams(name: str, reader: str) -> None:
    now_ms = within_a_range(int(time.time() * 1000), 400_000)
    random = np.random.default_rng(3)
    counts = np.cumsum(random.poisson([2, 900, 1e7, 3, 0.01], (40, 5)), axis=0).astype(float)
    drawn: Series = {
        labels_of(name): [
            (
                now_ms - 400_000 + 10_000 * k + k * k,
                NativeHistogram(
                    3, float(own.sum()), 1.5 * k, 2.0**-60, own[0], dict(zip((-70, -69, 4), own[1:4], strict=True)),
                    {2000: own[4]},
                ),
            )
            for k, own in enumerate(counts)
        ]
    }  # fmt: skip
    request = remote_write_pb2.WriteRequest()
    entry = request.timeseries.add()
    entry.labels.add(name="__name__", value=name)
    entry.histograms.extend(message_of(own, at) for at, own in drawn[labels_of(name)])
    (theirs,) = answers.frames(streamed(reader, name, snappy.compress(request.SerializeToString())))
    (ours,) = answers.frames(b"".join(frames.chunks([parts_of(vector_of(drawn), keeps_empty=False)])))
    assert len(ours.chunked_series[0].chunks) == 1
    assert ours == theirs


def within_a_range(now_ms: int, length_ms: int) -> int:
    """The time, or an earlier one. A Prometheus begins new chunks at every second hour, and makes those before it
    equally long: there is no such hour in the `length_ms` before the time that is returned, nor soon after it."""
    begin_ms = now_ms - now_ms % CHUNK_RANGE_MS
    if now_ms - begin_ms <= length_ms:
        return begin_ms - CHUNKS_EVENED_MS
    return min(now_ms, begin_ms + CHUNK_RANGE_MS - CHUNKS_EVENED_MS)


def streamed(url: str, name: str, sent: bytes) -> bytes:
    """What a Prometheus streams of a metric after this remote write."""
    request = urllib.request.Request(f"{url}/api/v1/write", sent, HEADERS)
    assert urllib.request.urlopen(request, timeout=20).status == 204
    now_ms = int(time.time() * 1000)
    wanted = request_body(query_of([("__name__", "=", name)], now_ms - 10**8, now_ms), accepted=[STREAMED])
    answer = urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/read", wanted, HEADERS), timeout=20)
    assert answer.headers["Content-Type"] == "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
    body: bytes = answer.read()
    return body


def _chunks(samples: Sequence[tuple[int, Any]]) -> list[bytes]:
    times, values = (np.array(column) for column in zip(*samples, strict=True))
    read = Samples(np.array([0, len(times)]), times, values)
    vector = RangeVector(LabelFrame.of([{"a": "b"}], Symbols()), read, np.zeros(1, bool))
    (message,) = answers.frames(b"".join(frames.chunks([parts_of(vector, keeps_empty=False)])))
    return [chunk.data for chunk in message.chunked_series[0].chunks]

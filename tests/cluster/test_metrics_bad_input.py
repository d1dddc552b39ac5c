"""Remote-write input that is wrong or hostile: the error names it, the rest is kept, others are served."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Sequence

import psutil
import pytest
import snappy

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, Series, body
from proto import remote_write_pb2

T = 1_700_000_000_000
STALE_BITS = 0x7FF0000000000002
PAYLOAD_BITS = 0x7FF8DEADBEEF0001
HANGING = 1000
HANGING_BYTES_MAX = 100 << 20
"""A connection and the 16 KiB it sent, with room to spare; far below what the bodies announce."""

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"bad_input_{next(_numbers)}"


def post(cluster: Cluster, raw: bytes) -> Response:
    return cluster.request("POST", "/api/v1/write", snappy.compress(raw), HEADERS)


def among_good(name: str, *bad: Series) -> bytes:
    good: list[Series] = [({"__name__": name, "i": str(i)}, [(T, float(i))]) for i in range(3)]
    return body([*good[:1], *bad, *good[1:]])


def value_of(cluster: Cluster, query: str) -> str:
    answer = cluster.get("/api/v1/query", query=query, time=str(T // 1000)).json()
    return answer["data"]["result"][0]["value"][1]


def assert_named_and_rest_kept(cluster: Cluster, name: str, answer: Response, named: Sequence[str]) -> None:
    assert answer.status == 400, answer.body
    error = answer.json()
    assert (error["status"], error["errorType"]) == ("error", "bad_data")
    for text in ("3 samples stored", *named):
        assert text in error["error"]
    assert len(error["error"]) < 2000
    assert value_of(cluster, f"count({name})") == "3"


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ([(f"l{i:05d}", "x") for i in range(10_000)], "it has 10001 labels; the limit is 256"),
        ([("big", "x" * (1 << 20))], "the value of label 'big' has 1048576 bytes; the limit is 65536"),
        ([("n" * 2000, "x")], "a label name has 2000 bytes; the limit is 1024"),
        ([("twice", "a"), ("twice", "b")], "label name 'twice' appears twice"),
        ([("", "x")], "a label name is empty"),
    ],
    ids=["10,000 labels", "1 MB value", "long name", "twice", "empty name"],
)
def test_a_label_set_that_is_not_valid(cluster: Cluster, name: str, labels: list[tuple[str, str]], named: str) -> None:
    answer = post(cluster, among_good(name, ([("__name__", name), *labels], [(T, 1.0)])))
    assert_named_and_rest_kept(cluster, name, answer, ["series 1 {", named])


@pytest.mark.parametrize(
    ("pair", "named"),
    [
        ((b"where", b"caf\xe9"), "the value of label 'where' is not UTF-8 at byte 3"),
        ((b"caf\xe9", b"x"), "is not UTF-8 at byte 3"),
        ((b"where", b"\xed\xa0\x80"), "the value of label 'where' is not UTF-8 at byte 0"),
    ],
    ids=["value", "name", "surrogate"],
)
def test_text_that_is_not_utf8(cluster: Cluster, name: str, pair: tuple[bytes, bytes], named: str) -> None:
    series = remote_write_pb2.RawTimeSeries()
    for own in ((b"__name__", name.encode()), pair):
        series.labels.add(name=own[0], value=own[1])
    series.samples.add(timestamp=T, value=1.0)
    raw = remote_write_pb2.RawWriteRequest(timeseries=[series.SerializeToString()]).SerializeToString()
    answer = post(cluster, raw + among_good(name))
    assert_named_and_rest_kept(cluster, name, answer, ["series 0 {", named])


def test_of_a_series_only_the_samples_out_of_range_are_refused(cluster: Cluster, name: str) -> None:
    times = [-(1 << 63), T, (1 << 63) - 1]
    answer = post(cluster, body([({"__name__": name}, [(time, 7.0) for time in times])]))
    assert answer.status == 400
    assert "1 samples stored" in answer.json()["error"]
    for time in (times[0], times[2]):
        assert f"a sample's timestamp is {time} ms; it must lie within the years 1 to 9999" in answer.json()["error"]
    assert value_of(cluster, name) == "7"


def test_a_nan_with_a_payload_is_read_as_nan_and_a_stale_marker_ends_the_series(cluster: Cluster, name: str) -> None:
    payload, stale = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (PAYLOAD_BITS, STALE_BITS))
    series: list[Series] = [
        ({"__name__": name, "kind": "payload"}, [(T - 1000, 1.0), (T, payload)]),
        ({"__name__": name, "kind": "stale"}, [(T - 1000, 1.0), (T, stale)]),
    ]
    assert post(cluster, body(series)).status == 204
    assert value_of(cluster, name) == "NaN"
    assert value_of(cluster, f"count({name})") == "1"


def test_a_request_of_100_mb_is_413_and_the_connection_is_not_held(cluster: Cluster) -> None:
    limit = 64 << 20
    for announced in (True, False):
        status, text = asyncio.run(_send_100_mb(cluster.port, announced))
        assert status == 413, text
        assert str(limit) in text
    assert cluster.get("/api/v1/labels").status == 200


async def _send_100_mb(port: int, announced: bool) -> tuple[int, str]:
    """(status, answer) of a body of 100 MB, sent until the server has heard enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 100 << 20
    length = f"Content-Length: {size}" if announced else "Transfer-Encoding: chunked"
    writer.write(f"{_head()}{length}\r\n\r\n".encode())
    piece = bytes(1 << 20)
    frame = piece if announced else b"100000\r\n" + piece + b"\r\n"
    try:
        for _ in range(size >> 20):
            if reader._buffer:  # type: ignore[attr-defined]  # it has answered
                break
            writer.write(frame)
            await asyncio.wait_for(writer.drain(), 10)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    answer = await asyncio.wait_for(reader.read(1 << 16), 10)
    writer.close()
    return int(answer.split()[1]), answer.decode()


def _head() -> str:
    fields = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    return f"POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\n{fields}"


def test_a_thousand_bodies_that_never_end_take_little_memory_and_others_are_served(new_cluster, name: str) -> None:
    cluster = new_cluster(shards=2, workers=1, settings={"TRIPTYCH_REQUESTS_IN_FLIGHT_MAX": "1100"}).start()
    coordinator = psutil.Process(cluster.coordinator.pid)
    assert post(cluster, among_good(name)).status == 204
    before = coordinator.memory_info().rss
    grown, served = asyncio.run(_hang(cluster, coordinator, name))
    assert grown - before < HANGING_BYTES_MAX
    assert served == [204, 200]


async def _hang(cluster: Cluster, coordinator: psutil.Process, name: str) -> tuple[int, list[int]]:
    """(memory of the coordinator with HANGING bodies unfinished, what others were answered meanwhile)."""
    writers = []
    for _ in range(HANGING):
        _, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        writer.write(f"{_head()}Content-Length: {60 << 20}\r\n\r\n".encode() + bytes(16_384))
        writers.append(writer)
    await asyncio.gather(*(writer.drain() for writer in writers))
    await asyncio.sleep(0.5)
    served = await asyncio.to_thread(
        lambda: [
            post(cluster, among_good(name)).status,
            cluster.get("/api/v1/query", query=f"count({name})", time=str(T // 1000)).status,
        ]
    )
    memory = coordinator.memory_info().rss
    for writer in writers:
        writer.close()
    return memory, served

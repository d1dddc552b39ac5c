"""The map of a collection in one worker and its axes, against numpy's decomposition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.vectors import map_request
from coordinator.vectors import search as searches
from coordinator.vectors.axes_search import SHOWN_AXES, STEPS_MAX, AxesSearch
from coordinator.vectors.map import lowest_draws
from proto import vector_pb2
from shared import wire
from shared.errors import BadData, DeadlineExceeded
from shared.hashing import shard_of
from shared.messages import vector_map as messages
from shared.messages.vectors import Collection, Condition, pack_blobs, unpack_blobs
from tests.unit.vector_shard import COSINE, OneShard
from worker.methods.table import METHODS
from worker.vectors import projection
from worker.vectors.id_table import IdTable

WIDE = Collection(2, "wide", 40, "l2")


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    opened = OneShard(tmp_path)
    yield opened
    opened.close()


def rows(count: int, dimension: int = 40) -> np.ndarray:
    """Points far from the origin that spread along two directions above all."""
    random = np.random.default_rng(1)
    spread = np.r_[9.0, 5.0, np.full(dimension - 2, 0.5)]
    turned = np.linalg.qr(random.standard_normal((dimension, dimension)))[0]
    return (random.standard_normal((count, dimension)) * spread @ turned + 100).astype(np.float32)


def sampled(shard: OneShard, of: Collection = WIDE, **asked: Any) -> tuple[list[bytes], messages.SampleReply]:
    body = messages.SampleBody(of, **{"filter": None, "limit": 50, **asked})
    reply = shard.call("vector.sample", body)
    draws = np.frombuffer(reply.frames[0], np.uint64)
    assert (np.diff(draws.astype(np.float64)) >= 0).all()
    return unpack_blobs(*reply.frames[1:3]), wire.unpack(reply.body, messages.SampleReply)


def test_the_sample_is_the_same_for_unchanged_vectors(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(300)
    shard.write([f"v{n}" for n in range(300)], table, into=WIDE)
    names, reply = sampled(shard)
    assert (len(set(names)), reply.count, reply.vectors) == (50, 300, 300)
    assert sampled(shard, limit=20)[0] == names[:20]
    monkeypatch.setattr(projection, "DRAWN_AT_ONCE", 7)
    assert sampled(shard)[0] == names
    order = np.random.default_rng(2).permutation(300)
    shard.write([f"v{n}" for n in order], table[order], into=WIDE)
    shard.reopen()
    assert sampled(shard)[0] == names


def test_the_sample_is_of_the_selected_vectors_and_names_unknown_fields(shard: OneShard) -> None:
    shard.write([f"v{n}" for n in range(40)], rows(40), [{"n": n} for n in range(40)], into=WIDE)
    few = Condition("lt", "n", (10,))
    names, reply = sampled(shard, filter=few, attribute="colour")
    assert sorted(names) == [f"v{n}".encode() for n in range(10)]
    assert (reply.count, reply.unknown) == (10, ("colour",))
    other = Collection(9, "other", 8, "l2")
    assert sampled(shard, other) == ([], messages.SampleReply())


def test_the_sample_of_all_workers_has_the_lowest_draws() -> None:
    def reply(*entries: tuple[int, bytes]) -> list[bytes]:
        draws = np.array([draw for draw, _ in entries], np.uint64)
        return [draws.tobytes(), *pack_blobs([name for _, name in entries])]

    replies = [reply((1, b"a"), (2**63, b"d")), reply(), reply((2, b"b"), (3, b"c"))]
    assert lowest_draws(replies, 3) == [b"a", b"b", b"c"]
    assert lowest_draws(replies, 9) == [b"a", b"b", b"c", b"d"]


def test_the_share_of_a_shard_does_not_depend_on_the_draw() -> None:
    """A draw that named the shard would take the sample from some shards only."""
    ids = [f"v{n}".encode() for n in range(8000)]
    table = IdTable()
    table.extend(ids)
    draws = table.draws(np.arange(8000))
    lowest = np.argsort(draws)[:1000]
    counts = np.bincount([shard_of(ids[place], 8) for place in lowest.tolist()], minlength=8)
    assert counts.min() > 80
    assert counts.max() < 170


def principal(shard: OneShard, of: Collection, names: list[bytes]) -> tuple[np.ndarray, float, list[Any]]:
    """(the places on the first axes, the sum of squares, the values of the attribute c), as the coordinator asks."""
    part = pack_blobs(names)
    reply = shard.call("vector.moments", messages.MomentsBody(of), part=part)
    moments = wire.unpack(reply.body, messages.MomentsReply)
    mean = (np.frombuffer(reply.frames[0]) / (moments.count * moments.largest)).astype(np.float32)
    search = AxesSearch(of.dimension)
    while not search.is_over:
        body = messages.SpreadBody(of, moments.largest)
        reply = shard.call("vector.spread", body, [mean.tobytes(), search.block.tobytes()], part)
        search.add(np.frombuffer(reply.frames[0], np.float32).reshape(search.block.shape).astype(np.float64))
    axes = search.axes
    asked = messages.CoordinatesBody(of, moments.largest, "c")
    reply = shard.call("vector.coordinates", asked, [mean.tobytes(), axes.tobytes()], part)
    assert unpack_blobs(*reply.frames[:2]) == names
    content = wire.unpack(reply.body, messages.CoordinatesReply)
    places = np.frombuffer(reply.frames[2], np.float32).reshape(-1, len(axes)).astype(np.float64) * moments.largest
    return places, content.squares * moments.largest**2, content.values


@pytest.mark.parametrize(
    ("metric", "storage"),
    [("l2", "f32"), ("l2", "f16"), ("dot", "f32"), ("cosine", "f32"), ("cosine", "i8"), ("cosine", "b1")],
)
def test_the_axes_are_those_of_a_singular_value_decomposition(
    shard: OneShard, metric: str, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "BLOCK_BYTES", 4 * 40 * 7)  # blocks of seven rows
    collection = Collection(3, "stored", 40, metric, storage)
    table = rows(200)
    names = [f"v{n}".encode() for n in range(200)]
    shard.write([name.decode() for name in names], table, into=collection)
    places, squares, _ = principal(shard, collection, names)
    compared = table.astype(np.float64)
    if metric == "cosine":
        compared /= np.linalg.norm(compared, axis=1, keepdims=True)
    compared -= compared.mean(axis=0)
    u, s, _ = np.linalg.svd(compared, full_matrices=False)
    right = u[:, :2] * s[:2]
    tolerance = 0.03 * np.abs(right).max()
    for axis in range(2):
        same, turned = places[:, axis] - right[:, axis], places[:, axis] + right[:, axis]
        assert min(np.abs(same).max(), np.abs(turned).max()) < tolerance
    assert squares == pytest.approx(float((compared**2).sum()), rel=0.01)


def spectrum(count: int, dimension: int, decay: float) -> np.ndarray:
    """A covariance whose variances fall by the factor `decay` from one to the next of the first `count`, then are 0."""
    random = np.random.default_rng(3)
    axes = np.linalg.qr(random.standard_normal((dimension, count)))[0]
    return axes * decay ** np.arange(count) @ axes.T


@pytest.mark.parametrize(("count", "dimension", "decay"), [(300, 300, 0.97), (50, 200, 0.9), (3, 100, 0.5), (1, 9, 1)])
def test_axes_are_found_in_few_steps(count: int, dimension: int, decay: float) -> None:
    covariance = spectrum(count, dimension, decay)
    search, steps = AxesSearch(dimension), 0
    while not search.is_over:
        search.add((search.block @ covariance).astype(np.float32).astype(np.float64))
        steps += 1
    assert steps <= 10
    assert search.axes @ search.axes.T == pytest.approx(np.eye(SHOWN_AXES), abs=1e-5)
    exact = np.linalg.eigh(covariance)[1][:, ::-1].T[: min(count, SHOWN_AXES)]
    beside = exact - (exact @ search.axes.T) @ search.axes
    assert np.linalg.norm(beside, 2) < 0.02


def test_without_first_axes_the_search_ends() -> None:
    for covariance, steps_max in ((np.eye(200), STEPS_MAX), (np.zeros((200, 200)), 1)):
        search, steps = AxesSearch(200), 0
        while not search.is_over:
            search.add(search.block @ covariance)
            steps += 1
        assert steps <= steps_max
        assert np.isfinite(search.axes).all()


@pytest.mark.parametrize("size", [1e38, 1e-38])
def test_huge_and_tiny_components_have_a_map(shard: OneShard, size: float) -> None:
    collection = Collection(4, "huge", 5, "dot")
    table = np.random.default_rng(1).uniform(-3, 3, (20, 5)) * size
    names = [f"v{n}".encode() for n in range(20)]
    shard.write([name.decode() for name in names], table, into=collection)
    places, squares, _ = principal(shard, collection, names)
    share = np.square(places / size).sum(axis=0) / (squares / size / size)
    exact = np.linalg.svd((table / size) - (table / size).mean(axis=0), compute_uv=False) ** 2
    assert share == pytest.approx((exact / exact.sum())[:2], rel=0.01)


def test_values_are_single_and_short(shard: OneShard) -> None:
    values = ["red", 1, 2.5, True, ["a", "b"], [], None, "x" * 500, [3, 4], -(2**63)]
    names = [f"v{n}" for n in range(len(values))]
    attributes = [{} if value is None else {"c": value} for value in values]
    shard.write(names, rows(len(values)), attributes, into=WIDE)
    shown = principal(shard, WIDE, [name.encode() for name in names])[2]
    assert shown == ["red", 1, 2.5, True, "a", None, None, "x" * 200, 3, -(2**63)]
    assert [type(value) for value in shown[1:4]] == [int, float, bool]


def test_deleted_vectors_are_left_out(shard: OneShard) -> None:
    shard.write(["a", "b", "c"], rows(3), into=WIDE)
    shard.delete(["b"], of=WIDE)
    reply = shard.call("vector.moments", messages.MomentsBody(WIDE), part=pack_blobs([b"a", b"b", b"c", b"d"]))
    assert wire.unpack(reply.body, messages.MomentsReply).count == 2


def test_attributes_are_named_with_the_types_of_the_living(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": 2.5}, {"a": ["y"]}, {"a": True, "gone": 1}, {}]
    shard.write([f"v{n}" for n in range(5)], np.ones((5, 8)), values)
    shard.write(["v3"], np.ones((1, 8)), [{"a": "now"}])
    reply = wire.unpack(shard.call("vector.attributes", messages.AttributesBody(COSINE)).body, messages.AttributesReply)
    a = {"string": 1, "integer": 1, "float": 1, "array": 1}
    assert reply == messages.AttributesReply({"a": a, "b": {"string": 1}, "gone": {}}, 3)
    monkeypatch.setattr("worker.methods.vector_map.NAMES_MAX", 1)
    reply = wire.unpack(shard.call("vector.attributes", messages.AttributesBody(COSINE)).body, messages.AttributesReply)
    assert (list(reply.attributes), reply.names) == (["a"], 3)


def test_every_step_ends_at_the_deadline(shard: OneShard) -> None:
    shard.write(["a"], rows(1), [{"n": 1}], into=WIDE)
    frames = [np.zeros(40, np.float32).tobytes(), AxesSearch(40).block.tobytes()]
    bodies: dict[str, msgspec.Struct] = {
        "vector.sample": messages.SampleBody(WIDE, None, 5),
        "vector.moments": messages.MomentsBody(WIDE),
        "vector.spread": messages.SpreadBody(WIDE, 1.0),
        "vector.coordinates": messages.CoordinatesBody(WIDE, 1.0),
        "vector.attributes": messages.AttributesBody(WIDE),
    }
    for name, body in bodies.items():
        request = wire.Request(name, (0,), time.monotonic() - 1, wire.pack(body), frames, {0: pack_blobs([b"a"])})
        with pytest.raises(DeadlineExceeded, match=name):
            METHODS[name].run({0: SimpleNamespace(vectors=shard.vectors)}, request)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"limit": 0}', "limit is 0; it must be 1 to 5000"),
        (b'{"limit": 5001}', "limit is 5001"),
        (b'{"attribute": "vector"}', "attribute is 'vector'"),
        (b'{"colour": "x"}', "colour"),
        (b"[]", "the body is not right"),
    ],
)
def test_wrong_requests_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(BadData, match=message):
        map_request.from_json(body)


def test_a_request_is_the_same_in_protobuf() -> None:
    content = b'{"collection":"c","limit":7,"attribute":"x","filter":{"exists":{"field":"y"}}}'
    message = vector_pb2.MapRequest(collection="c", limit=7, attribute="x")
    message.filter.exists.field = "y"
    assert map_request.from_protobuf(message.SerializeToString()) == map_request.from_json(content)
    assert map_request.from_protobuf(b"").limit == map_request.from_json(b"{}").limit == 1000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"id":"a","vector":[1]}', "id is given beside vector"),
        (b'{"id":"a","vectors":[[1]]}', "id is given beside vector"),
        (b'{"id":"a","groupBy":{"field":"x"}}', "groupBy and id"),
        (b'{"id":""}', "id"),
    ],
)
def test_a_search_by_an_id_has_no_other_query(body: bytes, message: str) -> None:
    with pytest.raises(BadData, match=message):
        searches.from_json(body)


def test_a_search_by_an_id_asks_for_one_more() -> None:
    asked = searches.from_json(b'{"id":"a","k":3,"offset":2,"scoreThreshold":0.5}')
    assert (asked.id, asked.depth) == (b"a", 6)
    found = asked.of_vector(np.ones(8, np.float32))
    assert (found.is_browse, found.counts, found.body(COSINE, 0).k) == (False, [8], 6)
    message = vector_pb2.SearchRequest(id="a", k=3)
    assert searches.from_protobuf(message.SerializeToString()).id == b"a"


def test_vectors_of_many_components_are_fewer_on_a_map() -> None:
    assert map_request.points_max(768) == map_request.SAMPLE_MAX
    assert map_request.points_max(16_384) == 512

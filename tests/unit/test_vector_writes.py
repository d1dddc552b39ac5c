"""Writes, deletes and reads of vectors on their way to the shards and back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.fanout.links import Links
from coordinator.vectors import area as module
from coordinator.vectors.answers import hits_protobuf, vector_json, vector_protobuf
from coordinator.vectors.area import StoredVector, VectorArea
from coordinator.vectors.changes import ChangeRequest
from coordinator.vectors.decode import Upserts
from coordinator.vectors.merging import Hits
from coordinator.vectors.search import SearchRequest
from proto import vector_pb2
from shared import wire
from shared.control import LocalControl
from shared.errors import BadData, ConfigError, NotFound, Unavailable
from shared.hashing import shard_of
from shared.messages.vectors import (
    Collection,
    CollectionsReply,
    IdsBody,
    SearchBody,
    ShardCollections,
    UpsertBody,
    VectorCountReply,
    floats,
    pack_blobs,
    unpack_blobs,
)
from shared.settings import Settings
from shared.wire import Reply

SHARDS = 3


class Shards:
    """Shards that hold vectors in memory: id → (components, packed attributes)."""

    shards = SHARDS

    def __init__(self) -> None:
        self.held: list[dict[bytes, tuple[list[float], bytes]]] = [{} for _ in range(SHARDS)]
        self.away: set[int] = set()
        self.asked: list[tuple[str, Any, float]] = []

    def unready(self, shards: Any = None) -> dict[int, str]:
        return dict.fromkeys(sorted(self.away), "it is down")

    def require(self, shards: Any) -> None:
        if self.away & set(shards):
            raise Unavailable("a shard is down")

    async def fan_out(self, method: str, **options: Any) -> FanOut:
        if method == "vector.collections":
            shards = [ShardCollections(number, [], []) for number in options["shards"]]
            return FanOut([WorkerReply("worker-0", (0,), Reply(wire.pack(CollectionsReply(shards))), 1.0)], {})
        parts: Mapping[int, Sequence[bytes]] = options["parts"]
        self.asked.append((method, sorted(parts), options["timeout_s"]))
        there = {shard: frames for shard, frames in parts.items() if shard not in self.away}
        answers = [self._answer(method, shard, options["body"], frames) for shard, frames in there.items()]
        return FanOut(answers, dict.fromkeys(parts.keys() & self.away, "it is down"))

    async def call(self, method: str, **options: Any) -> list[WorkerReply]:
        self.require(options["parts"])
        return (await self.fan_out(method, **options)).replies

    def _answer(self, method: str, shard: int, body: bytes, frames: Sequence[bytes]) -> WorkerReply:
        held = self.held[shard]
        ids = unpack_blobs(frames[0], frames[1])
        assert ids and {shard_of(name, SHARDS) for name in ids} == {shard}
        if method == "vector.write":
            collection = wire.unpack(body, UpsertBody).collection
            table = floats(frames[2], collection.dimension).tolist()
            attributes = unpack_blobs(frames[3], frames[4])
            assert len(set(ids)) == len(ids)
            held.update(zip(ids, zip(table, attributes, strict=True), strict=True))
            reply = Reply(wire.pack(VectorCountReply(len(ids))))
        elif method == "vector.delete":
            reply = Reply(wire.pack(VectorCountReply(sum(held.pop(name, None) is not None for name in ids))))
        else:
            assert method == "vector.get"
            fields = wire.unpack(body, IdsBody).fields
            found = [name for name in ids if name in held]
            table = [held[name][0] for name in found] if fields is None else []
            reply = Reply(
                b"",
                [
                    *pack_blobs(found),
                    *pack_blobs([held[name][1] for name in found]),
                    np.array(table, np.float32).tobytes(),
                ],
            )
        return WorkerReply(f"worker-{shard}", (shard,), reply, 1.0)


def upserts(*names: str, dimension: int = 2, collection: str = "") -> Upserts:
    flat = np.arange(1, 1 + len(names) * dimension, dtype=np.float32)
    attributes = [msgspec.msgpack.encode({"n": number}) for number in range(len(names))]
    return Upserts(collection, [name.encode() for name in names], flat, np.full(len(names), dimension), attributes)


async def started(directory: Path, shards: Shards, **options: Any) -> VectorArea:
    settings = Settings(**{"data": directory, "shards": SHARDS, "workers": 1, "write_timeout_ms": 3000, **options})
    area = VectorArea(settings, cast(Links, shards), LocalControl(settings.data / "vector"))
    await area.start()
    async with asyncio.timeout(5):
        await area._collections._known.wait()
    return area


NAMES = [f"v{number}" for number in range(12)]


async def test_every_vector_goes_to_its_shard_and_comes_back_in_the_order_asked_for(tmp_path: Path) -> None:
    shards = Shards()
    area = await started(tmp_path, shards, vector_timeout_ms=7000)
    assert await area.write(upserts(*NAMES)) == 12
    assert shards.asked == [("vector.write", [0, 1, 2], 3.0)]
    asked = [name.encode() for name in reversed(NAMES)]
    entries, warnings = await area.get("", [*asked, b"nowhere", asked[0]], None)
    assert shards.asked[1:] == [("vector.get", [0, 1, 2], 7.0)]
    assert ([entry.id for entry in entries], warnings) == (asked, [])
    for entry in entries:
        number = NAMES.index(entry.id.decode())
        assert entry.vector is not None and entry.vector.tolist() == [2 * number + 1, 2 * number + 2]
        assert msgspec.msgpack.decode(entry.attributes) == {"n": number}
    entries, _ = await area.get("default", asked[:2], ("n",))
    assert [(entry.id, entry.vector) for entry in entries] == [(asked[0], None), (asked[1], None)]
    await area.stop()


async def test_a_read_without_a_shard_says_so(tmp_path: Path) -> None:
    shards = Shards()
    area = await started(tmp_path, shards)
    await area.write(upserts(*NAMES))
    shards.away = {1}
    entries, warnings = await area.get("", [name.encode() for name in NAMES], None)
    assert {shard_of(entry.id, SHARDS) for entry in entries} == {0, 2}
    assert len(warnings) == 1 and "it is down" in warnings[0]
    with pytest.raises(Unavailable):
        await area.write(upserts(*NAMES))
    await area.stop()


async def test_of_vectors_with_the_same_id_the_last_is_written_and_each_is_counted(tmp_path: Path) -> None:
    shards = Shards()
    area = await started(tmp_path, shards)
    assert await area.write(upserts("a", "b", "a")) == 3
    held = {name: vector for shard in shards.held for name, (vector, _) in shard.items()}
    assert held == {b"a": [5.0, 6.0], b"b": [3.0, 4.0]}
    await area.stop()


async def deleted(area: VectorArea, collection: str, ids: list[bytes]) -> int:
    count, infos = await area.selected.delete(ChangeRequest(collection, ids, None))
    assert infos == []
    return count


async def test_deleted_are_those_that_were_there_each_once(tmp_path: Path) -> None:
    shards = Shards()
    area = await started(tmp_path, shards)
    assert await deleted(area, "", [b"v1"]) == 0
    assert await area.get("", [b"v1"], None) == ([], [])
    await area.write(upserts(*NAMES))
    del shards.asked[:]
    assert await deleted(area, "", []) == 0
    assert await area.get("", [], None) == ([], [])
    assert shards.asked == []
    assert await deleted(area, "", [b"v1", b"v2", b"v1", b"nowhere"]) == 2
    assert shards.asked[0][2] == 3.0
    assert sum(map(len, shards.held)) == 10
    assert await deleted(area, "", [b"v3"] * 3 + [name.encode() for name in NAMES]) == 10
    assert shards.held == [{}, {}, {}]
    await area.stop()


async def test_nothing_is_read_or_written_in_a_collection_that_is_not_there(tmp_path: Path) -> None:
    area = await started(tmp_path, Shards())
    for work in (
        deleted(area, "other", [b"v1"]),
        area.get("other", [b"v1"], None),
        area.write(upserts("a", collection="other")),
    ):
        with pytest.raises(NotFound, match="there is no collection 'other'"):
            await work
    await area.stop()


async def test_the_first_vector_makes_the_default_collection_unless_it_is_wrong(tmp_path: Path) -> None:
    shards = Shards()
    area = await started(tmp_path, shards, vector_metric="cosine")
    wrong = upserts("a", "b")
    wrong.counts = np.array([3, 1])
    with pytest.raises(BadData, match=r"'b', field attributes.vector has 1 components"):
        await area.write(wrong)
    nothing = upserts("a")
    nothing.flat[:] = 0
    with pytest.raises(BadData, match="is all zeros"):
        await area.write(nothing)
    shards.away = {2}
    with pytest.raises(Unavailable, match="a shard is down"):
        await area.write(upserts("v1"))
    assert (await area.collections()) == ([], [])
    shards.away = set()
    await area.write(upserts("a", dimension=5))
    (made,), _ = await area.collections()
    assert (made.name, made.dimension, made.metric, made.storage) == ("default", 5, "cosine", "f32")
    with pytest.raises(BadData, match="has 2 components; the dimension of the collection 'default' is 5"):
        await area.write(upserts("a"))
    await area.stop()


async def test_a_dimension_that_is_set_is_that_of_the_default_collection_only(tmp_path: Path) -> None:
    area = await started(tmp_path, Shards(), vector_dimension=4)
    with pytest.raises(BadData, match="has 2 components"):
        await area.write(upserts("a"))
    with pytest.raises(BadData, match="dimension is 3; TRIPTYCH_VECTOR_DIMENSION fixes it to 4"):
        await area.create(Collection(0, "default", 3, "l2", "f32"))
    assert (await area.create(Collection(0, "other", 3, "l2", "f32", ("body",)))).text == ("body",)
    await area.write(upserts("a", dimension=4))
    assert {one.name: one.dimension for one in (await area.collections())[0]} == {"default": 4, "other": 3}
    await area.stop()


@pytest.mark.parametrize("size", [9, 10])
async def test_large_writes_are_cut_beside_the_event_loop(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THREAD_NUMBERS_MIN", 10)
    handed_over: list[str] = []
    to_thread = asyncio.to_thread

    async def noted(call: Any, *arguments: Any) -> Any:
        handed_over.append(getattr(call, "__name__", ""))
        return await to_thread(call, *arguments)

    shards = Shards()
    area = await started(tmp_path, shards)
    await area.write(upserts("first", dimension=1))
    monkeypatch.setattr(module.asyncio, "to_thread", noted)
    assert await area.write(upserts(*NAMES[:size], dimension=1)) == size
    assert handed_over.count("_parts") == (size == 10)
    assert sum(map(len, shards.held)) == size + 1
    await area.stop()


@pytest.mark.parametrize("dimension", [0, 2, 3])
async def test_a_setting_that_contradicts_the_directory_is_refused_at_the_start(tmp_path: Path, dimension: int) -> None:
    area = await started(tmp_path, Shards())
    await area.write(upserts("a"))
    await area.stop()
    if dimension == 3:
        with pytest.raises(ConfigError, match=r"TRIPTYCH_VECTOR_DIMENSION is 3; the vectors in .* have 2 components"):
            await started(tmp_path, Shards(), vector_dimension=3)
    else:
        await (await started(tmp_path, Shards(), vector_dimension=dimension)).stop()


@pytest.mark.parametrize(
    ("options", "is_told"),
    [({}, False), ({"vector_metric": "l2"}, True), ({"vector_storage": "i8"}, True)],
)
async def test_other_settings_of_the_directory_are_kept_and_told(
    tmp_path: Path, options: dict[str, str], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    area = await started(tmp_path, Shards(), vector_metric="cosine", vector_storage="f32")
    await area.write(upserts("a"))
    await area.stop()
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(module, "event", lambda level, text, **_: told.append((level, text)))
    area = await started(tmp_path, Shards(), **{"vector_metric": "cosine", "vector_storage": "f32", **options})
    assert told == [(logging.WARNING, "vector settings are those of the data directory")] * is_told
    ((made,), _) = await area.collections()
    assert (made.metric, made.storage) == ("cosine", "f32")
    await area.stop()


async def test_a_search_that_is_held_for_company_ends_with_the_area(tmp_path: Path) -> None:
    area = await started(tmp_path, Shards())
    cancelled = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    area._batches._tasks.add(asyncio.create_task(never()))
    await asyncio.sleep(0)
    await area.stop()
    async with asyncio.timeout(1):
        await cancelled.wait()


async def test_a_search_says_how_many_shards_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards()
    area = await started(tmp_path, shards)
    await area.write(upserts("a"))
    asked: list[int] = []

    async def fan_out(method: str, *, body: bytes, **_: Any) -> FanOut:
        asked.append(wire.unpack(body, SearchBody).shards_asked)
        raise Unavailable("nobody has answered")

    monkeypatch.setattr(shards, "fan_out", fan_out)
    request = SearchRequest("", np.ones(2, np.float32), [2], False, 1, (), None, 0, False)
    for away in (set(), {2}, {0, 1}):
        shards.away = away
        with pytest.raises(Unavailable, match="nobody has answered"):
            await area.search(request, partial=True)
    assert asked == [3, 2, 1]
    shards.away = set()
    await area.stop()


# Answers

ATTRIBUTES = {"s": "é", "i": 5, "f": 0.5, "b": True}
FULL = StoredVector(b"id-1", msgspec.msgpack.encode(ATTRIBUTES), np.array([1.0, 2.5], np.float32))
BARE = StoredVector(b"id-2", b"", None)


def test_vectors_are_shown_in_json_with_what_was_asked_for() -> None:
    shown = vector_json(FULL)
    assert shown["id"] == "id-1" and shown["attributes"].pop("vector").tolist() == [1.0, 2.5]
    assert shown["attributes"] == {"s": "é", "i": 5, "f": 0.5, "b": True}
    assert json.dumps(vector_json(BARE)) == '{"id": "id-2", "attributes": {}}'
    assert vector_json(StoredVector(b"a", FULL.attributes, None))["attributes"] == ATTRIBUTES


def test_vectors_are_shown_in_protobuf_with_what_was_asked_for() -> None:
    message = vector_pb2.Vector()
    vector_protobuf(FULL, message)
    assert message.id == "id-1" and len(message.attributes) == 5
    assert list(message.attributes["vector"].vector_value.values) == [1.0, 2.5]
    kinds = {name: value.WhichOneof("value") for name, value in message.attributes.items()}
    assert kinds == {
        "s": "string_value",
        "i": "int64_value",
        "f": "float64_value",
        "b": "bool_value",
        "vector": "vector_value",
    }
    message = vector_pb2.Vector()
    vector_protobuf(BARE, message)
    assert message == vector_pb2.Vector(id="id-2")


@pytest.mark.parametrize(("metric", "sign"), [("cosine", 1), ("dot", 1), ("l2", -1)])
def test_hits_are_shown_in_protobuf_with_their_scores(metric: str, sign: int) -> None:
    hits = Hits(
        np.array([-0.25, -0.5], np.float32),
        [b"a", b"b"],
        [msgspec.msgpack.encode({"n": 1}), b""],
        np.array([[1], [2]], np.float32),
    )
    into: list[Any] = []

    class Results:
        def add(self) -> Any:
            into.append(SimpleNamespace(score=0.0, vector=vector_pb2.Vector()))
            return into[-1]

    hits_protobuf(hits, metric, Results())
    assert [one.score for one in into] == [sign * -0.25, sign * -0.5]
    assert [one.vector.id for one in into] == ["a", "b"]
    assert [list(one.vector.attributes["vector"].vector_value.values) for one in into] == [[1.0], [2.0]]
    assert into[0].vector.attributes["n"].int64_value == 1 and len(into[1].vector.attributes) == 1

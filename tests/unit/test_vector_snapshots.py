"""Snapshots of a vector index: never used for another content than they were made of, whatever lies on the disk."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shared import wire
from shared.messages import vectors as messages
from shared.messages.vectors import Collection, Condition, SearchBody
from shared.wire import Request
from tests.unit.test_vector_shards import COLLECTION, TABLE, Worker, worker
from tests.unit.vector_shard import COSINE, OneShard, clustered
from worker.damage import DamageReport
from worker.methods.vectors import METHODS
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store, StoreDamaged
from worker.vectors import attributes as attributes_module
from worker.vectors import check, snapshot, stored_rows
from worker.vectors.graph import Graph
from worker.vectors.indexing import Indexing
from worker.vectors.table import Table

PLACES = 500
"""Flipped bytes, over all files of a snapshot."""


def put(one: Worker, numbers: Sequence[int], generation: int) -> None:
    """Write vectors with the attribute `generation`."""
    packed = msgspec.msgpack.encode({"generation": generation})
    parts = {}
    for shard in one.shards:
        own = [number for number in numbers if number % 4 == shard]
        names = [f"{number:04d}".encode() for number in own]
        parts[shard] = [*messages.pack_blobs(names), TABLE[own].tobytes(), *messages.pack_blobs([packed] * len(own))]
    ask(one, "vector.write", messages.UpsertBody(COLLECTION), parts=parts)


def ask(one: Worker, name: str, body: msgspec.Struct, frames=(), parts=None):
    return METHODS[name].run(one.shards, Request(name, tuple(one.shards), 1e12, wire.pack(body), frames, parts or {}))


def delete(one: Worker, number: int) -> None:
    name = f"{number:04d}".encode()
    parts = {shard: messages.pack_blobs([name] if number % 4 == shard else []) for shard in one.shards}
    ask(one, "vector.delete", messages.IdsBody(COLLECTION), parts=parts)


def of_generation(one: Worker, number: int, generation: int) -> list[int]:
    """The nearest to a vector among those of a generation."""
    condition = Condition("eq", "generation", (generation,))
    body = SearchBody(COLLECTION, 1, fields=(), filter=condition, shards_asked=len(one.shards))
    reply = ask(one, "vector.search", body, [TABLE[number : number + 1].tobytes()])
    return [int(name) for name in messages.unpack_blobs(reply.frames[2], reply.frames[3])]


def test_version_of_a_deleted_vector_is_never_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(0, 400, 4))  # all of shard 0
    last = numbers[-1]
    with worker(tmp_path, [0, 2]) as first, worker(tmp_path, [1, 3]) as second:
        put(first, numbers, 1)
        put(second, [1], 1)
        first.wait_indexed()
        second.wait_indexed()
    with worker(tmp_path, [0, 2]) as first:
        delete(first, last)
    with monkeypatch.context() as killed:
        killed.setattr(Indexing, "save", lambda _: None)
        with worker(tmp_path, [1, 0, 2, 3]) as one:
            put(one, [last], 2)
            assert of_generation(one, last, 2) == [last]
    with worker(tmp_path, [0, 2]) as first:
        assert of_generation(first, last, 2) == [last]
        assert of_generation(first, last, 1) != [last]


def test_snapshot_newer_than_the_store_of_a_shard_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store was restored from a copy: it gives versions again that the snapshot has seen."""
    with worker(tmp_path, [0]) as one:
        put(one, [0, 4, 8], 1)
    shutil.copytree(tmp_path / "shards", tmp_path / "copy")
    with worker(tmp_path, [0]) as one:
        put(one, [12], 1)
        one.wait_indexed()
    shutil.rmtree(tmp_path / "shards")
    (tmp_path / "copy").rename(tmp_path / "shards")
    monkeypatch.setattr(Indexing, "save", lambda _: None)
    with worker(tmp_path, [0]) as one:
        put(one, [12], 2)
    with caplog.at_level(logging.WARNING, "triptych"), worker(tmp_path, [0]) as one:
        assert of_generation(one, 12, 2) == [12]
    assert not list((tmp_path / "vector-index").rglob("rows"))


def test_highest_version_is_on_the_disk_before_a_snapshot_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, write = Store.sync, snapshot.write
    monkeypatch.setattr(Store, "sync", lambda store: (order.append("sync"), sync(store))[1])
    monkeypatch.setattr(snapshot, "write", lambda *rest: (order.append("snapshot"), write(*rest))[1])
    with worker(tmp_path, [0, 1]) as one:
        put(one, range(8), 1)
        one.wait_indexed()
        order.clear()
    assert order[:3] == ["sync", "sync", "snapshot"]


def saved(tmp_path: Path) -> Path:
    """The directory of a snapshot of 600 vectors with attributes, whose store is closed."""
    shard = OneShard(tmp_path)
    rows = [{"n": row % 7, "text": f"t{row % 5}", "share": row / 600} for row in range(600)]
    shard.write([f"{row:05d}" for row in range(600)], clustered(600, 8), rows)
    shard.wait_indexed()
    shard.close()
    return tmp_path / "vector-index" / "000001"


def flip(directory: Path, place: int) -> Path:
    """One bit of the byte at a place, counted over all files."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            if place < size:
                content = bytearray(path.read_bytes())
                content[place] ^= 1 << place % 8
                path.write_bytes(content)
                return path
            place -= size
    raise IndexError(place)


def test_no_flipped_byte_of_a_snapshot_is_taken_for_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = saved(tmp_path)
    assert snapshot.read(LocalObjects(directory), 0, COSINE) is not None
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    small = sum(path.stat().st_size for path in directory.rglob("shards"))
    choice = random.Random(7)
    places = [choice.randrange(size) for _ in range(PLACES - small)]
    places += range(size - small, size)  # the smallest file is the last one, and is tried whole
    for number, place in enumerate(places):
        copy = tmp_path / "copy" / str(number)
        shutil.copytree(directory, copy)
        path = flip(copy, place)
        assert any(finding.path.parent == path.parent for finding in check.check_index(copy.parent)), (place, path)
        caplog.clear()
        assert snapshot.read(LocalObjects(copy), 0, COSINE) is None, (place, path)
        assert sum("building anew" in record.message for record in caplog.records) == 1
        shutil.rmtree(copy, ignore_errors=True)
    assert len(places) == PLACES


@pytest.mark.parametrize("kind", ["index", "attributes", "rows", "shards"])
def test_damaged_file_of_a_snapshot_changes_no_answer(tmp_path: Path, kind: str) -> None:
    (path,) = [path for path in saved(tmp_path).rglob("*") if path.name.endswith(kind)]
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 3, len(content), max(1, len(content) // 20)):
        content[place] ^= 0x10
    path.write_bytes(content)
    shard = OneShard(tmp_path)
    vectors = clustered(600, 8)
    for row in (3, 77, 599):
        condition = Condition(
            "and",
            children=(
                Condition("eq", "n", (row % 7,)),
                Condition("eq", "text", (f"t{row % 5}",)),
                Condition("lte", "share", (row / 600,)),
            ),
        )
        assert shard.ids(vectors[row], 1, filter=condition) == [f"{row:05d}"]
        chosen = [n for n in range(row + 1) if n % 7 == row % 7 and n % 5 == row % 5]
        assert sorted(shard.ids(vectors[row], 600, filter=condition)) == [f"{n:05d}" for n in chosen]
    shard.wait_indexed()
    shard.close()
    (again,) = tmp_path.glob("vector-index/000001/0")
    assert snapshot.verified(LocalObjects(again)).collection == COSINE


def test_columns_of_another_length_or_kind_are_refused() -> None:
    rows = attributes_module.Attributes()
    rows.append(0, [msgspec.msgpack.encode({"a": "x", "n": 1})] * 5)
    good = msgspec.msgpack.decode(rows.save(5))

    def restored(**changed: object) -> None:
        attributes_module.Attributes.restore(msgspec.msgpack.encode({**good, **changed}), 5)

    restored()
    kinds, bits, texts, *no_elements = good["a"]
    assert no_elements == [b"", b"", b""]
    for wrong in ([kinds[:4], bits, texts], [kinds, bits[:32], texts], [kinds, bits, []], [kinds, bits, ["x", "x"]]):
        with pytest.raises(ValueError, match="a column has"):
            restored(a=wrong)
    with pytest.raises(ValueError, match="unknown kind"):
        restored(n=[b"\x09" * 5, bits, []])
    with pytest.raises(ValueError, match="cannot be read"):
        restored(n=7)


def test_index_file_of_another_dimension_or_of_more_rows_is_refused(tmp_path: Path) -> None:
    index = Graph(8, "cosine", "f32")
    index.add(np.arange(5), np.ones((5, 8), np.float32))
    index.save(tmp_path / "file")
    Graph(8, "cosine", "f32").load(tmp_path / "file", 5)
    with pytest.raises(ValueError, match="at most 4 rows"):
        Graph(8, "cosine", "f32").load(tmp_path / "file", 4)
    with pytest.raises(ValueError, match="16 components"):
        Graph(16, "cosine", "f32").load(tmp_path / "file", 5)


def test_a_graph_of_an_earlier_release_is_not_taken_for_lists(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The lists are made anew from the stores. Where a graph is asked for, it is used as it is."""
    vectors = clustered(50, 8)
    lists, graph = Collection(1, "c", 8, "cosine"), Collection(1, "c", 8, "cosine", index="graph")
    table = Table(graph)
    table.append([b"%d" % row for row in range(50)], vectors, np.arange(1, 51, dtype=np.uint64), 0, [b""] * 50, ())
    rows, own, _ = table.index_slice(50)
    table.view.index.add(rows, own)
    table.advance(50)
    for written, read, is_used in ((lists, lists, False), (graph, graph, True), (graph, lists, False)):
        place = LocalObjects(tmp_path / f"{written.kind_of_index}-{read.kind_of_index}")
        snapshot.write(place, snapshot.Saving(written, table.view, {0: 50}))
        assert (snapshot.read(place, 0, read) is not None) is is_used
    first, second = [str(record.fields["why"]) for record in caplog.records]  # type: ignore[attr-defined]
    assert "is an index of another kind" in first
    assert "index='graph'" in second


@pytest.mark.parametrize(
    ("kept", "why"),
    [(None, "it says 0, and a vector has version 2"), ((1).to_bytes(8, "little"), "says 1"), (b"2", "bytes")],
)
def test_a_store_whose_highest_version_is_below_a_vectors_is_refused(
    tmp_path: Path, kept: bytes | None, why: str
) -> None:
    shard = OneShard(tmp_path)
    shard.write(["a", "b"], np.eye(8)[:2])
    assert stored_rows.highest_version(shard.store, COSINE.id) == 2
    batch = shard.store.batch()
    if kept is None:
        batch.delete(stored_rows.META, stored_rows.HIGHEST + b"1")
    else:
        batch.put(stored_rows.META, stored_rows.HIGHEST + b"1", kept)
    shard.store.write(batch)
    with pytest.raises(StoreDamaged, match=why):
        shard.reopen()


def test_dropped_collections_snapshot_is_removed_also_when_a_worker_wrote_it_late(tmp_path: Path) -> None:
    saved(tmp_path)
    shutil.copytree(tmp_path / "vector-index", tmp_path / "late")
    shard = OneShard(tmp_path)
    shard.call("vector.drop", messages.CollectionBody(Collection(1, "", 1, "")))
    assert not list((tmp_path / "vector-index").glob("*"))
    shutil.copytree(tmp_path / "late", tmp_path / "vector-index", dirs_exist_ok=True)
    shard.reopen()
    assert not list((tmp_path / "vector-index").glob("*"))
    assert shard.damage.texts("vector") == DamageReport().texts("vector")
    shard.close()

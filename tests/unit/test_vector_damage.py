"""Damaged rows are left out and said; a failed drop leaves nothing half there; counts and filters stay true."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import pytest

from shared import wire
from shared.errors import NotFound, Unavailable
from shared.messages import vectors as messages
from shared.messages.vectors import Collection, Condition
from shared.settings import Settings
from tests.unit.selected_vectors import selected
from tests.unit.test_vector_changes import updated
from tests.unit.test_vector_shards import COLLECTION, Worker, worker
from tests.unit.test_vector_snapshots import ask, put
from tests.unit.vector_shard import COSINE, OneShard
from worker.damage import DamageReport
from worker.storage.rows.store import Store, StoreBatch
from worker.vectors import attribute_index as runs
from worker.vectors import loading as loading_module
from worker.vectors import stored_rows
from worker.vectors.attributes import Attributes
from worker.vectors.indexing import Indexing
from worker.vectors.part import KNOWN, VectorPart

EYE = np.eye(8, dtype=np.float32)
WHOLE = (1).to_bytes(8, "little") + EYE[0].tobytes()
DAMAGED = {
    "empty": b"",
    "short": WHOLE[:-1],
    "not finite": WHOLE[:-4] + np.float32(np.nan).tobytes(),
    "attributes cut": WHOLE + msgspec.msgpack.encode({"name": "value"})[:-2],
    "attributes of another shape": WHOLE + msgspec.msgpack.encode({"name": [[1]]}),
    "attributes that are no map": WHOLE + b"\x07",
}


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    shard = OneShard(tmp_path)
    yield shard
    shard.close()


def store_row(shard: OneShard, name: bytes, value: bytes) -> None:
    batch = shard.store.batch()
    batch.put(stored_rows.FAMILY, stored_rows.prefix(COSINE.id) + name, value)
    shard.store.write(batch)


def got(shard: OneShard, *names: str) -> list[str]:
    part = messages.pack_blobs([name.encode() for name in names])
    reply = shard.call("vector.get", messages.IdsBody(COSINE), part=part)
    return [name.decode() for name in messages.unpack_blobs(reply.frames[0], reply.frames[1])]


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_row_is_missing_and_said_and_the_others_are_there(shard: OneShard, kind: str) -> None:
    shard.write(["a", "b", "c"], EYE[:3], [{"n": 1}] * 3)
    store_row(shard, b"b", DAMAGED[kind])
    shard.reopen()
    (text,) = shard.damage.texts("vector")
    assert "'default'" in text
    assert "'b'" in text
    assert shard.ids(EYE[1], 9) == ["a", "c"]
    assert shard.ids(EYE[1], 9, filter=Condition("eq", "n", (1,))) == ["a", "c"]
    assert got(shard, "a", "b", "c") == ["a", "c"]
    assert shard.vectors.counts()["vectors"] == 2


def test_rows_written_while_a_collection_with_a_damaged_vector_is_rebuilt_are_brought_over(
    shard: OneShard, tmp_path: Path
) -> None:
    shard.write(["a", "b", "c"], EYE[:3])
    store_row(shard, b"b", b"")
    shard.reopen()
    collection = shard.vectors.engine.find(COSINE.id)
    assert collection is not None
    rebuilding = Indexing(collection, tmp_path / "aside", Settings()).compact()
    next(rebuilding)
    shard.write(["d"], EYE[3:4])
    rest = Thread(target=lambda: list(rebuilding), daemon=True)
    rest.start()
    rest.join(20)
    assert not rest.is_alive()
    shard.write(["e"], EYE[4:5])
    assert got(shard, "a", "b", "c", "d", "e") == ["a", "c", "d", "e"]
    assert shard.ids(EYE[3], 1) == ["d"]


def test_damage_is_said_again_when_the_shard_is_loaded_again(shard: OneShard) -> None:
    """As after a load that another collection has made fail."""
    shard.write(["x", "y"], EYE[:2])
    shard.reopen()
    store_row(shard, b"y", DAMAGED["short"])
    shard.reopen()
    for _ in range(2):
        assert got(shard, "x", "y") == ["x"]
        [text] = shard.damage.texts("vector")
        assert "1 such as 'y'" in text
        shard.vectors.unload()
        shard.damage = DamageReport()
        shard.vectors = VectorPart(shard.store, shard.vectors.engine, 0, shard.damage)
        shard.vectors.load()


def test_row_whose_id_is_not_text_is_missing_and_said(shard: OneShard) -> None:
    shard.write(["a"], EYE[:1])
    store_row(shard, b"\xff", WHOLE)
    shard.reopen()
    assert len(shard.damage.texts("vector")) == 1
    assert shard.ids(EYE[0], 9) == ["a"]


def test_damaged_vector_is_whole_again_once_it_is_written_and_gone_once_it_is_deleted(shard: OneShard) -> None:
    shard.write(["a", "b", "c"], EYE[:3])
    store_row(shard, b"b", b"")
    store_row(shard, b"c", b"")
    shard.reopen()
    shard.write(["b"], EYE[1:2])
    assert shard.delete(["c"]) == 1
    assert got(shard, "a", "b", "c") == ["a", "b"]
    shard.reopen()
    assert shard.damage.texts("vector") == []
    assert shard.ids(EYE[1], 9) == ["b", "a"]


def test_row_damaged_after_the_start_is_missing_from_reads_and_said(shard: OneShard) -> None:
    shard.write(["a", "b"], EYE[:2])
    store_row(shard, b"b", b"\x01")
    assert got(shard, "a", "b") == ["a"]
    assert len(shard.damage.texts("vector")) == 1


def test_damaged_description_of_a_collection_is_said_and_healed_by_the_next_write(shard: OneShard) -> None:
    other = Collection(2, "other", 8, "l2")
    shard.write(["a"], EYE[:1])
    shard.write(["x"], EYE[:1], into=other)
    batch = shard.store.batch()
    batch.put("meta", KNOWN + b"1", b"\x01\x02")
    shard.store.write(batch)
    shard.reopen()
    (text,) = shard.damage.texts("vector")
    assert "vector/collection/1" in text
    assert shard.ids(EYE[0], 9, other) == ["x"]
    shard.write(["b"], EYE[1:2])
    assert shard.ids(EYE[0], 9) == ["a", "b"]
    shard.reopen()
    assert shard.damage.texts("vector") == []


def test_changes_find_the_vectors_of_a_collection_whose_description_is_damaged(shard: OneShard) -> None:
    red, blue = Condition("eq", "colour", ("red",)), Condition("eq", "colour", ("blue",))
    rows = {"a": "red", "b": "red", "c": "blue", "d": "blue"}
    shard.write(list(rows), EYE[:4], [{"colour": colour} for colour in rows.values()])
    for change, left in (
        (lambda: shard.delete(["a", "nowhere"]), ["b", "c", "d"]),
        (lambda: selected(shard, "vector.delete_matching", filter=red).count, ["c", "d"]),
        (lambda: updated(shard, by=Condition("exists", "colour"), colour="blue") - 1, ["c", "d"]),
        (lambda: updated(shard, "c", colour="blue"), ["c", "d"]),
    ):
        batch = shard.store.batch()
        batch.put("meta", KNOWN + b"1", b"\x01\x02")
        shard.store.write(batch)
        shard.reopen()
        assert change() == 1
        assert got(shard, *rows) == left
        shard.reopen()
        assert shard.damage.texts("vector") == []
        assert got(shard, *rows) == left
    assert selected(shard, "vector.count", filter=blue).count == 2


def test_a_change_is_repeated_after_a_load_that_ended_half_way(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write(list("abcd"), EYE[:4])
    batch = shard.store.batch()
    batch.put("meta", KNOWN + b"1", b"\x01\x02")
    shard.store.write(batch)
    shard.reopen()
    monkeypatch.setattr(loading_module, "LOAD_ROWS", 2)
    scan = shard.store.scan

    def broken(family: str, *area: Any, **order: Any) -> Iterator[tuple[bytes, bytes]]:
        rows = scan(family, *area, **order)
        if family != stored_rows.FAMILY:
            yield from rows
            return
        yield from islice(rows, 3)
        raise Unavailable("the disk does not answer")

    with monkeypatch.context() as while_broken:
        while_broken.setattr(shard.store, "scan", broken)
        with pytest.raises(Unavailable, match="the disk does not answer"):
            shard.delete(["a"])
    assert shard.delete(["a"]) == 1
    assert sorted(shard.ids(EYE[0], 9)) == ["b", "c", "d"]
    assert selected(shard, "vector.count", filter=None).count == shard.vectors.counts()["vectors"] == 3


# Drops


def drop(one: Worker) -> dict[int, str]:
    return dict(ask(one, "vector.drop", messages.CollectionBody(COLLECTION)).shard_errors)


def test_shard_that_cannot_drop_a_collection_keeps_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(tmp_path, [0, 1]) as one:
        put(one, [0, 1, 4, 5], 1)
        refuse_writes_of(monkeypatch, one.stores[1])
        assert drop(one) == {1: "the disk is full"}
        monkeypatch.undo()
        assert one.vectors() == {0: 0, 1: 2}
        assert one.search(1, 9) == [1, 5]
        with pytest.raises(NotFound):
            one.shards[0].vectors.open(COLLECTION)
        one.shards[1].vectors.open(COLLECTION).upsert(1, [b"0009"], EYE[:1], [b""])
        assert one.vectors() == {0: 0, 1: 3}
        assert drop(one) == {}
        assert one.vectors() == {0: 0, 1: 0}
        assert one.search(1, 9) == []
    with worker(tmp_path, [0, 1]) as one:
        assert one.search(1, 9) == []
        assert all(not list(store.scan("vectors")) for store in one.stores.values())
        assert [shard.vectors.collections().dropped for shard in one.shards.values()] == [[1], [1]]


def refuse_writes_of(monkeypatch: pytest.MonkeyPatch, refusing: Store) -> None:
    write = Store.write

    def refused(store: Store, batch: StoreBatch, **options: bool) -> None:
        if store is refusing:
            raise Unavailable("the disk is full")
        write(store, batch, **options)

    monkeypatch.setattr(Store, "write", refused)


def test_late_drop_leaves_a_collection_of_the_same_name_alone(shard: OneShard) -> None:
    again = Collection(2, COSINE.name, 8, "cosine")
    shard.write(["old"], EYE[:1])
    shard.write(["new"], EYE[:1], into=again)
    for _ in range(2):
        assert shard.ids(EYE[0], 9, again) == ["new"]
        shard.call("vector.drop", messages.CollectionBody(COSINE))
        shard.call("vector.drop", messages.CollectionBody(COSINE))
        assert shard.ids(EYE[0], 9, again) == ["new"]
        assert shard.ids(EYE[0], 9) == []
        shard.reopen()


def test_shard_says_which_collections_it_has_and_which_it_dropped(shard: OneShard) -> None:
    other = Collection(7, "other", 8, "l2")
    shard.write(["a"], EYE[:1])
    shard.write(["a"], EYE[:1], into=other)
    shard.call("vector.drop", messages.CollectionBody(COSINE))
    for _ in range(2):
        reply = wire.unpack(
            shard.call("vector.collections", messages.VectorCountReply(0)).body, messages.CollectionsReply
        )
        assert reply.shards == [messages.ShardCollections(0, [other], [1])]
        shard.reopen()


# Counts and filters


def test_counts_after_deletions_of_indexed_and_waiting_vectors(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([f"{row}" for row in range(8)], EYE)
    shard.wait_indexed()
    monkeypatch.setattr("worker.vectors.indexing.Indexing.index_step", lambda _: False)
    shard.write(["8", "9", "a", "b"], EYE[:4])
    assert shard.delete(["0", "1", "9", "unknown"]) == 3
    shard.write(["2", "a"], EYE[:2])
    assert shard.vectors.counts() == {"vectors": 9, "vectors_to_index": 4}
    (stats,) = shard.vectors.engine.stats()
    assert (stats.vectors, stats.indexed, stats.dead) == (9, 8, 5)
    assert len(shard.ids(EYE[0], 99)) == 9
    shard.reopen()
    assert shard.vectors.counts()["vectors"] == 9
    assert shard.vectors.engine.stats()[0].vectors == 9


@pytest.mark.parametrize("distinct", [5, 200], ids=["bitmaps", "sorted rows"])
def test_indexed_integers_are_compared_with_a_fraction(monkeypatch: pytest.MonkeyPatch, distinct: int) -> None:
    values = np.random.default_rng(3).integers(-distinct // 2, distinct, 5000)
    rows = Attributes()
    rows.append(0, [msgspec.msgpack.encode({"n": value}) for value in values.tolist()])
    rows.build_index(5000)
    monkeypatch.setattr(runs, "WIDE_SHARE", 0)  # so that the index answers, not the column
    for edge in (2.5, 2.0, -0.5, -1.5):
        expected = {"gte": values >= edge, "gt": values > edge, "lt": values < edge, "lte": values <= edge}
        for op, mask in expected.items():
            condition = Condition(op, "n", (edge,))
            assert (rows.mask(condition, 5000) == mask).all(), (op, edge)
            assert rows._estimate(condition, rows._index) == np.count_nonzero(mask)
    assert not rows.mask(Condition("eq", "n", (2.5,)), 5000).any()

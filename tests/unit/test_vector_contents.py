"""What answers about vectors show, and the snapshots and rows that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from shared import wire
from shared.errors import TooLarge
from shared.messages import vectors as messages
from shared.messages.vectors import Collection, Condition, SearchBody, pack_blobs, unpack_blobs
from shared.wire import Reply
from tests.unit.vector_shard import COSINE, OneShard
from worker.methods import vectors as methods
from worker.storage.objects import LocalObjects
from worker.vectors import fields, part, snapshot
from worker.vectors import loading as loading_module
from worker.vectors.attribute_column import AttributeColumn
from worker.vectors.attribute_index import build
from worker.vectors.attributes import Attributes
from worker.vectors.indexing import Indexing
from worker.vectors.loading import Loading
from worker.vectors.stored_rows import READ_AT_ONCE, Columns

EYE = np.eye(8, dtype=np.float32)
ATTRIBUTES = [{"n": 1, "word": "one"}, {"n": 2}, {}]


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    """The ids a, b and c; the first vector is the nearest to itself, then they follow in order."""
    opened = OneShard(tmp_path)
    opened.write(["a", "b", "c"], np.array([EYE[0], EYE[0] + EYE[1], EYE[1]]), ATTRIBUTES)
    yield opened
    opened.close()


def shown(frames: Any) -> tuple[list[str], list[dict], int]:
    """(ids, attributes, vectors) of the frames from the ids on."""
    names, packed = unpack_blobs(*frames[:2]), unpack_blobs(*frames[2:4])
    attributes = [msgspec.msgpack.decode(own) if own else {} for own in packed]
    return [name.decode() for name in names], attributes, len(frames[4]) // 32


def searched(shard: OneShard, k: int = 3, **options: Any) -> tuple[list[int], list[str], list[dict], int]:
    queries = np.array([EYE[0], EYE[1]])
    reply: Reply = shard.call("vector.search", SearchBody(COSINE, k, exact=True, **options), frames=[queries.tobytes()])
    counts = np.frombuffer(reply.frames[0], np.int32).tolist()
    assert len(reply.frames[1]) == 4 * sum(counts)
    return counts, *shown(reply.frames[2:])


def got(shard: OneShard, *ids: str, **options: Any) -> tuple[list[str], list[dict], int]:
    asked = pack_blobs([name.encode() for name in ids])
    reply: Reply = shard.call("vector.get", messages.IdsBody(COSINE, **options), part=asked)
    names, attributes, vectors = shown(reply.frames)
    assert wire.unpack(reply.body, messages.VectorCountReply).count == len(names)
    return names, attributes, vectors


def test_a_search_shows_the_fields_that_are_asked_for(shard: OneShard) -> None:
    names = ["a", "b", "c", "c", "b", "a"]
    one, two, three = ATTRIBUTES
    assert searched(shard) == ([3, 3], names, [one, two, three, three, two, one], 6)
    assert searched(shard, k=1, fields=("word", "vector")) == ([1, 1], ["a", "c"], [{"word": "one"}, {}], 2)
    assert searched(shard, k=1, fields=("n",)) == ([1, 1], ["a", "c"], [{"n": 1}, {}], 0)
    assert searched(shard, k=1, fields=()) == ([1, 1], ["a", "c"], [], 0)


def test_an_id_that_is_deleted_after_the_search_is_left_out_of_what_is_shown(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shard.vectors.engine.find(1)
    assert own is not None
    contents_of = own.contents_of

    def one_is_gone(names: list[bytes], shards: list[int]) -> list[tuple[bytes, bytes] | None]:
        return [None if name == b"b" else found for name, found in zip(names, contents_of(names, shards), strict=True)]

    monkeypatch.setattr(own, "contents_of", one_is_gone)
    assert searched(shard, k=2)[:2] == ([1, 1], ["a", "c"])
    assert searched(shard, k=3)[:2] == ([2, 2], ["a", "c", "c", "a"])
    assert searched(shard, k=2, fields=())[:2] == ([2, 2], ["a", "b", "c", "b"])


def test_vectors_are_got_by_their_ids_and_missing_ones_left_out(shard: OneShard) -> None:
    assert got(shard, "c", "x", "a") == (["c", "a"], [{}, ATTRIBUTES[0]], 2)
    assert got(shard, "a", "b", fields=("n",)) == (["a", "b"], [{"n": 1}, {"n": 2}], 0)
    assert got(shard, "a", fields=()) == (["a"], [{}], 0)
    assert got(shard) == ([], [], 0)
    unknown = shard.call("vector.get", messages.IdsBody(Collection(9, "z", 8, "dot")), part=pack_blobs([b"a"]))
    assert shown(unknown.frames) == ([], [], 0)


def test_a_read_of_too_many_bytes_is_refused(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    assert got(shard, "a", "b", "c", bytes_max=3 * 32 + 100)[2] == 3
    assert got(shard, "a", "b", "c", fields=(), bytes_max=20)[2] == 0
    monkeypatch.setattr(methods, "READ_AT_ONCE", 1)
    with pytest.raises(TooLarge, match="the vectors of the 3 ids have more than 20 bytes"):
        got(shard, "a", "b", "c", bytes_max=20, ids_total=3)


def test_a_read_of_too_many_bytes_ends_soon(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"n{n:03d}" for n in range(100)]
    shard.write(names, np.ones((100, 8)), [{"text": "x" * 1000}] * 100)
    own = shard.vectors.engine.find(1)
    assert own is not None
    contents = own.contents
    read: list[int] = []

    def noted(number: int, ids: list[bytes]) -> Any:
        read.append(len(ids))
        return contents(number, ids)

    monkeypatch.setattr(own, "contents", noted)
    with pytest.raises(TooLarge):
        got(shard, *names, bytes_max=40_000, ids_total=100)
    assert sum(read) < 40 + READ_AT_ONCE


def test_a_start_holds_few_vectors_with_large_attributes_at_once(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{n:03d}" for n in range(100)]
    shard.write(names, np.ones((100, 8)), [{"text": "x" * 1000}] * 100)
    monkeypatch.setattr(loading_module, "LOAD_BYTES", 10_000)
    load_batch = Loading.load_batch
    loaded: list[int] = []

    def noted(own: Loading, number: int, batch: Columns) -> None:
        loaded.append(len(batch.ids))
        load_batch(own, number, batch)

    monkeypatch.setattr(Loading, "load_batch", noted)
    shard.reopen()
    assert sum(loaded) == 100 + len(ATTRIBUTES)
    assert max(loaded) <= 10 + len(ATTRIBUTES)
    assert got(shard, *names)[0] == names


def test_a_large_write_is_written_in_slices(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "WRITTEN_AT_ONCE", 2)
    shard.write(list("defgh"), np.array([EYE[n] for n in range(5)]), [{"n": n} for n in range(5)])
    assert got(shard, *"defgh", fields=("n",)) == (list("defgh"), [{"n": n} for n in range(5)], 0)
    assert [shard.ids(EYE[n], 1, exact=True) for n in (2, 3, 4)] == [["f"], ["g"], ["h"]]


def test_fields_are_chosen_from_what_there_is() -> None:
    packed = msgspec.msgpack.encode({"a": 1, "b": 2})
    assert fields.chosen(packed, None) == packed
    assert fields.chosen(packed, ()) == b""
    assert fields.chosen(b"", ("a",)) == b""
    assert msgspec.msgpack.decode(fields.chosen(packed, ("b", "c"))) == {"b": 2}


def test_rows_are_estimated_by_the_index_of_a_field() -> None:
    texts, numbers = AttributeColumn(), AttributeColumn()
    texts.put(range(5), list("abcab"))
    numbers.put(range(5), [0, 1, 2, 0, 1])
    index = build({"text": texts, "number": numbers}, 5)

    def estimated(field: str, op: str, *values: Any) -> int:
        column = texts if field == "text" else numbers
        return index.estimate(Condition(op, field, values), column)

    assert [estimated("text", "eq", "a"), estimated("text", "in", "a", "c"), estimated("text", "eq", "z")] == [2, 3, 0]
    assert [estimated("text", "lt", "b"), estimated("number", "lt", "b"), estimated("none", "lt", "b")] == [5, 0, 0]
    assert [estimated("number", "lt", 2), estimated("number", "gte", 1), estimated("number", "eq", 0)] == [4, 3, 2]


# Snapshots


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The directory of a snapshot."""
    own = OneShard(tmp_path)
    own.write(["a", "b"], EYE[:2], [{"n": 1}, {}])
    own.wait_indexed()
    own.close()
    return tmp_path / "vector-index" / "000001" / "0"


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """Change the list of rows, with a checksum that is right."""
    listed = msgspec.msgpack.decode((path / snapshot.ROWS).read_bytes()[8:], type=snapshot._List)
    change(listed)
    body = msgspec.msgpack.encode(listed)
    (path / snapshot.ROWS).write_bytes(xxhash.xxh3_64_digest(body) + body)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("format", 5, "of format 5"),
        ("versions", bytes(24), "24 bytes of versions"),
        ("lengths", bytes(9), "16 bytes of versions"),
        ("joined", b"abc", "3 bytes, but their lengths add up to another number"),
        ("highest", {0: 2, 1: 5}, r"shards \[0, 1\]"),
        ("index_checksum", 7, "fails its checksum"),
        ("attributes_checksum", 7, "fails its checksum"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_not_used(saved: Path, field: str, value: Any, why: str) -> None:
    assert snapshot.verified(LocalObjects(saved)).format == snapshot.FORMAT
    rewrite(saved, lambda listed: setattr(listed, field, value))
    with pytest.raises(ValueError, match=why):
        snapshot.verified(LocalObjects(saved))
    assert snapshot.read(LocalObjects(saved.parent), 0, COSINE) is None


@pytest.mark.parametrize("earlier", [1, 2])
def test_a_snapshot_of_an_earlier_release_is_whole_but_made_anew(
    saved: Path, earlier: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its index may lack vectors that were written while others were indexed."""
    rewrite(saved, lambda listed: setattr(listed, "format", earlier))
    assert snapshot.verified(LocalObjects(saved)).format == earlier
    assert snapshot.read(LocalObjects(saved.parent), 0, COSINE) is None
    assert [str(record.fields["why"]) for record in caplog.records] == [  # type: ignore[attr-defined]
        f"it is of format {earlier}, of an earlier release, whose indexes may lack vectors"
    ]


def test_a_snapshot_of_another_collection_or_shard_is_not_used(saved: Path) -> None:
    assert snapshot.read(LocalObjects(saved.parent), 0, COSINE) is not None
    assert snapshot.read(LocalObjects(saved.parent), 0, msgspec.structs.replace(COSINE, name="other")) is None
    assert snapshot.read(LocalObjects(saved.parent), 1, COSINE) is None


@pytest.mark.parametrize("content", [b"{", b'{"highest":{"0":2},"checksum":""}', b'{"highest":{}}'])
def test_a_list_of_shards_that_is_damaged_is_refused_and_its_snapshot_removed(saved: Path, content: bytes) -> None:
    (saved / snapshot.SHARDS).write_bytes(content)
    with pytest.raises(ValueError, match=snapshot.SHARDS):
        snapshot.shards_of(LocalObjects(saved))
    assert snapshot.read(LocalObjects(saved.parent), 0, COSINE) is None
    assert not saved.exists()


def test_a_list_of_rows_in_another_form_is_refused(saved: Path) -> None:
    body = msgspec.msgpack.encode({"format": 4})
    (saved / snapshot.ROWS).write_bytes(xxhash.xxh3_64_digest(body) + body)
    with pytest.raises(ValueError, match="another format"):
        snapshot.verified(LocalObjects(saved))


# A shard's collections


@pytest.mark.parametrize("key", [b"1", b"2"])
def test_a_description_that_makes_no_sense_is_said_and_the_others_are_loaded(tmp_path: Path, key: bytes) -> None:
    shard = OneShard(tmp_path)
    shard.write(["a"], EYE[:1])
    other = Collection(3, "other", 8, "dot")
    shard.write(["b"], EYE[:1], into=other)
    batch = shard.store.batch()
    wrong = b"\xc1" if key == b"1" else msgspec.msgpack.encode(COSINE)
    batch.put(part.META, part.KNOWN + key, wrong)
    shard.store.write(batch)
    shard.reopen()
    [text] = shard.damage.texts("vector")
    assert key.decode() in text and ("it says collection 1" in text) == (key == b"2")
    assert shard.ids(EYE[0], 1, other) == ["b"]
    assert shard.ids(EYE[0], 1) == ([] if key == b"1" else ["a"])
    shard.write(["c"], EYE[:1])  # brings its description, and its vectors are found again
    assert sorted(shard.ids(EYE[0], 2)) == ["a", "c"]
    shard.close()


def test_a_drop_of_what_never_came_here_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = OneShard(tmp_path)
    durable: list[bool] = []
    write = shard.store.write
    monkeypatch.setattr(
        shard.store, "write", lambda batch, **options: durable.append(options["durable"]) or write(batch, **options)
    )
    for _ in range(2):
        shard.vectors.drop(COSINE)
    assert durable == [True]
    shard.reopen()
    assert shard.vectors.collections().dropped == [1]
    shard.close()


def test_a_shard_whose_loading_failed_is_forgotten_and_may_come_again(shard: OneShard) -> None:
    shard.vectors.unload()
    assert shard.vectors.engine._stores == {}
    assert shard.vectors.counts()["vectors"] == 0
    shard.vectors.load()
    assert shard.ids(EYE[0], 1) == ["a"]


def test_an_index_whose_saving_fails_stops_no_other(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.write(["z"], EYE[:1], into=Collection(2, "other", 8, "dot"))
    asked: list[int] = []

    def save(self: Indexing) -> None:
        asked.append(self.collection.collection.id)
        raise OSError("the disk is full")

    monkeypatch.setattr(Indexing, "save", save)
    shard.vectors.close()
    assert sorted(asked) == [1, 2]


def test_a_field_that_no_row_has_is_unknown_where_it_is_compared_and_not_where_it_is_asked_for() -> None:
    attributes = Attributes()
    attributes.append(0, [msgspec.msgpack.encode({"n": 1})])

    def of(condition: Condition) -> set[str]:
        return attributes.unknown(condition)

    assert of(Condition("eq", "n", (1,))) == of(Condition("exists", "none")) == set()
    both = Condition("and", children=(Condition("eq", "none", (1,)), Condition("exists", "nothing")))
    assert of(both) == {"none"}

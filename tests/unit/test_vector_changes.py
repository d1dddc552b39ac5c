"""Deletes by filter and updates of attributes in one worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from shared import wire
from shared.errors import BadData
from shared.messages import selected_vectors as messages
from shared.messages.vectors import Condition, pack_blobs
from tests.unit.selected_vectors import RED, fill, page, scroll, selected, some_rows
from tests.unit.vector_shard import COSINE, OneShard
from worker.vectors import changes, paging
from worker.vectors.selection import Selection
from worker.vectors.stored_rows import READ_AT_ONCE


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    opened = OneShard(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("slice_ids", [2, 2000])
def test_a_delete_by_filter_deletes_the_selected_vectors_for_good(
    shard: OneShard, slice_ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SLICE_IDS", slice_ids)
    rows = some_rows(60)
    fill(shard, rows)
    red = [name for name, row in rows.items() if row["colour"] == "red"]
    assert selected(shard, "vector.delete_matching", filter=RED).count == len(red)
    assert selected(shard, "vector.delete_matching", filter=RED).count == 0
    shard.reopen()
    assert {p.id.decode() for p in scroll(shard, 100)} == rows.keys() - set(red)


def updated(
    shard: OneShard, *names: str, unset: tuple[str, ...] = (), by: Condition | None = None, **values: Any
) -> int:
    body = messages.UpdateBody(COSINE, by, msgspec.msgpack.encode(values) if values else b"", unset)
    part = pack_blobs([name.encode() for name in names]) if names else ()
    reply = shard.call("vector.update", body, part=part)
    return wire.unpack(reply.body, messages.SelectedReply).count


def stored(shard: OneShard, name: str) -> tuple[bytes, dict[str, Any]]:
    own = shard.vectors.engine.find(1)
    assert own is not None
    [content] = own.contents(0, [name.encode()])
    assert content is not None
    return content[0], msgspec.msgpack.decode(content[1]) if content[1] else {}


def test_changes_are_on_the_disk_before_their_answer(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shard, {name: {"colour": "red"} for name in "ab"})
    synced: list[list[bytes]] = []
    sync = shard.vectors.sync

    def then_looked_at() -> None:
        sync()
        synced.append([p.id for p in paging.page(whole(shard), "colour", None, 5, descending=False)])

    monkeypatch.setattr(shard.vectors, "sync", then_looked_at)
    assert updated(shard, "a", unset=("colour",)) == 1
    assert selected(shard, "vector.delete_matching", filter=RED).count == 1
    assert synced == [[b"b", b"a"], [b"a"]]


def whole(shard: OneShard) -> Selection:
    own = shard.vectors.engine.find(1)
    assert own is not None
    return Selection(own, [0], None)


@pytest.mark.parametrize("slice_ids", [1, 2000])
def test_an_update_changes_attributes_and_no_vector(
    shard: OneShard, slice_ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SLICE_IDS", slice_ids)
    fill(shard, {name: {"x": 1, "colour": "red"} for name in "abc"})
    before = {name: stored(shard, name)[0] for name in "abc"}
    assert updated(shard, "a", "c", "nowhere", x=2.0, y="new", unset=("colour",)) == 2
    assert selected(shard, "vector.count", filter=Condition("eq", "y", ("new",))).count == 2
    assert selected(shard, "vector.count", filter=RED).count == 1
    shard.reopen()
    assert {name: stored(shard, name) for name in "abc"} == {
        "a": (before["a"], {"x": 2.0, "y": "new"}),
        "b": (before["b"], {"x": 1, "colour": "red"}),
        "c": (before["c"], {"x": 2.0, "y": "new"}),
    }
    assert updated(shard, unset=("x", "y"), by=Condition("eq", "y", ("new",))) == 2
    assert stored(shard, "a") == (before["a"], {})


def test_an_update_that_changes_nothing_writes_nothing(shard: OneShard) -> None:
    fill(shard, {"a": {"x": 1}})
    own = shard.vectors.engine.find(1)
    assert own is not None
    highest = own.highest[0]
    assert updated(shard, "a", x=1, unset=("y",)) == 1
    assert own.highest[0] == highest
    assert updated(shard, "a", x=1.0) == 1
    assert own.highest[0] == highest + 1


def test_an_update_may_not_give_a_vector_too_many_attributes(shard: OneShard) -> None:
    fill(shard, {"a": {f"n{n}": n for n in range(256)}})
    with pytest.raises(BadData, match="'a' would have 257 attributes; at most 256 are kept"):
        updated(shard, "a", one_more=1)
    assert updated(shard, "a", one_more=1, unset=("n0",)) == 1


def test_updates_and_writes_at_the_same_time_are_not_mixed(shard: OneShard) -> None:
    """A write sets a vector and its own attributes; an update must not bring an old vector or old attributes back."""
    names = [f"v{n}" for n in range(20)]
    shard.write(names, np.ones((20, 8)), [{"x": 0, "round": 0}] * 20)
    stopping = threading.Event()

    def update() -> None:
        while not stopping.is_set():
            updated(shard, by=Condition("exists", "round"), seen=True)

    updater = threading.Thread(target=update)
    updater.start()
    try:
        for number in range(1, 60):
            shard.write(names, np.full((20, 8), number), [{"x": number, "round": number}] * 20)
            for name in names:
                vector, attributes = stored(shard, name)
                assert (np.frombuffer(vector, np.float32) == number).all()
                attributes.pop("seen", None)
                assert attributes == {"x": number, "round": number}
    finally:
        stopping.set()
        updater.join()


def test_a_vector_that_stops_matching_is_neither_deleted_nor_updated(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shard, {name: {"colour": "red"} for name in "ab"})
    listed_ids = changes.selected_ids

    def then_it_changes(chosen: Selection, number: int) -> list[bytes]:
        names = listed_ids(chosen, number)
        shard.write(["a"], np.ones((1, 8)), [{"colour": "blue"}])
        return names

    monkeypatch.setattr(changes, "selected_ids", then_it_changes)
    assert updated(shard, by=RED, x=1) == 1
    assert stored(shard, "a")[1] == {"colour": "blue"}
    fill(shard, {"a": {"colour": "red"}})
    assert selected(shard, "vector.delete_matching", filter=RED).count == 1
    assert [p.id for p in scroll(shard, 5)] == [b"a"]


def test_an_update_holds_few_vectors_with_large_attributes_at_once(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shard, {f"{n:03d}": {"text": "x" * 1000} for n in range(150)})
    own = shard.vectors.engine.find(1)
    assert own is not None
    monkeypatch.setattr(changes, "SLICE_BYTES", 40_000)
    upsert = own.upsert
    written: list[int] = []

    def noted(number: int, ids: list[bytes], *content: Any) -> None:
        written.append(len(ids))
        upsert(number, ids, *content)

    monkeypatch.setattr(own, "upsert", noted)
    assert updated(shard, by=Condition("exists", "text"), k=1) == 150
    assert sum(written) == 150
    assert max(written) < 40_000 // 1000 + READ_AT_ONCE
    assert selected(shard, "vector.count", filter=Condition("eq", "k", (1,))).count == 150


def test_an_update_that_sets_a_large_value_holds_it_few_times_at_once(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shard, {f"{n:03d}": {"colour": "red"} for n in range(150)})
    own = shard.vectors.engine.find(1)
    assert own is not None
    monkeypatch.setattr(changes, "SLICE_BYTES", 40_000)
    upsert = own.upsert
    written: list[int] = []

    def noted(number: int, ids: list[bytes], *content: Any) -> None:
        written.append(len(ids))
        upsert(number, ids, *content)

    monkeypatch.setattr(own, "upsert", noted)
    assert updated(shard, by=RED, text="x" * 1000) == 150
    assert sum(written) == 150
    assert max(written) < 40_000 // 1000 + READ_AT_ONCE


def test_an_update_looks_up_the_vectors_of_a_slice_once(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shard, {f"{n:03d}": {"colour": "red"} for n in range(150)})
    monkeypatch.setattr(changes, "SLICE_IDS", 100)
    present = Selection.present
    looked_up: list[int] = []

    def noted(selection: Selection, names: list[bytes]) -> Any:
        looked_up.append(len(names))
        return present(selection, names)

    monkeypatch.setattr(Selection, "present", noted)
    assert updated(shard, by=RED, colour="red") == 150
    assert looked_up == [100, 50]


def test_a_page_that_ends_by_its_bytes_reads_few_vectors_beyond_it(
    shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shard, {f"{n:03d}": {"text": "x" * 1000} for n in range(150)})
    own = shard.vectors.engine.find(1)
    assert own is not None
    contents = own.contents
    read: list[int] = []

    def noted(number: int, ids: list[bytes]) -> Any:
        read.append(len(ids))
        return contents(number, ids)

    monkeypatch.setattr(own, "contents", noted)
    positions, _ = page(shard, 150, bytes_max=40_000, fields=None)
    assert len(positions) == 39
    assert sum(read) < 39 + READ_AT_ONCE


def test_a_page_looks_up_the_shards_of_its_vectors_once(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shard, {f"{n:03d}": {"colour": "red"} for n in range(150)})
    own = shard.vectors.engine.find(1)
    assert own is not None
    shards_of = own.shards_of
    looked_up: list[int] = []

    def noted(ids: list[bytes]) -> list[int]:
        looked_up.append(len(ids))
        return shards_of(ids)

    monkeypatch.setattr(own, "shards_of", noted)
    positions, _ = page(shard, 150, fields=None)
    assert len(positions) == 150
    assert looked_up == [150]

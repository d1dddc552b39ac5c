"""The catalogue decides which collections there are, and the shards follow: whatever fails, goes away or comes back."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.fanout.calls import FanOut
from coordinator.vectors import collections as module
from coordinator.vectors.catalogue import Catalogue
from coordinator.vectors.collections import Collections
from shared import catalogue_file
from shared.control import LocalControl
from shared.errors import NotFound, Overloaded, Unavailable
from shared.messages.vectors import Collection, ShardCollections
from tests.unit.collection_shards import Shards, files, make, names, on_disk, run, until


@pytest.fixture(autouse=True)
def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.01)
    monkeypatch.setattr(module, "LOST_S", 0.01)


# Drops


def test_drop_is_decided_though_shards_are_away_and_follows_when_they_are_back(tmp_path: Path) -> None:
    shards = Shards()

    async def act(collections: Collections) -> None:
        made = await make(collections)
        shards.hold(made)
        shards.away = {1}
        (warning,) = await collections.drop("a")
        assert "shard 1" in warning
        with pytest.raises(NotFound):
            collections.find("a")
        assert shards.holding(made.id) == [1]
        again = await make(collections)
        assert again.id > made.id
        shards.hold(again, [0])
        shards.away = set()
        await until(lambda: shards.holding(made.id) == [])
        assert shards.holding(again.id) == [0]
        await until(lambda: not collections._catalogue.dropped)

    run(tmp_path, shards, act)
    assert not collections_to_drop(tmp_path)


def collections_to_drop(directory: Path) -> list[Collection]:
    return catalogue_file.decode(files(directory)[0].read_bytes()).dropped


def test_drop_is_finished_after_a_restart(tmp_path: Path) -> None:
    shards = Shards()

    async def begin(collections: Collections) -> None:
        shards.hold(await make(collections))
        shards.away = {0, 2}
        await collections.drop("a")

    async def finish(collections: Collections) -> None:
        assert names(collections) == []
        shards.away = {2}
        await until(lambda: shards.holding(1) == [2])
        assert (await make(collections)).id == 2
        shards.away = set()
        await until(lambda: shards.holding(1) == [])
        assert names(collections) == ["a"]

    run(tmp_path, shards, begin)
    assert [gone.id for gone in collections_to_drop(tmp_path)] == [1]
    run(tmp_path, shards, finish)
    assert collections_to_drop(tmp_path) == []


def test_drop_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards()

    async def act(collections: Collections) -> None:
        made = await make(collections)
        shards.hold(made)
        with monkeypatch.context() as failing:
            failing.setattr(catalogue_file, "write", refuse)
            with pytest.raises(Unavailable, match="no room"):
                await collections.drop("a")
        assert collections.find("a") == made
        assert "vector.drop" not in shards.asked
        assert not collections._catalogue.in_doubt

    run(tmp_path, shards, act)


def refuse(*_: object) -> None:
    raise OSError("no room")


def test_collection_that_an_older_release_dropped_in_part_is_dropped_whole(tmp_path: Path) -> None:
    shards = Shards()

    async def begin(collections: Collections) -> None:
        shards.hold(await make(collections))

    async def finish(collections: Collections) -> None:
        await until(lambda: shards.holding(1) == [])
        assert names(collections) == []

    run(tmp_path, shards, begin)
    shards.stored[0] = ShardCollections(0, [], [1])
    run(tmp_path, shards, finish)


# Changes


def test_change_goes_to_its_end_and_none_runs_beside_it_when_the_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards()
    write, at_disk, go_on = catalogue_file.write, threading.Event(), threading.Event()
    writing: list[int] = []

    def slow(control: LocalControl, content: catalogue_file.CatalogueContent) -> None:
        writing.append(len(writing))
        assert len(writing) == 1, "two changes at once"
        at_disk.set()
        assert go_on.wait(5)
        write(control, content)
        writing.clear()

    async def act(collections: Collections) -> None:
        await collections.known()
        monkeypatch.setattr(catalogue_file, "write", slow)
        first = asyncio.create_task(make(collections, "first"))
        await until(at_disk.is_set)
        assert names(collections) == []  # memory follows the disk
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(make(collections, "second"))
        await asyncio.sleep(0.05)
        go_on.set()
        assert (await second).id == 2
        assert names(collections) == ["first", "second"]

    run(tmp_path, shards, act)
    kept = Catalogue(LocalControl(tmp_path / "vector"))
    kept.load()
    assert [(one.name, one.id) for one in kept.all()] == [("first", 1), ("second", 2)]


def test_change_that_takes_too_long_is_refused_and_too_many_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards()
    go_on = threading.Event()

    async def act(collections: Collections) -> None:
        await collections.known()
        monkeypatch.setattr(catalogue_file, "write", lambda *_: go_on.wait(10))
        monkeypatch.setattr(module, "CHANGES_MAX", 2)
        waiting = [asyncio.create_task(make(collections, name)) for name in "ab"]
        await asyncio.sleep(0.02)
        with pytest.raises(Overloaded):
            await make(collections, "c")
        for one in waiting:
            with pytest.raises(Unavailable, match="still under way"):
                await one
        go_on.set()

    run(tmp_path, shards, act, timeout_ms=200)


def test_change_in_doubt_is_settled_before_the_next_write_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new list reached the disk, and its fsync failed: a crash now would bring it back."""
    shards = Shards()
    write = catalogue_file.write

    def half(control: LocalControl, content: catalogue_file.CatalogueContent) -> None:
        write(control, content)
        raise OSError("fsync failed")

    async def act(collections: Collections) -> None:
        made = await make(collections)
        with monkeypatch.context() as failing:
            failing.setattr(catalogue_file, "write", half)
            with pytest.raises(Unavailable, match="fsync failed"):
                await collections.drop("a")
            assert collections.find("a") == made
            assert on_disk(tmp_path) == []
            failing.setattr(catalogue_file, "write", refuse)
            with pytest.raises(Unavailable, match="no room"):
                await collections.settle()
        await collections.settle()
        assert on_disk(tmp_path) == ["a"]

    run(tmp_path, shards, act)


# Waiting


def test_list_that_is_not_made_in_time_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards()
    hidden = asyncio.Event()

    async def fan_out(*_: Any, **__: Any) -> FanOut:
        await hidden.wait()
        raise Unavailable("never")

    monkeypatch.setattr(shards, "fan_out", fan_out)

    async def act(collections: Collections) -> None:
        with pytest.raises(
            Unavailable, match=r"must be made from what all shards have; that has taken longer than 0.1"
        ):
            await collections.known()

    run(tmp_path, shards, act, timeout_ms=100)


def test_why_collections_cannot_be_reconciled_is_told_once_for_each_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards()
    told: list[str] = []
    reasons = ["a", "a", "a", "b", "b", "a"]
    monkeypatch.setattr(module, "event", lambda level, text, **fields: told.append(f"{text}: {fields.get('why')}"))

    async def reconcile(self: Collections) -> None:
        if not reasons:
            raise ValueError("a mistake")
        raise Unavailable(reasons.pop(0))

    monkeypatch.setattr(Collections, "_reconcile", reconcile)

    async def act(collections: Collections) -> None:
        await until(lambda: told[-2:] == ["reconciling collections failed: None"] * 2)

    run(tmp_path, shards, act)
    assert told[:3] == [f"collections cannot be reconciled yet: {reason}" for reason in "aba"]
    assert set(told[3:]) == {"reconciling collections failed: None"}


def test_what_is_found_is_taken_and_else_made(tmp_path: Path) -> None:
    async def act(collections: Collections) -> None:
        await collections.known()
        made = await collections.find_or_create(Collection(0, "a", 3, "l2", "f32"))
        assert (made.id, made.dimension, made.metric, made.storage) == (1, 3, "l2", "f32")
        assert await collections.find_or_create(Collection(0, "a", 7, "cosine", "i8")) == made
        assert names(collections) == ["a"]

    run(tmp_path, Shards(), act)


def test_drop_that_no_shard_answers_names_each_that_has_not(tmp_path: Path) -> None:
    shards = Shards()

    async def act(collections: Collections) -> None:
        shards.hold(await make(collections))
        ask = shards.fan_out

        async def deaf(method: str, **options: Any) -> FanOut:
            if method == "vector.drop":
                raise Unavailable("nobody has answered")
            return await ask(method, **options)

        shards.fan_out = deaf  # type: ignore[method-assign]
        shards.away = {1}
        warnings = await collections.drop("a")
        assert [warning.partition(" when it is back: ")[::2] for warning in warnings] == [
            ("shard 0 drops its vectors of 'a'", "nobody has answered"),
            ("shard 1 drops its vectors of 'a'", "it is down"),
            ("shard 2 drops its vectors of 'a'", "nobody has answered"),
        ]
        assert names(collections) == [] and shards.holding(1) == [0, 1, 2]
        shards.fan_out, shards.away = ask, set()  # type: ignore[method-assign]
        await until(lambda: not shards.holding(1))

    run(tmp_path, shards, act)

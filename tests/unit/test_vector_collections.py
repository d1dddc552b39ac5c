"""The catalogue decides which collections there are, and the shards follow: whatever fails, goes away or comes back."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from coordinator.calls import FanOut, WorkerReply
from coordinator.links import Links
from coordinator.vectors import collections as module
from coordinator.vectors.catalogue import Catalogue
from coordinator.vectors.collections import Collections
from shared import catalogue_file, wire
from shared.catalogue_file import NAMES
from shared.config import Settings
from shared.control import LocalControl
from shared.errors import NotFound, Overloaded, Unavailable
from shared.messages.vectors import Collection, CollectionBody, CollectionsReply, ShardCollections, VectorCountReply
from shared.wire import Reply
from worker.vectors import check

SHARDS = 3


class Shards:
    """Shards that know collections and forget what is dropped; those `away` do not answer."""

    shards = SHARDS

    def __init__(self) -> None:
        self.stored = {number: ShardCollections(number, [], []) for number in range(SHARDS)}
        self.away: set[int] = set()
        self.asked: list[str] = []

    def hold(self, collection: Collection, shards: Iterable[int] = range(SHARDS)) -> None:
        for number in shards:
            self.stored[number].collections.append(collection)

    def unready(self, shards: Any = None) -> dict[int, str]:
        return dict.fromkeys(sorted(self.away), "it is down")

    async def fan_out(self, method: str, *, shards: list[int], body: bytes = b"", timeout_s: float) -> FanOut:
        self.asked.append(method)
        await asyncio.sleep(0)
        there = [number for number in shards if number not in self.away]
        missing = dict.fromkeys(self.away & set(shards), "it is down")
        if not there:
            raise Unavailable("no shard is there")
        if method == "vector.collections":
            reply: msgspec.Struct = CollectionsReply([self.stored[number] for number in there])
        else:
            assert method == "vector.drop"
            gone = wire.unpack(body, CollectionBody).collection
            for number in there:
                stored = self.stored[number]
                stored.collections = [one for one in stored.collections if one.id != gone.id]
                if gone.id not in stored.dropped:
                    stored.dropped.append(gone.id)
            reply = VectorCountReply(len(there))
        return FanOut([WorkerReply("worker-0", tuple(there), Reply(wire.pack(reply)), 1.0)], missing)

    def holding(self, number: int) -> list[int]:
        return [shard for shard, stored in self.stored.items() if number in [one.id for one in stored.collections]]


@pytest.fixture(autouse=True)
def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.01)
    monkeypatch.setattr(module, "LOST_S", 0.01)


def run(directory: Path, shards: Shards, act: Callable[[Collections], Awaitable[None]], timeout_ms: int = 2000) -> None:
    """A coordinator's collections from start to stop."""

    async def whole() -> None:
        settings = Settings(data=directory, shards=SHARDS, workers=1, write_timeout_ms=timeout_ms)
        collections = Collections(settings, cast(Links, shards), LocalControl(settings.data / "vector"))
        await collections.start()
        try:
            await act(collections)
        finally:
            await collections.stop()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def make(collections: Collections, name: str = "a") -> Collection:
    return await collections.create(name, 3, "l2", "f32", ())


def files(directory: Path) -> list[Path]:
    return [directory / catalogue_file.DIRECTORY / name for name in NAMES]


def names(collections: Collections) -> list[str]:
    return [collection.name for collection in collections.all()]


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


def on_disk(directory: Path) -> list[str]:
    kept = Catalogue(LocalControl(directory / "vector"))
    kept.load()
    return [one.name for one in kept.all()]


# Files


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("damage", ["missing", "empty", "flipped"])
def test_one_lost_or_damaged_file_is_mended_from_the_other(
    tmp_path: Path, place: int, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards()

    async def begin(collections: Collections) -> None:
        await make(collections, "a")
        await make(collections, "b")
        await collections.drop("a")

    async def look(collections: Collections) -> None:
        assert names(collections) == ["b"]
        assert (await make(collections, "c")).id == 3
        assert collections.warnings() == []

    run(tmp_path, shards, begin)
    path = files(tmp_path)[place]
    content = path.read_bytes()
    path.write_bytes(b"")
    if damage == "missing":
        path.unlink()
    if damage == "flipped":
        path.write_bytes(content.replace(b'"next_id":3', b'"next_id":2'))
    (finding,) = check.check(tmp_path)
    assert (finding.path, finding.costs_data) == (path, False)
    with caplog.at_level(logging.WARNING, "triptych"):
        run(tmp_path, shards, look)
    assert any("mended from the other" in record.message for record in caplog.records)
    assert check.check(tmp_path) == []


def test_every_flipped_byte_of_a_list_is_found(tmp_path: Path) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    catalogue.create("a", 3, "l2", "f32", ("body",))
    catalogue.create("b", 3, "l2", "f32", ())
    catalogue.remove("a")
    content = files(tmp_path)[0].read_bytes()
    whole = catalogue_file.decode(content)
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            with pytest.raises(ValueError, match=r"."):
                catalogue_file.decode(bytes(damaged))
    assert catalogue_file.decode(content) == whole


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_list_lost_in_both_files_is_made_from_the_shards_and_said(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards()

    async def begin(collections: Collections) -> None:
        for name in "abc":
            shards.hold(await make(collections, name), [0, 2])
        await collections.drop("b")
        shards.hold(await make(collections, "b"), [1])

    async def look(collections: Collections) -> None:
        with pytest.raises(Unavailable, match="shard 1"):
            await collections.known()
        shards.away = set()
        await collections.known()
        assert {one.name: one.id for one in collections.all()} == {"a": 1, "b": 4, "c": 3}
        assert (await make(collections, "d")).id == 5
        assert any("set aside" in text for text in collections.warnings())
        with pytest.raises(NotFound, match="set aside"):
            collections.find("unknown")

    run(tmp_path, shards, begin)
    for path in files(tmp_path):
        path.write_bytes(path.read_bytes()[:-3])
        if damage == "missing":
            path.unlink()
    shards.away = {1}
    with caplog.at_level(logging.WARNING, "triptych"):
        run(tmp_path, shards, look)
    assert any("made from the shards" in record.message for record in caplog.records)
    assert all(finding.costs_data for finding in check.check(tmp_path))
    asides = list((tmp_path / "vector").glob("*.damaged*"))
    assert asides
    for path in asides:
        path.unlink()
    assert check.check(tmp_path) == []


def test_new_directory_begins_with_an_empty_list_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(collections: Collections) -> None:
        await collections.known()
        assert (names(collections), collections.warnings()) == ([], [])

    assert check.check(tmp_path) == []
    with caplog.at_level(logging.WARNING, "triptych"):
        run(tmp_path, Shards(), act)
    assert caplog.records == []
    assert check.check(tmp_path) == []


def test_older_list_never_gives_an_id_that_a_shard_has_seen(tmp_path: Path) -> None:
    """The list was restored from an old backup: what the shards had since is found again."""
    shards = Shards()

    async def begin(collections: Collections) -> None:
        shards.hold(await make(collections, "a"))

    async def since(collections: Collections) -> None:
        shards.hold(await make(collections, "b"), [1])
        shards.hold(await make(collections, "c"), [1])
        await collections.drop("c")

    async def look(collections: Collections) -> None:
        await until(lambda: collections._agreed)
        assert {one.name: one.id for one in collections.all()} == {"a": 1, "b": 2}
        assert shards.holding(3) == []
        assert (await make(collections, "d")).id == 4

    run(tmp_path, shards, begin)
    backup = [path.read_bytes() for path in files(tmp_path)]
    run(tmp_path, shards, since)
    for path, content in zip(files(tmp_path), backup, strict=True):
        path.write_bytes(content)
    run(tmp_path, shards, look)


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
        made = await collections.find_or_create("a", 3, "l2", "f32")
        assert (made.id, made.dimension, made.metric, made.storage) == (1, 3, "l2", "f32")
        assert await collections.find_or_create("a", 7, "cosine", "i8") == made
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


def test_list_that_changed_while_it_was_compared_is_left_as_it_is(tmp_path: Path) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    catalogue.load()
    catalogue.rebuild([])
    catalogue.give_above(7)
    generation = catalogue.generation
    stray = Collection(7, "stray", 3, "l2")
    catalogue.create("a", 3, "l2", "f32", ())
    with pytest.raises(Unavailable, match="has changed while it was compared"):
        catalogue.reconcile([], [stray], generation)
    assert [one.name for one in catalogue.all()] == ["a"]
    catalogue.reconcile([], [stray], catalogue.generation)
    assert [one.name for one in catalogue.all()] == ["a", "stray"] and catalogue.next_id == 9


def test_files_that_cannot_be_read_are_taken_to_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    catalogue.load()
    catalogue.rebuild([])
    assert catalogue._disk_differs() is False

    def unreadable(control: LocalControl) -> None:
        raise OSError("no")

    monkeypatch.setattr("coordinator.vectors.catalogue.copies_in", unreadable)
    assert catalogue._disk_differs() is True

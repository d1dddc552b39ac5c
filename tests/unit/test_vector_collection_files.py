"""The two files of the list of collections: damaged, lost, or older than the shards."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coordinator.vectors import collections as module
from coordinator.vectors.catalogue import Catalogue
from coordinator.vectors.collections import Collections
from shared import catalogue_file
from shared.control import LocalControl
from shared.errors import NotFound, Unavailable
from shared.messages.vectors import Collection
from tests.unit.collection_shards import Shards, files, make, names, run, until
from worker.vectors import check


@pytest.fixture(autouse=True)
def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLLOW_S", 0.01)
    monkeypatch.setattr(module, "LOST_S", 0.01)


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
    catalogue.create(Collection(0, "a", 3, "l2", "f32", ("body",)))
    catalogue.create(Collection(0, "b", 3, "l2", "f32"))
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


def test_list_that_changed_while_it_was_compared_is_left_as_it_is(tmp_path: Path) -> None:
    catalogue = Catalogue(LocalControl(tmp_path / "vector"))
    catalogue.load()
    catalogue.rebuild([])
    catalogue.give_above(7)
    generation = catalogue.generation
    stray = Collection(7, "stray", 3, "l2")
    catalogue.create(Collection(0, "a", 3, "l2", "f32"))
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

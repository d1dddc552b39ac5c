"""What the check of a data directory says of the list of collections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from shared import catalogue_file
from shared.catalogue_file import DIRECTORY, NAMES, CatalogueContent, Lost
from shared.control import LocalControl
from shared.messages.vectors import Collection
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import check as check_module
from worker.vectors import part, snapshot, stored_rows
from worker.vectors.check import check, check_index, check_rows

CONTENT = CatalogueContent(3, [Collection(1, "a", 4, "cosine"), Collection(2, "b", 4, "dot")], generation=5)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    catalogue_file.write(LocalControl(tmp_path / DIRECTORY), CONTENT)
    return tmp_path


def test_two_whole_copies_and_none_at_all_are_well(listed: Path, tmp_path: Path) -> None:
    assert check(listed) == []
    for name in NAMES:
        (listed / DIRECTORY / name).unlink()
    assert check(listed) == []


@pytest.mark.parametrize("name", NAMES)
def test_one_copy_that_is_lost_costs_nothing(listed: Path, name: str) -> None:
    path = listed / DIRECTORY / name
    path.write_bytes(b"{")
    [finding] = check(listed)
    assert (finding.path, finding.costs_data) == (path, False)
    assert "the other copy is whole" in finding.depends
    path.unlink()
    [finding] = check(listed)
    assert (finding.path, finding.what, finding.costs_data) == (path, "it is missing", False)


def test_a_damaged_copy_is_told_from_a_missing_one(listed: Path) -> None:
    first, second = (listed / DIRECTORY / name for name in NAMES)
    first.unlink()
    second.write_bytes(b"{")
    copies = catalogue_file.copies_in(LocalControl(listed / DIRECTORY))
    assert [isinstance(copy, Lost) and copy.why == "it is missing" for copy in copies.values()] == [True, False]


def test_both_copies_lost_may_cost_collections(listed: Path) -> None:
    for name in NAMES:
        (listed / DIRECTORY / name).write_bytes(b"{")
    findings = check(listed)
    assert [(finding.path.name, finding.costs_data) for finding in findings] == [(name, True) for name in NAMES]
    assert "collections without a vector" in findings[0].depends


def test_what_was_set_aside_is_said(listed: Path) -> None:
    aside = listed / DIRECTORY / f"{NAMES[0]}.damaged"
    aside.write_bytes(b"x")
    [finding] = check(listed)
    assert (finding.path, finding.costs_data) == (aside, True)


# The list itself


def test_a_list_is_the_same_when_it_is_read_again() -> None:
    read = catalogue_file.decode(CONTENT.encode())
    assert (read.next_id, read.collections, read.dropped, read.generation) == (3, CONTENT.collections, [], 5)


@pytest.mark.parametrize(
    "content",
    [
        CatalogueContent(2, CONTENT.collections),
        CatalogueContent(3, [CONTENT.collections[0]], [CONTENT.collections[0]]),
        CatalogueContent(2, [], [CONTENT.collections[1]]),
    ],
)
def test_ids_given_twice_or_not_below_the_next_one_are_refused(content: CatalogueContent) -> None:
    with pytest.raises(ValueError, match="it has the ids"):
        catalogue_file.decode(content.encode())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"next_id":1,"collections":[],"format":3}', "format 3, and this program reads format 1"),
        ('{"next_id":1,"collections":[],"generation":1}', "checksum does not match"),
        ('{"next_id":1,"collections":[],"checksum":"x"}', "checksum does not match"),
        ('{"next_id":1,"collections":[],"format":1,"checksum":"x"}', "checksum does not match"),
        ('{"next_id":1,"collections":[]}', "checksum does not match"),
    ],
)
def test_a_list_in_another_form_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        catalogue_file.decode(text.encode())


def test_the_copy_of_the_later_change_counts(tmp_path: Path) -> None:
    older, newer = CatalogueContent(3, [], generation=4), CONTENT
    assert catalogue_file.newest({"a": older, "b": newer}) == newer
    assert catalogue_file.newest({"a": newer, "b": older}) == newer
    assert catalogue_file.newest({"a": Lost(""), "b": older}) == older
    assert catalogue_file.newest({"a": Lost("")}) is None


# Snapshots and rows


def test_a_damaged_snapshot_is_said_with_its_file_and_the_others_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    for name in ("000001/0", "000001/1", "000002/0", "000002/1"):
        (index / name).mkdir(parents=True)
    (index / "000003").touch()
    (index / "000002" / "1" / "vectors.index").touch()

    def shards_of(saved: LocalObjects) -> None:
        if Path(saved.location()) == index / "000001" / "0":
            raise ValueError("no list of shards")

    def verified(saved: LocalObjects) -> None:
        path = Path(saved.location())
        if path == index / "000001" / "1":
            raise FileNotFoundError(2, "No such file", str(path / "attributes"))
        if path.parent.name == "000002":
            raise ValueError("the checksum of vectors.index is wrong")

    monkeypatch.setattr(snapshot, "shards_of", shards_of)
    monkeypatch.setattr(snapshot, "verified", verified)
    found = [(finding.path.relative_to(index).as_posix(), finding.costs_data) for finding in check_index(index)]
    named = ["000001/0/shards", "000001/1/attributes", f"000002/0/{snapshot.ROWS}", "000002/1/vectors.index"]
    assert found == [(name.replace("shards", snapshot.SHARDS), False) for name in named]


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Store]:
    """Two collections, of which one has two vectors and the other none."""
    store = Store(tmp_path / "store")
    for own in CONTENT.collections:
        put(store, stored_rows.META, part.KNOWN + b"%d" % own.id, msgspec.msgpack.encode(own))
    for version in (3, 4):
        put(store, stored_rows.FAMILY, stored_rows.prefix(1) + b"v%d" % version, vector(version))
    put(store, stored_rows.META, stored_rows.HIGHEST + b"1", (4).to_bytes(stored_rows.VERSION_BYTES, "little"))
    yield store
    store.close()


def put(store: Store, family: str, key: bytes, value: bytes) -> None:
    batch = store.batch()
    batch.put(family, key, value)
    store.write(batch)


def vector(version: int) -> bytes:
    return version.to_bytes(stored_rows.VERSION_BYTES, "little") + np.ones(4, np.float32).tobytes()


def wrong(store: Store, listed: set[int] | None = None) -> list[str]:
    return list(check_rows(store, listed))  # type: ignore[arg-type]


def test_rows_that_are_well_are_said_to_be(rows: Store) -> None:
    assert wrong(rows) == wrong(rows, {1, 2}) == wrong(rows, {1, 2, 7}) == []


def test_collections_that_the_list_lacks_are_said(rows: Store) -> None:
    assert wrong(rows, {2}) == ["the collections 'a' are not in the list of collections"]
    assert wrong(rows, set()) == ["the collections 'a', 'b' are not in the list of collections"]


def test_a_description_that_makes_no_sense_is_said(rows: Store) -> None:
    put(rows, stored_rows.META, part.KNOWN + b"2", b"\xc1")
    put(rows, stored_rows.META, part.KNOWN + b"3", msgspec.msgpack.encode(CONTENT.collections[1]))
    unreadable, another = wrong(rows)
    assert "'2' of 'meta' is invalid" in unreadable.replace(part.KNOWN.decode(), "")
    assert "it says collection 2" in another


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_vectors_that_cannot_be_used_are_counted_over_all_rows(
    rows: Store, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "CHECK_ROWS", rows_at_once)
    put(rows, stored_rows.FAMILY, stored_rows.prefix(1) + b"a", vector(1)[:-1])
    put(rows, stored_rows.FAMILY, stored_rows.prefix(1) + b"z", b"")
    [text] = wrong(rows)
    assert text.startswith("2 vectors of 'a' are damaged, such as b'a': ")
    put(rows, stored_rows.FAMILY, stored_rows.prefix(1) + b"later", vector(5))
    assert wrong(rows)[1] == "the highest version of 'a' is 4, and a vector has 5"


def test_vectors_of_a_collection_that_the_shard_does_not_know_are_counted(rows: Store) -> None:
    for number in (7, 9):
        for name in (b"x", b"y"):
            put(rows, stored_rows.FAMILY, stored_rows.prefix(number) + name, vector(1))
    assert wrong(rows) == [f"2 vectors are of collection {number}, which the shard does not know" for number in (7, 9)]

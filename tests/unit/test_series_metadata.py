"""Metadata of metric families in one shard: kept, bounded, and there after a start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.messages.series import FamilyMetadata
from worker.series import metadata
from worker.series.metadata import Metadata
from worker.storage.rows.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


def said(family: str, text: str = "") -> FamilyMetadata:
    return FamilyMetadata(family, "counter", text, "")


def test_what_was_put_is_there_after_a_start(store: Store) -> None:
    Metadata(store).put([said("b", "one"), said("a"), said("b", "two"), said("b", "one")])
    again = Metadata(store)
    again.load()
    assert again.find("", 0) == ([said("a"), said("b", "one"), said("b", "two")], False)
    assert again.find("b", 0) == ([said("b", "one"), said("b", "two")], False)
    assert again.find("", 1) == ([said("a")], True)
    assert again.find("nobody", 0) == ([], False)


def test_what_is_known_is_not_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Metadata(store)
    own.put([said("a")])
    monkeypatch.setattr(store, "write", lambda batch: pytest.fail("written again"))
    assert own.put([said("a")]) == 0


def test_of_many_things_said_of_one_family_the_last_are_kept(store: Store) -> None:
    own = Metadata(store)
    own.put([said("a", str(i)) for i in range(2 * metadata.ENTRIES_PER_FAMILY_MAX)])
    found, _ = own.find("a", 0)
    assert found == [said("a", str(i)) for i in range(metadata.ENTRIES_PER_FAMILY_MAX, 2 * len(found))]


def test_families_and_bytes_have_bounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "FAMILIES_MAX", 3)
    monkeypatch.setattr(metadata, "BYTES_MAX", 20)
    own = Metadata(store)
    assert own.put([said(name) for name in "abcde"]) == 2
    assert own.put([said("a", "x" * 10), said("b", "y" * 10)]) == 1
    assert {entry.family for entry in own.find("", 0)[0]} == {"a", "b", "c"}
    again = Metadata(store)
    again.load()
    assert again.put([said("f"), said("c", "z" * 10)]) == 2

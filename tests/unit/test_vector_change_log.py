"""The records of which vectors have changed: they name every change, or say that they do not know them all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import Unavailable
from worker.storage.rows.store import Store
from worker.vectors import change_log
from worker.vectors.change_log import START, ChangeLog, Position

COLLECTION = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()


def written(store: Store, changes: ChangeLog, highest: int, *ids: bytes) -> Position:
    batch = store.batch()
    changes.add_versions(batch, highest, ids)
    store.write(batch)
    return changes.position


def deleted(store: Store, changes: ChangeLog, *ids: bytes) -> Position:
    batch = store.batch()
    changes.add_deletion(batch, ids)
    store.write(batch)
    return changes.position


def numbered(position: Position) -> tuple[int, int]:
    """The position without its random bits."""
    return position.version, position.deletions >> 32


def test_changes_behind_each_position_are_named(store: Store) -> None:
    changes = ChangeLog(store, COLLECTION, 0)
    first = written(store, changes, 2, b"a", b"b")
    second = deleted(store, changes, b"a")
    third = deleted(store, changes, b"x", b"y")
    last = written(store, changes, 5, b"b", b"c", b"d")
    assert [numbered(each) for each in (first, second, third, last)] == [(2, 0), (2, 1), (2, 2), (5, 0)]
    for _ in range(2):
        assert changes.changed_since(START, 9) == [b"a", b"b", b"x", b"y", b"c", b"d"]
        assert changes.changed_since(first, 9) == [b"a", b"x", b"y", b"b", b"c", b"d"]
        assert changes.changed_since(second, 9) == [b"x", b"y", b"b", b"c", b"d"]
        assert changes.changed_since(third, 9) == changes.changed_since(Position.before(3), 9) == [b"b", b"c", b"d"]
        assert changes.changed_since(Position.before(5), 9) == [b"b", b"c", b"d"]  # written by the same batch
        assert changes.changed_since(last, 9) == []
        assert changes.changed_since(Position(6, 0), 9) is None
        changes = ChangeLog(store, COLLECTION, 5)  # as after a restart
        assert changes.position == last


def test_more_changes_than_are_wanted_are_not_collected(store: Store) -> None:
    changes = ChangeLog(store, COLLECTION, 0)
    written(store, changes, 2, b"a", b"b")
    written(store, changes, 4, b"a", b"b")
    assert changes.changed_since(START, 2) == [b"a", b"b"]
    assert changes.changed_since(START, 1) is None


def test_records_that_a_snapshot_contains_are_removed_and_earlier_positions_unknown(store: Store) -> None:
    changes = ChangeLog(store, COLLECTION, 0)
    first = written(store, changes, 2, b"a", b"b")
    second = deleted(store, changes, b"a")
    written(store, changes, 3, b"c")
    changes.trim(second)
    changes.trim(first)  # of an older snapshot
    for again in (changes, ChangeLog(store, COLLECTION, 3)):
        assert again.kept_from == second
        assert again.changed_since(first, 9) is None
        assert again.changed_since(second, 9) == [b"c"]
    assert len(list(store.scan(change_log.META, change_log.RECORDS, change_log.RECORDS + b"\xff"))) == 1


def test_deletions_after_a_removal_of_all_records_and_a_restart_get_new_positions(store: Store) -> None:
    changes = ChangeLog(store, COLLECTION, 0)
    written(store, changes, 2, b"a", b"b")
    saved = deleted(store, changes, b"a")
    changes.trim(saved)
    again = ChangeLog(store, COLLECTION, 2)
    assert again.position == saved
    assert numbered(deleted(store, again, b"b")) == (2, 2)
    assert again.changed_since(saved, 9) == [b"b"]


def test_what_a_release_without_records_wrote_is_unknown(store: Store) -> None:
    changes = ChangeLog(store, COLLECTION, 7)  # its first start with records
    assert changes.changed_since(START, 9) is None
    assert changes.changed_since(Position(6, 0), 9) is None
    assert changes.changed_since(Position(7, 0), 9) == []
    last = written(store, changes, 8, b"a")
    changes.trim(last)
    later = ChangeLog(store, COLLECTION, 9)  # the other release wrote in between
    assert later.changed_since(last, 9) is None
    written(store, later, 10, b"b")
    assert later.changed_since(last, 9) is None
    assert later.changed_since(Position(9, 0), 9) == [b"b"]


def test_another_history_of_the_same_versions_is_noticed(tmp_path: Path) -> None:
    """Such as that of a store that was restored without the last deletions, and has made others."""
    positions = []
    for name, end in (("one", b"b"), ("other", b"c")):
        store = Store(tmp_path / name)
        changes = ChangeLog(store, COLLECTION, 0)
        written(store, changes, 3, b"a", b"b", b"c")
        positions.append([deleted(store, changes, b"a"), deleted(store, changes, end)])
        if name == "other":
            for seen in positions[0]:
                assert changes.changed_since(seen, 9) is None
            assert changes.changed_since(Position(3, 0), 9) == [b"a", b"c"]
            written(store, changes, 4, b"d")
            assert [changes.changed_since(seen, 9) for seen in positions[0]] == [None, None]
            assert changes.changed_since(positions[1][0], 9) == [b"c", b"d"]
            assert changes.changed_since(Position.before(4), 9) == [b"d"]
        store.close()


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
@pytest.mark.parametrize("content", [None, b"", b"\x92\x01", b"\x92\x01\x91\x01", b"\xc1"])
def test_a_record_that_is_missing_or_damaged_makes_what_is_behind_unknown(
    store: Store, lost: int, content: bytes | None
) -> None:
    changes = ChangeLog(store, COLLECTION, 0)
    positions = [
        first := written(store, changes, 2, b"a", b"b"),
        deleted(store, changes, b"a"),
        deleted(store, changes, b"b"),
        written(store, changes, 4, b"c", b"d"),
        last := written(store, changes, 6, b"e", b"f"),
    ]
    key = change_log._prefix(COLLECTION) + positions[lost].encode()
    batch = store.batch()
    if content is None:
        batch.delete(change_log.META, key)
    else:
        batch.put(change_log.META, key, content)
    store.write(batch)
    assert changes.changed_since(first, 9) is None
    assert changes.changed_since(last, 9) == []


def test_a_write_that_was_refused_makes_the_changes_before_it_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ChangeLog(store, COLLECTION, 0)
    first = written(store, changes, 2, b"a", b"b")
    with monkeypatch.context() as refusing, pytest.raises(Unavailable):
        refusing.setattr(Store, "_wait_for_room", lambda _: (_ for _ in ()).throw(Unavailable("behind")))
        written(store, changes, 4, b"c", b"d")
    assert changes.changed_since(first, 9) is None
    written(store, changes, 5, b"e")
    assert changes.changed_since(first, 9) is None
    assert changes.changed_since(Position(4, 0), 9) == [b"e"]


def test_a_dropped_collection_leaves_no_records_and_others_theirs(store: Store) -> None:
    own, other = ChangeLog(store, COLLECTION, 0), ChangeLog(store, COLLECTION + 1, 0)
    own.trim(written(store, own, 1, b"a"))
    written(store, own, 2, b"b")
    other.trim(written(store, other, 1, b"a"))
    kept = written(store, other, 2, b"b")
    batch = store.batch()
    change_log.forget(batch, COLLECTION)
    store.write(batch)
    keys = [key for key, _ in store.scan(change_log.META, b"vector/", b"vector0")]
    assert keys == [change_log._prefix(COLLECTION + 1) + kept.encode(), change_log.KEPT_FROM + b"4"]


@pytest.mark.parametrize("seed", range(5))
def test_random_changes_are_those_of_a_model(store: Store, seed: int) -> None:
    """Of each position it knows all changes, or says that it does not."""
    choice = random.Random(seed)
    changes = ChangeLog(store, COLLECTION, 0)
    model: list[tuple[Position, set[bytes]]] = []
    highest = 0
    for _ in range(120):
        ids = {b"%d" % choice.randrange(40) for _ in range(choice.randint(1, 5))}
        match choice.randrange(6):
            case 0 | 1 | 2:
                highest += len(ids)
                model.append((written(store, changes, highest, *ids), ids))
            case 3:
                model.append((deleted(store, changes, *ids), ids))
            case 4 if model:
                changes.trim(choice.choice(model)[0])
            case 5:
                changes = ChangeLog(store, COLLECTION, highest)
        for since, _ in [(START, set()), *model]:
            found = changes.changed_since(since, 1000)
            expected = set().union(*(changed for position, changed in model if position > since))
            assert found is None or set(found) == expected
            assert (found is not None) or since < changes.kept_from

"""What every implementation of `worker.storage.faces.Objects` promises. What a loss of power leaves is found by
`tests/powerloss`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit import local_faults
from tests.unit.local_faults import Killed
from worker.storage.faces import Draft, Listed, NotOpened, Objects, ObjectState
from worker.storage.objects import LocalObjects

STEPS_MAX = 60
BLOCK, LIST = "one.block", "rows"


class LocalPlace:
    """A place of objects in files, and its faults."""

    faults = local_faults

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.objects: Objects = LocalObjects(directory / "place")
        self.objects.prepare()

    def next_process(self) -> Objects:
        return LocalObjects(self._directory / "place")


IMPLEMENTATIONS = [pytest.param(LocalPlace, id="local")]


@pytest.fixture(params=IMPLEMENTATIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace:
    made: LocalPlace = request.param(tmp_path)
    return made


@pytest.fixture
def objects(place: LocalPlace) -> Objects:
    return place.objects


def drafted(objects: Objects, name: str, *pieces: bytes) -> Draft:
    draft = objects.draft(name)
    for piece in pieces:
        draft.write(piece)
    return draft


def published(objects: Objects, name: str, *pieces: bytes) -> None:
    draft = drafted(objects, name, *pieces)
    draft.finish()
    draft.publish()
    objects.sync_names()


def states(objects: Objects) -> list[ObjectState]:
    return [entry.state for entry in objects.list()]


# Reading


def test_an_object_is_read_whole_and_in_parts(objects: Objects) -> None:
    published(objects, BLOCK, b"abc", b"", b"defgh")
    assert objects.get(BLOCK) == b"abcdefgh"
    assert objects.read(BLOCK, 2, 3) == b"cde"
    assert objects.read(BLOCK, 6, 10) == b"gh"
    assert objects.read(BLOCK, 8, 1) == b""
    assert objects.size(BLOCK) == 8
    assert objects.exists(BLOCK)
    assert objects.list() == [Listed(BLOCK, ObjectState.WHOLE)]


def test_what_was_written_is_there_for_the_next_process(place: LocalPlace) -> None:
    published(place.objects, BLOCK, b"abc")
    place.objects.put("1.attributes", b"columns")
    place.objects.replace(LIST, b"list")
    again = place.next_process()
    assert [again.get(name) for name in (BLOCK, "1.attributes", LIST)] == [b"abc", b"columns", b"list"]


def test_an_object_that_is_not_there_is_told(objects: Objects) -> None:
    assert not objects.exists(BLOCK)
    with pytest.raises(NotOpened) as refused:
        objects.read(BLOCK, 0, 1)
    assert not refused.value.is_passing
    for ask in (objects.size, objects.get):
        with pytest.raises(FileNotFoundError):
            ask(BLOCK)


def test_an_object_that_cannot_be_opened_just_now_is_told_from_a_lost_one(place: LocalPlace) -> None:
    published(place.objects, BLOCK, b"abc")
    with place.faults.out_of_descriptors(), pytest.raises(NotOpened) as refused:
        place.objects.read(BLOCK, 0, 3)
    assert refused.value.is_passing
    assert place.objects.read(BLOCK, 0, 3) == b"abc"


def test_an_object_that_has_lost_its_end_gives_less(place: LocalPlace) -> None:
    published(place.objects, BLOCK, b"abcdef")
    place.faults.cut(place.objects.location(BLOCK), 4)
    assert (place.objects.size(BLOCK), place.objects.read(BLOCK, 2, 4)) == (4, b"cd")


def test_damage_is_left_to_the_readers_checksum(place: LocalPlace) -> None:
    published(place.objects, BLOCK, b"abc")
    place.faults.flip(place.objects.location(BLOCK), 1)
    assert place.objects.get(BLOCK) == place.objects.read(BLOCK, 0, 3) == b"acc"


def test_a_place_that_nobody_prepared_is_empty(objects: Objects) -> None:
    assert objects.within("other").list() == []


# Drafts


def test_a_draft_is_no_object_before_it_is_published(objects: Objects) -> None:
    draft = drafted(objects, BLOCK, b"abc")
    assert (objects.exists(BLOCK), states(objects)) == (False, [ObjectState.DRAFT])
    draft.finish()
    assert (objects.exists(BLOCK), states(objects)) == (False, [ObjectState.DRAFT])
    draft.publish()
    assert (objects.get(BLOCK), states(objects)) == (b"abc", [ObjectState.WHOLE])


@pytest.mark.parametrize("until", [0, 1, 2])
def test_an_abandoned_draft_leaves_nothing(objects: Objects, until: int) -> None:
    draft = drafted(objects, BLOCK, b"abc")
    for step in (draft.finish, draft.publish)[:until]:
        step()
    draft.abandon()
    draft.abandon()
    assert objects.list() == []


def test_what_a_crash_left_of_a_draft_is_listed_and_can_be_deleted(place: LocalPlace) -> None:
    drafted(place.objects, BLOCK, b"abc").finish()
    again = place.next_process()
    [left] = again.list()
    assert left.state is ObjectState.DRAFT
    again.delete(left.name)
    assert again.list() == []


# Writing whole


def test_what_replaces_an_object_is_read_instead(objects: Objects) -> None:
    for content in (b"first", b"", b"third"):
        objects.replace(LIST, content)
        assert objects.get(LIST) == content
    assert objects.list() == [Listed(LIST, ObjectState.WHOLE)]


def test_an_object_is_written_and_read_by_path_for_libraries_that_know_no_other_way(objects: Objects) -> None:
    objects.put_by_path("1.index", lambda path: path.write_bytes(b"graph"))
    assert objects.get("1.index") == b"graph"
    assert objects.get_by_path("1.index", lambda path: path.read_bytes()) == b"graph"


# Deleting, setting aside, places


def test_a_deleted_object_is_gone_and_may_be_deleted_again(objects: Objects) -> None:
    published(objects, BLOCK, b"abc")
    for _ in range(2):
        objects.delete(BLOCK)
        assert not objects.exists(BLOCK)


def test_what_is_set_aside_keeps_its_content_under_a_name_of_its_own(objects: Objects) -> None:
    for content in (b"1", b"2", b"3"):
        published(objects, BLOCK, content)
        objects.set_aside(BLOCK)
    assert not objects.exists(BLOCK)
    assert states(objects) == [ObjectState.SET_ASIDE] * 3
    assert sorted(objects.get(entry.name) for entry in objects.list()) == [b"1", b"2", b"3"]


def test_places_are_apart_and_removed_with_all_they_have(objects: Objects) -> None:
    one, two = objects.within("1"), objects.within("2")
    for inner in (one, two):
        inner.prepare()
        inner.put(LIST, inner.location().encode())
    assert [entry.name for entry in objects.list()] == ["1", "2"]
    one.remove()
    one.remove()
    assert (one.list(), two.get(LIST)) == ([], two.location().encode())


def test_what_is_listed_is_in_order(objects: Objects) -> None:
    for name in ("b", "c", "a"):
        objects.put(name, b"")
    assert [entry.name for entry in objects.list()] == ["a", "b", "c"]


# Faults


@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
def test_a_draft_that_storage_refuses_is_no_object(place: LocalPlace, what: str) -> None:
    objects = place.objects
    with place.faults.refusing(what), pytest.raises(OSError, match=r"refuses|No space"):
        published(objects, BLOCK, b"abc")
    assert not objects.exists(BLOCK)


@pytest.mark.parametrize("what", ["write", "sync", "rename"])
def test_a_draft_that_storage_refuses_leaves_nothing_when_it_is_abandoned(place: LocalPlace, what: str) -> None:
    with place.faults.refusing(what):
        draft = drafted(place.objects, BLOCK, b"abc")
        with pytest.raises(OSError, match=r"refuses|No space"):
            _complete(draft)
        draft.abandon()
    assert place.objects.list() == []


def _complete(draft: Draft) -> None:
    draft.finish()
    draft.publish()


@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
def test_a_replacement_that_storage_refuses_leaves_the_old_content_or_the_new(place: LocalPlace, what: str) -> None:
    place.objects.replace(LIST, b"old")
    with place.faults.refusing(what), pytest.raises(OSError, match=r"refuses|No space"):
        place.objects.replace(LIST, b"new")
    assert place.objects.get(LIST) in (b"old", b"new")
    place.objects.replace(LIST, b"newest")
    assert place.next_process().get(LIST) == b"newest"


def _replace(objects: Objects) -> None:
    objects.replace(LIST, b"new")


def _publish(objects: Objects) -> None:
    published(objects, BLOCK, b"abc", b"def")


def _set_aside(objects: Objects) -> None:
    objects.set_aside("old.block")


def _put_and_list(objects: Objects) -> None:
    objects.put("2.attributes", b"columns")
    objects.replace(LIST, b"new")


@pytest.mark.parametrize("act", [_replace, _publish, _set_aside, _put_and_list])
def test_a_crash_between_any_two_steps_leaves_the_state_before_or_after(
    request: pytest.FixtureRequest, tmp_path: Path, act: Callable[[Objects], None], place: LocalPlace
) -> None:
    for step in range(STEPS_MAX):
        place = type(place)(tmp_path / str(step))
        published(place.objects, "old.block", b"kept")
        place.objects.replace(LIST, b"old")
        try:
            with place.faults.killed_before(step):
                act(place.objects)
            was_killed = False
        except Killed:
            was_killed = True
        _is_sound(place.next_process())
        if not was_killed:
            break
    assert step > 1
    assert not was_killed


def _is_sound(objects: Objects) -> None:
    assert objects.get(LIST) in (b"old", b"new")
    if objects.get(LIST) == b"new" and objects.exists("2.attributes"):
        assert objects.get("2.attributes") == b"columns"
    if objects.exists(BLOCK):
        assert objects.get(BLOCK) == b"abcdef"
    aside = [entry.name for entry in objects.list() if entry.state is ObjectState.SET_ASIDE]
    assert [objects.get(name) for name in aside] + [b"kept"] * objects.exists("old.block") == [b"kept"]

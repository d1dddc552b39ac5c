"""What every implementation of `shared.control.Control` promises. What a loss of power leaves is found by
`tests/powerloss`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.control import Control, LocalControl, Locked
from tests.unit import local_faults
from tests.unit.local_faults import Killed

STEPS_MAX = 60
NAME = "state"


class LocalPlace:
    """A place of documents in files, and its faults."""

    faults = local_faults

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.control: Control = LocalControl(directory / "place")
        self.control.prepare()

    def next_process(self) -> Control:
        return LocalControl(self._directory / "place")


IMPLEMENTATIONS = [pytest.param(LocalPlace, id="local")]


@pytest.fixture(params=IMPLEMENTATIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> LocalPlace:
    made: LocalPlace = request.param(tmp_path)
    return made


@pytest.fixture
def control(place: LocalPlace) -> Control:
    return place.control


def test_a_document_is_what_it_was_replaced_by_last(place: LocalPlace) -> None:
    for content in (b"one", b"", b"three"):
        place.control.replace(NAME, content)
        assert place.control.read(NAME) == place.next_process().read(NAME) == content
    assert place.control.names() == [NAME]


def test_a_document_that_is_not_there_is_told(control: Control) -> None:
    assert not control.exists(NAME)
    with pytest.raises(FileNotFoundError):
        control.read(NAME)


def test_damage_is_left_to_the_readers_checksum(place: LocalPlace) -> None:
    place.control.replace(NAME, b"abc")
    place.faults.flip(place.control.location(NAME), 1)
    assert place.control.read(NAME) == b"acc"


def test_places_are_told_from_documents(control: Control) -> None:
    inner = control.within("0001")
    assert not control.exists("0001")
    assert inner.names() == inner.set_aside_names() == []
    inner.prepare()
    inner.prepare()
    inner.replace(NAME, b"inner")
    control.replace(NAME, b"outer")
    assert control.names() == ["0001", NAME]
    assert [control.is_place(name) for name in ("0001", NAME, "none")] == [True, False, False]
    assert (control.exists("0001"), control.within("0001").read(NAME), control.read(NAME)) == (True, b"inner", b"outer")


def test_what_is_set_aside_keeps_its_content_until_somebody_removes_it(place: LocalPlace) -> None:
    control = place.control
    for content in (b"1", b"2"):
        control.replace(NAME, content)
        control.set_aside(NAME)
        assert not control.exists(NAME)
    control.put_aside(NAME, b"3")
    names = place.next_process().set_aside_names()
    assert sorted(control.read(name) for name in names) == [b"1", b"2", b"3"]
    assert not control.exists(NAME)


# Locks


def test_a_lock_has_one_holder_who_is_named(place: LocalPlace) -> None:
    lease = place.control.lock("role.lock")
    with pytest.raises(Locked) as refused:
        place.next_process().lock("role.lock")
    assert refused.value.holder == str(os.getpid())
    place.control.lock("other.lock").close()
    lease.close()
    place.next_process().lock("role.lock").close()


def test_who_waits_for_a_lock_gets_it_when_it_is_free(place: LocalPlace) -> None:
    steps: list[str] = []
    other = place.next_process()

    def second() -> None:
        with other.locked("open.lock"):
            steps.append("second")

    with place.control.locked("open.lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.05)
        steps.append("first")
    thread.join(10)
    assert steps == ["first", "second"]


def test_a_lock_is_free_after_an_error_inside(place: LocalPlace) -> None:
    with pytest.raises(ZeroDivisionError), place.control.locked("open.lock"):
        raise ZeroDivisionError
    with place.next_process().locked("open.lock"):
        pass


# Faults


@pytest.mark.parametrize("what", ["create", "write", "sync", "rename"])
def test_a_replacement_that_storage_refuses_leaves_the_old_content_or_the_new(place: LocalPlace, what: str) -> None:
    place.control.replace(NAME, b"old")
    with place.faults.refusing(what), pytest.raises(OSError, match=r"refuses|No space"):
        place.control.replace(NAME, b"new")
    assert place.next_process().read(NAME) in (b"old", b"new")
    place.control.replace(NAME, b"newest")
    assert place.next_process().read(NAME) == b"newest"


def _replace(control: Control) -> None:
    control.replace(NAME, b"new")


def _set_aside(control: Control) -> None:
    control.set_aside(NAME)


def _put_aside(control: Control) -> None:
    control.put_aside(NAME, b"lost")


ALLOWED = [([b"old"], []), ([b"new"], []), ([], [b"old"]), ([b"old"], [b"lost"])]
"""(the document, what was set aside)."""


@pytest.mark.parametrize("act", [_replace, _set_aside, _put_aside])
def test_a_crash_between_any_two_steps_leaves_the_state_before_or_after(
    place: LocalPlace, tmp_path: Path, act: Callable[[Control], None]
) -> None:
    for step in range(STEPS_MAX):
        place = type(place)(tmp_path / str(step))
        place.control.replace(NAME, b"old")
        try:
            with place.faults.killed_before(step):
                act(place.control)
            was_killed = False
        except Killed:
            was_killed = True
        control = place.next_process()
        current = [control.read(NAME)] if control.exists(NAME) else []
        # What is being written aside has a name of its own as well until it is whole.
        aside = [control.read(name) for name in control.set_aside_names() if not name.endswith(".new")]
        assert (current, aside) in ALLOWED
        if not was_killed:
            break
    assert step > 0
    assert not was_killed

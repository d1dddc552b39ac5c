"""What a backup needs to be whole: files that can be listed, and a view that the cluster keeps."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.backup import sending, views
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import BackupError
from coordinator.backup.sources import LocalSource
from coordinator.command_client import Away, CommandError
from shared.data_files import files_in
from tests.unit.backup_places import Api, assert_restored, back_up, contents, make_view, names_in, nothing, restore


@contextmanager
def unreadable(directory: Path, error: int = errno.EIO) -> Iterator[None]:
    """This directory cannot be listed."""
    scandir = os.scandir

    def fail(path: str | Path) -> Any:
        if Path(path) == directory:
            raise OSError(error, os.strerror(error), str(path))
        return scandir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        yield


def test_prune_removes_nothing_if_the_backups_cannot_be_listed(tmp_path: Path) -> None:
    view, place = make_view(tmp_path / "view"), tmp_path / "place"
    back_up(view, str(place))
    with unreadable(place / "backups"), pytest.raises(OSError, match="Input/output"):
        sending.prune(open_place(str(place)), 1)
    assert len(names_in(str(place))) == 1
    restore(str(place), tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_prune_removes_only_what_may_be_of_a_backup(tmp_path: Path) -> None:
    view, place = make_view(tmp_path / "view"), tmp_path / "place"
    back_up(view, str(place))
    left_over = place / "objects/ab" / f"ab{'0' * 30}-4"
    of_others = [place / "objects/pack/notes", place / "objects/ab" / f"cd{'0' * 30}-4"]
    for path in (left_over, *of_others):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"data")
    assert sending.prune(open_place(str(place)), 1) == ([], 4)
    assert not left_over.exists()
    assert all(path.exists() for path in of_others)


def test_a_directory_of_the_view_that_cannot_be_listed_is_not_left_out(tmp_path: Path) -> None:
    view = make_view(tmp_path / "view")
    with unreadable(view / "shards" / "0001"), pytest.raises(OSError, match="Input/output"):
        LocalSource(view).files()


def test_a_place_that_cannot_be_locked_is_not_said_to_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_place(str(tmp_path / "place"), create=True)
    with place.locked(), pytest.raises(BackupError, match="in use"), place.locked():
        pass

    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(BackupError, match="cannot be locked: No locks available"), place.locked():
        pass


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_check_does_not_say_of_a_directory_that_cannot_be_listed_that_it_is_well(tmp_path: Path, error: int) -> None:
    data = make_view(tmp_path / "data")
    with unreadable(data / "shards" / "0001", error), pytest.raises(OSError, match=os.strerror(error)):
        list(files_in(data))


def test_files_are_listed_with_links_and_without_what_they_lead_to(tmp_path: Path) -> None:
    data = make_view(tmp_path / "data")
    (data / "link").symlink_to(data / "wal")
    listed = list(files_in(data))
    assert listed == sorted([*contents(data), "link"])


class BusyApi(Api):
    """A cluster that refuses to renew the view as often as `refusals` says, and to remove it with `at_end`."""

    def __init__(self, view: Path, refusals: int, at_end: Exception | None = None) -> None:
        super().__init__(view)
        self.refusals = refusals
        self.at_end = at_end

    def call(self, method: str, path: str, body: Any = None, **parameters: str | int) -> Any:
        if "hold" in parameters and self.refusals:
            self.refusals -= 1
            raise Away("64 requests are in flight")
        if method == "DELETE" and self.at_end is not None:
            raise self.at_end
        return super().call(method, path, body, **parameters)


def test_a_cluster_that_is_busy_for_a_moment_ends_no_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "RENEW_EVERY_S", 0.01)
    api = BusyApi(make_view(tmp_path / "view"), refusals=3)

    def wait_until_renewed(what: str, done: int, total: int) -> None:
        while not api.holds:
            time.sleep(0.01)

    sending.backup(api, open_place(str(tmp_path / "place"), create=True), wait_until_renewed)
    assert names_in(str(tmp_path / "place")) == [api.name]


def test_a_view_that_was_lost_while_the_cluster_was_away_ends_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = BusyApi(make_view(tmp_path / "view"), refusals=1 << 30, at_end=CommandError("there is no view"))
    monkeypatch.setattr(sending, "RENEW_EVERY_S", 0.01)
    with pytest.raises(BackupError, match="there is no view"):
        sending.backup(api, open_place(str(tmp_path / "place"), create=True), nothing)
    assert not names_in(str(tmp_path / "place"))


def test_a_cluster_that_stays_away_ends_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "RENEW_EVERY_S", 0.01)
    monkeypatch.setattr(sending, "TRIED_S", 0.05)
    api = BusyApi(make_view(tmp_path / "view"), refusals=1 << 30)
    with pytest.raises(BackupError, match="requests are in flight"):
        sending.backup(api, open_place(str(tmp_path / "place"), create=True), lambda what, done, total: time.sleep(0.2))


def test_the_view_is_asked_for_as_long_as_it_is_kept() -> None:
    assert sending.RENEW_EVERY_S < sending.TRIED_S < views.LEASE_S

# ruff: noqa: F811 (fixtures of another module)
"""The copy of a view, `prune` and the restore, in a directory and in a bucket."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.backup import directory, restoring, sending
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import OBJECTS, BackupError
from coordinator.backup.place import Place
from coordinator.commands import backup as commands
from coordinator.fanout.barrier import WRITES
from coordinator.log import sequencer
from shared import durable, identity, manifest
from shared.control import LocalControl
from shared.settings import Settings
from tests.earlier_format import formats_of, put_back
from tests.s3_server import S3Server
from tests.unit.backup_places import (  # noqa: F401 (fixtures)
    OLD,
    Api,
    assert_restored,
    back_up,
    bucket,
    contents,
    location,
    names_in,
    nothing,
    restore,
    view,
)
from worker.methods.table import METHODS

STEPS = ("fsync", "rename", "replace", "unlink", "write")
"""Functions of `os` before each call of which a process may be killed."""


class Killed(BaseException):
    """The process is killed."""


def test_a_restored_backup_has_every_file_as_it_was(view: Path, location: str, tmp_path: Path) -> None:
    sent = back_up(view, location)
    assert sent.inventory.warnings == ["a block is damaged"]
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_a_restored_directory_is_of_a_new_cluster_whose_log_goes_on_above_all_numbers_given(
    view: Path, tmp_path: Path
) -> None:
    back_up(view, str(tmp_path / "place"))
    restored = restore(str(tmp_path / "place"), tmp_path / "data")
    data = contents(tmp_path / "data")
    assert restored.cluster_id != OLD.cluster_id and restored.shards == 2
    assert data["manifest.json"] == data["shards/manifest.json"] == restored.encode()
    assert identity.decode(data["shards/0001/identity"]) == (restored.cluster_id, identity.SHARD, 1)
    assert identity.decode(data["wal/0000/identity"]) == (restored.cluster_id, identity.LOG, 0)
    state = sequencer.decode(data["sequencer/state"])
    assert (state.limit, state.next) == (500 + sequencer.LOST_AHEAD, None)


def test_a_backup_of_an_earlier_format_is_restored_in_it_and_upgraded_by_the_first_start(
    view: Path, location: str, tmp_path: Path
) -> None:
    put_back(view)
    sent = back_up(view, location)
    assert sent.inventory.data_format == 1
    restored = restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")
    assert formats_of(tmp_path / "data") == (1, 1)
    started = manifest.open_manifest(Settings(data=tmp_path / "data", shards=2), LocalControl(tmp_path / "data"))
    assert started == restored
    assert formats_of(tmp_path / "data") == (manifest.FORMAT, manifest.FORMAT)


def test_a_backup_of_a_later_format_is_refused_by_name(view: Path, location: str, tmp_path: Path) -> None:
    back_up(view, location)
    place = open_place(location)
    own = manifest.FORMAT
    later = msgspec.structs.replace(restoring.choose(place, None), data_format=own + 1)
    refused = f"has data in format {own + 1}, and this release reads format {own}: restore it with"
    with pytest.raises(BackupError, match=refused):
        restoring.restore(place, later, tmp_path / "data", nothing)
    assert not list(tmp_path.glob("data*"))


def test_a_second_backup_copies_only_what_is_new(view: Path, location: str, tmp_path: Path) -> None:
    first = back_up(view, location)
    assert first.copied == sum(len(content) for content in set(contents(view).values()))
    (view / "shards/0000/store/000002.sst").write_bytes(b"new")
    second = back_up(view, location, "20261122T000001Z-0")
    assert second.copied == 3
    assert names_in(location) == ["20261122T000000Z-0", "20261122T000001Z-0"]
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_a_file_that_changed_under_its_name_and_size_is_copied(view: Path, tmp_path: Path) -> None:
    back_up(view, str(tmp_path / "place"))
    file = view / "shards/0000/store/CURRENT"
    file.write_bytes(b"MANIFEST-000006\n")
    os.utime(file, ns=(1, 1))
    back_up(view, str(tmp_path / "place"), "20261122T000001Z-0")
    restore(str(tmp_path / "place"), tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_large_objects_are_uploaded_in_parts_and_failed_requests_repeated(
    view: Path, bucket: S3Server, tmp_path: Path
) -> None:
    (view / "wal/0000/00000002.wal").write_bytes(random.Random(1).randbytes(40 << 20))
    bucket.failures = 3
    back_up(view, "s3://bucket/prefix")
    restore("s3://bucket/prefix", tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def kills(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Iterator[int]:
    """Run `work`, killed before its first step, then before its second, and so on until it is not killed any more.
    Yields the number of the step after each kill."""
    for step in range(1000):
        left = step
        with monkeypatch.context() as patch:

            def dying(name: str) -> Callable[..., Any]:
                function = getattr(os, name)

                def call(*arguments: Any, **options: Any) -> Any:
                    nonlocal left
                    if left <= 0:
                        raise Killed
                    left -= 1
                    return function(*arguments, **options)

                return call

            for name in STEPS:
                patch.setattr(os, name, dying(name))
            try:
                work()
            except Killed:
                pass
            else:
                return
        yield step
    raise AssertionError("the work does not end")


def test_a_killed_backup_leaves_the_one_before_good_and_the_next_one_works(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "place")
    (view / "wal/0000/00000001.wal").write_bytes(b"short")
    back_up(view, location)
    before = contents(tmp_path / "place")
    (view / "shards/0000/store/000002.sst").write_bytes(b"new")
    (view / "shards/0001/store/000002.sst").write_bytes(b"newer")
    steps = 0
    for step in kills(monkeypatch, lambda: back_up(view, location, "20261122T000001Z-0")):
        steps += 1
        after = contents(tmp_path / "place")
        if names_in(location) == ["20261122T000000Z-0"]:
            assert {name: after[name] for name in before} == before, step
        assert sending.verify(open_place(location), nothing) == []
        for name in after.keys() - before.keys() - {"lock"}:
            (tmp_path / "place" / name).unlink(missing_ok=True)
    assert steps > 10
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_a_killed_restore_leaves_no_data_directory_and_goes_on(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, data = str(tmp_path / "place"), tmp_path / "data"
    (view / "wal/0000/00000001.wal").write_bytes(b"short")
    back_up(view, location)
    steps = 0
    for _ in kills(monkeypatch, lambda: restore(location, data)):
        steps += 1
        if data.exists():  # it is complete, and only the note has not been removed
            (data / restoring.NOTE).unlink()
            assert_restored(view, data)
            break
    assert steps > 10
    assert data.exists()


def test_a_restore_verifies_what_a_killed_one_has_left(view: Path, tmp_path: Path) -> None:
    back_up(view, str(tmp_path / "place"))
    beside = tmp_path / "data.restoring"
    (beside / "wal/0000").mkdir(parents=True)
    (beside / restoring.NOTE).write_text("20261122T000000Z-0")
    (beside / "wal/0000/00000001.wal").write_bytes(bytes(3 << 20))
    (beside / "stray").write_bytes(b"left")
    restore(str(tmp_path / "place"), tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_a_restore_refuses_what_is_not_its_own(view: Path, tmp_path: Path) -> None:
    back_up(view, str(tmp_path / "place"))
    for name in ("full", "other.restoring", "foreign.restoring"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x")
    (tmp_path / "other.restoring" / restoring.NOTE).write_text("another backup")
    for name, text in (("full", "not empty"), ("other", "'another backup'"), ("foreign", "not of a restore")):
        with pytest.raises(BackupError, match=text):
            restore(str(tmp_path / "place"), tmp_path / name)
    (tmp_path / "empty").mkdir()
    restore(str(tmp_path / "place"), tmp_path / "empty")


def test_a_restore_goes_where_a_link_leads_and_refuses_a_mounted_disk_before_it_copies(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(view, str(tmp_path / "place"))
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "disk" / "data")
    restore(str(tmp_path / "place"), tmp_path / "data")
    assert_restored(view, tmp_path / "disk" / "data")
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda self: self == tmp_path / "mounted")
    with pytest.raises(BackupError, match="mounted; restore into a directory on it"):
        restore(str(tmp_path / "place"), tmp_path / "mounted")
    assert not (tmp_path / "mounted.restoring").exists()


def test_prune_removes_what_no_backup_names(view: Path, location: str, tmp_path: Path) -> None:
    back_up(view, location)
    (view / "wal/0000/00000001.wal").unlink()
    (view / "wal/0000/00000002.wal").write_bytes(b"next")
    back_up(view, location, "20261122T000001Z-0")
    removed, freed = sending.prune(open_place(location), 1)
    assert (removed, freed) == (["20261122T000000Z-0"], 3 << 20)
    assert sending.verify(open_place(location), nothing) == []
    restore(location, tmp_path / "data")
    assert_restored(view, tmp_path / "data")


def test_the_newest_backup_is_the_last_one_made_also_when_the_clock_was_set_back(
    view: Path, location: str, tmp_path: Path
) -> None:
    for day in (23, 22, 21):
        (view / "day").write_text(str(day))
        back_up(view, location, f"202611{day}T000000Z-0")
    restore(location, tmp_path / "data")
    assert (tmp_path / "data/day").read_text() == "21"
    removed, _ = sending.prune(open_place(location), 1)
    assert removed == ["20261123T000000Z-0", "20261122T000000Z-0"]


def test_prune_and_a_backup_never_run_at_once(view: Path, location: str) -> None:
    with open_place(location, create=True).locked(), pytest.raises(BackupError, match="in use"):
        back_up(view, location)
    back_up(view, location)
    with open_place(location).locked(), pytest.raises(BackupError, match="in use"):
        sending.prune(open_place(location), 1)


def test_a_full_destination_leaves_the_backups_before(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "place")
    back_up(view, location)
    (view / "shards/0000/store/000002.sst").write_bytes(b"new")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(directory.os, "write", full)
        back_up(view, location, "20261122T000001Z-0")
    assert names_in(location) == ["20261122T000000Z-0"]
    assert sending.verify(open_place(location), nothing) == []


def test_verifying_a_place_without_backups_is_an_error(tmp_path: Path) -> None:
    api: Any = None
    with pytest.raises(BackupError, match=f"{tmp_path} has no backup"):
        commands.run_backup(api, [str(tmp_path)], io.StringIO(), verify=True)


def test_the_commands_leave_files_that_only_their_user_can_read(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = tmp_path / "place", tmp_path / "deep/down/data"
    monkeypatch.setattr(sending, "yield_to_others", lambda: None)
    before = os.umask(0)
    try:
        output = io.StringIO()
        commands.run_backup(Api(view), [str(place)], output)
        commands.run_restore(str(place), data, None, output)
        assert commands.run_backup(Api(view), [str(place)], output, verify=True) == 0
        assert commands.run_backup(Api(view), ["list", str(place)], output) == 0
        listed = io.StringIO()
        assert commands.run_backup(Api(view), ["list", str(place)], listed, as_json=True) == 0
    finally:
        os.umask(before)
    for path in (*place.rglob("*"), *data.rglob("*"), place, data):
        assert path.stat().st_mode & 0o077 == 0, path
    (row,) = json.loads(listed.getvalue())["backups"]
    assert (
        row.keys() == {"name", "files", "bytes", "warnings"}
        and row["files"] > 0
        and row["warnings"] == ["a block is damaged"]
    )
    with pytest.raises(BackupError, match="--keep is missing"):
        commands.run_backup(Api(view), ["prune", str(place)], output)
    with pytest.raises(BackupError, match="not understood"):
        commands.run_backup(Api(view), ["a", "b", "c"], output)


def test_a_restore_without_room_is_refused_before_anything_is_copied(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(view, str(tmp_path / "place"))
    monkeypatch.setattr(restoring.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(BackupError, match="5 free"):
        restore(str(tmp_path / "place"), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_the_barrier_holds_back_every_method_that_changes_something() -> None:
    writing = {name for name, method in METHODS.items() if method.kind == "write"}
    assert {name for name in writing if not name.startswith("backup.")} == WRITES


def test_what_a_file_system_lacks_is_synced_before_a_backup_counts(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = open_place(str(tmp_path / "place"), create=True)
    synced: list[Path] = []
    monkeypatch.setattr(directory, "sync_directory", lambda path: synced.append(path))
    real = durable.write_atomically

    def publish(path: Path, content: bytes) -> None:
        folders = {(tmp_path / "place" / name).parent for name in place.names(OBJECTS)}
        assert folders <= set(synced)
        real(path, content)

    monkeypatch.setattr(directory, "write_atomically", publish)
    sending.backup(Api(view), place, nothing)

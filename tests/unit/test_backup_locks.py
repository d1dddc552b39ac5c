# ruff: noqa: F811 (fixtures of another module)
"""The lock of a place of backups: a failure releases it, a killed holder does not keep it, and messages name the
holder."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.backup import directory, sending
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import BackupError
from coordinator.backup.place import LOCK, holder_in
from coordinator.command_client import CommandError
from loadtest.harness.cluster import ROOT
from tests.s3_server import S3Server
from tests.unit.backup_places import (  # noqa: F401 (fixtures)
    Api,
    back_up,
    bucket,
    location,
    names_in,
    nothing,
    view,
)

WITHIN_S = 60.0
HOLDER = rf"process {os.getpid()} on host {re.escape(socket.gethostname())} since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
HOLDS = """
import sys, time
from coordinator.backup.destination import open_place
with open_place(sys.argv[1], create=True).locked():
    print("holds", flush=True)
    time.sleep(600)
"""


class Refusing(Api):
    """A cluster that refuses to make a backup."""

    def call(self, *_: object, **__: object) -> object:
        raise CommandError("a shard is missing")


def locks_in(tmp_path: Path, server: S3Server | None) -> list[str]:
    names = server.objects if server is not None else (path.name for path in (tmp_path / "place").rglob("*"))
    return [name for name in names if name.rpartition("/")[2] in (LOCK, "unfinished")]


@pytest.fixture
def server(request: pytest.FixtureRequest, location: str) -> S3Server | None:
    return request.getfixturevalue("bucket") if location.startswith("s3://") else None


def test_a_backup_that_fails_leaves_no_lock(view: Path, location: str, tmp_path: Path, server: S3Server | None) -> None:
    with pytest.raises(CommandError, match="a shard is missing"):
        sending.backup(Refusing(view), open_place(location, create=True), nothing)
    assert locks_in(tmp_path, server) == []
    back_up(view, location)
    assert locks_in(tmp_path, server) == []


def test_a_backup_that_fails_for_a_full_disk_leaves_no_lock_and_no_part_of_a_file(
    view: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    with monkeypatch.context() as patch, pytest.raises(OSError, match=f"No space left on device: '{place}'"):
        full = os.open("/dev/full", os.O_WRONLY)
        patch.setattr(directory, "_write_all", lambda *_: os.write(full, b"x"))
        back_up(view, str(place))
    os.close(full)
    assert [path.name for path in place.rglob("*") if path.is_file()] == []
    back_up(view, str(place))


def test_a_lock_that_is_held_names_its_holder(location: str) -> None:
    with (
        open_place(location, create=True).locked(),
        pytest.raises(BackupError, match=rf"^{location} is in use by {HOLDER}; try again"),
        open_place(location).locked(),
    ):
        pass


def test_a_lock_in_a_bucket_says_until_when_a_killed_holder_keeps_it(
    bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = pytest.importorskip("coordinator.backup.buckets")
    left = "s3://bucket/prefix"
    lock = f"bucket/prefix/{LOCK}"
    bucket.objects[lock] = b"process 7 on host other since 2026-11-22 00:00:00 UTC\ntoken"
    message = r"by process 7 on host other .* ignored from \d\d:\d\d:\d\d UTC on; .* delete s3://bucket/prefix/lock$"
    with pytest.raises(BackupError, match=message), open_place(left).locked():
        pass
    assert bucket.objects[lock].startswith(b"process 7 ")
    monkeypatch.setattr(buckets, "LOCK_STALE_S", 0.0)
    with open_place(left).locked():
        assert bucket.objects[lock].startswith(b"process %d " % os.getpid())
    assert bucket.objects == {}


def test_a_process_that_is_killed_does_not_keep_the_lock_of_a_directory(view: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    command = [sys.executable, "-c", HOLDS, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"holds\n"
        with pytest.raises(BackupError, match=f"in use by process {holder.pid} on"):
            back_up(view, str(place))
        holder.kill()
    assert (place / LOCK).exists()
    back_up(view, str(place))
    assert not (place / LOCK).exists()


def test_a_lock_whose_holder_removes_it_at_the_same_moment_is_taken_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = directory.fcntl.flock
    removed = []

    def remove_before(file: object, operation: int) -> None:
        if not removed:
            (tmp_path / LOCK).unlink()
            removed.append(LOCK)
        lock(file, operation)

    monkeypatch.setattr(directory.fcntl, "flock", remove_before)
    with open_place(str(tmp_path)).locked():
        assert (tmp_path / LOCK).exists()
        with pytest.raises(BackupError, match="in use"), open_place(str(tmp_path)).locked():
            pass


def _heeds_signals() -> None:
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # the process that started the tests may ignore them, as `nohup` does
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_leaves_no_lock(
    location: str, tmp_path: Path, server: S3Server | None, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a cluster that does not respond
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "coordinator.cli", "backup", location, "--url", url]
        with subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, preexec_fn=_heeds_signals
        ) as process:
            silent.settimeout(WITHIN_S)
            connection, _ = silent.accept()  # the lock is held by now
            with connection:
                assert locks_in(tmp_path, server)
                process.send_signal(number)
                assert process.wait(WITHIN_S) == 130
    assert locks_in(tmp_path, server) == []


@pytest.mark.parametrize("content", [b"", b"0123abcd", b"a\x1b[31m\n", b"x" * 300 + b"\n"])
def test_a_lock_with_other_content_is_that_of_another_backup(content: bytes) -> None:
    assert holder_in(content) == "another backup or prune"

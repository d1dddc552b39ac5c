"""The files of a write-ahead log: numbers, reuse, failed syncs, and crashes between any two steps."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.errors import ConfigError, Unavailable
from tests.unit.wal_images import SMALL, files_with_records, held, killed, opened, payload, written
from worker.storage.wal import layout, reading, record
from worker.storage.wal.log import LOG, RECOVERY_FREE_BYTES, SERIES, WriteAheadLog
from worker.storage.wal.register import Register

pytestmark = [
    pytest.mark.usefixtures("power_stays_on"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # killed threads
]

TIMEOUT_S = 10.0
STEPS = (
    "open",
    "mkdir",
    "replace",
    "rename",
    "unlink",
    "rmdir",
    "pwrite",
    "pwritev",
    "fsync",
    "fdatasync",
    "ftruncate",
)


class Killed(BaseException):
    """What a process that is killed does next."""


@contextlib.contextmanager
def killed_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The process ends before its `call`-th step that changes the disk; the steps so far."""
    steps: list[str] = []

    def patched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_CREAT | os.O_TRUNC):
                return original(*arguments, **options)
            if len(steps) >= call:
                raise Killed(f"before {name}")
            steps.append(name)
            return None if name in ("fsync", "fdatasync") else original(*arguments, **options)

        return step

    for name in STEPS:
        monkeypatch.setattr(os, name, patched(name, getattr(os, name)))
    try:
        yield steps
    except Killed:
        steps.append("killed")
    finally:
        monkeypatch.undo()


def position_number(position: int) -> int:
    return position >> 40


def test_a_number_is_never_given_twice_also_when_all_files_are_released(tmp_path: Path) -> None:
    highest = 0
    for _ in range(5):
        log = opened(tmp_path)
        stream = log.stream(0, LOG)
        position = stream.write([b"x" * 500])
        assert position > highest
        highest = position
        stream.release(position + 1)
        log.close()


@pytest.mark.parametrize("call", range(40))
def test_a_kill_at_any_step_of_a_start_gives_no_number_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    log = opened(tmp_path)
    position = log.stream(0, LOG).write([b"x" * 500])
    log.stream(0, LOG).release(position + 1)
    log.close()
    log = WriteAheadLog(tmp_path, file_bytes=SMALL)
    with killed_at(call, monkeypatch):
        log.open()
        log.stream(0, LOG).replayed()
        log.stream(0, LOG).release(position + 1)
    if log._files is not None:
        log.close()
    for path in reading.paths_of(tmp_path):  # nothing in these is of use
        if not any(content.path == path for content in reading.survey(tmp_path).used):
            path.unlink()
    again = opened(tmp_path)
    assert again.stream(0, LOG).write([b"y"]) > position
    assert again.losses_of(0) == []
    again.close()


@pytest.mark.parametrize("call", range(0, 60, 2))
def test_a_kill_at_any_step_of_writing_and_releasing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    directory = tmp_path / "wal"
    log = opened(directory)
    kept = log.stream(1, LOG)
    acknowledged: list[bytes] = []
    with killed_at(call, monkeypatch):
        for number in range(40):
            stream = log.stream(0, LOG)
            stream.release(stream.write([payload(0, number)]))
            kept.write([payload(1, number)])
            log.sync()
            acknowledged.append(payload(1, number))
    image = killed(log, tmp_path / "image")
    again = opened(image)
    records = held(again.stream(1, LOG))
    assert records[: len(acknowledged)] == acknowledged
    assert len(records) <= len(acknowledged) + 1
    assert again.losses_of(1) == []
    again.close()


def test_replays_keep_what_they_read_when_its_file_is_released_meanwhile(tmp_path: Path) -> None:
    written(tmp_path, 60).close()
    log = opened(tmp_path)
    first = list(log.stream(0, LOG).records())
    before = [bytes(record) for _, record in first]
    for shard in range(3):
        for area in (SERIES, LOG):
            log.stream(shard, area).release(first[-1][0] + (1 << 40))
    writer = log.stream(9, LOG)
    for _ in range(60):  # would use the files again
        writer.release(writer.write([b"\xee" * 1000]))
        log.sync()
    second = held(log.stream(0, LOG))
    assert [bytes(record) for _, record in first] == before
    assert second == before
    log.close()


def test_files_written_in_this_start_are_used_again(tmp_path: Path) -> None:
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    inodes = set()
    for _ in range(100):
        stream.release(stream.write([b"x" * 900]))
        for path in tmp_path.glob("*.wal"):
            with contextlib.suppress(FileNotFoundError):  # another thread has just given it its next name
                inodes.add(path.stat().st_ino)
    assert len(inodes) < 8
    log.close()


def test_a_file_that_an_earlier_start_has_made_ready_is_used(tmp_path: Path) -> None:
    opened(tmp_path).close()
    ready = tmp_path / "00000050.wal"
    ready.write_bytes(bytes(SMALL))
    inode = ready.stat().st_ino
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    for _ in range(2 * SMALL // 900):
        stream.write([b"x" * 900])
    used = {path.name: path.stat().st_ino for path in files_with_records(tmp_path)}
    log.close()
    assert inode in used.values()
    assert ready.name not in used


def fail_sync(_: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_what_a_failed_sync_left_in_memory_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path / "wal")
    stream = log.stream(0, LOG)
    stream.write([b"synced"])
    log.sync()
    stream.write([b"read back from memory only"])
    monkeypatch.setattr(os, "fdatasync", fail_sync)
    with pytest.raises(Unavailable, match="Input/output error"):
        log.sync()
    monkeypatch.undo()
    log.close()
    [old] = files_with_records(tmp_path / "wal")
    [content] = [own for own in reading.survey(tmp_path / "wal").used if own.records]
    place = content.synced
    again = opened(tmp_path / "wal")
    assert held(again.stream(0, LOG)) == [b"synced", b"read back from memory only"]
    image = killed(again, tmp_path / "image")
    again.close()
    with open(image / old.name, "r+b") as file:  # what the disk has of it
        file.seek(place)
        file.write(bytes(200))
    last = opened(image)
    assert held(last.stream(0, LOG)) == [b"synced", b"read back from memory only"]
    assert last.losses_of(0) == []
    last.close()


def test_a_record_is_not_there_twice_when_its_rewriting_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "wal", 3)  # not synced
    image = killed(log, tmp_path / "image")
    log.close()
    expected = [payload(0, number) for number in (0, 2)]
    for call in range(60):
        start = tmp_path / f"start-{call}"
        shutil.copytree(image, start)
        for again in (call, call // 2):
            log = WriteAheadLog(start, file_bytes=SMALL)
            with killed_at(again, monkeypatch) as steps:
                log.open()
            if log._files is not None:
                log.close()
        log = opened(start)
        assert held(log.stream(0, LOG)) == expected, steps
        assert log.losses_of(0) == []
        log.close()


def test_what_was_written_anew_is_not_there_twice_when_the_list_is_lost(tmp_path: Path) -> None:
    log = opened(tmp_path / "wal")
    for number in range(6):
        log.stream(0, LOG).write([payload(0, number)])
        if number == 2:
            log.sync()
    image = killed(log, tmp_path / "image")
    log.close()
    again = opened(image)
    again.stream(0, LOG).write([b"after"])
    again.close()
    (image / "files").unlink()
    last = opened(image)
    assert held(last.stream(0, LOG)) == [*(payload(0, number) for number in range(6)), b"after"]
    assert last.losses_of(0)
    last.close()


def test_files_that_were_closed_do_not_hide_what_was_written_anew_behind_them(tmp_path: Path) -> None:
    log = opened(tmp_path / "wal")
    log.stream(0, LOG).write([b"closed"])
    log.close()
    log = opened(tmp_path / "wal")
    log.stream(0, LOG).write([b"synced"])
    log.sync()
    log.stream(0, LOG).write([b"not synced"])
    image = killed(log, tmp_path / "image")
    log.close()
    opened(image).close()
    (image / "files").unlink()
    last = opened(image)
    assert held(last.stream(0, LOG)) == [b"closed", b"synced", b"not synced"]
    last.close()


@pytest.mark.parametrize(("owner", "step"), [(os, "pwrite"), (Register, "change")])
def test_a_file_that_finds_no_room_is_removed_and_its_write_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    log = opened(tmp_path / "wal")
    before = sorted(log._directory.glob("*.wal"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, step, full)
    log.stream(0, LOG).write([b"a" * 3000])
    with pytest.raises(Unavailable, match="No space left"):
        log.stream(0, LOG).write([b"b" * 3000])
    give_up = time.monotonic() + TIMEOUT_S
    while sorted(log._directory.glob("*.wal")) != before:  # another file is tried in the background
        assert time.monotonic() < give_up, sorted(log._directory.iterdir())
        time.sleep(0.01)
    monkeypatch.undo()
    log.stream(0, LOG).write([b"c" * 3000])
    log.close()
    again = opened(tmp_path / "wal")
    assert held(again.stream(0, LOG)) == [b"a" * 3000, b"c" * 3000]
    again.close()


def test_a_sync_that_waits_behind_a_failed_change_of_files_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    stream.write([b"x" * 3000])
    begun, let_go = threading.Event(), threading.Event()

    def fail_once(_: int) -> None:
        monkeypatch.undo()
        begun.set()
        assert let_go.wait(TIMEOUT_S)
        raise OSError(errno.EIO, "Input/output error")

    outcomes: list[str] = []

    def outcome(work: Callable[[], object]) -> None:
        try:
            work()
        except Unavailable:
            outcomes.append("refused")
        else:
            outcomes.append("done")

    log._files.next()  # type: ignore[union-attr]  # so that the next write leaves the file
    monkeypatch.setattr(os, "fdatasync", fail_once)
    leaver = threading.Thread(target=outcome, args=(lambda: [stream.write([b"y" * 3000]) for _ in range(3)],))
    leaver.start()
    assert begun.wait(TIMEOUT_S)
    syncer = threading.Thread(target=outcome, args=(log.sync,))
    syncer.start()
    syncer.join(0.2)
    let_go.set()
    for thread in (leaver, syncer):
        thread.join()
    assert outcomes == ["refused", "refused"]
    log.close()


def test_a_write_that_cannot_be_taken_back_ends_all_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    write = os.pwritev

    def half(descriptor: int, pieces: list[bytes], offset: int) -> int:
        write(descriptor, pieces, offset)
        raise OSError(errno.EIO, "Input/output error")

    def refuse(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwritev", half)
    monkeypatch.setattr(os, "ftruncate", refuse)
    stream = log.stream(0, LOG)
    with pytest.raises(Unavailable):
        log.write([(stream, [b"first"]), (stream, [b"second"])])
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="could not be taken back"):
        stream.write([b"third"])
    log.close()


@pytest.mark.parametrize("left", ["nothing", "empty", "with a log"])
def test_a_first_start_killed_before_it_said_the_number_of_workers_goes_on(tmp_path: Path, left: str) -> None:
    base = tmp_path / "wal"
    if left != "nothing":
        base.mkdir()
    if left == "with a log":
        written(layout.directory_of(base, 0), 6, shards=2).close()
    layout.arrange(base, 2)
    assert layout.read_workers(base / layout.WORKERS) == 2
    if left == "with a log":
        log = opened(layout.directory_of(base, 1))
        assert held(log.stream(1, LOG)) == [payload(1, number) for number in (0, 2, 4)]
        log.close()


@pytest.mark.parametrize("before", [0, 2])
def test_a_kill_at_any_step_of_laying_out_the_logs_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    if before:
        layout.arrange(first / "wal", before)
        for worker in range(before):
            log = opened(layout.directory_of(first / "wal", worker))
            for number in range(8):
                log.stream(worker, LOG).write([payload(worker, number)])
            log.close()
    monkeypatch.setattr(layout, "WriteAheadLog", lambda path: WriteAheadLog(path, file_bytes=SMALL))
    arrange = layout.arrange
    for call in range(0, 400, 3):
        base = tmp_path / str(call) / "wal"
        shutil.copytree(first, base.parent)
        with pytest.MonkeyPatch.context() as patch, killed_at(call, patch) as steps:
            arrange(base, 3)
        try:
            arrange(base, 3)
        except ConfigError as error:
            pytest.fail(f"{steps[-3:]}: {error}")
        records = {}
        for worker in range(3):
            log = opened(layout.directory_of(base, worker))
            records[worker] = held(log.stream(worker, LOG))
            assert log.losses_of(worker) == []
            log.close()
        for worker in range(before):
            assert records[worker] == [payload(worker, number) for number in range(8)], steps[-3:]
        shutil.rmtree(base.parent)
        if "killed" not in steps:
            return
    pytest.fail("the layout never came to its end")


def test_an_exchange_whose_new_directory_is_lost_goes_on_with_the_old_one(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    layout.arrange(base, 1)
    written(layout.directory_of(base, 0), 6).close()
    os.rename(base, tmp_path / "wal.old")
    layout.arrange(base, 1)
    log = opened(layout.directory_of(base, 0))
    assert held(log.stream(2, LOG)) == [payload(2, number) for number in (0, 2, 4)]
    log.close()


def test_a_file_says_up_to_where_it_was_synced(tmp_path: Path) -> None:
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    stream.write([b"one"])
    second = stream.write([b"two"])
    log.sync()
    stream.write([b"three"])
    image = killed(log, tmp_path / "image")
    log.close()
    [content] = [own for own in reading.survey(image).used if own.records]
    marks = [found.synced for found, _ in content.records]
    end_of_second = (second & (1 << 40) - 1) + record.HEADER_BYTES + 8
    assert marks == [record.FILE_HEADER_BYTES, record.FILE_HEADER_BYTES, end_of_second]
    assert [bytes(payload) for _, payload in content.tail] == [b"three"]


@pytest.mark.parametrize(
    ("free_bytes", "is_recoverable"), [(RECOVERY_FREE_BYTES, True), (RECOVERY_FREE_BYTES - 1024, False)]
)
def test_a_log_that_failed_is_opened_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, is_recoverable: bool
) -> None:
    own = WriteAheadLog(tmp_path / "wal", file_bytes=SMALL).open()
    free = SimpleNamespace(f_bavail=free_bytes // 1024, f_frsize=1024)
    monkeypatch.setattr(os, "statvfs", lambda directory: free)
    assert not own.recoverable(), "it has not failed"
    own._failed = "the disk was full"
    assert own.recoverable() == is_recoverable
    own._failed = ""
    own.close()

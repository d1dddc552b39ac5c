"""A write-ahead log whose disk refuses: failed syncs, files that find no room, and when the log goes on."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.errors import Unavailable
from tests.unit.wal_images import SMALL, files_with_records, held, killed, opened, payload, written
from tests.unit.wal_kills import killed_at
from worker.storage.wal import reading
from worker.storage.wal.log import LOG, RECOVERY_FREE_BYTES, WriteAheadLog
from worker.storage.wal.register import COPY_BYTES, Register

pytestmark = [
    pytest.mark.usefixtures("power_stays_on"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # killed threads
]

TIMEOUT_S = 10.0


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


@pytest.mark.parametrize(("owner", "step"), [(os, "posix_fallocate"), (os, "pwrite"), (Register, "change")])
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


@pytest.fixture
def second_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """While this list is empty, the second copy of a list of files can not be written."""
    whole, write = list[int](), os.pwrite

    def refuse(descriptor: int, data: bytes, at: int) -> int:
        if at == COPY_BYTES and not whole and os.readlink(f"/proc/self/fd/{descriptor}").endswith("/files"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", refuse)
    yield whole
    monkeypatch.undo()


def test_a_file_that_is_listed_in_one_copy_only_is_not_missed(tmp_path: Path, second_copies: list[int]) -> None:
    second_copies.append(1)
    log = opened(tmp_path / "wal")
    stored = [b"a" * 3000]
    log.stream(0, LOG).write(stored)
    second_copies.clear()
    with pytest.raises(Unavailable, match="No space left"):
        for _ in range(2):  # the file of the first one may have been prepared before
            log.stream(0, LOG).write([b"b" * 3000])
            stored.append(b"b" * 3000)
    image = killed(log, tmp_path / "image")
    second_copies.append(1)
    log.stream(0, LOG).write([b"c" * 3000])
    log.close()
    for directory, records in ((image, stored), (tmp_path / "wal", [*stored, b"c" * 3000])):
        again = opened(directory)
        assert held(again.stream(0, LOG)) == records
        assert again.losses_of(0) == []
        again.close()


def test_a_file_that_one_copy_does_not_list_takes_no_records(tmp_path: Path, second_copies: list[int]) -> None:
    second_copies.append(1)
    log = opened(tmp_path / "wal")
    assert log._files is not None
    log._files.prepare()
    second_copies.clear()
    with pytest.raises(OSError, match="No space left"):
        log.rest()
    log.stream(0, LOG).write([b"a" * 3000])
    with pytest.raises(Unavailable, match="No space left"):
        log.stream(0, LOG).write([b"b" * 3000])
    second_copies.append(1)
    log.stream(0, LOG).write([b"c" * 3000])
    again = opened(killed(log, tmp_path / "image"))
    assert held(again.stream(0, LOG)) == [b"a" * 3000, b"c" * 3000]
    assert again.losses_of(0) == []
    again.close()
    log.close()


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


def test_a_file_that_the_disk_cannot_read_refuses_the_start_and_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path / "wal")
    log.stream(0, LOG).write([b"kept"])
    log.sync()
    image = killed(log, tmp_path / "image")
    log.close()
    [file] = files_with_records(image)
    content = file.read_bytes()
    mapped = mmap.mmap

    def with_unreadable_pages(descriptor: int, length: int, **options: int) -> mmap.mmap:
        pages = mapped(descriptor, length, **options)
        os.truncate(file, 0)  # its pages are as those of a failed read: a look at one is a SIGBUS
        return pages

    monkeypatch.setattr(mmap, "mmap", with_unreadable_pages)
    again = WriteAheadLog(image)
    with pytest.raises(OSError, match="the disk cannot read all of it") as raised:
        again.open()
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(file))
    monkeypatch.undo()
    file.write_bytes(content)
    assert held(again.open().stream(0, LOG)) == [b"kept"]
    again.close()


def test_a_file_that_is_not_in_use_need_not_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path / "wal")
    log.stream(0, LOG).write([b"kept"])
    log.sync()
    image = killed(log, tmp_path / "image")
    log.close()
    spare = image / "00000099.wal"
    spare.write_bytes(bytes(SMALL))
    mapped = mmap.mmap

    def with_unreadable_spare(descriptor: int, length: int, **options: int) -> mmap.mmap:
        pages = mapped(descriptor, length, **options)
        if os.path.sameopenfile(descriptor, spare_descriptor):
            os.truncate(spare, 0)
        return pages

    monkeypatch.setattr(mmap, "mmap", with_unreadable_spare)
    spare_descriptor = os.open(spare, os.O_RDONLY)
    try:
        again = opened(image)
    finally:
        os.close(spare_descriptor)
    assert held(again.stream(0, LOG)) == [b"kept"]
    again.close()

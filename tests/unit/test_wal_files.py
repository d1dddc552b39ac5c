"""The files of a write-ahead log: numbers, reuse, and crashes between any two steps."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest

from shared.errors import ConfigError
from tests.unit.wal_images import SMALL, files_with_records, held, killed, opened, payload, written
from tests.unit.wal_kills import killed_at
from worker.storage.wal import files, layout, reading, record
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

pytestmark = [
    pytest.mark.usefixtures("power_stays_on"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # killed threads
]


def position_number(position: int) -> int:
    return position >> 40


def test_a_file_that_waits_is_filled_with_zeros_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(files, "ZEROS_EVERY_S", 0.001)
    log = WriteAheadLog(tmp_path).open()
    try:
        assert log._files is not None
        monkeypatch.setattr(os, "fdatasync", noted)
        log._files.want()
        give_up = time.monotonic() + 10
        while (prepared := log._files._prepared) is None or prepared.filled < prepared.size:
            assert time.monotonic() < give_up, prepared
            time.sleep(0.01)
        assert prepared.size == files.FIRST_BYTES * files.GROWTH
        assert synced.count(prepared.path.stat().st_ino) == prepared.size // files.ZEROS_BYTES
        assert (
            prepared.path.read_bytes()[record.FILE_HEADER_BYTES :].count(0) == prepared.size - record.FILE_HEADER_BYTES
        )
    finally:
        log.close()


def test_a_file_that_is_needed_at_once_has_its_blocks_but_no_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ZEROS_EVERY_S", 60.0)
    log = WriteAheadLog(tmp_path).open()
    try:
        assert log._files is not None
        log._files.prepare()
        for _ in range(2):
            log.stream(0, LOG).write([bytes(files.FIRST_BYTES * 3 // 4)])
        status = log._used[-1].path.stat()
        assert status.st_size == files.FIRST_BYTES * files.GROWTH <= status.st_blocks * 512
        assert log._used[-1].filled == record.FILE_HEADER_BYTES
    finally:
        log.close()


def test_no_record_is_overwritten_with_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ZEROS_EVERY_S", 0.0)
    monkeypatch.setattr(files, "ZEROS_BYTES", 512)
    log = opened(tmp_path)
    stream = log.stream(0, LOG)
    records = [bytes([number % 251 + 1]) * 900 for number in range(400)]
    for contents in records:
        stream.write([contents])
    log.close()
    again = opened(tmp_path)
    assert [bytes(contents) for contents in held(again.stream(0, LOG))] == records
    again.close()


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

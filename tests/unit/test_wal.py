"""The write-ahead log: what was written is there again, in order, whatever was torn, released or laid out anew."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError, Unavailable
from worker import ownership
from worker.storage.wal import files, layout, reading, record, register, releases
from worker.storage.wal.log import LOG, SERIES, Stream, WriteAheadLog

pytestmark = pytest.mark.usefixtures("power_stays_on")

SMALL = 4096


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WriteAheadLog]:
    opened = WriteAheadLog(tmp_path / "wal", file_bytes=SMALL).open()
    yield opened
    opened.close()


def reopened(log: WriteAheadLog) -> WriteAheadLog:
    log.close()
    return WriteAheadLog(log._directory, file_bytes=SMALL).open()


def held(stream: Stream) -> list[bytes]:
    return [bytes(payload) for _, payload in stream.records()]


def files_of(log: WriteAheadLog) -> list[Path]:
    return sorted(log._directory.glob("*.wal"))


def test_records_are_there_again_by_stream_in_order(log: WriteAheadLog) -> None:
    a, b = log.stream(0, SERIES), log.stream(0, LOG)
    first = log.write([(a, [b"one", b"", b"two"]), (b, [b"x"]), (a, [])])
    second = a.write([b"three"])
    log.sync()
    assert [*first, second] == sorted([*first, second])
    again = reopened(log)
    assert held(again.stream(0, SERIES)) == [b"onetwo", b"", b"three"]
    assert held(again.stream(0, LOG)) == [b"x"]
    assert held(again.stream(1, LOG)) == []
    positions = [position for position, _ in again.stream(0, SERIES).records()]
    assert positions == [first[0], first[2], second]
    assert again.stream(0, SERIES).write([b"four"]) > second
    again.close()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3000)), min_size=1, max_size=5), max_size=12))
def test_many_records_over_many_files_and_starts(tmp_path_factory: pytest.TempPathFactory, starts: list) -> None:
    directory = tmp_path_factory.mktemp("wal")
    expected: dict[int, list[bytes]] = {shard: [] for shard in range(4)}
    for writes in starts:
        log = WriteAheadLog(directory, file_bytes=SMALL).open()
        for shard in range(4):
            assert held(log.stream(shard, LOG)) == expected[shard]
        for shard, payload in writes:
            log.stream(shard, LOG).write([payload])
            expected[shard].append(payload)
        log.close()


def test_a_record_larger_than_a_file_has_one_of_its_own(log: WriteAheadLog) -> None:
    stream = log.stream(0, LOG)
    large = os.urandom(3 * SMALL)
    for payload in (b"before", large, b"after"):
        stream.write([payload])
    again = reopened(log)
    assert held(again.stream(0, LOG)) == [b"before", large, b"after"]
    again.close()


def test_files_are_used_again_when_no_stream_needs_them(log: WriteAheadLog) -> None:
    a, b = log.stream(0, LOG), log.stream(1, LOG)
    kept = b.write([b"kept"])
    for i in range(40):
        position = a.write([b"%d" % i * 300])
        a.release(position)
    assert any(b"kept" in path.read_bytes() for path in files_of(log))
    b.release(kept + 1)
    for i in range(100):
        a.release(a.write([b"%d" % i * 300]))
    assert len(files_of(log)) <= 3 + files.SPARES_MAX  # one being written, the one before, one made ready
    again = reopened(log)
    assert held(again.stream(0, LOG))[-1] == b"99" * 300
    assert b"kept" not in held(again.stream(1, LOG))
    again.close()


def test_what_a_file_had_before_it_was_used_again_is_not_read(log: WriteAheadLog) -> None:
    stream = log.stream(0, LOG)
    for i in range(60):
        stream.release(stream.write([b"%03d" % i * 100]))
    again = reopened(log)
    numbers = [int(payload[:3]) for payload in held(again.stream(0, LOG))]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 59
    assert len(numbers) < 40
    again.close()


def killed(log: WriteAheadLog) -> None:
    """As a process that is killed leaves it: nothing is said of where the records end."""
    listed = log._directory / register.NAME
    content = listed.read_bytes()
    log.close()
    listed.write_bytes(content)


def torn(log: WriteAheadLog, at: int, content: bytes | None) -> None:
    """The only file with records, with `content` at `at`, or cut there."""
    log.close()
    [path] = [own.path for own in reading.survey(log._directory).used if own.records]
    with open(path, "r+b") as file:
        if content is None:
            file.truncate(at)
        else:
            file.seek(at)
            file.write(content)


@pytest.mark.parametrize("back", [1, 7, 8, 100, 131])
def test_a_torn_tail_is_cut_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, back: int) -> None:
    log = WriteAheadLog(tmp_path).open()
    stream = log.stream(0, SERIES)
    for payload in (b"a" * 100, b"b" * 100):
        stream.write([payload])
    end = log._offset - 4  # of the payload; 4 bytes are padding
    with caplog.at_level(logging.WARNING):
        killed(log)
        torn(log, end - back, None)
        again = WriteAheadLog(tmp_path).open()
    assert held(again.stream(0, SERIES)) == [b"a" * 100]
    assert ("write-ahead log cut" in caplog.text) == (back <= 100)
    again.stream(0, SERIES).write([b"c"])
    again.close()
    last = WriteAheadLog(tmp_path).open()
    assert held(last.stream(0, SERIES)) == [b"a" * 100, b"c"]
    last.close()


@pytest.mark.parametrize("inside", [0, 4, 8, 16, 24, 40])
def test_damage_costs_the_record_it_is_in_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, inside: int
) -> None:
    log = WriteAheadLog(tmp_path).open()
    stream = log.stream(0, SERIES)
    places = [stream.write([bytes([n]) * 100]) & (1 << files.OFFSET_BITS) - 1 for n in range(3)]
    with caplog.at_level(logging.ERROR):
        torn(log, places[1] + inside, b"\xff")
        again = WriteAheadLog(tmp_path).open()
    assert held(again.stream(0, SERIES)) == [b"\0" * 100, b"\2" * 100]
    assert "write-ahead log" in caplog.text
    again.close()


def test_a_full_disk_refuses_the_write_and_leaves_nothing_of_it(
    log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = log.stream(0, SERIES)
    stream.write([b"before"])
    write = os.pwritev

    def half(descriptor: int, pieces: Sequence[bytes], offset: int) -> int:
        write(descriptor, pieces[:3], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", half)
    with pytest.raises(Unavailable, match="No space left"):
        log.write([(stream, [b"first"]), (stream, [b"second"])])
    monkeypatch.undo()
    stream.write([b"x"])
    log.sync()
    assert not log.recoverable()
    again = reopened(log)
    assert held(again.stream(0, SERIES)) == [b"before", b"x"]
    again.close()


def test_a_write_the_kernel_takes_in_parts_is_whole(log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda descriptor, pieces, offset: write(descriptor, [pieces[0][:7]], offset))
    log.stream(0, LOG).write([b"abcdefgh", b"ijk"])
    monkeypatch.undo()
    log.stream(0, LOG).write([[b"%d" % n][0] for n in range(5000)])
    again = reopened(log)
    assert held(again.stream(0, LOG)) == [b"abcdefghijk", b"".join(b"%d" % n for n in range(5000))]
    again.close()


def test_a_failed_sync_ends_all_writing_until_the_log_is_opened_again(
    log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    stream = log.stream(0, LOG)
    stream.write([b"x"])
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(Unavailable, match="Input/output error"):
        log.sync()
    monkeypatch.undo()
    with pytest.raises(Unavailable, match="takes no records"):
        stream.write([b"y"])
    with pytest.raises(Unavailable):
        log.sync()
    assert log.recoverable()


def test_a_stream_that_holds_up_files_is_behind(log: WriteAheadLog) -> None:
    slow, fast = log.stream(0, SERIES), log.stream(1, SERIES)
    for _ in range(4 * releases.BEHIND_FILES):
        position = slow.write([b"old"])
        fast.release(fast.write([b"x" * 1500]))
    assert slow.is_behind()
    assert not fast.is_behind()
    slow.release(position + 1)
    assert not slow.is_behind()


def test_concurrent_writers_and_syncs(log: WriteAheadLog) -> None:
    def work(shard: int) -> None:
        for n in range(200):
            log.stream(shard, LOG).write([b"%d" % n * 20])
            if n % 10 == 0:
                log.sync()

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = reopened(log)
    for shard in range(4):
        assert held(again.stream(shard, LOG)) == [b"%d" % n * 20 for n in range(200)]
    again.close()


def test_one_owner_at_a_time(log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LOCK_WAIT_S", 0.0)
    with pytest.raises(Unavailable, match="locked by another process"):
        WriteAheadLog(log._directory).open()


def fill(base: Path, workers: int, rounds: int) -> None:
    logs = [WriteAheadLog(layout.directory_of(base, worker), file_bytes=SMALL).open() for worker in range(workers)]
    for n in range(rounds):
        for shard in range(6):
            logs[shard % workers].stream(shard, LOG).write([b"%d:%d" % (workers, n), bytes(200)])
    for log in logs:
        log.close()


def read(base: Path, workers: int) -> dict[int, list[bytes]]:
    found = {}
    for worker in range(workers):
        log = WriteAheadLog(layout.directory_of(base, worker), file_bytes=SMALL).open()
        for shard in range(worker, 6, workers):
            found[shard] = [payload.rstrip(b"\0") for payload in held(log.stream(shard, LOG))]
        log.close()
    return found


def test_records_follow_their_shards_when_the_number_of_workers_changes(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    expected: list[bytes] = []
    for workers in (2, 3, 3, 1, 6):
        layout.arrange(base, workers)
        assert read(base, workers) == dict.fromkeys(range(6), expected)
        fill(base, workers, 20)
        expected = [*expected, *(b"%d:%d" % (workers, n) for n in range(20))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wal"]


@pytest.mark.parametrize("step", ["rename", "rmtree", "write_atomically"])
def test_a_crash_while_the_logs_are_laid_out_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    base = tmp_path / "wal"
    layout.arrange(base, 2)
    fill(base, 2, 5)
    owner = {"rename": layout.os, "rmtree": layout.shutil, "write_atomically": layout}[step]
    original = getattr(owner, step)
    for calls in range(3):
        left = [None] * calls

        def crash(*arguments: object, left: list[None] = left) -> None:
            if not left:
                raise OSError("crashed")
            left.pop()
            original(*arguments)

        monkeypatch.setattr(owner, step, crash)
        with contextlib.suppress(ConfigError):
            layout.arrange(base, 3)
        monkeypatch.undo()
        layout.arrange(base, 2)
        expected = [b"2:%d" % n for n in range(5)]
        assert read(base, 2) == dict.fromkeys(range(6), expected)


def test_a_directory_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    base = tmp_path / "wal"
    layout.arrange(base, 2)
    (base / "workers").write_text("many")
    with pytest.raises(ConfigError, match="wal"):
        layout.arrange(base, 2)


def test_a_header_is_thirty_two_bytes_and_aligned() -> None:
    pieces, size = record.frames(1, 2, 3, [b"abc"], record.FILE_HEADER_BYTES)
    assert size == record.HEADER_BYTES + 8 == sum(map(len, pieces))


def test_a_lost_directory_of_a_log_is_refused_and_begins_anew_only_where_somebody_makes_it(tmp_path):
    base = tmp_path / "wal"
    layout.arrange(base, 2)
    lost = layout.directory_of(base, 1)
    lost.rmdir()
    with pytest.raises(ConfigError, match=f"{lost} is missing, with the records .*: mkdir {lost}"):
        layout.arrange(base, 2)
    lost.mkdir()
    layout.arrange(base, 2)


# The header of a file


@pytest.mark.parametrize("least_bytes", [0, record.SIZE_UNIT, 7 * record.SIZE_UNIT])
def test_a_header_says_what_was_written_in_it(least_bytes: int) -> None:
    header = record.file_header(7, least_bytes=least_bytes)
    assert len(header) == record.FILE_HEADER_BYTES
    expected = record.FileHeader(
        is_empty=False, is_sound=True, version=record.VERSION, number=7, least_bytes=least_bytes
    )
    assert record.read_header(header + b"what follows") == expected
    assert record.read_header(record.file_header(7, 9)).version == 9


def test_zeros_are_an_empty_header_and_anything_else_is_not_sound() -> None:
    header = record.file_header(7, least_bytes=record.SIZE_UNIT)
    empty = record.FileHeader(is_empty=True, is_sound=False, version=0, number=0)
    unsound = record.FileHeader(is_empty=False, is_sound=False, version=0, number=0)
    assert [record.read_header(bytes(size)) for size in (0, 5, record.FILE_HEADER_BYTES)] == [empty] * 3
    assert record.read_header(header[:-1]) == unsound
    for at in range(record.FILE_HEADER_BYTES):
        assert record.read_header(header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]) == unsound


def test_the_beginning_of_a_header_is_told_from_anything_else() -> None:
    header = record.file_header(7, least_bytes=3 * record.SIZE_UNIT)
    for size in range(record.FILE_HEADER_BYTES + 1):
        assert record.begins_header(7, header[:size].ljust(record.FILE_HEADER_BYTES, b"\0"))
    assert not record.begins_header(8, header)
    assert not record.begins_header(7, b"x" + header[1:])
    assert not record.begins_header(7, header[:-1] + b"x")

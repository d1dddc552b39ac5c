"""A write-ahead log at rest: what it gives back, and what a kill at any step of that leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.wal_images import held, killed, opened, payload
from tests.unit.wal_kills import killed_at
from worker.storage.wal import check, files, log, pauses, reading, releases
from worker.storage.wal.files import File
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog
from worker.storage.wal.pauses import PAUSE_S, TRICKLE_BYTES, Pauses
from worker.storage.wal.releases import HELD_UP_BYTES, HELD_UP_S, Releases

pytestmark = [
    pytest.mark.usefixtures("power_stays_on"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

FILE_BYTES = 256 << 10
LIST_BYTES = 128 << 10


@pytest.fixture(autouse=True)
def no_rest_but_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteAheadLog, "_look", lambda self: None)


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[WriteAheadLog]:
    own = WriteAheadLog(tmp_path / "wal", file_bytes=FILE_BYTES).open()
    yield own
    own.close()


def allocated(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.glob("*.wal"))


def fill(own: WriteAheadLog, records: int, size: int = 10_000, shard: int = 0) -> int:
    stream = own.stream(shard, SERIES)
    positions = [stream.write([bytes([number % 251]) * size]) for number in range(records)]
    own.sync()
    return positions[-1] + 1


def test_a_log_at_rest_has_no_more_on_the_disk_than_its_records(wal: WriteAheadLog, tmp_path: Path) -> None:
    directory = tmp_path / "wal"
    upto = fill(wal, 120)
    assert wal._files is not None
    wal._files.prepare()
    wal.stream(0, SERIES).release(upto)
    assert allocated(directory) > 3 * FILE_BYTES
    wal.rest()
    assert allocated(directory) <= 8192
    assert len(list(directory.glob("*.wal"))) == 1
    wal.stream(0, SERIES).write([b"after"])
    wal.sync()
    image = killed(wal, tmp_path / "image")
    again = WriteAheadLog(image).open()
    assert held(again.stream(0, SERIES))[-1] == b"after"
    assert again.losses_of(0) == []
    again.close()


def test_records_that_are_still_needed_keep_no_more_than_themselves(wal: WriteAheadLog, tmp_path: Path) -> None:
    fill(wal, 1)
    wal.rest()
    [kept, begun] = sorted((tmp_path / "wal").glob("*.wal"))
    assert kept.stat().st_size < 10_200
    assert begun.stat().st_blocks * 512 <= 4096 < begun.stat().st_size
    assert wal.state().file_bytes == kept.stat().st_size + files.record.FILE_HEADER_BYTES
    image = killed(wal, tmp_path / "image")
    again = WriteAheadLog(image).open()
    assert [len(payload) for payload in held(again.stream(0, SERIES))] == [10_000]
    assert again.losses_of(0) == []
    again.close()


def test_a_rest_that_follows_a_rest_leaves_a_small_file_as_it_is(wal: WriteAheadLog, tmp_path: Path) -> None:
    wal.rest()
    before = reading.paths_of(tmp_path / "wal")
    fill(wal, 1)
    wal.rest()
    assert reading.paths_of(tmp_path / "wal") == before
    fill(wal, FILE_BYTES // 2 // 10_000 + 1)
    wal.rest()
    assert reading.paths_of(tmp_path / "wal") != before


def test_files_that_a_resting_log_needs_are_not_filled_and_those_after_it_are(
    wal: WriteAheadLog, tmp_path: Path
) -> None:
    assert wal._files is not None
    wal.rest()
    upto = fill(wal, 60)
    assert allocated(tmp_path / "wal") < 60 * 10_000 + 100_000
    wal.stream(0, SERIES).release(upto)
    assert len(reading.paths_of(tmp_path / "wal")) <= 2, "none is kept for reuse"
    wal._files.is_sparing = False
    fill(wal, 90)
    assert not wal._used[-1].is_sparse
    wal._files.prepare()
    prepared = reading.paths_of(tmp_path / "wal")[-1]
    assert prepared.stat().st_blocks * 512 >= prepared.stat().st_size


def test_a_file_that_was_not_filled_is_not_kept_for_reuse(wal: WriteAheadLog, tmp_path: Path) -> None:
    assert wal._files is not None
    wal.rest()
    upto = fill(wal, 60)
    wal._files.is_sparing = False
    wal.stream(0, SERIES).release(upto)
    assert not wal._files._spares


@pytest.mark.parametrize("call", range(36))
def test_a_kill_at_any_step_of_a_rest_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    own = opened(tmp_path / "wal")
    written: list[bytes] = []
    for number in range(30):
        for shard in range(2):
            content = payload(shard, number)
            position = own.stream(shard, LOG).write([content])
            if shard:
                written.append(content)
            else:
                own.stream(0, LOG).release(position + 1)
    own.sync()
    assert own._files is not None
    own._files.prepare()
    with killed_at(call, monkeypatch):
        own.rest()
        content = payload(1, 30)
        own.stream(1, LOG).write([content])
        own.sync()
        written.append(content)
        own.rest()
    image = killed(own, tmp_path / "image")
    again = opened(image)
    replayed = held(again.stream(1, LOG))
    assert replayed[: len(written)] == written
    assert len(replayed) <= len(written) + 1
    assert again.losses_of(1) == again.losses_of(0) == []
    again.close()
    assert all(report.is_good for report in check._check_directory(image))


def test_a_snapshot_of_a_log_is_whole_also_when_the_log_rests_afterwards(wal: WriteAheadLog, tmp_path: Path) -> None:
    upto = fill(wal, 3)
    copy = tmp_path / "copy"
    copy.mkdir()
    listing = wal.freeze(lambda path: os.link(path, copy / path.name))
    fill(wal, 1, shard=1)
    sizes = [path.stat().st_size for path in sorted(copy.iterdir())]
    wal.rest()
    assert [path.stat().st_size for path in sorted(copy.iterdir())] == sizes, "it may be being copied"
    wal.stream(0, SERIES).release(upto)
    (copy / "files").write_bytes(listing)
    again = WriteAheadLog(copy).open()
    assert [len(payload) for payload in held(again.stream(0, SERIES))] == 3 * [10_000]
    assert held(again.stream(1, SERIES)) == []
    assert again.losses_of(0) == []
    again.close()


def test_a_failed_log_does_not_rest_and_can_be_closed(wal: WriteAheadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(files, "LOOK_EVERY_S", 0.01)
    wal._failed = "Input/output error"
    wal._pauses = Pauses(lambda: 0.0)
    monkeypatch.setattr(wal._pauses, "begins_rest", lambda written_bytes: True)
    assert wal._files is not None
    wal._files.want()
    wal.close()


def test_the_thread_of_a_log_rests_when_a_rest_begins_and_wakes_up(
    wal: WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    rests: list[int] = []
    monkeypatch.setattr(wal, "rest", lambda: rests.append(1))
    answers = iter([False, True])
    monkeypatch.setattr(wal._pauses, "begins_rest", lambda written_bytes: next(answers))
    assert wal._files is not None
    wal._files.is_sparing = True
    wal._look()
    assert not wal._files.is_sparing and not rests
    wal._look()
    assert rests == [1]


# When a rest begins


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def looks(own: Pauses, clock: Clock, seconds: int, written: list[int], each: int = 0, every_s: int = 1) -> int:
    """How many rests begin within the seconds, while `each` bytes come every `every_s`."""
    begun = 0
    for second in range(seconds):
        clock.now_s += pauses.LOOK_EVERY_S
        if second % every_s == 0:
            written[0] += each
        begun += own.begins_rest(written[0])
    return begun


def test_a_rest_begins_once_when_nothing_or_a_trickle_is_written() -> None:
    for each in (0, TRICKLE_BYTES // 4):
        clock, written = Clock(), [0]
        own = Pauses(clock)
        assert looks(own, clock, round(PAUSE_S), written, each, 15) == 0
        assert looks(own, clock, 600, written, each, 15) == 1
        assert own.is_resting


def test_more_than_a_trickle_ends_a_rest_and_the_next_one_begins_later() -> None:
    clock, written = Clock(), [0]
    own = Pauses(clock)
    for done in range(1, 5):
        assert looks(own, clock, 10, written, TRICKLE_BYTES + 1) == 0
        assert not own.is_resting
        assert looks(own, clock, round(done * PAUSE_S) - 1, written) == 0
        assert looks(own, clock, 3, written) == 1


@pytest.mark.parametrize("interval_s", [15, 30, 60])
def test_a_sender_with_pauses_meets_few_rests(interval_s: int) -> None:
    clock, written = Clock(), [0]
    assert looks(Pauses(clock), clock, 7200, written, 1 << 20, interval_s) <= interval_s / PAUSE_S + 1


# Who holds up what


def closed_file(number: int, **bytes_of: int) -> File:
    own = File(number, Path(f"{number}.wal"), end=sum(bytes_of.values()) + 64, size=1 << 20)
    for name, size in bytes_of.items():
        own.add((int(name[1:]), SERIES), number << 40, size)
    return own


def test_a_stream_that_alone_keeps_a_file_of_others_is_behind_after_a_while() -> None:
    clock = Clock()
    own = Releases(clock)
    file = closed_file(1, s0=HELD_UP_BYTES, s1=1000)
    used = [file, closed_file(2)]

    def is_behind(shard: int) -> bool:
        own.note_held_up(used[:-1])
        return own.is_behind((shard, SERIES), used, 32 << 20)

    clock.now_s += 2 * HELD_UP_S
    assert not is_behind(0) and not is_behind(1), "a file that many need is not held up"
    own.release((0, SERIES), 2 << 40)
    assert not is_behind(1), "others may be about to release it"
    clock.now_s += HELD_UP_S
    assert is_behind(1)
    assert not is_behind(0), "it has released its records"
    own.release((1, SERIES), 2 << 40)
    assert not is_behind(1)


def test_only_what_lies_behind_the_released_records_counts() -> None:
    clock = Clock()
    own = Releases(clock)
    used = [closed_file(1, s0=HELD_UP_BYTES), closed_file(2)]
    used[0].add((0, SERIES), (1 << 40) + used[0].end - 100, 100)
    own.release((0, SERIES), (1 << 40) + used[0].end - 1000)
    own.note_held_up(used[:-1])
    clock.now_s += HELD_UP_S
    assert own.is_behind((0, SERIES), used, 32 << 20)


@pytest.mark.parametrize(("own_bytes", "other_bytes"), [(1000, HELD_UP_BYTES // 2), (HELD_UP_BYTES, HELD_UP_BYTES)])
def test_small_files_and_large_shares_hold_nothing_up(own_bytes: int, other_bytes: int) -> None:
    clock = Clock()
    own = Releases(clock)
    used = [closed_file(1, s0=other_bytes, s1=own_bytes), closed_file(2)]
    own.release((0, SERIES), 2 << 40)
    own.note_held_up(used[:-1])
    clock.now_s += 2 * HELD_UP_S
    assert not own.is_behind((1, SERIES), used, 32 << 20)


def test_many_small_files_are_no_backlog() -> None:
    own = Releases(Clock())
    used = [closed_file(1, s0=100), *(closed_file(number) for number in range(2, 2 + 2 * releases.BEHIND_FILES))]
    assert own.is_behind((0, SERIES), used, 1 << 20)
    assert not own.is_behind((0, SERIES), used[: releases.BEHIND_FILES], 1 << 20)
    assert not own.is_behind((0, SERIES), used, 32 << 20)
    assert log.REST_BYTES < HELD_UP_BYTES

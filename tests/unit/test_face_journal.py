"""What every implementation of `worker.storage.faces.WorkerJournal` promises. What a loss of power leaves is found by
`tests/powerloss`."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import Unavailable
from tests.unit import local_faults
from tests.unit.local_faults import Killed
from tests.unit.wal_images import files_with_records
from worker.storage.faces import JournalStream, WorkerJournal
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

pytestmark = [
    pytest.mark.usefixtures("power_stays_on"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),  # killed threads
]

SMALL_FILE_BYTES = 4096


class LocalJournal:
    """A write-ahead log in files, and its faults."""

    faults = local_faults

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._images = 0
        self._open: list[WriteAheadLog] = []

    def open(self) -> WorkerJournal:
        """As the next process after an orderly end of the last one."""
        self.close()
        log = WriteAheadLog(self._directory, file_bytes=SMALL_FILE_BYTES)
        self._open.append(log)
        return log.open()

    def open_after_death(self) -> WorkerJournal:
        """As the next process after the death of the last one at this moment."""
        self._images += 1
        image = self._directory.with_name(f"{self._directory.name}-{self._images}")
        last = self._open[-1]._files
        if last is None:
            shutil.copytree(self._directory, image)
        else:
            with last._preparing:  # nothing changes while it is copied
                shutil.copytree(self._directory, image)
        log = WriteAheadLog(image, file_bytes=SMALL_FILE_BYTES)
        self._open.append(log)
        return log.open()

    def damage(self, content: bytes) -> None:
        """Flip a bit of a record with this content; nothing has the journal open."""
        for path in files_with_records(self._directory):
            at = path.read_bytes().find(content)
            if at >= 0:
                self.faults.flip(str(path), at)

    def close(self) -> None:
        for log in self._open:
            log.close()
        self._open.clear()


IMPLEMENTATIONS = [pytest.param(LocalJournal, id="local")]


@pytest.fixture(params=IMPLEMENTATIONS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalJournal]:
    made = request.param(tmp_path / "journal")
    yield made
    made.close()


def payloads(stream: JournalStream) -> list[bytes]:
    return [bytes(payload) for _, payload in stream.records()]


# Writing and replaying


def test_records_are_replayed_by_stream_in_order(storage: LocalJournal) -> None:
    log = storage.open()
    series, records = log.stream(0, SERIES), log.stream(0, LOG)
    positions = log.write([(series, [b"one", b"", b"two"]), (records, [b"x"]), (series, [])])
    positions.append(series.write([b"three"]))
    assert positions == sorted(set(positions))
    again = storage.open()
    assert payloads(again.stream(0, SERIES)) == [b"onetwo", b"", b"three"]
    assert [position for position, _ in again.stream(0, SERIES).records()] == [positions[n] for n in (0, 2, 3)]
    assert payloads(again.stream(0, LOG)) == [b"x"]
    assert payloads(again.stream(1, LOG)) == []
    assert again.stream(0, LOG).write([b"y"]) > positions[-1]


def test_a_stream_is_the_same_each_time_and_knows_its_journal(storage: LocalJournal) -> None:
    log = storage.open()
    assert log.stream(0, LOG) is log.stream(0, LOG)
    assert log.stream(0, LOG).log is log


def test_what_was_replayed_is_not_held_any_longer(storage: LocalJournal) -> None:
    storage.open().stream(0, LOG).write([b"x"])
    stream = storage.open().stream(0, LOG)
    assert payloads(stream) == [b"x"]
    stream.replayed()
    assert payloads(stream) == []
    assert payloads(storage.open().stream(0, LOG)) == [b"x"]


def test_large_and_many_records_are_replayed(storage: LocalJournal) -> None:
    stream = storage.open().stream(0, LOG)
    contents = [bytes([n]) * (n * 97 % 3000) for n in range(60)] + [b"l" * 5 * SMALL_FILE_BYTES]
    for content in contents:
        stream.write([content])
    assert payloads(storage.open().stream(0, LOG)) == contents


def test_a_stream_that_holds_up_much_is_behind_until_it_releases(storage: LocalJournal) -> None:
    log = storage.open()
    slow, fast = log.stream(0, SERIES), log.stream(1, SERIES)
    for _ in range(1000):
        position = slow.write([b"old"])
        fast.release(fast.write([b"x" * 1500]) + 1)
        if slow.is_behind():
            break
    assert slow.is_behind()
    assert not fast.is_behind()
    slow.release(position + 1)
    assert not slow.is_behind()


def test_released_records_of_long_ago_are_gone_and_others_stay(storage: LocalJournal) -> None:
    log = storage.open()
    log.stream(0, SERIES).write([b"kept"])
    released = log.stream(1, SERIES)
    for number in range(100):
        released.release(released.write([b"%03d" % number * 300]) + 1)
    again = storage.open()
    assert payloads(again.stream(0, SERIES)) == [b"kept"]
    assert len(payloads(again.stream(1, SERIES))) < 50


def test_a_position_is_never_given_twice_also_when_all_is_released(storage: LocalJournal) -> None:
    highest = 0
    for _ in range(4):
        stream = storage.open().stream(0, LOG)
        position = stream.write([b"x" * 500])
        assert position > highest
        highest = position
        stream.release(position + 1)


def test_records_of_threads_that_write_at_once_are_all_there(storage: LocalJournal) -> None:
    log = storage.open()

    def work(shard: int) -> None:
        for number in range(50):
            log.stream(shard, LOG).write([b"%d" % number])
            log.sync()

    threads = [threading.Thread(target=work, args=(shard,)) for shard in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = storage.open()
    assert all(payloads(again.stream(shard, LOG)) == [b"%d" % n for n in range(50)] for shard in range(4))


# Faults


def test_written_records_survive_the_death_of_the_process(storage: LocalJournal) -> None:
    log = storage.open()
    log.stream(0, LOG).write([b"synced"])
    log.sync()
    log.stream(0, LOG).write([b"written"])
    again = storage.open_after_death()
    assert payloads(again.stream(0, LOG)) == [b"synced", b"written"]
    assert again.losses_of(0) == []


def test_a_death_at_any_step_of_writing_and_releasing_loses_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, storage: LocalJournal
) -> None:
    for step in range(0, 60, 4):
        place = type(storage)(tmp_path / f"step-{step}")
        request.addfinalizer(place.close)
        log = place.open()
        acknowledged: list[bytes] = []
        try:
            with place.faults.killed_before(step):
                for number in range(30):
                    released = log.stream(0, LOG)
                    released.release(released.write([b"r" * 400]) + 1)
                    log.stream(1, LOG).write([b"%d" % number * 100])
                    log.sync()
                    acknowledged.append(b"%d" % number * 100)
        except Killed:
            pass
        again = place.open_after_death()
        replayed = payloads(again.stream(1, LOG))
        assert replayed[: len(acknowledged)] == acknowledged
        assert len(replayed) <= len(acknowledged) + 1
        assert again.losses_of(1) == []


def test_a_write_that_storage_refuses_leaves_nothing(storage: LocalJournal) -> None:
    log = storage.open()
    stream = log.stream(0, LOG)
    stream.write([b"before"])
    with storage.faults.refusing("append"), pytest.raises(Unavailable):
        log.write([(stream, [b"first"]), (stream, [b"second"])])
    stream.write([b"after"])
    assert payloads(storage.open_after_death().stream(0, LOG)) == [b"before", b"after"]


def test_a_sync_that_fails_ends_all_writing_until_the_journal_is_opened_again(storage: LocalJournal) -> None:
    log = storage.open()
    stream = log.stream(0, LOG)
    stream.write([b"x"])
    assert not log.recoverable()
    with storage.faults.refusing("sync"), pytest.raises(Unavailable):
        log.sync()
    for refused in (log.sync, lambda: stream.write([b"y"])):
        with pytest.raises(Unavailable):
            refused()
    assert log.recoverable()
    assert payloads(storage.open_after_death().stream(0, LOG)) == [b"x"]


def test_damage_is_a_loss_of_its_shard_that_each_start_tells(storage: LocalJournal) -> None:
    log = storage.open()
    for shard in (0, 1):
        for name in (b"first", b"second", b"third"):
            log.stream(shard, LOG).write([b"%d: %s" % (shard, name)])
    storage.close()
    storage.damage(b"1: second")
    for _ in range(2):
        log = storage.open()
        assert payloads(log.stream(1, LOG)) == [b"1: first", b"1: third"]
        assert payloads(log.stream(0, LOG)) == [b"0: first", b"0: second", b"0: third"]
        assert [area for area, _ in log.losses_of(1)] == [LOG]
        assert log.losses_of(0) == []


def test_records_that_make_no_sense_are_told_at_each_start_also_when_they_are_released(storage: LocalJournal) -> None:
    stream = storage.open().stream(2, SERIES)
    position = stream.write([b"nonsense"])
    text = stream.set_aside([b"nonsense"], "it cannot be decoded")
    assert "it cannot be decoded" in text
    stream.release(position + 1)
    for _ in range(2):
        log = storage.open()
        assert log.losses_of(2) == [(SERIES, text)]
        assert log.losses_of(0) == []


def test_an_open_that_storage_refuses_can_be_tried_again(storage: LocalJournal) -> None:
    storage.open().stream(0, LOG).write([b"x"])
    storage.close()
    with storage.faults.refusing("create"), pytest.raises((OSError, Unavailable)):
        storage.open()
    assert payloads(storage.open().stream(0, LOG)) == [b"x"]

"""Background work on a worker's log: what was written is synced and gathered although nobody asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from shared.errors import Unavailable
from worker.logs import cleaning
from worker.logs import keeper as keeper_module
from worker.logs.cleaner import Cleaner
from worker.logs.keeper import Keeper
from worker.storage.wal.log import WriteAheadLog

TIMEOUT_S = 10.0


class Log:
    """Counts its syncs; fails while `failing`."""

    def __init__(self) -> None:
        self.syncs = 0
        self.failing = False

    def sync(self) -> None:
        self.syncs += 1
        if self.failing:
            raise Unavailable("the disk is failing")


class Part:
    def __init__(self) -> None:
        self.kept_up = 0

    def keep_up(self) -> None:
        self.kept_up += 1


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(keeper_module, "SYNC_AFTER_S", 0.005)
    monkeypatch.setattr(keeper_module, "CHECK_EVERY_S", 2 * TIMEOUT_S)
    yield Log()


def keeper(log: Log) -> Keeper:
    return Keeper(cast(WriteAheadLog, log))


def eventually(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "log-keeper"]


def test_what_was_written_is_synced_by_itself_and_once(log: Log) -> None:
    own, part = keeper(log), Part()
    own.join(part)
    own.written()
    eventually(lambda: part.kept_up)
    assert log.syncs == 1
    own.wake()
    eventually(lambda: part.kept_up > 1)
    assert log.syncs == 1
    own.leave(part)


def test_what_somebody_synced_is_not_synced_again(log: Log) -> None:
    own, part = keeper(log), Part()
    own.written()
    own.sync()
    own.join(part)
    own.wake()
    eventually(lambda: part.kept_up)
    assert log.syncs == 1
    own.leave(part)


def test_a_sync_that_failed_is_tried_again(log: Log) -> None:
    own, part = keeper(log), Part()
    log.failing = True
    own.join(part)
    own.written()
    eventually(lambda: log.syncs > 2)
    with pytest.raises(Unavailable, match="failing"):
        own.sync()
    log.failing = False
    eventually(lambda: part.kept_up)
    own.leave(part)


def test_a_sync_with_a_defect_is_tried_again(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    def sync() -> None:
        log.syncs += 1
        if log.syncs < 3:
            raise AssertionError("more is synced than was written")

    monkeypatch.setattr(log, "sync", sync)
    monkeypatch.setattr(keeper_module, "CHECK_EVERY_S", 0.005)
    own, part = keeper(log), Part()
    own.join(part)
    own.written()
    eventually(lambda: log.syncs == 3 and part.kept_up)
    assert own.failures == 2
    own.leave(part)


def test_every_part_is_kept_up_until_it_leaves(log: Log) -> None:
    own, first, second = keeper(log), Part(), Part()
    before = len(keepers())
    own.join(first)
    own.join(second)
    assert len(keepers()) == before + 1
    own.wake()
    eventually(lambda: first.kept_up and second.kept_up)
    own.leave(first)
    stopped = first.kept_up
    own.wake()
    eventually(lambda: second.kept_up > 1)
    assert first.kept_up <= stopped + 1
    own.leave(second)
    assert len(keepers()) == before, "the thread has ended when the last one has left"
    stopped = first.kept_up
    own.join(first)
    own.wake()
    eventually(lambda: first.kept_up > stopped)
    own.leave(first)


def test_a_part_that_cannot_be_kept_up_is_tried_again(log: Log) -> None:
    class Refusing(Part):
        def keep_up(self) -> None:
            super().keep_up()
            if self.kept_up < 3:
                raise Unavailable("the store is full")

    own, part = keeper(log), Refusing()
    own.join(part)
    own.wake()
    eventually(lambda: part.kept_up == 3)
    own.leave(part)


def test_parts_that_a_full_disk_refuses_share_a_line_of_the_log(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    class Refused(Part):
        def keep_up(self) -> None:
            super().keep_up()
            raise Unavailable("the store is full")

    own, parts = keeper(log), [Refused() for _ in range(8)]
    for part in parts:
        own.join(part)
    own.wake()
    eventually(lambda: parts[-1].kept_up > 2)
    for part in parts:
        own.leave(part)
    lines = [record for record in caplog.records if "could not be synced or gathered" in record.message]
    assert 2 <= len(lines) <= parts[0].kept_up
    assert own.failures == sum(part.kept_up for part in parts) > len(lines)


def test_a_defect_in_one_part_ends_neither_the_thread_nor_the_care_for_others(log: Log) -> None:
    class Broken(Part):
        def keep_up(self) -> None:
            raise AssertionError("numbers ascend")

    own, broken, sound = keeper(log), Broken(), Part()
    own.join(broken)
    own.join(sound)
    for rounds in (1, 2):
        own.written()
        eventually(lambda n=rounds: sound.kept_up >= n and log.syncs == n and own.failures >= n)
    own.leave(broken)
    own.leave(sound)


def test_a_defect_in_one_part_does_not_end_the_cleaner(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[object] = []

    def clean(part: object) -> bool:
        cleaned.append(part)
        if part == "broken":
            raise ValueError("buffer is smaller than requested size")
        return False

    monkeypatch.setattr(cleaning, "clean", clean)
    cleaner = Cleaner()
    for part in ("broken", "sound"):
        cleaner.join(cast(cleaning.CleanPart, part))
    for rounds in (1, 2):
        cleaner.wake()
        eventually(lambda n=rounds: cleaned.count("sound") >= n and cleaner.failures >= n)
    for part in ("broken", "sound"):
        cleaner.leave(cast(cleaning.CleanPart, part))

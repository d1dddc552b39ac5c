"""Group commit of fsyncs: what is shared, and what a failed one means for everybody who waits."""

from __future__ import annotations

import threading
import time

import pytest

from worker.storage.group_sync import GroupSync

TIMEOUT_S = 10.0


class Disk:
    """Its first fsync waits until it is let go and fails; every later one succeeds, as those of Linux do."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def fsync(self) -> None:
        self.calls += 1
        if self.calls == 1:
            self.begun.set()
            assert self.let_go.wait(TIMEOUT_S)
            raise OSError(5, "Input/output error")


def outcome(group: GroupSync, outcomes: list[str]) -> None:
    try:
        group.sync()
    except OSError as error:
        outcomes.append(str(error.strerror))
    else:
        outcomes.append("synced")


def test_everyone_who_waited_for_a_failed_sync_fails_and_nobody_leads_another() -> None:
    disk = Disk()
    group = GroupSync(disk.fsync)
    outcomes: list[str] = []
    threads = [threading.Thread(target=outcome, args=(group, outcomes)) for _ in range(5)]
    threads[0].start()
    assert disk.begun.wait(TIMEOUT_S)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while group._tickets < len(threads) and time.monotonic() < deadline:
        time.sleep(0.001)
    disk.let_go.set()
    for thread in threads:
        thread.join()
    assert outcomes == ["Input/output error"] * 5
    assert disk.calls == 1


def test_a_sync_after_a_failed_one_fails_too() -> None:
    disk = Disk()
    disk.let_go.set()
    group = GroupSync(disk.fsync)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            group.sync()
    assert disk.calls == 1


def test_callers_that_wait_share_the_next_sync() -> None:
    calls: list[int] = []
    begun, let_go = threading.Event(), threading.Event()

    def fsync() -> None:
        calls.append(1)
        begun.set()
        assert let_go.wait(TIMEOUT_S)

    group = GroupSync(fsync)
    threads = [threading.Thread(target=group.sync) for _ in range(5)]
    threads[0].start()
    assert begun.wait(TIMEOUT_S)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    while group._tickets < len(threads) and time.monotonic() < deadline:
        time.sleep(0.001)
    let_go.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 2

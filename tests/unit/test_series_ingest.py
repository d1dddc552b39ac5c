"""Rounds of group commit: what they gather, and whom a failing shard concerns."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.series.remote_write import split
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared.errors import DeadlineExceeded, Internal, Unavailable
from shared.frames.samples import SampleColumns, parse
from worker.series.ingest import Rounds, Turn
from worker.series.journal import PendingRecord

TIMEOUT_S = 10.0


class Log:
    """Stands in for the log of a process: a write and a sync are steps of every shard concerned."""

    def __init__(self, broken: str = "") -> None:
        self.written: list[list[Any]] = []
        self.syncs = 0
        self._broken = broken

    def write(self, records: Sequence[tuple[Any, Sequence[bytes]]]) -> list[int]:
        if self._broken == "write":
            raise Unavailable("write failed")
        self.written.append([frames for _, frames in records])
        return list(range(len(records)))

    def sync(self) -> None:
        if self._broken == "log sync":
            raise Unavailable("log sync failed")
        self.syncs += 1


class Recorder:
    """A shard that notes what is done with it; `broken` names a step that fails, `gate` holds up `stage`."""

    is_synced = True

    def __init__(self, broken: str = "", log: Log | None = None) -> None:
        self._wal: Any = SimpleNamespace(log=log or Log())
        self.turn = Turn()
        self.steps: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._broken = broken

    def stage(self, arrivals: Sequence[SampleColumns]) -> tuple[int, list[PendingRecord]]:
        self._step("stage", len(arrivals))
        assert self.gate.wait(TIMEOUT_S)
        return len(arrivals), [PendingRecord(self._wal, [b"record"], 0, 0)]

    def journaled(self, entry: PendingRecord, position: int) -> None:
        assert entry.frames == [b"record"]
        self._step("journaled", position)

    def show(self, staged: int) -> None:
        self._step("show", staged)

    def _step(self, name: str, count: int) -> None:
        if name == self._broken:
            raise Unavailable(f"{name} failed")
        self.steps.append((name, count))


def samples() -> SampleColumns:
    (frames,) = split(body([({"__name__": "m"}, [(1, 1.0)])]), 1, UNLIMITED).parts.values()
    return parse(frames[0])


def test_samples_are_shown_after_they_were_synced() -> None:
    shard = Recorder()
    Rounds().add({shard: [samples(), samples()]}, TIMEOUT_S)
    assert shard.steps == [("stage", 2), ("journaled", 0), ("show", 2)]


def test_a_round_is_one_write_and_one_sync_of_the_log_for_all_its_shards() -> None:
    log = Log()
    shards = [Recorder(log=log) for _ in range(5)]
    Rounds[int]().add({shard: [samples()] for shard in shards}, TIMEOUT_S)
    assert log.written == [[[b"record"]] * 5]
    assert log.syncs == 1
    assert [shard.steps[-2:] for shard in shards] == [[("journaled", n), ("show", 1)] for n in range(5)]


def test_samples_answered_when_buffered_wait_for_no_sync() -> None:
    log = Log()
    shard = Recorder(log=log)
    shard.is_synced = False
    Rounds[int]().add({shard: [samples()]}, TIMEOUT_S)
    assert log.syncs == 0
    assert shard.steps[-1] == ("show", 1)


@pytest.mark.parametrize("broken", ["write", "log sync"])
def test_a_failing_log_shows_nothing_of_any_shard(broken: str) -> None:
    log = Log(broken)
    shards = [Recorder(log=log), Recorder(log=log)]
    with pytest.raises(Unavailable, match=f"{broken} failed"):
        Rounds[int]().add({shard: [samples()] for shard in shards}, TIMEOUT_S)
    assert all(name != "show" for shard in shards for name, _ in shard.steps)


def test_requests_that_come_during_a_round_share_the_next_one() -> None:
    shard, rounds = Recorder(), Rounds[int]()
    shard.gate.clear()
    threads = [threading.Thread(target=rounds.add, args=({shard: [samples()]}, TIMEOUT_S)) for _ in range(5)]
    threads[0].start()
    while ("stage", 1) not in shard.steps:
        time.sleep(0.001)
    for thread in threads[1:]:
        thread.start()
    while len(rounds._queue) < 4:
        time.sleep(0.001)
    shard.gate.set()
    for thread in threads:
        thread.join()
    journaled = ("journaled", 0)
    assert shard.steps == [("stage", 1), journaled, ("show", 1), ("stage", 4), journaled, ("show", 4)]


@pytest.mark.parametrize("broken", ["stage", "show"])
def test_a_failing_shard_shows_nothing_and_the_others_of_the_round_do(broken: str) -> None:
    bad, good = Recorder(broken), Recorder()
    with pytest.raises(Unavailable, match=f"{broken} failed"):
        Rounds().add({bad: [samples()], good: [samples()]}, TIMEOUT_S)
    assert good.steps[-1] == ("show", 1)
    assert all(name != "show" for name, _ in bad.steps)


def test_turns_are_given_back_after_a_failure() -> None:
    bad = Recorder("stage")
    with pytest.raises(Unavailable):
        Rounds().add({bad: [samples()]}, TIMEOUT_S)
    with bad.turn.exclusive(0.0):
        pass


def test_a_request_whose_turn_does_not_come_is_not_stored() -> None:
    shard, rounds = Recorder(), Rounds[int]()
    with shard.turn.exclusive(TIMEOUT_S), pytest.raises(DeadlineExceeded, match="busy"):
        rounds.add({shard: [samples()]}, 0.01)
    assert shard.steps == []


@pytest.mark.parametrize("frame", [b"", b"x" * 31, b"x" * 64, bytes(64)])
def test_a_frame_in_another_form_is_an_internal_error(frame: bytes) -> None:
    with pytest.raises(Internal):
        parse(frame)


def test_a_frame_that_is_cut_off_is_an_internal_error() -> None:
    (frames,) = split(body([({"__name__": "m"}, [(1, 1.0)])]), 1, UNLIMITED).parts.values()
    with pytest.raises(Internal):
        parse(bytes(frames[0])[:-8])


def test_a_lone_writer_never_waits_for_company() -> None:
    shard, rounds = Recorder(), Rounds[int]()
    started = time.monotonic()
    for _ in range(20):
        rounds.add({shard: [samples()]}, TIMEOUT_S, delay_s=TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S / 2


def test_a_round_waits_for_a_request_that_is_being_read() -> None:
    shard, rounds = Recorder(), Rounds[int]()
    leader = threading.Thread(target=rounds.add, args=({shard: [samples()]}, TIMEOUT_S, TIMEOUT_S))
    with rounds.coming():
        leader.start()
        while not rounds._round.locked():
            time.sleep(0.001)
    started = time.monotonic()
    rounds.add({shard: [samples()]}, TIMEOUT_S)
    leader.join()
    assert [count for step, count in shard.steps if step == "show"] == [2]
    assert time.monotonic() - started < TIMEOUT_S / 2


def test_a_request_that_is_read_for_long_is_waited_for_no_longer_than_the_delay() -> None:
    shard, rounds, delay_s = Recorder(), Rounds[int](), 0.1
    with rounds.coming():
        started = time.monotonic()
        rounds.add({shard: [samples()]}, TIMEOUT_S, delay_s)
        assert delay_s <= time.monotonic() - started < TIMEOUT_S / 2
        started = time.monotonic()
        rounds.add({shard: [samples()]}, TIMEOUT_S)
        assert time.monotonic() - started < delay_s


class Crashing(Recorder):
    """A shard in whose `stage` something goes wrong that is nobody's error."""

    def stage(self, arrivals: Sequence[SampleColumns]) -> tuple[int, PendingRecord]:
        raise SystemExit("the leader ends here")


class Silent(Recorder):
    """A shard whose `stage` returns no records: a defect outside what a shard may raise."""

    def stage(self, arrivals: Sequence[SampleColumns]) -> tuple[int, list[PendingRecord]]:
        return 1, []


@pytest.mark.parametrize(("kind", "text"), [(Crashing, "leader ends"), (Silent, "list index out of range")])
def test_who_waits_for_a_round_whose_leader_fails_gets_its_error(kind: type[Recorder], text: str) -> None:
    blocker, broken, rounds = Recorder(), kind(), Rounds[int]()
    blocker.gate.clear()
    raised: list[BaseException] = []

    def add(shard: Recorder) -> None:
        try:
            rounds.add({shard: [samples()]}, TIMEOUT_S)
        except BaseException as error:
            raised.append(error)

    first = threading.Thread(target=add, args=(blocker,))
    first.start()
    while ("stage", 1) not in blocker.steps:
        time.sleep(0.001)
    others = [Recorder() for _ in range(3)]
    waiting = [threading.Thread(target=add, args=(shard,)) for shard in (broken, *others)]
    for thread in waiting:
        thread.start()
    while len(rounds._queue) < len(waiting):
        time.sleep(0.001)
    blocker.gate.set()
    for thread in (first, *waiting):
        thread.join()
    shown = [shard for shard in others if ("show", 1) in shard.steps]
    assert shown == []
    assert len(raised) == len(waiting)
    assert all(text in str(error) for error in raised)

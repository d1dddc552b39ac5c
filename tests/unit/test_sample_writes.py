"""Remote writes that wait at the same time share a message, and its fate."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from coordinator.fanout.barrier import Barrier
from coordinator.fanout.calls import Question, WorkerReply
from coordinator.fanout.links import Links
from coordinator.series import groups
from coordinator.series.groups import (
    GATHERED_MAX,
    GROUP_FRAMES_MAX,
    GROUP_REQUESTS_MAX,
    IN_FLIGHT_USUAL,
    SampleWrites,
)
from coordinator.series.known_samples import KnownSamples
from coordinator.series.lessons import EMPTY_RECEIPT, Receipt
from shared.errors import Overloaded, Unavailable
from shared.frames import references as reference_frames
from shared.messages.series import WriteReply
from shared.settings import Settings
from shared.wire import FRAMES_MAX, Frame, Reply, pack

Parts = Mapping[int, Sequence[Frame]]


@pytest.fixture(autouse=True)
def no_message_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine stands still in a test."""
    monkeypatch.setattr(groups, "SLOW_S", 60.0)


@dataclass
class Call:
    """A message that was sent. `then` is called once."""

    parts: Parts
    then: Callable[[list[WorkerReply] | Exception], None]
    is_given_up: bool = False
    at: float = field(default_factory=time.monotonic)

    def finish(self) -> None:
        """Nobody waits for it any more."""
        self.is_given_up = True
        self.then(Unavailable("given up"))


class Workers:
    """Stands in for `Links`: holds every call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.down: set[int] = set()
        self.barrier = Barrier()
        self.broken: Exception | None = None
        """What comes of a message that cannot be sent."""

    def require(self, shards: Parts) -> None:
        if self.down.intersection(shards):
            raise Unavailable(f"not available: {self.down}")

    def submit(self, question: Question, then: Callable[[list[WorkerReply] | Exception], None]) -> Call:
        assert (question.method, question.timeout_s) == ("series.write", Settings().write_timeout_ms / 1000)
        assert question.parts is not None
        assert not self.barrier.is_closed
        if self.broken is not None:
            raise self.broken
        self.calls.append(Call({shard: list(frames) for shard, frames in question.parts.items()}, then))
        return self.calls[-1]

    def parts(self) -> list[Parts]:
        return [call.parts for call in self.calls]

    def waited_s(self, number: int) -> float:
        """How long after the message before it this one was sent."""
        return self.calls[number].at - self.calls[number - 1].at

    def answer(self, number: int, error: Exception | None = None, replies: Sequence[WorkerReply] = ()) -> None:
        self.calls[number].then(error if error is not None else list(replies))


class Writers:
    def __init__(self, **settings: int) -> None:
        """Without a setting, no message waits for others."""
        self.workers = Workers()
        self.writes = SampleWrites(Settings(**cast(Any, {"commit_delay_ms": 0, **settings})), cast(Links, self.workers))

    async def start_known(self, *known: KnownSamples) -> list[asyncio.Task[Receipt]]:
        tasks = [asyncio.create_task(self.writes.write({}, own)) for own in known]
        await settle()
        return tasks

    async def start(self, *parts: Parts) -> list[asyncio.Task[Receipt]]:
        tasks = [asyncio.create_task(self.writes.write(own)) for own in parts]
        await settle()
        return tasks


EPOCHS = np.array([7, 8, 9])


def known(number: int, *shards: int, epochs: np.ndarray = EPOCHS) -> KnownSamples:
    """A request with one sample of the series of this number in each of these shards."""
    runs = np.full(len(shards), number | 1 << reference_frames.COUNT_SHIFT)
    totals = np.array([[shard in shards] * 2 for shard in range(len(EPOCHS))], dtype=np.int64)
    ones = np.ones(len(shards), dtype=np.int64)
    return KnownSamples(runs, np.array(shards), ones, ones, totals, epochs)


def numbers_of(frame: Frame) -> list[int]:
    return reference_frames.parse(bytes(frame)).series.tolist()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_that_finds_nothing_under_way_is_sent_at_once() -> None:
    writers = Writers()
    for _ in range(3):
        (task,) = await writers.start({0: [b"a"]})
        writers.workers.answer(-1)
        await task
    assert writers.workers.parts() == [{0: [b"a"]}] * 3


async def test_what_comes_while_others_are_under_way_goes_together() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    later = await writers.start({0: [b"x"], 1: [b"y"]}, {1: [b"z"]}, {2: [b"w"]})
    assert len(writers.workers.calls) == IN_FLIGHT_USUAL
    writers.workers.answer(0)
    await first[0]
    await settle()
    assert writers.workers.parts()[IN_FLIGHT_USUAL:] == [{0: [b"x"], 1: [b"y", b"z"], 2: [b"w"]}]
    assert not any(task.done() for task in later)
    writers.workers.answer(IN_FLIGHT_USUAL)
    await asyncio.gather(*later)


async def test_a_large_message_waits_for_no_others_and_goes_behind_the_one_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "QUIET_S", 60.0)
    large = b"l" * groups.LARGE_BYTES
    writers = Writers(commit_delay_ms=1000)
    first = await writers.start({0: [b"a"]}, {0: [b"b"]})
    writers.workers.answer(0)
    await asyncio.gather(*first)
    second = await writers.start({0: [large]})  # a small one would wait for another, since two were under way
    third = await writers.start({0: [large]})
    assert writers.workers.parts()[1:] == [{0: [large]}, {0: [large]}]
    fourth = await writers.start({0: [large]}, {0: [b"c"]})
    assert len(writers.workers.calls) == 1 + groups.IN_FLIGHT_MAX
    writers.workers.answer(2)
    await asyncio.gather(*third)
    assert writers.workers.parts()[3:] == [{0: [large, b"c"]}]
    fifth = await writers.start({0: [b"l" * (groups.LARGE_BYTES - 1)]})
    writers.workers.answer(3)
    await asyncio.gather(*fourth)
    assert len(writers.workers.calls) == 4, "it is not large, and another is under way"
    fifth[0].cancel()
    writers.workers.answer(1)
    await asyncio.gather(*second)


async def test_behind_a_slow_message_goes_a_second_one_if_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SLOW_S", 0.05)
    large = b"l" * (groups.SLOW_BYTES_MAX + 1)
    writers = Writers()
    first = await writers.start({0: [b"first"]})
    second = await writers.start({0: [b"a"]}, {0: [b"b"]})
    await asyncio.sleep(0.06)
    assert writers.workers.parts()[1:] == [{0: [b"a", b"b"]}]
    assert writers.workers.waited_s(1) >= 0.04
    third = await writers.start({0: [b"c"]})
    await asyncio.sleep(0.06)
    assert len(writers.workers.calls) == groups.IN_FLIGHT_MAX
    writers.workers.answer(1)
    await asyncio.gather(*second)
    await settle()
    assert writers.workers.parts()[2:] == [{0: [b"c"]}]
    writers.workers.answer(2)
    await asyncio.gather(*third)
    last = await writers.start({0: [large]})
    await asyncio.sleep(0.06)
    assert len(writers.workers.calls) == 3
    writers.workers.answer(0)
    await asyncio.gather(*first)
    await settle()
    assert writers.workers.parts()[3:] == [{0: [large]}]
    writers.workers.answer(3)
    await asyncio.gather(*last)


async def test_a_failure_is_told_to_all_who_went_along_and_to_no_other() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    later = await writers.start({0: [b"x"]}, {1: [b"y"]})
    writers.workers.answer(0, Unavailable("shard 0 is down"))
    await settle()
    last = await writers.start({0: [b"v"]})
    writers.workers.answer(IN_FLIGHT_USUAL, Unavailable("shard 1 is down"))
    await settle()
    writers.workers.answer(-1)
    ends = await asyncio.gather(*first, *later, *last, return_exceptions=True)
    assert [str(end) for end in ends] == ["shard 0 is down", "shard 1 is down", "shard 1 is down", str(EMPTY_RECEIPT)]
    (again,) = await writers.start({0: [b"z"]})
    writers.workers.answer(-1)
    await again


async def test_a_client_that_goes_away_takes_nothing_from_the_others() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    gone, stays = await writers.start({0: [b"x"]}, {0: [b"y"]})
    gone.cancel()
    first[0].cancel()
    await settle()
    assert writers.workers.parts()[-1] == {0: [b"x", b"y"]}
    writers.workers.answer(-1)
    await stays


async def test_a_shard_that_is_not_there_refuses_only_the_request_that_needs_it() -> None:
    writers = Writers()
    writers.workers.down = {3}
    await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    bad, good = await writers.start({3: [b"x"]}, {0: [b"y"]})
    with pytest.raises(Unavailable):
        await bad
    writers.workers.answer(0)
    await settle()
    assert writers.workers.parts()[-1] == {0: [b"y"]}
    writers.workers.answer(-1)
    await good


async def test_what_waits_is_bounded_in_bytes() -> None:
    writers = Writers(worker_bytes_max=1 << 20)
    await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    waits, refused = await writers.start({0: [bytes(900_000)]}, {0: [bytes(900_000)]})
    with pytest.raises(Overloaded, match="TRIPTYCH_WORKER_BYTES_MAX"):
        await refused
    writers.workers.answer(0)
    await settle()
    writers.workers.answer(-1)
    await waits
    (task,) = await writers.start({0: [bytes(900_000)]})
    writers.workers.answer(-1)
    await task


@pytest.mark.parametrize(("frames", "together"), [(1, GROUP_REQUESTS_MAX), (1000, -(-GROUP_FRAMES_MAX // 1000))])
async def test_a_message_has_a_bounded_number_of_requests_and_frames(frames: int, together: int) -> None:
    writers = Writers()
    await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    later = await writers.start(*({0: [b"x"] * frames} for _ in range(2 * together)))
    for number in range(IN_FLIGHT_USUAL + 2):
        writers.workers.answer(number)
        await settle()
    await asyncio.gather(*later)
    sizes = [len(parts[0]) for parts in writers.workers.parts()[IN_FLIGHT_USUAL:]]
    assert sizes == [together * frames] * 2
    assert max(sizes) < FRAMES_MAX


async def test_each_request_of_a_message_gets_what_was_said_of_its_own_frames() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_USUAL)))
    later = await writers.start({0: [b"x"], 1: [b"y"]}, {1: [b"z", b"v"]}, {2: [b"w"]})
    for number in range(IN_FLIGHT_USUAL):
        writers.workers.answer(number)
    await asyncio.gather(*first)
    await settle()
    numbers = [np.array([n, n + 1], dtype=np.int32) for n in (10, 20, 30)]
    said = [
        (WriteReply(3, {1: 7}, {1: [1]}, {1: [0, 2]}), numbers[:2]),
        (WriteReply(1, {0: 5}, {}, {0: [0]}), numbers[2:]),
    ]
    replies = [WorkerReply("w", (), Reply(pack(body), [each.tobytes() for each in own]), 0.0) for body, own in said]
    writers.workers.answer(IN_FLIGHT_USUAL, replies=replies)
    one, two, three = await asyncio.gather(*later)
    assert {place: given.tolist() for place, given in one.numbers.items()} == {(1, 0): [10, 11], (0, 0): [30, 31]}
    assert (one.stale, one.epochs) == (frozenset(), {1: 7, 0: 5})
    assert {place: given.tolist() for place, given in two.numbers.items()} == {(1, 1): [20, 21]}
    assert (two.stale, two.epochs) == (frozenset({(1, 0)}), {1: 7})
    assert (three.numbers, three.stale, three.epochs) == ({}, frozenset(), {})


async def test_requests_of_known_series_share_a_frame_of_each_shard() -> None:
    writers = Writers()
    (alone,) = await writers.start_known(known(1, 0, 2))
    assert {shard: [numbers_of(frame) for frame in own] for shard, own in writers.workers.parts()[0].items()} == {
        0: [[1]],
        2: [[1]],
    }
    labelled = await writers.start({0: [b"with labels"]})
    together = await writers.start_known(known(2, 0), known(3, 0, 1))
    writers.workers.answer(0)
    await settle()
    parts = writers.workers.parts()[1]
    assert (parts[0][0], numbers_of(parts[0][1]), numbers_of(parts[1][0])) == (b"with labels", [2, 3], [3])
    said = WriteReply(1, {0: 70, 1: 80}, {0: [1]}, {})
    writers.workers.answer(1, replies=[WorkerReply("w", (), Reply(pack(said), []), 0.0)])
    one, two = await asyncio.gather(*together)
    assert (one.stale, one.epochs) == (frozenset({(0, 0)}), {0: 70})
    assert (two.stale, two.epochs) == (frozenset({(0, 0)}), {0: 70, 1: 80})
    assert (await labelled[0]).stale == frozenset()
    assert (await alone).stale == frozenset()


async def test_numbers_of_different_epochs_do_not_share_a_frame() -> None:
    writers = Writers()
    await writers.start_known(known(1, 0))
    await writers.start_known(known(2, 0), known(3, 0, epochs=EPOCHS.copy()))
    writers.workers.answer(0)
    await settle()
    writers.workers.answer(1)
    await settle()
    assert [numbers_of(parts[0][0]) for parts in writers.workers.parts()] == [[1], [2], [3]]


async def test_requests_that_come_in_one_turn_of_the_loop_go_together() -> None:
    writers = Writers()
    await writers.start({0: [b"x"]}, {0: [b"y"]}, {1: [b"z"]})
    assert writers.workers.parts() == [{0: [b"x", b"y"], 1: [b"z"]}]


async def test_a_message_ends_when_none_of_its_clients_waits_any_more() -> None:
    writers = Writers()
    first = await writers.start({0: [b"x"]}, {0: [b"y"]})
    later = await writers.start({0: [b"z"]})
    first[0].cancel()
    await settle()
    assert len(writers.workers.calls) == 1
    first[1].cancel()
    await settle()
    assert writers.workers.calls[0].is_given_up
    assert writers.workers.parts()[1:] == [{0: [b"z"]}]
    writers.workers.answer(1)
    await later[0]


async def test_a_write_is_held_back_while_the_barrier_is_closed() -> None:
    writers = Writers()
    with writers.workers.barrier.closed():
        (stays,) = await writers.start({0: [b"x"]})
        assert not writers.workers.calls
        (later,) = await writers.start({0: [b"y"]})
    await settle()
    assert writers.workers.parts() == [{0: [b"x"]}]
    writers.workers.answer(0)
    await settle()
    writers.workers.answer(1)
    await asyncio.gather(stays, later)
    with writers.workers.barrier.closed():
        (gone,) = await writers.start({0: [b"z"]})
        gone.cancel()
        await settle()
    await settle()
    assert len(writers.workers.calls) == 2  # nobody waited for it any more
    (last,) = await writers.start({0: [b"v"]})
    writers.workers.answer(2)
    await last


@pytest.mark.parametrize("fails", ["to be sent", "to be made"])
async def test_a_message_that_cannot_be_sent_fails_those_in_it_and_no_other(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> object:
        raise RuntimeError("a defect")

    writers = Writers()
    with monkeypatch.context() as defect:
        if fails == "to be made":
            defect.setattr(groups.known_samples, "frames", broken)
        else:
            writers.workers.broken = RuntimeError("a defect")
        first = await writers.start_known(known(1, 0), known(2, 1))
    assert {str(end) for end in await asyncio.gather(*first, return_exceptions=True)} == {"a defect"}
    writers.workers.broken = None
    (task,) = await writers.start({0: [b"z"]})
    writers.workers.answer(0)
    await task


async def test_a_failed_write_is_freed_without_the_collector() -> None:
    writers = Writers()
    frame = np.zeros(1000, np.uint8)
    is_there = weakref.ref(frame)
    gc.disable()
    try:
        stored = writers.writes.submit({0: [cast(Any, frame)]})
        stored.at_once(lambda told: told.exception())
        del frame
        await settle()
        writers.workers.answer(0, Unavailable("shard 0 is down"))
        writers.workers.calls.clear()
        del stored
        await settle()
        assert is_there() is None
    finally:
        gc.enable()


async def test_who_does_not_wait_is_told_in_the_turn_of_the_reply_and_after_the_next_message_was_sent() -> None:
    writers, seen = Writers(), list[tuple[str, int]]()
    for name in ("first", "second"):
        stored = writers.writes.submit({0: [name.encode()]})
        stored.at_once(lambda _, name=name: seen.append((name, len(writers.workers.calls))))  # type: ignore[misc]
        await settle()
    writers.workers.answer(0)
    assert seen == [("first", 2)]
    writers.workers.answer(1)
    assert seen == [("first", 2), ("second", 2)]


class Senders(Writers):
    """Messages wait for others for so long that no test sees the end of it, unless it is quiet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, quiet_s: float = 60.0, delay_ms: int = 1000) -> None:
        super().__init__(commit_delay_ms=delay_ms)
        monkeypatch.setattr("coordinator.series.groups.QUIET_S", quiet_s)


async def answered(senders: Senders, number: int, *tasks: asyncio.Task[Receipt]) -> None:
    senders.workers.answer(number)
    await asyncio.gather(*tasks)
    await settle()


async def test_a_message_waits_for_as_many_requests_as_were_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    senders = Senders(monkeypatch)
    first = await senders.start({0: [b"a"]})
    others = await senders.start({0: [b"b"]}, {0: [b"c"]})
    await answered(senders, 0, *first)
    assert len(senders.workers.calls) == 1  # three were under way
    await senders.start({0: [b"a"]})
    assert senders.workers.parts()[1:] == [{0: [b"b", b"c", b"a"]}]
    await answered(senders, 1, *others)
    for number in range(3):
        assert len(senders.workers.calls) == 2
        await senders.start({0: [b"%d" % number]})
    assert senders.workers.parts()[2:] == [{0: [b"0", b"1", b"2"]}]


async def test_a_message_waits_for_a_few_requests_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    senders = Senders(monkeypatch)
    first = await senders.start({0: [b"a"]})
    await senders.start(*({0: [b"x"]} for _ in range(GATHERED_MAX)))
    await answered(senders, 0, *first)
    assert [len(parts[0]) for parts in senders.workers.parts()] == [1, GATHERED_MAX]


async def test_a_lone_sender_is_never_waited_with(monkeypatch: pytest.MonkeyPatch) -> None:
    senders = Senders(monkeypatch)
    for number in range(5):
        tasks = await senders.start({0: [b"a"]})
        assert len(senders.workers.calls) == number + 1
        await answered(senders, number, *tasks)


async def test_a_message_waits_no_longer_when_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    senders = Senders(monkeypatch, quiet_s=0.03)
    first = await senders.start({0: [b"a"]})
    await senders.start({0: [b"b"]})
    await answered(senders, 0, *first)
    async with asyncio.timeout(5):
        while len(senders.workers.calls) == 1:
            await asyncio.sleep(0.001)
    assert senders.workers.parts()[1:] == [{0: [b"b"]}]
    assert senders.workers.waited_s(1) >= 0.02


async def test_a_message_waits_no_longer_than_a_commit_may(monkeypatch: pytest.MonkeyPatch) -> None:
    senders = Senders(monkeypatch, delay_ms=30)
    first = await senders.start({0: [b"a"]})
    await senders.start({0: [b"b"]})
    await answered(senders, 0, *first)
    async with asyncio.timeout(5):
        while len(senders.workers.calls) == 1:
            await asyncio.sleep(0.001)
    assert senders.workers.parts()[1:] == [{0: [b"b"]}]
    assert senders.workers.waited_s(1) >= 0.02

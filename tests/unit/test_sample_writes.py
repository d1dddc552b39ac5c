"""Remote writes that wait at the same time share a message, and its fate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from coordinator.calls import WorkerReply
from coordinator.links import Links
from coordinator.series.groups import GROUP_FRAMES_MAX, GROUP_REQUESTS_MAX, IN_FLIGHT_MAX, SampleWrites
from coordinator.series.lessons import NOTHING_SAID, Receipt
from shared.config import Settings
from shared.errors import Overloaded, Unavailable
from shared.messages.series import WriteReply
from shared.wire import FRAMES_MAX, Frame, Reply, pack

Parts = Mapping[int, Sequence[Frame]]


class Workers:
    """Stands in for `Links`: holds every call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[tuple[Parts, asyncio.Future[list[WorkerReply]]]] = []
        self.down: set[int] = set()

    def require(self, shards: Parts) -> None:
        if self.down.intersection(shards):
            raise Unavailable(f"not available: {self.down}")

    async def call(self, method: str, *, parts: Parts, timeout_s: float) -> list[WorkerReply]:
        assert method == "series.write"
        answer = asyncio.get_running_loop().create_future()
        self.calls.append(({shard: list(frames) for shard, frames in parts.items()}, answer))
        return await answer

    def parts(self) -> list[Parts]:
        return [parts for parts, _ in self.calls]

    def answer(self, number: int, error: Exception | None = None, replies: Sequence[WorkerReply] = ()) -> None:
        future = self.calls[number][1]
        future.set_exception(error) if error is not None else future.set_result(list(replies))


class Writers:
    def __init__(self, **settings: int) -> None:
        self.workers = Workers()
        self._writes = SampleWrites(Settings(**cast(Any, {"commit_delay_ms": 0, **settings})), cast(Links, self.workers))

    async def start(self, *parts: Parts) -> list[asyncio.Task[Receipt]]:
        tasks = [asyncio.create_task(self._writes.write(own)) for own in parts]
        await settle()
        return tasks


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
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
    later = await writers.start({0: [b"x"], 1: [b"y"]}, {1: [b"z"]}, {2: [b"w"]})
    assert len(writers.workers.calls) == IN_FLIGHT_MAX
    writers.workers.answer(0)
    await first[0]
    await settle()
    assert writers.workers.parts()[IN_FLIGHT_MAX:] == [{0: [b"x"], 1: [b"y", b"z"], 2: [b"w"]}]
    assert not any(task.done() for task in later)
    writers.workers.answer(IN_FLIGHT_MAX)
    await asyncio.gather(*later)


async def test_a_failure_is_told_to_all_who_went_along_and_to_no_other() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
    later = await writers.start({0: [b"x"]}, {1: [b"y"]})
    writers.workers.answer(0, Unavailable("shard 0 is down"))
    await settle()
    last = await writers.start({0: [b"v"]})
    writers.workers.answer(IN_FLIGHT_MAX, Unavailable("shard 1 is down"))
    await settle()
    writers.workers.answer(-1)
    ends = await asyncio.gather(*first, *later, *last, return_exceptions=True)
    assert [str(end) for end in ends] == ["shard 0 is down", "shard 1 is down", "shard 1 is down", str(NOTHING_SAID)]
    (again,) = await writers.start({0: [b"z"]})
    writers.workers.answer(-1)
    await again


async def test_a_client_that_goes_away_takes_nothing_from_the_others() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
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
    await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
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
    await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
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
    await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
    later = await writers.start(*({0: [b"x"] * frames} for _ in range(2 * together)))
    for number in range(IN_FLIGHT_MAX + 2):
        writers.workers.answer(number)
        await settle()
    await asyncio.gather(*later)
    sizes = [len(parts[0]) for parts in writers.workers.parts()[IN_FLIGHT_MAX:]]
    assert sizes == [together * frames] * 2
    assert max(sizes) < FRAMES_MAX


async def test_each_request_of_a_message_gets_what_was_said_of_its_own_frames() -> None:
    writers = Writers()
    first = await writers.start(*({0: [b"%d" % n]} for n in range(IN_FLIGHT_MAX)))
    later = await writers.start({0: [b"x"], 1: [b"y"]}, {1: [b"z", b"v"]}, {2: [b"w"]})
    for number in range(IN_FLIGHT_MAX):
        writers.workers.answer(number)
    await asyncio.gather(*first)
    await settle()
    numbers = [np.array([n, n + 1], dtype=np.int32) for n in (10, 20, 30)]
    said = [
        (WriteReply(3, {1: 7}, {1: [1]}, {1: [0, 2]}), numbers[:2]),
        (WriteReply(1, {0: 5}, {}, {0: [0]}), numbers[2:]),
    ]
    replies = [WorkerReply("w", (), Reply(pack(body), [each.tobytes() for each in own]), 0.0) for body, own in said]
    writers.workers.answer(IN_FLIGHT_MAX, replies=replies)
    one, two, three = await asyncio.gather(*later)
    assert {place: given.tolist() for place, given in one.numbers.items()} == {(1, 0): [10, 11], (0, 0): [30, 31]}
    assert (one.stale, one.epochs) == (frozenset(), {1: 7, 0: 5})
    assert {place: given.tolist() for place, given in two.numbers.items()} == {(1, 1): [20, 21]}
    assert (two.stale, two.epochs) == (frozenset({(1, 0)}), {1: 7})
    assert (three.numbers, three.stale, three.epochs) == ({}, frozenset(), {})

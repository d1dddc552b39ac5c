"""The gate of queries: light ones beside heavy ones, turns between clients, bounds on waiting."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from coordinator.queries import gate as gate_module
from coordinator.queries.gate import HEAVY, LIGHT, Gate, Place, Places, heavy_places
from shared.errors import DeadlineExceeded, NotExecutable, Overloaded, TooHeavy
from shared.process.array_memory import Account

GIGABYTE = 1 << 30


def in_time(s: float = 5.0) -> float:
    return time.monotonic() + s


class Heavy:
    """An attempt that needs a heavy place, and ends when `go` is set. `places`: those it was tried in."""

    def __init__(self, go: asyncio.Event | None = None) -> None:
        self.go = go
        self.places: list[Place] = []

    async def __call__(self, place: Place) -> str:
        self.places.append(place)
        if place.is_light:
            raise TooHeavy("more is needed")
        if self.go is not None:
            await self.go.wait()
        return "heavy"


async def light(place: Place) -> Place:
    return place


async def started(attempt: Heavy) -> None:
    async with asyncio.timeout(5):
        while not attempt.places or attempt.places[-1].is_light:
            await asyncio.sleep(0.001)


async def test_a_query_alone_may_use_all() -> None:
    gate = Gate(1)
    assert await gate.run("a", "q", in_time(), light) == HEAVY
    assert gate.heavy.free == 1


async def test_beside_heavy_queries_a_light_one_runs_at_once_and_a_heavy_one_waits() -> None:
    gate, go = Gate(1), asyncio.Event()
    first, second = Heavy(go), Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first))
    await started(first)
    waiting = asyncio.create_task(gate.run("a", "second", in_time(), second))
    assert await gate.run("a", "q", in_time(), light) == LIGHT
    await asyncio.sleep(0.01)
    assert second.places == [LIGHT]
    go.set()
    assert await asyncio.gather(running, waiting) == ["heavy", "heavy"]
    assert second.places == [LIGHT, HEAVY]
    assert (gate.heavy.free, gate.trials.free, gate.heavy.waiting) == (1, gate_module.TRIAL_PLACES, 0)


async def test_a_query_that_was_heavy_is_not_tried_as_a_light_one_again() -> None:
    gate, go = Gate(1), asyncio.Event()
    first = Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first))
    await started(first)
    again = [Heavy(go), Heavy(go)]
    waiting = [asyncio.create_task(gate.run("a", "same", in_time(), attempt)) for attempt in again[:1]]
    await asyncio.sleep(0.01)
    waiting.append(asyncio.create_task(gate.run("a", "same", in_time(), again[1])))
    await asyncio.sleep(0.01)
    assert [attempt.places for attempt in again] == [[LIGHT], []]
    go.set()
    await asyncio.gather(running, *waiting)
    assert again[1].places == [HEAVY]


async def test_a_query_that_became_quick_is_light_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(1)
    gate._remember("q")
    await gate.run("a", "q", in_time(), light)
    assert "q" not in gate._known


async def test_as_many_queries_are_remembered_as_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "KNOWN_MAX", 2)
    gate = Gate(1)
    for query in ("a", "b", "a", "c"):
        gate._remember(query)
    assert list(gate._known) == ["a", "c"]


async def test_a_failing_query_gives_its_place_back() -> None:
    gate = Gate(1)

    async def fail(place: Place) -> None:
        raise NotExecutable("no")

    for _ in range(3):
        with pytest.raises(NotExecutable):
            await gate.run("a", "q", in_time(), fail)
    assert gate.heavy.free == 1


async def test_who_goes_away_while_waiting_leaves_no_trace() -> None:
    gate, go = Gate(1), asyncio.Event()
    first, second = Heavy(go), Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first))
    await started(first)
    waiting = asyncio.create_task(gate.run("a", "second", in_time(), second))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert gate.heavy.waiting == 0
    go.set()
    await running
    assert gate.heavy.free == 1


async def test_waiting_ends_with_the_time_of_the_query() -> None:
    gate, go = Gate(1), asyncio.Event()
    first = Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first))
    await started(first)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"waited 0.0\d* s for others to end, and 0 more wait"):
        await gate.run("a", "second", in_time(0.05), Heavy(go))
    assert time.monotonic() - begun < 1
    go.set()
    await running
    assert gate.heavy.free == 1


async def test_no_more_wait_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "WAITING_MAX", 2)
    places = Places(1)
    assert places.take_now()
    waiting = [asyncio.create_task(places.take("a", 5)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 queries wait for others to end, the limit is 2"):
        await places.take("b", 5)
    places.give()
    places.give()
    await asyncio.gather(*waiting)


async def order_of(places: Places, clients: str) -> str:
    """The order in which waiting clients get a place that is given back again and again."""
    order = ""
    assert places.take_now()

    async def work(client: str) -> None:
        nonlocal order
        await places.take(client, 5)
        order += client
        places.give()

    tasks = []
    for client in clients:
        tasks.append(asyncio.create_task(work(client)))
        await asyncio.sleep(0)
    places.give()
    await asyncio.gather(*tasks)
    return order


async def test_clients_take_turns() -> None:
    assert await order_of(Places(1), "aaaaabbc") == "abcabaaa"


async def test_a_place_that_was_given_to_somebody_who_left_goes_to_the_next() -> None:
    places = Places(1)
    assert places.take_now()
    gone, next_one = asyncio.create_task(places.take("a", 5)), asyncio.create_task(places.take("b", 5))
    await asyncio.sleep(0)
    places.give()  # to `gone`, which is cancelled before it runs
    gone.cancel()
    await asyncio.wait_for(next_one, 5)
    assert places.free == 0
    places.give()
    assert (places.free, places.waiting) == (1, 0)


@pytest.mark.parametrize(
    ("query", "together", "places"),
    [(1, 1, 1), (1, 2, 2), (1, 64, 2), (4, 1, 1), (2, 3, 1)],
)
def test_so_many_heavy_queries_run_at_once_as_fit_into_memory(query: int, together: int, places: int) -> None:
    assert heavy_places(query * GIGABYTE, together * GIGABYTE) == places


def test_without_a_setting_a_quarter_of_the_machine_is_for_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    total = 4 * GIGABYTE
    monkeypatch.setattr(gate_module.psutil, "virtual_memory", lambda: type("Memory", (), {"total": total}))
    assert heavy_places(GIGABYTE, 0) == 1
    assert heavy_places(GIGABYTE // 2, 0) == 2


async def test_no_heavy_query_begins_while_answers_that_are_not_read_hold_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "SENT_BYTES_MAX", 1000)
    gate, unread = Gate(2), Account(1 << 20)
    with unread.open():
        held = np.zeros(1001, dtype=np.uint8)
    heavy = Heavy()
    with gate.sending(unread):
        assert await gate.run("a", "q", in_time(), light) == LIGHT
        waiting = asyncio.create_task(gate.run("a", "heavy", in_time(), heavy))
        await asyncio.sleep(0.01)
        assert heavy.places == [LIGHT]
        with pytest.raises(DeadlineExceeded, match="to be read by their clients"):
            await gate.run("a", "late", in_time(0.02), Heavy())
    assert await waiting == "heavy"
    assert heavy.places == [LIGHT, HEAVY]
    assert gate.heavy.free == 2
    del held


async def test_an_answer_that_has_been_read_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "SENT_BYTES_MAX", 1000)
    gate, small = Gate(1), Account(1 << 20)
    with small.open():
        held = np.zeros(1000, dtype=np.uint8)
    with gate.sending(small):
        assert await gate.run("a", "q", in_time(), light) == HEAVY
    assert held.nbytes == 1000


async def test_a_light_query_that_waits_too_long_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "LIGHT_WAIT_MAX_S", 0.05)
    gate = Gate(1)
    gate.heavy.take_now()
    gate.trials.free = 0
    with pytest.raises(
        Overloaded, match=r"waited 0\.05 s for other light ones to end, the limit, and 0 more wait"
    ) as told:
        await gate.run("a", "q", in_time(), light)
    assert told.value.retry_after_s is not None
    with pytest.raises(DeadlineExceeded, match="for others to end"):
        await gate.run("a", "q", in_time(0.01), light)
    assert gate.trials.waiting == 0
    gate.trials.give()
    assert await gate.run("a", "q", in_time(), light) == LIGHT


class Restraint:
    """Heavy queries may begin while `allowed`."""

    def __init__(self, *, allowed: bool) -> None:
        self.allowed = allowed

    def allows_heavy(self) -> bool:
        return self.allowed

    def require_heavy(self) -> None:
        if not self.allowed:
            raise Overloaded("no heavy queries now")


async def test_under_restraint_a_light_query_runs_as_such_and_a_heavy_one_is_refused_when_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(1)
    gate.restraint = restraint = Restraint(allowed=False)
    assert await gate.run("a", "q", in_time(), light) == LIGHT
    heavy = Heavy()
    with pytest.raises(Overloaded):
        await gate.run("a", "heavy", in_time(), heavy)
    assert heavy.places == [LIGHT]
    with pytest.raises(Overloaded):
        await gate.run("a", "heavy", in_time(), heavy)
    assert heavy.places == [LIGHT]
    monkeypatch.setattr(gate_module, "KNOWN_RESTRAINED_S", 0.0)
    with pytest.raises(Overloaded):
        await gate.run("a", "heavy", in_time(), heavy)
    assert heavy.places == [LIGHT, LIGHT]  # it may have become lighter
    with pytest.raises(Overloaded):
        await gate.run("a", "estimated", in_time(), heavy, is_heavy=True)
    assert heavy.places == [LIGHT, LIGHT]
    assert (gate.heavy.free, gate.trials.free) == (1, gate_module.TRIAL_PLACES)
    restraint.allowed = True
    assert await gate.run("a", "heavy", in_time(), heavy) == "heavy"


async def test_a_query_whose_estimate_is_heavy_is_not_tried_as_a_light_one() -> None:
    gate, go = Gate(1), asyncio.Event()
    first, second = Heavy(go), Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first))
    await started(first)
    waiting = asyncio.create_task(gate.run("a", "second", in_time(), second, is_heavy=True))
    await asyncio.sleep(0.01)
    assert second.places == []
    assert gate.heavy_queries() == 2
    go.set()
    await asyncio.gather(running, waiting)
    assert second.places == [HEAVY]
    assert gate.heavy_queries() == 0


async def test_a_heavy_query_that_has_waited_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "HEAVY_WAIT_MAX_S", 0.02)
    gate, go = Gate(1), asyncio.Event()
    first = Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first))
    await started(first)
    with pytest.raises(Overloaded, match=r"waited 0\.02 s for other heavy ones to end, the limit, and 0 more wait"):
        await gate.run("a", "second", in_time(), Heavy(go))
    go.set()
    await running


async def test_who_waits_for_a_heavy_place_is_told_to_be_slow() -> None:
    gate, go, told = Gate(1), asyncio.Event(), []
    first = Heavy(go)
    running = asyncio.create_task(gate.run("a", "first", in_time(), first, is_slow=lambda: told.append("first")))
    await started(first)
    assert await gate.run("a", "q", in_time(), light, is_slow=lambda: told.append("light")) == LIGHT
    waiting = asyncio.create_task(gate.run("a", "second", in_time(), Heavy(go), is_slow=lambda: told.append("second")))
    await asyncio.sleep(0.01)
    assert told == ["second"]
    go.set()
    await asyncio.gather(running, waiting)


async def test_a_query_whose_estimate_is_light_leaves_the_heavy_place_to_others() -> None:
    gate = Gate(1)
    assert await gate.run("a", "q", in_time(), light, is_light=True) == LIGHT
    gate.light.free = 0  # then any place is better than none
    assert await gate.run("a", "q", in_time(), light, is_light=True) == HEAVY


async def test_a_wrong_estimate_is_believed_once() -> None:
    gate, attempt = Gate(1), Heavy()
    for _ in range(2):
        assert await gate.run("a", "q", in_time(), attempt, is_light=True) == "heavy"
        gate._known.update({"q": time.monotonic()})  # it took long
    assert attempt.places == [LIGHT, HEAVY, HEAVY]


async def test_queries_of_which_nothing_is_known_do_not_keep_out_those_that_are_light() -> None:
    gate, go = Gate(1), asyncio.Event()
    gate.heavy.take_now()

    async def slow(place: Place) -> Place:
        await go.wait()
        return place

    told: list[str] = []
    unknown = [
        asyncio.create_task(gate.run("a", n, in_time(), slow, is_slow=lambda: told.append("slow")))
        for n in range(gate_module.TRIAL_PLACES + 1)
    ]
    await asyncio.sleep(0.01)
    assert (gate.trials.free, gate.trials.waiting) == (0, 1)
    assert gate.heavy_queries() == 2  # one runs, and one waits to be tried
    assert told == ["slow"]
    assert await gate.run("a", "q", in_time(), light, is_light=True) == LIGHT
    go.set()
    assert await asyncio.gather(*unknown) == [LIGHT] * len(unknown)
    assert gate.waits.mean_s() == 0.0  # how long they waited says nothing about the wait of other requests
    assert (gate.trials.free, gate.light.free) == (gate_module.TRIAL_PLACES, gate_module.LIGHT_PLACES)

"""Who has the next turn while as many requests are at work as may be, and who is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from coordinator.limits import waiting_room as module
from coordinator.limits.admission import Admission, Holder
from coordinator.limits.clients import Client
from coordinator.limits.pressure import Queue
from coordinator.limits.waiting_room import ROOM, WaitingRoom
from shared.settings import Settings

READ, WRITE = "/api/v1/query", "/api/v1/log/append"


class Pressure:
    def __init__(self) -> None:
        self.places = 0
        self.places_for_reads = self.places_for_writes = 1 << 30
        self.is_standing = True

    def has_place(self) -> bool:
        return self.places > 0

    def has_place_for_read(self) -> bool:
        return self.places_for_reads > 0

    def has_place_for_write(self) -> bool:
        return self.places_for_writes > 0

    def gave_up(self, what: str, waiting: int) -> str:
        return f"{what} {waiting}"


@dataclass(eq=False)
class Visitor:
    name: str
    events: list[str]
    pressure: Pressure
    refused: str = field(default="")

    def go_on(self) -> None:
        self.pressure.places -= 1
        self.events.append(self.name)

    def turn_away(self, why: str) -> None:
        self.refused = why
        self.events.append(f"not {self.name}")


class House:
    def __init__(self) -> None:
        self.pressure = Pressure()
        self.room = WaitingRoom(self.pressure)  # type: ignore[arg-type]
        self.events: list[str] = []

    def enters(self, name: str, client: Client, path: str = READ) -> Visitor:
        visitor = Visitor(name, self.events, self.pressure)
        self.room.enter(visitor, client, path)
        return visitor

    def fill(self, client: Client, count: int = ROOM, path: str = READ) -> list[Visitor]:
        return [self.enters(f"{client.name}{number}", client, path) for number in range(count)]

    def turns(self, places: int) -> list[str]:
        """What happens when so many places become free."""
        before = len(self.events)
        self.pressure.places = places
        self.room.admit()
        return self.events[before:]


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list of one."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_oldest_has_the_first_turn_while_there_is_room(house: House, clock: list[float]) -> None:
    house.fill(Client("a"), module.BURST_FROM)
    assert house.turns(1) == ["a0"]
    house.fill(Client("b"), ROOM - module.BURST_FROM + 1)
    clock[0] += module.BURST_S + 0.001
    assert house.turns(2) == ["a1", "a2"]
    assert len(house.room) == ROOM - 2
    assert house.turns(0) == []


def test_the_newest_has_the_first_turn_and_the_oldest_is_refused_when_there_is_no_room(
    house: House, clock: list[float]
) -> None:
    client = Client("a")
    first = house.fill(client)[0]
    house.enters("new", client)
    assert house.events == ["not a0"]
    assert first.refused == f"reads {ROOM + 1}"
    assert house.turns(2) == ["new", f"a{ROOM - 1}"]
    clock[0] += module.OVERFULL_S
    assert house.turns(1) == ["a1"]


def test_in_a_burst_nobody_is_refused_and_the_newest_has_the_first_turn_for_a_moment(
    house: House, clock: list[float]
) -> None:
    client = Client("a")
    house.pressure.is_standing = False
    house.fill(client, module.ROOM_BURST)
    assert house.turns(1) == [f"a{module.ROOM_BURST - 1}"]  # the others may have to be refused soon
    clock[0] += module.BURST_S + 0.001
    assert house.turns(1) == ["a0"]  # they need not
    assert house.turns(module.ROOM_BURST)[-1] == f"a{module.ROOM_BURST - 2}"
    house.fill(client, module.ROOM_BURST)
    house.pressure.is_standing = True  # it does not end
    house.enters("new", client)
    assert len(house.room) == ROOM
    assert house.turns(1)[-1] == "new"


@dataclass
class Load:
    """Requests of one client, and a service that answers so many in each millisecond."""

    house: House
    clock: list[float]
    answered_a_ms: int = 1
    number: int = 0

    def comes(self, ms: int, each_ms: Callable[[int], int]) -> None:
        """In each millisecond as many requests come as `each_ms` says, which gets the number that were answered."""
        answered = 0
        for _ in range(ms):
            for _ in range(each_ms(answered)):
                self.house.enters(str(self.number), Client("a"))
                self.number += 1
            answered = len([event for event in self.house.turns(self.answered_a_ms) if "not" not in event])
            self.house.pressure.places = 0
            self.clock[0] += 0.001


@pytest.fixture
def load(house: House, clock: list[float]) -> Load:
    house.pressure.is_standing = False
    return Load(house, clock)


def longest_wait(house: House) -> int:
    """By how many turns at most a request was served after its turn."""
    served = [int(name) for name in house.events]
    return max(place - number for place, number in enumerate(served))


@pytest.mark.parametrize("clients", [100, 200, 500])
def test_each_of_many_clients_has_its_turn_and_none_is_refused(load: Load, house: House, clients: int) -> None:
    """Each asks again when it has its answer. It is no overload, however many they are."""
    load.comes(150, lambda _: clients // 150 + 1)  # they begin one after the other
    load.comes(3000, lambda answered: answered)
    assert not house.room.is_overfull
    assert house.room.refused_share == 0
    assert longest_wait(house) <= 1000 * module.BURST_S + clients


@pytest.mark.parametrize(("times", "within_s"), [(3, 0.45), (1.5, 0.45), (1.1, 1.5)])
def test_requests_that_become_more_and_more_are_an_overload(
    load: Load, house: House, clock: list[float], times: float, within_s: float
) -> None:
    began, come = clock[0], [0.0]

    def each_ms(_: int) -> int:
        before = int(come[0])
        come[0] += times
        return int(come[0]) - before

    while not house.room.is_overfull:
        load.comes(10, each_ms)
        assert clock[0] - began < within_s
    for _ in range(40):
        load.comes(100, each_ms)
        house.room.look()
        assert house.room.is_overfull
        assert len(house.room) <= module.ROOM_OVERFULL
    assert house.room.refused_share == pytest.approx(1 - 1 / times, abs=0.05)
    for _ in range(40):
        load.comes(100, lambda _: 1)
        house.room.look()
    assert not house.room.is_overfull


@pytest.mark.parametrize("apart_ms", [1, 3, 7, 9, 12])
def test_an_overload_is_a_burst_until_it_is_known(load: Load, house: House, apart_ms: int) -> None:
    """Were it a long queue in between, all that wait would be let in at once, the oldest first. How they are counted
    depends on when requests come."""
    number, seen = 0, set()

    def each_ms(_: int) -> int:
        nonlocal number
        number += 1
        return 0 if number % apart_ms else 3 * apart_ms

    while not house.room.is_overfull:
        load.comes(1, each_ms)
        seen.add(house.room.queue())
    assert seen == {Queue.SHORT, Queue.BURST, Queue.OVERFULL}


def test_the_share_of_the_refused_rises_faster_than_it_falls(load: Load, house: House) -> None:
    """Until an overload is known to be a hard one, too many are at work."""
    while not house.room.is_overfull:
        load.comes(10, lambda _: 3)
    shares = []
    for times in (*[3] * 3, *[1] * 3):
        load.comes(100, lambda _, times=times: times)  # type: ignore[misc]
        house.room.look()
        shares.append(house.room.refused_share)
    assert shares[2] > 0.55  # of 0.67
    assert shares[5] > 0.5 * shares[2]


def test_requests_that_come_after_a_pause_are_not_more_than_before_it(load: Load, house: House) -> None:
    for _ in range(20):
        load.comes(30, lambda _: 4)
        load.comes(200, lambda _: 0)
    assert not house.room.is_overfull


def test_writes_are_refused_before_reads(house: House, clock: list[float]) -> None:
    client = Client("a")
    house.fill(client, ROOM - 1)
    house.enters("write", client, WRITE)
    house.enters("read", client)
    assert house.events == ["not write"]


def test_the_client_with_the_fewest_requests_at_work_has_the_first_turn(house: House) -> None:
    busy, idle = Client("busy"), Client("idle")
    busy.requests = 10
    house.fill(busy, 5)
    house.enters("idle", idle)
    house.fill(busy, 5)
    assert house.turns(1) == ["idle"]


def test_the_client_with_the_most_requests_here_is_refused_first(house: House, clock: list[float]) -> None:
    flood, other = Client("flood"), Client("other")
    house.enters("other", other)
    house.fill(flood, ROOM - 1)
    house.enters("other2", other)
    assert house.events == ["not flood0"]


def test_who_has_waited_too_long_is_refused(house: House, clock: list[float]) -> None:
    client = Client("a")
    house.enters("old", client)
    clock[0] += 0.1
    house.enters("young", client)
    clock[0] += module.WAIT_MAX_S - 0.1
    house.room.admit()
    assert house.events == ["not old"]
    house.fill(client)
    house.events.clear()
    clock[0] += module.WAIT_OVERFULL_MAX_S
    house.enters("new", client)
    house.room.look()
    assert len(house.room) == 1
    assert house.turns(1) == ["new"]


def test_nobody_waits_long_while_more_comes_than_leaves(house: House, clock: list[float]) -> None:
    client = Client("a")
    house.fill(client, ROOM + 1)
    clock[0] += module.WAIT_OVERFULL_MAX_S / 2
    house.events.clear()
    house.enters("new", client)
    assert len(house.room) == module.ROOM_OVERFULL
    assert len(house.events) == ROOM + 1 - module.ROOM_OVERFULL
    clock[0] += module.WAIT_OVERFULL_MAX_S / 2 + 0.001
    assert house.turns(2)[-1] == "new"  # the others are late, and have no turn any more
    house.room.look()
    assert len(house.room) == 0


def test_those_who_are_late_are_refused_some_at_a_time(house: House, clock: list[float]) -> None:
    """To refuse hundreds at once would keep those at work waiting."""
    client, several = Client("a"), module.LATE_AT_ONCE
    house.pressure.is_standing = False
    house.fill(client, 20 * several)
    clock[0] += module.WAIT_OVERFULL_MAX_S
    house.pressure.is_standing = True
    house.enters("new", client)
    assert house.events == [f"not a{number}" for number in range(several)]
    house.fill(client, several)
    assert len(house.room) == 20 * several + 1 - several * several
    assert house.turns(1) == [
        *(f"not a{number + several * (several + 1)}" for number in range(several)),
        f"a{several - 1}",
    ]
    house.room.look()
    assert len(house.room) == several


def test_until_it_is_known_an_overload_is_taken_for_a_hard_one(load: Load, house: House, clock: list[float]) -> None:
    assert house.room.hardness() == 0
    while not house.room.is_overfull:
        load.comes(1, lambda _: 3)
        assert house.room.hardness() == (0 if house.room.queue() is Queue.SHORT else module.HARD_SHARE)
    known_at = clock[0] + module.UNKNOWN_S
    while clock[0] < known_at - 0.002:
        assert house.room.hardness() >= module.HARD_SHARE
        load.comes(1, lambda _: 2)
    for _ in range(5):
        load.comes(100, lambda _: 2)
        house.room.look()
        assert house.room.hardness() == house.room.refused_share < module.HARD_SHARE


def test_writes_go_on_while_reads_wait_for_other_reads(house: House) -> None:
    client = Client("a")
    house.pressure.places_for_reads = 0
    house.enters("read", client)
    house.enters("write", client, WRITE)
    assert house.turns(5) == ["write"]
    house.pressure.places_for_reads = 1
    assert house.turns(5) == ["read"]


def test_who_has_gone_has_no_turn(house: House) -> None:
    client = Client("a")
    gone, _ = house.fill(client, 2)
    assert house.room.leave(gone)
    assert not house.room.leave(gone)
    assert house.turns(5) == ["a1"]


@pytest.mark.parametrize(
    ("lengths", "is_overload"),
    [
        ([512] * 10, False),
        ([513] * 4 + [512] + [513] * 4, False),
        ([520] * 5, True),
        ([900, 2000, 1500, 1000, 700, 550, 300, 200, 100, 70], False),
        ([900, 2000, 2100, 2050, 2050], True),
    ],
)
def test_a_room_that_stays_full_and_does_not_drain_is_no_burst(
    house: House, clock: list[float], lengths: list[int], is_overload: bool
) -> None:
    client = Client("a")
    house.pressure.is_standing = False
    for length in lengths:
        assert not house.room.is_overfull
        house.fill(client, max(0, length - len(house.room)))
        house.turns(len(house.room) - length)
        house.pressure.places = 0
        house.room.look()
        clock[0] += module.WAIT_OVERFULL_MAX_S / 5  # nobody has waited too long when it is known
    assert house.room.is_overfull == is_overload
    assert len(house.room) == (module.ROOM_OVERFULL if is_overload else lengths[-1])


def test_reads_go_on_while_writes_wait_for_other_writes(house: House) -> None:
    client = Client("a")
    house.pressure.places_for_writes = 0
    house.enters("write", client, WRITE)
    house.enters("read", client)
    assert house.turns(5) == ["read"]
    house.pressure.places_for_writes = 1
    assert house.turns(5) == ["write"]


def test_what_the_queue_is(house: House, clock: list[float]) -> None:
    house.pressure.is_standing = False
    client = Client("a")
    house.fill(client, module.BURST_FROM)
    assert house.room.queue() is Queue.SHORT
    house.enters("new", client)
    assert house.room.queue() is Queue.BURST
    clock[0] += module.BURST_S + 0.001
    house.fill(client, ROOM - module.BURST_FROM - 1)
    assert house.room.queue() is Queue.SHORT
    house.enters("newer", client)
    assert house.room.queue() is Queue.LONG
    house.turns(ROOM + 1)
    assert house.room.queue() is Queue.SHORT
    house.pressure.is_standing, house.pressure.places = True, 0
    house.fill(client, ROOM + 1)
    house.turns(ROOM)
    assert house.room.queue() is Queue.OVERFULL
    clock[0] += module.OVERFULL_S
    assert house.room.queue() is Queue.SHORT


async def test_a_place_that_is_given_up_in_the_middle_of_a_request_gives_a_turn_at_once(house: House) -> None:
    house.pressure.places, house.pressure.places_for_reads = 5, 0
    house.enters("read", Client("a"))
    house.room.admit()
    house.pressure.places_for_reads = 1
    house.room.admit_soon()
    house.room.admit_soon()
    assert house.events == []  # never within the request that gave up its place
    await asyncio.sleep(0)
    assert house.events == ["read"]


async def test_a_read_that_waits_for_records_gives_up_its_place() -> None:
    admission = Admission(Settings())
    freed: list[str] = []
    admission.freed = lambda: freed.append("freed")
    holder = Holder(Client("a"))
    admission.announce(holder, READ)
    admission.begun(holder)
    admission.enter(holder, may_use_reserve=False)
    with admission.following(holder):
        assert len(admission.reads) == 0
    assert freed == ["freed"]


def test_turns_cost_no_more_where_many_wait(house: House) -> None:
    """The search for the next turn looks at clients, not at requests."""
    house.pressure.is_standing = False
    visitors = house.fill(Client("a"), module.ROOM_BURST)
    began = time.perf_counter()
    house.turns(module.ROOM_BURST)
    assert time.perf_counter() - began < 1.0, "0.01 s are usual; all looked at each time would take 3 s"
    assert len(house.events) == len(visitors)

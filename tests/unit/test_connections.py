"""Connections that wait for their client: which of them end, for room or for time; and requests in flight."""

from __future__ import annotations

import pytest

from coordinator.limits import connections as module
from coordinator.limits.admission import Admission, Holder
from coordinator.limits.clients import Client, Clients, client_name
from coordinator.limits.connections import PROGRESS_BYTES, Connections
from shared.errors import Overloaded
from shared.settings import Settings

LIMIT = 8
SHARE = 6

READ = "/api/v1/query"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Connection:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.holder: Holder
        self.head_bytes = 0
        self.unsent = 0
        self.has_ended = False

    def end(self) -> None:
        self.has_ended = True

    def unsent_bytes(self) -> int:
        return self.unsent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def all_of_them(clock: Clock) -> Connections:
    """Room for 8 connections, 6 of one client; heads have 10 s, idle connections 60 s, slow readers 30 s."""
    settings = Settings(
        head_timeout_ms=10_000, idle_timeout_ms=60_000, slow_reader_timeout_ms=30_000, unsent_bytes_max=1 << 20
    )
    return Connections(settings, Admission(settings), LIMIT)


def opened(connections: Connections, address: str, count: int = 1) -> list[Connection]:
    made = [Connection(f"{address} {number}") for number in range(count)]
    for connection in made:
        assert connections.opened(connection, address)
    return made


def serve(connections: Connections, *served: Connection) -> None:
    for connection in served:
        connections.heard(connection)


def ended(made: list[Connection]) -> list[int]:
    return [number for number, connection in enumerate(made) if connection.has_ended]


def test_a_new_connection_ends_the_one_whose_head_never_came(all_of_them: Connections, clock: Clock) -> None:
    idle = opened(all_of_them, "a", 4)
    serve(all_of_them, *idle)
    for connection in idle:
        all_of_them.rested(connection)
    headless = opened(all_of_them, "b", 4)
    clock.now += 2
    opened(all_of_them, "c")
    assert (ended(headless), ended(idle)) == ([0], [])
    assert len(all_of_them.open) == LIMIT
    assert all_of_them.ended == {"room (head)": 1}


def test_a_new_connection_ends_the_longest_idle_when_all_heads_are_fresh(
    all_of_them: Connections, clock: Clock
) -> None:
    made = opened(all_of_them, "a", 4)
    serve(all_of_them, *made)
    for place in (2, 0, 1):
        all_of_them.rested(made[place])
        clock.now += 2
    fresh = opened(all_of_them, "b", 4)
    opened(all_of_them, "c")
    assert (ended(made), ended(fresh)) == ([2], [])


def test_connections_that_are_served_are_not_ended_and_the_new_one_is_refused(
    all_of_them: Connections, clock: Clock
) -> None:
    made = opened(all_of_them, "a", 4) + opened(all_of_them, "b", 4)
    serve(all_of_them, *made)
    clock.now += 100
    assert not all_of_them.opened(Connection(), "c")
    assert ended(made) == []
    assert all_of_them.ended == {"refused": 1}
    all_of_them.lost(made[0])
    opened(all_of_them, "c")


def test_one_client_ends_its_own_connections(all_of_them: Connections, clock: Clock) -> None:
    other = opened(all_of_them, "b")
    clock.now += 5
    greedy = opened(all_of_them, "a", SHARE)
    clock.now += 5
    opened(all_of_them, "a")
    assert (ended(greedy), ended(other)) == ([0], [])
    serve(all_of_them, *[one for one in all_of_them.open if one is not other[0]])
    assert not all_of_them.opened(Connection(), "a")
    opened(all_of_them, "b")


def test_slow_readers_and_slow_bodies_make_room_but_not_at_once(all_of_them: Connections, clock: Clock) -> None:
    made = opened(all_of_them, "a", 4) + opened(all_of_them, "b", 4)
    serve(all_of_them, *made)
    all_of_them.unread(made[3])
    all_of_them.arriving(made[5], 1)
    assert not all_of_them.opened(Connection(), "c")
    clock.now += 2
    opened(all_of_them, "c", 2)
    assert ended(made) == [3, 5]


def test_a_head_must_come_in_time_however_slowly(all_of_them: Connections, clock: Clock) -> None:
    (connection,) = opened(all_of_them, "a")
    for _ in range(9):
        clock.now += 1
        all_of_them.begun(connection, 1)
        all_of_them.end_late()
    assert not connection.has_ended
    clock.now += 1
    all_of_them.end_late()
    assert connection.has_ended
    assert (all_of_them.head_bytes, len(all_of_them.open)) == (0, 0)


def test_the_time_of_a_later_head_begins_with_its_first_byte(all_of_them: Connections, clock: Clock) -> None:
    first, second = opened(all_of_them, "a", 2)
    serve(all_of_them, first, second)
    for connection in (first, second):
        all_of_them.rested(connection)
    clock.now += 50
    all_of_them.begun(first, 1)
    clock.now += 9
    all_of_them.end_late()
    assert (first.has_ended, second.has_ended) == (False, False)
    clock.now += 1
    all_of_them.end_late()
    assert (first.has_ended, second.has_ended) == (True, True)
    assert all_of_them.ended == {"head timeout": 1, "idle timeout": 1}


def test_a_reader_that_takes_little_is_ended_and_one_that_takes_enough_is_not(
    all_of_them: Connections, clock: Clock
) -> None:
    slow, steady = opened(all_of_them, "a", 2)
    serve(all_of_them, slow, steady)
    slow.unsent = steady.unsent = 500_000
    for connection in (slow, steady):
        all_of_them.unread(connection)
    clock.now += 20
    slow.unsent -= 1000
    steady.unsent -= PROGRESS_BYTES
    all_of_them.end_late()
    assert all_of_them.unsent_bytes == slow.unsent + steady.unsent
    clock.now += 10
    all_of_them.end_late()
    assert (slow.has_ended, steady.has_ended) == (True, False)
    assert all_of_them.unsent_bytes == steady.unsent
    all_of_them.taken(steady)
    assert all_of_them.unsent_bytes == 0
    clock.now += 100
    all_of_them.end_late()
    assert not steady.has_ended


def test_what_is_not_read_is_bounded_in_all(all_of_them: Connections, clock: Clock) -> None:
    made = opened(all_of_them, "a", 5)
    serve(all_of_them, *made)
    for connection in made:
        connection.unsent = 300_000
        all_of_them.unread(connection)
        clock.now += 0.5
    assert ended(made) == [0, 1]
    assert all_of_them.unsent_bytes == 900_000


def test_a_request_that_waits_for_its_reader_is_not_in_flight(all_of_them: Connections) -> None:
    (connection,) = opened(all_of_them, "a")
    serve(all_of_them, connection)
    admission = all_of_them.admission
    admission.enter(connection.holder, may_use_reserve=False)
    all_of_them.unread(connection)
    assert (admission.requests, connection.holder.client.requests) == (0, 0)
    all_of_them.taken(connection)
    assert (admission.requests, connection.holder.client.requests) == (1, 1)
    all_of_them.unread(connection)
    admission.leave(connection.holder)
    all_of_them.lost(connection)
    assert (admission.requests, connection.holder.client.requests) == (0, 0)


def test_places_in_flight_are_shared_and_some_are_kept() -> None:
    admission = Admission(Settings(requests_in_flight_max=16))
    greedy, other = Client("10.0.0.1"), Client("10.0.0.2")
    for _ in range(12):
        admission.enter(Holder(greedy), may_use_reserve=True)
    with pytest.raises(Overloaded, match=r"10\.0\.0\.1 has 12 requests in flight, .* 12 \(TRIPTYCH_CLIENT_SHARE"):
        admission.enter(Holder(greedy), may_use_reserve=True)
    for _ in range(2):
        admission.enter(Holder(other), may_use_reserve=False)
    with pytest.raises(Overloaded, match=r"14 requests are in flight, the limit is 16 .* 2 are kept"):
        admission.enter(Holder(other), may_use_reserve=False)
    for _ in range(2):
        admission.enter(Holder(other), may_use_reserve=True)
    with pytest.raises(Overloaded, match=r"16 requests are in flight, the limit is 16"):
        admission.enter(Holder(other), may_use_reserve=True)


def test_a_request_is_at_work_from_its_arrival_to_its_answer_unless_it_is_a_heavy_query() -> None:
    admission = Admission(Settings())
    holder = Holder(Client("a"))
    seen = [admission.at_work()]
    for step in (
        lambda: admission.announce(holder, READ),
        lambda: admission.announce(holder, READ),
        lambda: admission.begun(holder),
        lambda: admission.begun(holder),
        lambda: admission.enter(holder, may_use_reserve=False),
        lambda: admission.leave(holder),
    ):
        step()
        seen.append(admission.at_work())
    assert seen == [0, 1, 1, 0, 0, 1, 0]
    admission.heavy_requests = lambda: 2
    admission.requests = 5
    assert admission.at_work() == 3


def test_a_read_is_fresh_until_it_is_over_or_slow_or_waits_for_its_client() -> None:
    admission = Admission(Settings())
    holders = [Holder(Client("a")) for _ in range(5)]
    for holder in holders:
        admission.announce(holder, READ)
        admission.begun(holder)
        admission.enter(holder, may_use_reserve=False)
    admission.announce(Holder(Client("a")), "/metrics")
    admission.announce(Holder(Client("a")), "/api/v1/write")
    assert (len(admission.reads), len(admission.writes)) == (5, 1)
    for number, end in enumerate((admission.over, admission.is_slow, admission.park)):
        end(holders[number])
        assert len(admission.reads) == 4 - number


def test_followers_of_one_client_are_bounded() -> None:
    admission = Admission(Settings(log_followers_max=4))
    client = Client("a")
    with admission.following(Holder(client)), admission.following(Holder(client)), admission.following(Holder(client)):
        with pytest.raises(Overloaded, match="3 reads of a follow the log"), admission.following(Holder(client)):
            pass
        with admission.following(Holder(Client("b"))):
            pass
    assert client.followers == 0


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_a_client_is_an_address_or_a_network(address: str, name: str) -> None:
    assert client_name(address) == name


def test_a_client_is_forgotten_with_its_last_connection() -> None:
    clients = Clients()
    first = clients.joined("a")
    assert clients.joined("a") is first
    clients.left(first)
    assert clients.joined("a") is first
    clients.left(first)
    clients.left(first)
    assert clients.joined("a") is not first


@pytest.mark.parametrize(
    ("open_files", "connections", "waiting"), [(1024, 512, 256), (20_000, 12_000, 1024), (8, 1, 2)]
)
def test_connections_leave_files_for_the_process_itself(
    monkeypatch: pytest.MonkeyPatch, open_files: int, connections: int, waiting: int
) -> None:
    monkeypatch.setattr(module.open_files, "limit", lambda: open_files)
    assert module.connections_max(Settings()) == connections
    assert module.backlog() == waiting


def test_the_slowest_reader_of_some_ends_for_room_unless_all_are_fresh(all_of_them: Connections, clock: Clock) -> None:
    made = opened(all_of_them, "a", 3)
    serve(all_of_them, *made)
    for place in (2, 1, 0):
        all_of_them.unread(made[place])
        clock.now += 0.4
    assert all_of_them.end_slowest({made[0], made[1]}) is None
    clock.now += 0.4
    assert all_of_them.end_slowest({made[0], made[1]}) is made[1]
    assert all_of_them.end_slowest(set()) is None
    assert (ended(made), all_of_them.ended) == ([1], {"room (slow reader)": 1})

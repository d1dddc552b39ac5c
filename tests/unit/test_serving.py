"""A worker's service against a socket that plays the coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest
import zmq

from shared import wire
from shared.measurements import Values
from shared.wire import Reply, Request
from worker import serving
from worker.methods.method import Method
from worker.serving import LANE_THREADS, Service

WITHIN_S = 5.0


class Coordinator:
    """Asks methods of a service by name and hears the replies."""

    def __init__(self, socket: zmq.Socket[bytes], service: Service) -> None:
        self._socket = socket
        self.service = service

    def ask(self, number: int, method: str) -> None:
        wire.send(self._socket, wire.encode_request(_id(number), Request(method, (0,), time.monotonic() + 60)))

    def cancel(self, number: int) -> None:
        wire.send(self._socket, wire.encode_cancel(_id(number)))

    def hear(self) -> tuple[int, Reply]:
        assert self._socket.poll(WITHIN_S * 1000), "nothing was answered"
        request_id, reply = wire.decode_reply(wire.receive(self._socket))
        return int.from_bytes(request_id, "big"), reply

    def hears_goodbye(self) -> bool:
        return bool(self._socket.poll(WITHIN_S * 1000)) and wire.kind_of(wire.receive(self._socket)) == wire.GOODBYE

    def hears_nothing(self) -> bool:
        return not self._socket.poll(100)


def _id(number: int) -> bytes:
    return number.to_bytes(8, "big")


class Methods:
    """`quick` answers at once, `slow` when `go` is set or it is cancelled; `running` holds the requests of `slow`."""

    def __init__(self) -> None:
        self.go = Event()
        self.running: list[Request] = []

    def all(self) -> dict[str, Method]:
        return {"quick": Method(self._quick, "read"), "slow": Method(self._slow, "write")}

    def run(self, request_id: bytes, request: Request, method: Method) -> list[wire.Frame]:
        return wire.encode_reply(request_id, method.run({}, request))

    def _quick(self, shards: Any, request: Request) -> Reply:
        return Reply(b"quick")

    def _slow(self, shards: Any, request: Request) -> Reply:
        self.running.append(request)
        while not self.go.wait(0.01) and not request.cancelled:
            pass
        return Reply(b"cancelled" if request.cancelled else b"slow")


@pytest.fixture
def methods() -> Iterator[Methods]:
    made = Methods()
    yield made
    made.go.set()


@pytest.fixture
def coordinator(methods: Methods, tmp_path: Any) -> Iterator[Coordinator]:
    context = zmq.Context()
    here, there = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    here.bind(f"ipc://{tmp_path}/socket")
    there.connect(f"ipc://{tmp_path}/socket")
    service = Service("worker-0", there, methods.all(), methods.run)
    service.start()
    assert here.poll(WITHIN_S * 1000, zmq.POLLOUT), "it does not connect"
    yield Coordinator(here, service)
    methods.go.set()
    if not there.closed:
        service.close()
    here.close(0)
    context.term()


def wait_until(condition: Any) -> None:
    give_up = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_every_request_of_a_burst_is_answered_once(coordinator: Coordinator) -> None:
    numbers = range(500)
    for number in numbers:
        coordinator.ask(number, "quick")
    assert sorted(coordinator.hear()[0] for _ in numbers) == list(numbers)
    assert coordinator.hears_nothing()


def test_a_full_lane_holds_up_neither_other_lanes_nor_what_the_worker_says(
    coordinator: Coordinator, methods: Methods
) -> None:
    for number in range(20):
        coordinator.ask(number, "slow")
    coordinator.ask(100, "quick")
    number, reply = coordinator.hear()
    assert (number, bytes(reply.body)) == (100, b"quick")
    coordinator.service.send(wire.encode_reply(_id(200), Reply(b"beat")))
    assert coordinator.hear()[0] == 200


def test_a_lane_runs_so_many_at_once_and_the_rest_in_their_order(coordinator: Coordinator, methods: Methods) -> None:
    many = LANE_THREADS["write"] + 3
    for number in range(many):
        coordinator.ask(number, "slow")
    wait_until(lambda: len(methods.running) == LANE_THREADS["write"])
    time.sleep(0.05)
    assert len(methods.running) == LANE_THREADS["write"]
    methods.go.set()
    assert sorted(coordinator.hear()[0] for _ in range(many)) == list(range(many))


def test_a_cancel_reaches_what_runs_and_what_waits(coordinator: Coordinator, methods: Methods) -> None:
    many = LANE_THREADS["write"] + 1
    for number in range(many):
        coordinator.ask(number, "slow")
    wait_until(lambda: len(methods.running) == LANE_THREADS["write"])
    for number in range(many):
        coordinator.cancel(number)
    answers = dict(coordinator.hear() for _ in range(many))
    assert {bytes(reply.body) for reply in answers.values()} == {b"cancelled"}


def test_a_method_that_does_not_exist_is_named(coordinator: Coordinator) -> None:
    coordinator.ask(1, "none")
    _, reply = coordinator.hear()
    assert (reply.error_class, reply.error) == ("NotFound", "worker method 'none' does not exist")


def test_more_waiting_than_the_bound_is_overload(
    coordinator: Coordinator, methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LANE_QUEUE_MAX", 2)
    for number in range(LANE_THREADS["write"] + 3):
        coordinator.ask(number, "slow")
    number, reply = coordinator.hear()
    assert (number, reply.error_class) == (LANE_THREADS["write"] + 2, "Overloaded")
    assert reply.error == "worker-0 has 2 requests waiting in its write lane"


def test_a_close_cancels_what_runs_and_drops_what_waits(coordinator: Coordinator, methods: Methods) -> None:
    for number in range(LANE_THREADS["write"] + 2):
        coordinator.ask(number, "slow")
    wait_until(lambda: len(methods.running) == LANE_THREADS["write"])
    coordinator.service.close()
    answers = [coordinator.hear() for _ in range(LANE_THREADS["write"])]
    assert {bytes(reply.body) for _, reply in answers} == {b"cancelled"}
    assert coordinator.hears_goodbye()
    assert coordinator.hears_nothing()


def test_what_waits_runs_in_the_order_it_came(
    coordinator: Coordinator, methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = LANE_THREADS["write"]
    for number in range(first + 3):
        coordinator.ask(number, "slow")
    wait_until(lambda: len(coordinator.service._lanes["write"].waiting) == 3)
    assert [work.id for work in coordinator.service._lanes["write"].waiting] == [_id(first + n) for n in range(3)]
    methods.go.set()
    for _ in range(first + 3):
        coordinator.hear()
    wait_until(lambda: coordinator.service._lanes["write"].running == 0)
    assert coordinator.service._accepted == {}


def test_the_socket_is_used_by_one_thread_at_a_time(
    coordinator: Coordinator, methods: Methods, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = coordinator.service
    unlocked: list[str] = []

    def watched(name: str) -> None:
        own = getattr(service, name)

        def call(*arguments: Any) -> Any:
            if not service._lock.locked():
                unlocked.append(name)
            return own(*arguments)

        monkeypatch.setattr(service, name, call)

    for name in ("_receive_all", "_transmit", "_wake_another"):
        watched(name)
    for number in range(5):
        coordinator.ask(number, "quick")
        coordinator.hear()
    service.send(wire.encode_reply(_id(200), Reply(b"beat")))
    assert coordinator.hear()[0] == 200
    assert unlocked == []


def test_a_service_closes_when_nobody_holds_its_queues(coordinator: Coordinator) -> None:
    service = coordinator.service
    closing = Thread(target=service.close)
    with service._lock:
        closing.start()
        closing.join(0.1)
        assert closing.is_alive() and not service._stopping
    closing.join(WITHIN_S)
    assert service._stopping


def test_a_request_that_was_cancelled_before_it_came_is_answered_and_not_run(
    coordinator: Coordinator, methods: Methods
) -> None:
    """Until a write is answered, the coordinator takes it for one that may still bring series."""
    coordinator.service.cancel(_id(1))
    coordinator.ask(1, "slow")
    coordinator.ask(2, "quick")
    number, reply = coordinator.hear()
    assert (number, reply.error_class) == (1, "DeadlineExceeded")
    assert coordinator.hear()[0] == 2
    assert coordinator.hears_nothing()
    assert methods.running == []
    assert coordinator.service._cancelled_early == {}


def test_early_cancellations_are_remembered_up_to_a_bound(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CANCELLED_EARLY_MAX", 2)
    for number in range(3):
        coordinator.service.cancel(_id(number))
    assert list(coordinator.service._cancelled_early) == [_id(1), _id(2)]


def test_requests_and_their_time_are_counted_by_method(coordinator: Coordinator, methods: Methods) -> None:
    for number in range(3):
        coordinator.ask(number, "quick")
    coordinator.ask(3, "slow")
    wait_until(lambda: methods.running)
    time.sleep(0.05)
    methods.go.set()
    for _ in range(4):
        coordinator.hear()
    values = Values()
    coordinator.service.measure(values, "worker-0")
    requests = {labels[1]: value for labels, value in values.by_name["triptych_worker_requests_total"]}
    seconds = {labels[1]: value for labels, value in values.by_name["triptych_worker_request_seconds_total"]}
    assert requests == {"quick": 3.0, "slow": 1.0}
    assert 0.05 <= float(seconds["slow"]) < WITHIN_S  # type: ignore[arg-type]
    assert 0 < float(seconds["quick"]) < WITHIN_S  # type: ignore[arg-type]

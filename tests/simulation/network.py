"""Messages between the coordinator and its workers: in order on a connection, late, or lost.

Stands in for `shared.wire` and the sockets under `coordinator.fanout.links` and `worker.process`, which are used as
they are. A message is one packet, whose content is not encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import zmq

from shared import wire
from shared.wire import CANCEL, GOODBYE, MEASURE, REGISTER, REPLY, REQUEST
from tests.simulation.world import Process, World

PACKET_BYTES = 64
APART_OF_256 = 24
"""How often a worker's connection for control messages is not there while the other one is."""


@dataclass(slots=True)
class Packet:
    kind: bytes
    id: bytes
    content: Any


class WorkerEnd(Protocol):
    """What the network knows of a worker: one end of a connection."""

    name: str
    identity: bytes
    process: Process

    def accept(self, packet: Packet) -> None:
        """A packet from a coordinator has arrived."""


class CoordinatorEnd(Protocol):
    """What the network knows of a coordinator."""

    process: Process
    loop: Any
    links: Any

    def worker_of(self, identity: bytes) -> WorkerEnd | None:
        """The worker at the other end of this connection; None if it has gone."""


class Wire:
    """Stands in for the module `shared.wire` where messages are made and read."""

    REQUEST, REPLY, REGISTER, CANCEL, MEASURE, GOODBYE = REQUEST, REPLY, REGISTER, CANCEL, MEASURE, GOODBYE
    Frame = bytes
    Reply, Request = wire.Reply, wire.Request

    @staticmethod
    def encode_request(request_id: bytes, request: wire.Request) -> list[Packet]:
        return [Packet(REQUEST, request_id, (request, request.time_left))]

    @staticmethod
    def encode_reply(request_id: bytes, reply: wire.Reply) -> list[Packet]:
        return [Packet(REPLY, request_id, reply)]

    @staticmethod
    def encode_cancel(request_id: bytes) -> list[Packet]:
        return [Packet(CANCEL, request_id, None)]

    @staticmethod
    def size_of(frame: Any) -> int:
        return PACKET_BYTES

    @staticmethod
    def send(socket: Endpoint, frames: Sequence[Any]) -> None:
        identity, packet = frames
        socket.send(identity, packet)

    @staticmethod
    def readable(socket: Endpoint) -> bool:
        return bool(socket.inbox)

    @staticmethod
    def receive(socket: Endpoint) -> tuple[bytes, Packet]:
        return socket.inbox.popleft()

    @staticmethod
    def kind_of(message: Sequence[Packet]) -> bytes:
        return message[0].kind

    @staticmethod
    def request_id_of(message: Sequence[Packet]) -> bytes:
        return message[0].id

    @staticmethod
    def decode_request(message: Sequence[Packet]) -> tuple[bytes, wire.Request]:
        return message[0].id, received(message[0].content)

    @staticmethod
    def decode_reply(message: Sequence[Packet]) -> tuple[bytes, wire.Reply]:
        return message[0].id, message[0].content

    @staticmethod
    def decode_register(message: Sequence[Packet]) -> Any:
        return message[0].content


def received(content: tuple[wire.Request, float]) -> wire.Request:
    """The request as the worker has it when it reads it: its time begins to run then."""
    request, time_left = content
    return wire.Request(
        request.method,
        request.shards,
        World.current.now + time_left,
        request.body,
        request.frames,
        request.parts,
    )


@dataclass
class Network:
    """`lossy`: of 256 messages so many are lost. `held_until`: by worker, requests or replies arrive not before, in one
    direction. `dropped`: (worker, method or "cancel") of requests that are lost. Messages stay in order on a
    connection. Between one life of the coordinator's and one of a worker's there are two: one for requests and
    replies, and one for control messages, which overtake what is held."""

    world: World
    lossy: int = 0
    held_until: dict[tuple[str, str], float] = field(default_factory=dict)
    dropped: set[tuple[str, str]] = field(default_factory=set)
    lost: int = 0
    _last: dict[tuple[Endpoint, bytes, str], float] = field(default_factory=dict)

    def arrival(self, endpoint: Endpoint, identity: bytes, name: str, direction: str) -> float | None:
        """When a message sent now arrives; None when it never does."""
        choices = self.world.choices
        if self.lossy and choices.chance(self.lossy):
            self.lost += 1
            return None
        when = self.world.now + choices.delay_s()
        connection = endpoint, identity, direction
        when = max(when, self._last.get(connection, 0.0))
        if not endpoint.is_control:
            when = max(when, self.held_until.get((name, direction), 0.0))
        self._last[connection] = when
        return when

    def heal(self) -> None:
        self.lossy = 0
        self.dropped.clear()
        self.held_until.clear()
        self._last.clear()


class Endpoint:
    """One of the coordinator's two sockets."""

    def __init__(self, network: Network, coordinator: CoordinatorEnd, *, is_control: bool = False) -> None:
        self._network = network
        self._coordinator = coordinator
        self.is_control = is_control
        self.inbox: deque[tuple[bytes, Packet]] = deque()
        self.closed = False

    def send(self, identity: bytes, packet: Packet) -> None:
        """Raises ZMQError when the worker has gone, or is not connected to this socket yet."""
        network = self._network
        worker = self._coordinator.worker_of(identity)
        if worker is None or (self.is_control and network.world.choices.chance(APART_OF_256)):
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        when = network.arrival(self, identity, worker.name, "request")
        world = network.world
        method = packet.content[0].method if packet.kind == REQUEST else "cancel"
        if network.dropped and (worker.name, method) in network.dropped:
            when = None
        if world.tracing:
            lost = "LOST" if when is None else f"arrives {when:.4f}"
            shards = packet.content[0].shards if packet.kind == REQUEST else ""
            world.trace(f"{method} {shards} → {worker.name} #{_short(packet.id)} ({lost})")
        if packet.kind == REQUEST:
            world.reached(method)
        if when is not None:
            world.at(when, worker.process, self._arrive, worker, packet)

    def _arrive(self, worker: WorkerEnd, packet: Packet) -> None:
        coordinator = self._coordinator
        # Of what a coordinator sent that has died since, some is still on its way.
        if coordinator.process.alive or self._network.world.choices.chance(128):
            worker.accept(packet)

    def hear(self, worker: WorkerEnd, packet: Packet) -> None:
        """A message of the worker's is on its way to this coordinator."""
        when = self._network.arrival(self, worker.identity, worker.name, "reply")
        if when is not None:
            self._network.world.at(when, self._coordinator.process, self._take, worker.identity, packet)
        if packet.kind == REPLY and self._network.world.tracing:
            reply = packet.content
            told = reply.error or dict(reply.shard_errors) or "done"
            lost = "LOST" if when is None else f"arrives {when:.4f}"
            self._network.world.trace(f"    {worker.name} replies to #{_short(packet.id)}: {told} ({lost})")

    def _take(self, identity: bytes, packet: Packet) -> None:
        self.inbox.append((identity, packet))
        links = self._coordinator.links
        self._coordinator.loop.call_soon(links._drain_control if self.is_control else links._drain)


def _short(request_id: bytes) -> int:
    return int.from_bytes(request_id, "big") % 100_000

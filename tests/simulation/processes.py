"""Lives of the coordinator and of a worker: their own code, over the network, the disks and the time of a history."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from coordinator.links import Links
from coordinator.log.area import LogArea
from proto import cluster_pb2
from shared.config import Settings
from shared.errors import ConfigError, NotFound
from shared.wire import CANCEL, REGISTER, REQUEST
from tests.simulation.disk import Disk, Files, FilesControl, Store, StoreDisk, WalDisk, WriteAheadLog
from tests.simulation.network import Endpoint, Network, Packet, received
from tests.simulation.world import Process, Thread, World
from worker.damage import DamageReport
from worker.logs.keeper import Keeper
from worker.logs.part import LogPart
from worker.methods.log import METHODS
from worker.methods.method import Method
from worker.process import HEARTBEAT_S, WorkerProcess
from worker.serving import LANE_THREADS
from worker.shard import Shard
from worker.storage.wal.log import LOG

CLUSTER_ID = "simulated"
AGAIN_S = 0.1
"""How soon what could not start is started again."""


class Surroundings(Protocol):
    """What a process finds around it, and what outlives it."""

    world: World
    network: Network
    settings: Settings
    files: Files
    disks: list[Disk]
    wal_disks: list[WalDisk]
    store_disks: list[StoreDisk]
    coordinator: Coordinator | None

    def shards_of(self, worker: int) -> range: ...
    def worker_of(self, identity: bytes) -> Worker | None: ...
    def kill_coordinator(self, coordinator: Coordinator | None = None, why: str = "killed") -> None: ...
    def restart_coordinator(self, coordinator: Coordinator) -> None: ...
    def kill_worker(self, worker: Worker | None, why: str = "killed", down_s: float = 0.0) -> None: ...
    def stop_worker(self, worker: Worker | None) -> None: ...


@dataclass(eq=False)
class ClientCall:
    """A request of a client's; `outcome`: (True, what it was answered) or (False, an error), None while it waits."""

    thread: Thread
    coordinator: Coordinator
    outcome: tuple[bool, Any] | None = None
    task: asyncio.Task[Any] | None = None

    def settle(self, succeeded: bool, outcome: Any) -> None:
        if self.outcome is None:
            self.outcome = succeeded, outcome
            self.coordinator.calls.pop(self, None)
            self.thread.resume()


class Coordinator:
    """One life of the coordinator."""

    def __init__(self, cluster: Surroundings, life: int) -> None:
        self.cluster = cluster
        self.process = Process(f"coordinator-{life}")
        self.ready = False
        self.area: LogArea
        self.links: Any
        self.calls: dict[ClientCall, None] = {}
        self.endpoint = Endpoint(cluster.network, self)
        self.loop = self._loop()
        cluster.world.at(cluster.world.now, self.process, self.loop.call_soon, self._begin)

    def _loop(self) -> Any:
        from tests.simulation.event_loop import Loop

        return Loop(self.cluster.world, self.process)  # type: ignore[abstract]  # asyncio's primitives ask no more

    def worker_of(self, identity: bytes) -> Worker | None:
        return self.cluster.worker_of(identity)

    def _begin(self) -> None:
        self._starting = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        settings = self.cluster.settings
        self.links = Links(settings, CLUSTER_ID, "")
        self.links._socket, self.links._loop = self.endpoint, self.loop
        self.links._sweeper = asyncio.create_task(self.links._sweep())
        self.area = LogArea(settings, self.links, FilesControl(self.cluster.files, "/sequencer"))  # type: ignore[arg-type]
        try:
            await self.area.start()
        except ConfigError as error:
            self.cluster.world.trace(f"{self.process.name} cannot start: {error}")
            self.cluster.world.after(AGAIN_S, self.cluster.world.outside, self.cluster.restart_coordinator, self)
            return
        except Exception as error:
            self.cluster.world.fail(f"{self.process.name} fails at its start: {error!r}")
            return
        self.ready = True
        self.cluster.world.reached(READY)
        self.cluster.world.trace(f"{self.process.name} has started, next number {self.area.sequencer.next}")

    async def stop(self) -> None:
        """An orderly stop."""
        await self.area.stop()
        world = self.cluster.world
        world.after(0.0, world.outside, self.cluster.kill_coordinator, self, "it has stopped")


@dataclass
class Lane:
    threads: int
    running: int = 0


def done(method: str) -> str:
    """The point at which a worker has carried out a request and not replied yet."""
    return f"{method} done"


READY = "coordinator ready"
"""The point at which a coordinator takes requests."""


class OpenShard(Shard):
    """A shard with a log only."""

    def __init__(self, number: int, store: Any, logs: LogPart) -> None:
        self.id, self.store, self.logs, self.damage = number, store, logs, DamageReport()


class Worker:
    """One life of a worker process."""

    def __init__(self, cluster: Surroundings, number: int, life: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"worker-{number}"
        self.identity = f"{self.name}:{life}".encode()
        self.process = Process(self.identity.decode())
        self._lanes = {lane: Lane(count) for lane, count in LANE_THREADS.items()}
        self._waiting: dict[str, deque[tuple[bytes, Any, Method, Coordinator]]] = {
            name: deque() for name in LANE_THREADS
        }
        self._accepted: dict[bytes, Any] = {}
        self.stalled: dict[str, float] = {}
        """By method: how long a thread that has begun with the next request stands still before it looks at it."""
        self.disk = cluster.disks[number]
        self.wal = WriteAheadLog(self.disk, cluster.wal_disks[number])
        self._program: Any = WorkerProcess.__new__(WorkerProcess)
        self._program._name = self.name
        self._program._states = dict.fromkeys(cluster.shards_of(number))
        world = cluster.world
        Thread(self._load, "load", process=self.process).start()
        world.after(0.0, self.process, self._beat)

    # As WorkerProcess does

    def _load(self) -> None:
        world = self.cluster.world
        keeper = Keeper(self.wal)  # type: ignore[arg-type]
        for shard in self._program._states:
            world.sleep(world.choices.delay_s())
            store = Store(self.disk, self.cluster.store_disks[shard])
            part = LogPart(store, keeper, self.wal.stream(shard, LOG))  # type: ignore[arg-type]
            try:
                part.load()
            except Exception as error:
                world.trace(f"{self.name} cannot load shard {shard}: {error}")
                world.after(AGAIN_S, world.outside, self.cluster.kill_worker, self, "a shard could not be loaded")
                return
            self._program._states[shard] = OpenShard(shard, store, part)
        world.trace(f"{self.process.name} has its shards")
        world.at(world.now, self.process, self.beat)

    def _beat(self) -> None:
        world = self.cluster.world
        stores = [shard.store for shard in self._program._states.values() if shard is not None]
        if self.wal.recoverable() or any(store.recoverable() for store in stores):
            world.at(world.now, world.outside, self.cluster.stop_worker, self)
            return
        self.beat()
        world.after(HEARTBEAT_S, self.process, self._beat)

    def beat(self) -> None:
        entries = []
        for shard, state in self._program._states.items():
            what = cluster_pb2.ShardState.LOADING if state is None else cluster_pb2.ShardState.READY
            entries.append(SimpleNamespace(shard=shard, state=what, detail="", counts={}))
        register = SimpleNamespace(cluster_id=CLUSTER_ID, worker=self.name, pid=self.number, shards=entries)
        self._send(Packet(REGISTER, b"", register), self.cluster.coordinator)

    def _send(self, packet: Packet, to: Coordinator | None) -> None:
        if to is not None and to.process.alive and to is self.cluster.coordinator:
            to.endpoint.hear(self, packet)

    # As Service does

    def accept(self, packet: Packet, asker: Coordinator) -> None:
        if packet.kind == CANCEL:
            if packet.id in self._accepted:
                self._accepted[packet.id].cancelled = True
            return
        assert packet.kind == REQUEST
        request = received(packet.content)
        method = METHODS.get(request.method)
        if method is None:
            raise NotFound(request.method)
        self._accepted[packet.id] = request
        lane_name = method.lane(request)
        lane = self._lanes[lane_name]
        work = packet.id, request, method, asker
        if lane.running < lane.threads:
            lane.running += 1
            Thread(self._serve, request.method, args=work, process=self.process).start()
        else:
            self._waiting[lane_name].append(work)

    def _serve(self, request_id: bytes, request: Any, method: Method, asker: Coordinator) -> None:
        world = self.cluster.world
        lane_name = method.lane(request)
        while True:
            world.pause()
            if world.tracing:
                world.trace(f"  {self.name} runs {request.method} #{int.from_bytes(request_id, 'big') % 100_000}")
            if self.stalled and (stall_s := self.stalled.pop(request.method, 0.0)):
                world.trace(f"  {self.name} stalls in {request.method} for {stall_s:g} s")
                world.sleep(stall_s)
            (packet,) = self._program._run(request_id, request, method)
            world.reached(done(request.method))
            world.pause()
            self._accepted.pop(request_id, None)
            self._send(packet, asker)
            if not self._waiting[lane_name]:
                self._lanes[lane_name].running -= 1
                return
            request_id, request, method, asker = self._waiting[lane_name].popleft()

    def close(self) -> None:
        """An orderly stop, without waiting for anything."""
        for shard in self._program._states.values():
            if shard is not None:
                shard.store.close()
        self.wal.close()

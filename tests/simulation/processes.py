"""Lives of the coordinator and of a worker: their own code, over the network, the disks and the time of a history."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from coordinator.fanout.links import Links
from coordinator.log.area import LogArea
from coordinator.queries.gate import Gate
from proto import cluster_pb2
from shared.errors import ConfigError
from shared.settings import Settings
from shared.wire import CANCEL, GOODBYE, REGISTER
from tests.simulation.disk import Disk, Files, FilesControl, Store, StoreDisk, WalDisk, WriteAheadLog
from tests.simulation.network import Endpoint, Network, Packet
from tests.simulation.world import Process, Thread, World
from worker.damage import DamageReport
from worker.logs.keeper import Keeper
from worker.logs.part import LogPart
from worker.methods.log import METHODS
from worker.process import HEARTBEAT_S, WorkerProcess
from worker.serving import LANE_THREADS, Service, _Lane, _Served
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
        self.control = Endpoint(cluster.network, self, is_control=True)
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
        self.links._socket, self.links._control, self.links._loop = self.endpoint, self.control, self.loop
        self.links._sweeper = asyncio.create_task(self.links._sweep())
        control = FilesControl(self.cluster.files, "/sequencer")
        self.area = LogArea(settings, self.links, control, Gate(2))  # type: ignore[arg-type]
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


def done(method: str) -> str:
    """The point at which a worker has carried out a request and not replied yet."""
    return f"{method} done"


READY = "coordinator ready"
"""The point at which a coordinator takes requests."""


class OpenShard(Shard):
    """A shard with a log only."""

    def __init__(self, number: int, store: Any, logs: LogPart) -> None:
        self.id, self.store, self.logs, self.damage = number, store, logs, DamageReport()


class UnthreadedService(Service):
    """A worker's service without its socket and threads: the worker starts a thread for each request that may run."""

    def __init__(self, worker: Worker) -> None:
        self._name, self._methods = worker.name, METHODS
        self._lanes = {lane: _Lane(count) for lane, count in LANE_THREADS.items()}
        self._ready, self._accepted, self._cancelled_early = deque(), {}, {}
        self._served = {method: _Served() for method in METHODS}
        self._worker = worker

    def _transmit(self, message: Sequence[Any]) -> bool:
        (packet,) = message
        return self._worker.send(packet)


class Worker:
    """One life of a worker process."""

    def __init__(self, cluster: Surroundings, number: int, life: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"worker-{number}"
        self.identity = f"{self.name}:{life}".encode()
        self.process = Process(self.identity.decode())
        self._service = UnthreadedService(self)
        self._cancelled: set[bytes] = set()
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
        register = SimpleNamespace(
            cluster_id=CLUSTER_ID, worker=self.name, pid=self.number, shards=entries, progress=()
        )
        packet = Packet(REGISTER, b"", register)
        coordinator = self.cluster.coordinator
        if coordinator is not None and coordinator.process.alive:
            coordinator.control.hear(self, packet)
        self.send(packet)

    def send(self, packet: Packet) -> bool:
        """By the connection for requests and replies. False when the coordinator is away."""
        coordinator = self.cluster.coordinator
        if coordinator is None or not coordinator.process.alive:
            return False
        coordinator.endpoint.hear(self, packet)
        return True

    # As Service does

    def accept(self, packet: Packet) -> None:
        if packet.kind == CANCEL:
            self._cancelled.add(packet.id)
        self._service._accept([packet])  # type: ignore[list-item]
        while self._service._ready:
            work = self._service._ready.popleft()
            Thread(self._serve, work.request.method, args=(work,), process=self.process).start()

    def _serve(self, work: Any) -> None:
        world = self.cluster.world
        while True:
            world.pause()
            method, number = work.request.method, int.from_bytes(work.id, "big") % 100_000
            if world.tracing:
                world.trace(f"  {self.name} runs {method} #{number}")
            if work.id in self._cancelled and work.request.time_left:
                world.fail(f"{self.name} runs {method} #{number}, which was cancelled")
            if self.stalled and (stall_s := self.stalled.pop(method, 0.0)):
                world.trace(f"  {self.name} stalls in {method} for {stall_s:g} s")
                world.sleep(stall_s)
            reply = self._program._run(work.id, work.request, work.method)
            world.reached(done(method))
            world.pause()
            self._service._finish(work, reply)
            if not self._service._ready:
                return
            work = self._service._ready.popleft()

    def close(self) -> None:
        """An orderly stop, without waiting for anything."""
        self.send(Packet(GOODBYE, b"", None))
        for shard in self._program._states.values():
            if shard is not None:
                shard.store.close()
        self.wal.close()

"""A coordinator and its workers in one thread: their own code, over a history's network, disks and time."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import zmq

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
from worker.process import AWAY_S, HEARTBEAT_S, WorkerProcess
from worker.serving import LANE_THREADS
from worker.shard import Shard
from worker.storage.wal.log import LOG

CLUSTER_ID = "simulated"
AGAIN_S = 0.1
"""How soon what could not start is started again."""


class Coordinator:
    """One life of the coordinator."""

    def __init__(self, cluster: Cluster, life: int) -> None:
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


class Disconnected(Exception):
    """The coordinator died, or the client gave up: what came of the request is not known."""


class Refused(Exception):
    """No coordinator listens: nothing was sent."""


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

    def __init__(self, cluster: Cluster, number: int, life: int) -> None:
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
        lane = self._lanes[method.lane]
        work = packet.id, request, method, asker
        if lane.running < lane.threads:
            lane.running += 1
            Thread(self._serve, request.method, args=work, process=self.process).start()
        else:
            self._waiting[method.lane].append(work)

    def _serve(self, request_id: bytes, request: Any, method: Method, asker: Coordinator) -> None:
        world = self.cluster.world
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
            if not self._waiting[method.lane]:
                self._lanes[method.lane].running -= 1
                return
            request_id, request, method, asker = self._waiting[method.lane].popleft()

    def close(self) -> None:
        """An orderly stop, without waiting for anything."""
        for shard in self._program._states.values():
            if shard is not None:
                shard.store.close()
        self.wal.close()


class Cluster:
    """All lives of the processes, and what outlives them. The methods that kill are for the scheduler."""

    def __init__(self, world: World, settings: Settings, workers: int) -> None:
        self.world = world
        self.network = Network(world)
        self.files = Files()
        self.settings = settings
        self.disks = [Disk() for _ in range(workers)]
        self.wal_disks = [WalDisk() for _ in range(workers)]
        self.store_disks = [StoreDisk() for _ in range(settings.shards)]
        self._lives = itertools.count(1)
        self.dead: list[Coordinator] = []
        self.coordinator: Coordinator | None = Coordinator(self, next(self._lives))
        self.workers: list[Worker | None] = [Worker(self, number, next(self._lives)) for number in range(workers)]
        self.held_down_until: dict[str, float] = {}
        self.tokens = itertools.count(1)

    def shards_of(self, worker: int) -> range:
        return range(worker, self.settings.shards, len(self.disks))

    def worker_of(self, identity: bytes) -> Worker | None:
        return next((w for w in self.workers if w is not None and w.identity == identity), None)

    # Deaths and starts

    def kill_coordinator(self, coordinator: Coordinator | None = None, why: str = "killed") -> None:
        victim = coordinator or self.coordinator
        if victim is None or victim is not self.coordinator:
            return
        self.world.trace(f"✗ {victim.process.name}: {why}")
        self.coordinator = None
        self.dead.append(victim)
        victim.process.kill()
        for call in list(victim.calls):
            self.world.after(0.0, self.world.outside, call.settle, False, Disconnected("the coordinator died"))
        self.world.after(self.world.choices.delay_s(), self.world.outside, self.start_coordinator)

    def restart_coordinator(self, coordinator: Coordinator) -> None:
        self.kill_coordinator(coordinator, "it could not start")

    def start_coordinator(self) -> None:
        if self.coordinator is None:
            self.coordinator = Coordinator(self, next(self._lives))
            for worker in self.workers:
                if worker is not None:
                    # As one does that tries a coordinator that is away again every AWAY_S.
                    self.world.after(AWAY_S * self.world.choices.byte() / 256, worker.process, worker.beat)

    def stop_coordinator(self) -> None:
        victim = self.coordinator
        if victim is not None and victim.ready:
            victim.ready = False
            self.world.trace(f"✗ {victim.process.name} is told to stop")
            self.world.at(
                self.world.now,
                victim.process,
                victim.loop.call_soon,
                lambda: asyncio.ensure_future(victim.stop(), loop=victim.loop),
            )

    def kill_worker(self, worker: Worker | None, why: str = "killed", down_s: float = 0.0) -> None:
        if worker is None or self.workers[worker.number] is not worker:
            return
        self.world.trace(f"✗ {worker.process.name}: {why}")
        self.workers[worker.number] = None
        worker.process.kill()
        delay_s = down_s + self.world.choices.delay_s()
        self.world.after(delay_s, self.world.outside, self.start_worker, worker.number)

    def stop_worker(self, worker: Worker | None) -> None:
        if worker is not None and self.workers[worker.number] is worker:
            worker.close()
            self.kill_worker(worker, "it has stopped")

    def start_worker(self, number: int) -> None:
        if self.workers[number] is None:
            self.workers[number] = Worker(self, number, next(self._lives))

    def lose_power(self) -> None:
        self.world.trace("✗ the power is lost")
        for worker in list(self.workers):
            self.kill_worker(worker, "no power")
        self.kill_coordinator(why="no power")
        lasting_disks: list[WalDisk | StoreDisk | Files] = [*self.wal_disks, *self.store_disks, self.files]
        for lasting in lasting_disks:
            lasting.lose_power()

    def heal(self) -> None:
        """Nothing fails from now on."""
        self.network.heal()
        for disk in (*self.disks, self.files):
            disk.full = disk.sync_fails = False
            disk.sync_s = 0.0
        for process in [w.process for w in self.workers if w] + (
            [self.coordinator.process] if self.coordinator else []
        ):
            process.frozen_until = min(process.frozen_until, self.world.now)

    # Clients

    def call(self, handler: Callable[[LogArea], Awaitable[Any]], patience_s: float) -> Any:
        """What the coordinator's `handler` returns; for a client's thread. Raises what it raises, Refused,
        Disconnected."""
        world = self.world
        world.sleep(world.choices.delay_s())
        coordinator = self.coordinator
        if coordinator is None or not coordinator.ready:
            raise Refused
        thread = world.thread
        assert thread is not None
        call = ClientCall(thread, coordinator)
        coordinator.calls[call] = None
        world.after(0.0, coordinator.process, coordinator.loop.call_soon, self._handle, call, handler)
        world.after(patience_s, world.outside, self._give_up, call)
        thread.suspend()
        assert call.outcome is not None
        succeeded, outcome = call.outcome
        if succeeded:
            return outcome
        raise outcome

    def _handle(self, call: ClientCall, handler: Callable[[LogArea], Awaitable[Any]]) -> None:
        if call.outcome is not None:
            return

        async def run() -> None:
            try:
                outcome = True, await handler(call.coordinator.area)
            except Exception as error:
                outcome = False, error
            except asyncio.CancelledError:
                if call.outcome is None and call.coordinator.ready and call.coordinator.process.alive:
                    self.world.fail("a request is cut off because another client has gone")
                raise
            # The answer is in the socket: it arrives whatever becomes of the coordinator, unless nobody waits.
            call.coordinator.calls.pop(call, None)
            self.world.after(self.world.choices.delay_s(), self.world.outside, call.settle, *outcome)

        call.task = asyncio.ensure_future(run())

    def _give_up(self, call: ClientCall) -> None:
        """The client closes its connection, and the handler is cancelled when the coordinator sees that."""
        if call.outcome is not None:
            return
        coordinator = call.coordinator
        delay_s = self.world.choices.delay_s()

        def cancel() -> None:
            if call.task is not None:
                call.task.cancel()

        self.world.after(delay_s, coordinator.process, coordinator.loop.call_soon, cancel)
        call.settle(False, Disconnected("the client gave up"))


assert zmq.EHOSTUNREACH

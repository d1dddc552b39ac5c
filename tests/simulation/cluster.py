"""A cluster in one thread: the lives of its processes one after another, what outlives them, and its clients' calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.log.area import LogArea
from shared.settings import Settings
from tests.simulation.disk import Disk, Files, StoreDisk, WalDisk
from tests.simulation.network import Network
from tests.simulation.processes import ClientCall, Coordinator, Worker
from tests.simulation.world import World
from worker.process import AWAY_S


class Disconnected(Exception):
    """The coordinator died, or the client gave up: what came of the request is not known."""


class Refused(Exception):
    """No coordinator listens: nothing was sent."""


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

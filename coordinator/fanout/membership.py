"""The connected workers and the shards of each, according to their heartbeats."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from coordinator.fanout.calls import Worker
from coordinator.fanout.shards import SHARD_STATES, Shard, unavailable
from proto import cluster_pb2
from shared.telemetry import event

SILENCE_S = 2.0
"""A worker counts as down after this time without a heartbeat (four intervals)."""
OWNERS_KEPT = 1024
"""Sets of shards whose owners are cached: most requests concern all shards or a single shard."""


class Membership:
    """For the event loop's thread only."""

    def __init__(self, cluster_id: str, shards: int) -> None:
        self._cluster_id = cluster_id
        self._workers: dict[bytes, Worker] = {}
        self._lost: dict[bytes, Worker] = {}
        """The last removed worker of each name. Its process may still be running, with the writes that were sent to
        it."""
        self.states = [Shard(number) for number in range(shards)]
        """Every shard's state, by number."""
        self._owners: dict[tuple[int, ...], list[tuple[Worker, tuple[int, ...]]]] = {}
        self.registrations: Counter[str] = Counter()
        """Worker name → number of processes that have registered. Each one after the first is a restart."""

    def __len__(self) -> int:
        """The number of connected workers."""
        return len(self._workers)

    def connected(self) -> list[Worker]:
        """All connected workers, by name."""
        return sorted(self._workers.values(), key=lambda worker: worker.name)

    def present(self, identity: bytes) -> Worker | None:
        """The connected worker with this identity."""
        return self._workers.get(identity)

    def known(self, identity: bytes) -> Worker | None:
        """The worker with this identity, even if it was removed: it may still reply to earlier calls."""
        return self._workers.get(identity) or self._lost.get(identity)

    def unready(self, shards: Iterable[int] | None = None) -> dict[int, str]:
        """Shard → why it is not ready, for those of these shards (default: all) that are not."""
        numbers = range(len(self.states)) if shards is None else shards
        return {n: self.states[n].why() for n in numbers if self.states[n].state != "ready"}

    def require(self, shards: Iterable[int]) -> None:
        """Raises Unavailable, which names each of these shards that is not ready, unless all are ready."""
        missing = self.unready(shards)
        if missing:
            raise unavailable(missing)

    def owners_of(self, shards: tuple[int, ...]) -> Sequence[tuple[Worker, tuple[int, ...]]]:
        """The workers of these shards, which must be ready, each with those it owns. Cached until the next
        heartbeat."""
        owners = self._owners.get(shards)
        if owners is None:
            by_name = {worker.name: worker for worker in self._workers.values()}
            owned: dict[str, list[int]] = {}
            for number in shards:
                owned.setdefault(self.states[number].worker or "", []).append(number)
            owners = [(by_name[name], tuple(numbers)) for name, numbers in owned.items()]
            if len(self._owners) >= OWNERS_KEPT:
                self._owners.clear()
            self._owners[shards] = owners
        return owners

    def register(self, identity: bytes, message: cluster_pb2.Register) -> None:
        """A worker has sent a heartbeat. If it is its first one, another worker of the same name is removed."""
        if message.cluster_id != self._cluster_id:
            event(
                logging.ERROR,
                "a worker of another cluster tried to register",
                worker=message.worker,
                cluster=message.cluster_id,
            )
            return
        worker = self._workers.get(identity) or self._joined(identity, message)
        self._owners.clear()
        worker.seen = time.monotonic()
        worker.shards = tuple(entry.shard for entry in message.shards)
        for entry in message.shards:
            shard = self.states[entry.shard]
            shard.worker, shard.state, shard.detail = worker.name, SHARD_STATES[entry.state], entry.detail
            shard.counts = dict(entry.counts)
            if shard.state == "ready":
                shard.rates.note(shard.counts, worker.seen)
        for progress in message.progress:
            if (call := worker.pending.get(progress.call)) is not None:
                call.samples = progress.samples

    def _joined(self, identity: bytes, message: cluster_pb2.Register) -> Worker:
        for other in [worker for worker in self._workers.values() if worker.name == message.worker]:
            self.remove(other, f"{other.name} has restarted")
        worker = self._lost.get(identity) or Worker(message.worker, identity, message.pid, 0.0)
        self._lost = {key: other for key, other in self._lost.items() if other.name != worker.name}
        self._workers[identity] = worker
        self.registrations[worker.name] += 1
        event(logging.INFO, "worker registered", worker=worker.name, pid=worker.pid, shards=len(message.shards))
        return worker

    def remove_silent(self) -> None:
        """Remove the workers that have sent no heartbeat for SILENCE_S."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if now - worker.seen > SILENCE_S:
                self.remove(worker, f"{worker.name} is down (no sign of life for {SILENCE_S:g} s)")

    def remove(self, worker: Worker, why: str, level: int = logging.WARNING) -> None:
        """A worker is no longer connected. Its shards are down, and its pending calls fail."""
        event(level, "worker is gone", worker=worker.name, pid=worker.pid, why=why)
        if self._workers.pop(worker.identity, None) is not None:
            self._lost[worker.identity] = worker
        self._owners.clear()
        for number in worker.shards:
            if self.states[number].worker == worker.name:
                self.states[number] = Shard(number, "down", why)
        while worker.pending:  # a loop, because settling one call may settle others
            next(iter(worker.pending.values())).settle(why)

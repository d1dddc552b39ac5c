"""Group commit: the samples of concurrent requests are journaled, synced and made visible together.

A request touches most shards, with few samples each, and an fsync costs as much as hundreds of samples even on a fast
disk. So a process runs one round at a time: a leader takes all waiting requests, makes one record of each shard's
samples, writes all records to the log of the process at once, syncs the log, and makes the samples visible. Requests
that arrive meanwhile wait for the next round, which is larger the busier the disk is. A leader waits briefly for
requests whose bodies are being read at that moment; waiting for requests that have not arrived made everything slower.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import Generic, Protocol, TypeVar

from shared.errors import DeadlineExceeded, Internal
from shared.measurements import Latencies
from worker.series.arrivals import Arrival
from worker.series.journal import PendingRecord
from worker.storage.faces import WorkerJournal

COMMITS_WAITING_MAX = 256
"""Requests that may wait for a round. The worker's write lane has fewer threads, and each waits for one request."""

Staged = TypeVar("Staged")


class Turn:
    """A shard's right to change its journal; one thread has it at a time."""

    def __init__(self) -> None:
        self._lock = Lock()

    @contextmanager
    def exclusive(self, timeout_s: float) -> Iterator[None]:
        """Hold the turn for the duration of a `with` block, so that no round commits to the shard. Raises
        DeadlineExceeded if the turn is not free in time."""
        self.take(timeout_s)
        try:
            yield
        finally:
            self.release()

    def take(self, timeout_s: float) -> None:
        """Wait for the turn. Raises DeadlineExceeded if it is not free in time."""
        if not self._lock.acquire(timeout=max(timeout_s, 0.0)):
            raise _busy(timeout_s)

    def release(self) -> None:
        self._lock.release()


class Committed(Protocol[Staged]):
    """A shard as a round uses it: the methods are called in this order while the round has the shard's turn."""

    @property
    def turn(self) -> Turn: ...

    def stage(self, arrivals: Sequence[Arrival]) -> tuple[Staged, Sequence[PendingRecord]]:
        """(samples and exemplars, their records for the log, at least one)."""

    def journaled(self, entry: PendingRecord, position: int) -> None:
        """Note that the record is in the log at `position`."""

    def show(self, staged: Staged) -> None:
        """Make what was staged visible. It is as durable as the settings require."""

    @property
    def is_synced(self) -> bool:
        """Whether samples are shown only after the log has been synced."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Staged]):
    arrivals: Mapping[Committed[Staged], Sequence[Arrival]]
    deadline: float
    done: bool = False
    error: Exception | None = None
    since: float = field(default_factory=time.monotonic)


class Rounds(Generic[Staged]):
    """The rounds of one process."""

    def __init__(self) -> None:
        self._queue: list[_Waiting[Staged]] = []
        self._queue_lock = Lock()
        self._came = Condition(self._queue_lock)
        self._coming = 0
        self._round = Lock()
        self.latencies = Latencies()
        """How long each round took."""
        self.requests = self.failures = 0
        """Requests in completed rounds, including failed ones; and failures, one for each round and shard that
        failed."""

    def waiting(self) -> tuple[int, float]:
        """(requests that wait for a round, seconds that the first of them has waited)."""
        queue = self._queue
        try:
            return len(queue), time.monotonic() - queue[0].since
        except IndexError:  # a round has just taken them
            return 0, 0.0

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Wraps the reading of a request that is then passed to `add`: a round may wait for it."""
        with self._queue_lock:
            self._coming += 1
        try:
            yield
        finally:
            with self._queue_lock:
                self._coming -= 1

    def add(
        self, arrivals: Mapping[Committed[Staged], Sequence[Arrival]], timeout_s: float, delay_s: float = 0.0
    ) -> None:
        """Return when these arrivals are durable and visible. The round may wait up to `delay_s` for requests that are
        `coming`. Raises DeadlineExceeded if a turn was not free in time, or what a shard raised. The arrivals of other
        shards may have been stored all the same."""
        waiting = _Waiting(arrivals, time.monotonic() + timeout_s)
        with self._queue_lock:
            assert len(self._queue) < COMMITS_WAITING_MAX
            self._queue.append(waiting)
            self._came.notify_all()
        if not self._round.acquire(timeout=timeout_s):
            with self._queue_lock:
                if waiting in self._queue:
                    self._queue.remove(waiting)
                    raise _busy(timeout_s)
            self._round.acquire()  # the round with these arrivals is under way
        try:
            if not waiting.done:
                self._lead(min(delay_s, timeout_s))
        finally:
            self._round.release()
        if waiting.error is not None:
            raise waiting.error

    def _lead(self, delay_s: float) -> None:
        """Commit all waiting requests in one round."""
        with self._came:
            if delay_s and self._coming:
                self._came.wait_for(lambda: not self._coming, delay_s)
            group, self._queue = self._queue, []
        started = time.perf_counter()
        try:
            errors = self._commit(group)
        except BaseException as error:
            # It is not known how far the round got, so none of its requests may report success.
            for waiting in group:
                waiting.error = error if isinstance(error, Exception) else Internal(f"the commit was ended: {error!r}")
                waiting.done = True
            raise
        self.latencies.add(time.perf_counter() - started)
        self.requests += len(group)
        self.failures += len(errors)
        for waiting in group:
            waiting.error = next((errors[shard] for shard in waiting.arrivals if shard in errors), None)
            waiting.done = True

    def _commit(self, group: Sequence[_Waiting[Staged]]) -> dict[Committed[Staged], Exception]:
        """Run one round for these requests. Returns shard → the error with which it failed: every request with this
        shard raises it, and other shards continue."""
        shards: dict[Committed[Staged], list[Arrival]] = {}
        deadlines: dict[Committed[Staged], float] = {}
        for waiting in group:
            for shard, arrivals in waiting.arrivals.items():
                shards.setdefault(shard, []).extend(arrivals)
                deadlines[shard] = max(deadlines.get(shard, 0.0), waiting.deadline)
        errors: dict[Committed[Staged], Exception] = {}
        staged: dict[Committed[Staged], tuple[Staged, Sequence[PendingRecord]]] = {}
        locked_shards = []
        try:
            for shard, arrivals in shards.items():
                try:
                    shard.turn.take(deadlines[shard] - time.monotonic())
                    locked_shards.append(shard)
                    staged[shard] = shard.stage(arrivals)
                except Exception as error:
                    errors[shard] = error
            self._make_durable(staged, errors)
            for shard, (samples, _) in staged.items():
                if shard not in errors:
                    try:
                        shard.show(samples)
                    except Exception as error:
                        errors[shard] = error
        finally:
            for shard in locked_shards:
                shard.turn.release()
        return errors

    def _make_durable(
        self,
        staged: Mapping[Committed[Staged], tuple[Staged, Sequence[PendingRecord]]],
        errors: dict[Committed[Staged], Exception],
    ) -> None:
        """Write the records to the logs of their shards, and sync the logs."""
        shards_of_log: dict[WorkerJournal, list[Committed[Staged]]] = {}
        for shard, (_, entries) in staged.items():
            if shard not in errors:
                shards_of_log.setdefault(entries[0].wal.log, []).append(shard)
        for log, shards in shards_of_log.items():
            try:
                shard_entries = [(shard, entry) for shard in shards for entry in staged[shard][1]]
                positions = log.write([(entry.wal, entry.frames) for _, entry in shard_entries])
                for (shard, entry), position in zip(shard_entries, positions, strict=True):
                    shard.journaled(entry, position)
                if any(shard.is_synced for shard in shards):
                    log.sync()
            except Exception as error:
                errors.update(dict.fromkeys(shards, error))


def _busy(waited_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"the shard's store was busy for {waited_s:.1f} s; try again later")

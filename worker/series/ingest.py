"""A shard's part of a remote-write request as columns, and group commit of concurrent requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared import remote_write, remote_write_walk
from shared.errors import DeadlineExceeded, Internal
from shared.remote_write_walk import LABELS, LABELS_END, PLAIN, SAMPLES, STATUS
from shared.wire import Frame

COMMITS_WAITING_MAX = 256
"""Commits queued at one shard; the worker's write lane has fewer threads, each of which waits for its own."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A parsed body. Run i is counts[i] samples of the series with canonical label bytes data[starts[i]:ends[i]] and
    xxh64 hashes[i]; `times_ms` int64[samples] and `values` float64[samples] are the runs' one after another."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


def parse(body: Frame) -> Arrival:
    """Parse what `remote_write.cut` made for one shard. Raises Internal if it is anything else."""
    walk = remote_write.walk(body, remote_write.UNLIMITED)
    if walk is None or (walk.table[:, STATUS] != PLAIN).any():
        raise Internal(f"a body of {len(body)} bytes for series.write is not in canonical form")
    counts = np.ascontiguousarray(walk.table[:, SAMPLES])
    samples = int(counts.sum())
    times, values = np.empty(samples, dtype=np.int64), np.empty(samples, dtype=np.float64)
    remote_write_walk.read_samples(walk.body, walk.table, times, values)
    starts, ends = (np.ascontiguousarray(walk.table[:, column]) for column in (LABELS, LABELS_END))
    return Arrival(walk.body, starts, ends, walk.hashes, counts, times, values)


@dataclass(slots=True, eq=False)
class _Waiting:
    arrivals: Sequence[Arrival]
    done: bool = False
    error: Exception | None = None


class GroupCommit:
    """Lets one caller commit what all callers waiting at the same time brought, in the order they came.

    `commit` gets the arrivals of at least one call; whatever it raises is raised to every caller of the group.
    """

    def __init__(self, commit: Callable[[Sequence[Arrival]], None]) -> None:
        self._commit = commit
        self._queue: list[_Waiting] = []
        self._queue_lock = Lock()
        self._turn = Lock()

    def add(self, arrivals: Sequence[Arrival], timeout_s: float) -> None:
        """Return when these arrivals are committed. Raises DeadlineExceeded if their turn did not come in time (then
        they are not committed), or what `commit` raised."""
        own = _Waiting(arrivals)
        with self._queue_lock:
            assert len(self._queue) < COMMITS_WAITING_MAX
            self._queue.append(own)
        if not self._turn.acquire(timeout=timeout_s):
            with self._queue_lock:
                if own in self._queue:
                    self._queue.remove(own)
                    raise _busy(timeout_s)
            self._turn.acquire()  # the group that has them is being committed
        try:
            if not own.done:
                self._lead()
        finally:
            self._turn.release()
        if own.error is not None:
            raise own.error

    @contextmanager
    def exclusive(self, timeout_s: float) -> Iterator[None]:
        """No commit runs inside. Raises DeadlineExceeded if that could not be had in time."""
        if not self._turn.acquire(timeout=timeout_s):
            raise _busy(timeout_s)
        try:
            yield
        finally:
            self._turn.release()

    def _lead(self) -> None:
        with self._queue_lock:
            group, self._queue = self._queue, []
        error: Exception | None = None
        try:
            self._commit([arrival for waiting in group for arrival in waiting.arrivals])
        except Exception as raised:
            error = raised  # not swallowed: raised to each caller in `add`
        for waiting in group:
            waiting.done, waiting.error = True, error


def _busy(waited_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"the shard's store was busy for {waited_s:.1f} s; try again later")

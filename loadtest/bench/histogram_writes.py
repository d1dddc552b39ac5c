"""The cost of native histograms in a worker, from the arrival of their frames to the reply, and the cost of sealing
them: `python -m loadtest.bench.histogram_writes`.

The requests are those of `loadtest.bench.native_histograms`: 1,000 series of 40 buckets with 240 samples; each request
has 4 samples of half of the series. The first requests have the labels of their series, all others the numbers, as is
usual. Four of eight shards receive theirs in process, as in one of two workers, with a log that is synced. A round
commits one request, or two that arrive at the same time. Rounds without syncs show the effect of the CPU caches, which
other work uses while a sync waits. Figures are nanoseconds of the thread's CPU time per histogram, and wall-clock time
for the sync.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import snappy

from coordinator.series import lessons, remote_write
from coordinator.series.lessons import Receipt
from coordinator.series.series_references import SeriesReferences
from loadtest.bench.native_histograms import SAMPLES, SERIES, STEP_MS, native_requests
from loadtest.harness.remote_write_bodies import UNLIMITED
from shared.kernels import compile_all
from shared.process import allocator
from shared.settings import Settings
from shared.wire import Frame
from worker.series import writing
from worker.series.arrivals import Arrival, parse
from worker.series.head import NEVER
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.services import SeriesServices
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES as AREA
from worker.storage.wal.log import WriteAheadLog

SHARDS, OWN = 8, (0, 2, 4, 6)
CONNECTIONS = 2
SYNC, ALL = "sync, by the clock", "all but the sync"
STEPS = ("parse the frames", "resolve the series, make the records", "write to the log", SYNC, "show")
READ_SERIES = 20
TIMEOUT_S = 60.0

Request = Mapping[int, Sequence[Frame]]
"""The frames of a request by shard."""


def show(what: str, figure: float, unit: str) -> None:
    sys.stdout.write(f"{what:<75} {figure:>10,.1f} {unit}\n")


def bodies() -> list[bytes]:
    end_ms = int(time.time() * 1000) // 60_000 * 60_000
    times_ms = end_ms - STEP_MS * np.arange(SAMPLES, dtype=np.int64)[::-1]
    halves = (range(k * SERIES // CONNECTIONS, (k + 1) * SERIES // CONNECTIONS) for k in range(CONNECTIONS))
    streams = (native_requests(times_ms, half) for half in halves)
    return [snappy.decompress(body) for pair in zip(*streams, strict=True) for body in pair]


class Worker:
    """Four shards of series, which seal nothing unless asked to."""

    def __init__(self, path: Path) -> None:
        self.log = WriteAheadLog(path / "wal").open()
        self.services = SeriesServices(Settings(), TextTable())
        self.stores = {number: Store(path / f"store-{number}") for number in OWN}
        self.parts = {number: self._part(path, number) for number in OWN}

    def _part(self, path: Path, number: int) -> SeriesPart:
        objects = LocalObjects(path / f"blocks-{number}")
        part = SeriesPart(self.stores[number], self.services, objects, self.log.stream(number, AREA))
        part.upkeep.sealing.tick = lambda now_ms: None  # type: ignore[method-assign]
        part.upkeep.blocks.tend = lambda now_ms: None  # type: ignore[method-assign]
        part.load()
        return part

    def close(self) -> None:
        for number, part in self.parts.items():
            part.close()
            self.stores[number].close()
        self.log.close()

    def requests(self, sent: Sequence[bytes]) -> list[Request]:
        """The frames of these bodies, of which the worker takes the first ones, with labels."""
        references = SeriesReferences(64 << 20, SHARDS)
        for body in sent[:CONNECTIONS]:
            split_request = remote_write.split(body, SHARDS, UNLIMITED, references)
            frames_of = {self.parts[n]: frames for n, frames in split_request.parts.items() if n in OWN}
            stored = writing.write(frames_of, TIMEOUT_S)
            epochs = {n: self.parts[n].epoch if n in OWN else 1 for n in range(SHARDS)}
            given = {n: stored.numbers.get(self.parts[n], {}) for n in OWN}
            numbers = {(n, 0): own[0].astype(np.int32) for n, own in given.items() if own}
            lessons.learn(split_request.lessons, references, Receipt(epochs, numbers=numbers))
        return [remote_write.split(body, SHARDS, UNLIMITED, references).parts for body in sent[CONNECTIONS:]]

    def commit(self, group: Sequence[Request], *, is_synced: bool = True) -> list[float]:
        """A round of these requests. Returns the seconds that its steps took."""
        clock = time.thread_time
        marks = [clock()]
        arrivals = {n: [Arrival(parse(frame)) for request in group for frame in request.get(n, ())] for n in OWN}
        marks.append(clock())
        staged: dict[int, Any] = {number: part.stage(arrivals[number]) for number, part in self.parts.items()}
        marks.append(clock())
        entries = [(part, entry) for number, part in self.parts.items() for entry in staged[number][1]]
        positions = self.log.write([(entry.wal, entry.frames) for _, entry in entries])
        for (part, entry), position in zip(entries, positions, strict=True):
            part.journaled(entry, position)
        marks.append(clock())
        waited = time.perf_counter()
        if is_synced:
            self.log.sync()
        waited = time.perf_counter() - waited
        shown = clock()
        for number, part in self.parts.items():
            part.show(staged[number][0])
        return [*np.diff(marks).tolist(), waited, clock() - shown]


@contextmanager
def worker() -> Iterator[Worker]:
    with ExitStack() as stack:
        started = Worker(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd()))))
        stack.callback(started.close)
        yield started


def stored(running: Worker) -> int:
    return sum(part.counts()["samples"] for part in running.parts.values())


def steps(bodies: Sequence[bytes], at_once: int, *, is_synced: bool) -> None:
    for is_warm in (False, True):  # the first time compiles
        with worker() as running:
            sent = running.requests(bodies)
            groups = (sent[first : first + at_once] for first in range(0, len(sent), at_once))
            took = np.array([running.commit(group, is_synced=is_synced) for group in groups])
            histograms = stored(running) * len(sent) // len(bodies)
            size = sum(part.contents.head.size_bytes for part in running.parts.values())
        if is_warm:
            took *= 1e9 * len(took) / histograms
            columns = dict(zip(STEPS, took.T, strict=True))
            columns[ALL] = sum(column for name, column in columns.items() if name != SYNC)
            group = f"{at_once} a round, {'synced' if is_synced else 'not synced'}"
            for name, column in columns.items():
                show(f"{group}: {name}, median (mean)", np.median(column), f"ns ({column.mean():,.0f})")
            show(f"{group}: memory of the head", size / histograms, "bytes a histogram")


def reads(running: Worker) -> None:
    """What reading costs, and how much of it holds the lock of the contents, which writes wait for."""
    took = []
    for _ in range(5):
        started, histograms = time.thread_time(), 0
        for part in running.parts.values():
            ids = np.arange(len(part.contents.index))
            for first in range(0, len(ids), READ_SERIES):
                found = part.read(ids[first : first + READ_SERIES], 0, NEVER - 1).histograms
                histograms += 0 if found is None else len(found)
        took.append((time.thread_time() - started) / histograms)
    show(f"read {READ_SERIES} series at a time from the head", min(took) * 1e9, "ns")


def write_ms(running: Worker, request: Request) -> float:
    """The milliseconds of a write."""
    started = time.perf_counter()
    writing.write({running.parts[n]: request[n] for n in OWN if n in request}, TIMEOUT_S)
    return (time.perf_counter() - started) * 1e3


def sealing(bodies: Sequence[bytes]) -> None:
    """The cost of a seal, and how long writes take during it and before it."""
    with worker() as running:
        unsent = iter(sent := running.requests(bodies))
        before = [write_ms(running, request) for request in islice(unsent, len(sent) // 2)]
        histograms = stored(running)
        reads(running)
        took: list[tuple[float, float]] = []

        def seal() -> None:
            for part in running.parts.values():
                started, worked = time.perf_counter(), time.thread_time()
                part.upkeep.sealing._seal(NEVER)
                took.append((time.perf_counter() - started, time.thread_time() - worked))

        thread = Thread(target=seal)
        thread.start()
        meanwhile = []
        while thread.is_alive() and (request := next(unsent, None)) is not None:
            meanwhile.append(write_ms(running, request))
        thread.join()
    show("seal", sum(worked for _, worked in took) / histograms * 1e9, "ns")
    show("the longest seal of a shard", max(clock for clock, _ in took) * 1e3, "ms")
    for name, waits in (("before the seals", before[len(before) // 4 :]), ("during the seals", meanwhile)):
        p50, p99 = np.percentile(waits, [50, 99])
        show(f"{len(waits)} writes {name}: median, p99", p50, f"ms, {p99:.1f} ms")


def main() -> None:
    allocator.keep_pages()  # as workers do
    compile_all()
    sent = bodies()
    for is_synced in (True, False):
        for at_once in (1, 2):
            steps(sent, at_once, is_synced=is_synced)
    sealing(sent)


if __name__ == "__main__":
    main()

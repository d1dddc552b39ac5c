"""The cost of the first samples of series in a worker, by stage: `python -m loadtest.bench.new_series [series]`.

Requests have 2,000 new series with one sample each, of one metric with seven labels, two of which differ in every
series (`loadtest.bench.metrics.payloads`). Four of eight shards receive theirs in process, as in one of two workers,
with two requests in each commit, in a separate directory on disk. Figures are nanoseconds of CPU time per series,
of each stage without the stages nested in it. Time outside all stages is mostly that of the store's own threads.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import local
from typing import Any

import psutil
import snappy

from coordinator.series import remote_write
from loadtest.bench.histogram_writes import OWN, SHARDS, TIMEOUT_S, Request, Worker, show
from loadtest.bench.metrics.payloads import Workload, requests
from loadtest.harness.remote_write_bodies import UNLIMITED
from shared.kernels import compile_all
from shared.process import allocator
from worker.series import writing
from worker.series.contents import Contents
from worker.series.index.index import Index
from worker.series.index.postings import Postings
from worker.series.index.registry import Registry
from worker.series.index.texts import TextTable
from worker.series.journal import Journal
from worker.series.part import SeriesPart
from worker.storage.rows.store import Store
from worker.storage.wal.log import WriteAheadLog

START_MS = 1_700_000_000_000
REQUESTS_A_COMMIT = 2
STAGES: dict[str, tuple[Any, str]] = {
    "all else": (writing, "write"),
    "read the frames": (writing, "parse"),
    "stage": (SeriesPart, "stage"),
    "find the series by their label bytes": (Index, "resolve"),
    "split the labels of new ones, enter them": (Index, "_register"),
    "find their texts": (TextTable, "codes_of"),
    "postings": (Postings, "add"),
    "room for them": (Contents, "extend"),
    "a row with their labels": (Registry, "put"),
    "write the row": (Store, "write"),
    "record of samples": (Journal, "entry"),
    "write the records": (WriteAheadLog, "write"),
    "sync the records": (WriteAheadLog, "sync"),
    "append to the head": (SeriesPart, "show"),
}


class Stages:
    """The CPU time that functions took in the threads that called them."""

    def __init__(self) -> None:
        self.took_s: defaultdict[str, float] = defaultdict(float)
        self._within = local()

    def watch(self, stage: str, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            outer, self._within.s = getattr(self._within, "s", 0.0), 0.0
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                took = time.thread_time() - started
                self.took_s[stage] += took - self._within.s
                self._within.s = outer + took

        setattr(owner, name, watched)


@contextmanager
def worker() -> Iterator[Worker]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        running = Worker(Path(directory))
        try:
            yield running
        finally:
            running.close()


def split(series: int) -> list[Request]:
    """The frames of each request by shard. The streams of several connections take turns."""
    streams = requests(Workload("many", series, 1, START_MS), 4)
    bodies = [body for several in zip(*streams, strict=True) for body in several]
    return [remote_write.split(snappy.decompress(body), SHARDS, UNLIMITED).parts for body in bodies]


def main() -> None:
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    compile_all()
    allocator.keep_pages()  # as the supervisor does
    sent, stages = split(series), Stages()
    for stage, (owner, name) in STAGES.items():
        stages.watch(stage, owner, name)
    with worker() as running:
        resident = psutil.Process().memory_info().rss
        used_s, started = time.process_time(), time.perf_counter()
        for first in range(0, len(sent), REQUESTS_A_COMMIT):
            group = sent[first : first + REQUESTS_A_COMMIT]
            frames = {part: [f for request in group for f in request.get(n, ())] for n, part in running.parts.items()}
            writing.write(frames, TIMEOUT_S)
        resident = psutil.Process().memory_info().rss - resident
        used_s, took_s = time.process_time() - used_s, time.perf_counter() - started
        written = sum(part.series for part in running.parts.values())
    assert written > series * len(OWN) / SHARDS * 0.9
    for stage, seconds in stages.took_s.items():
        show(stage, seconds / written * 1e9, "ns")
    show("all of it", used_s / written * 1e9, "ns")
    show("by the clock", took_s / written * 1e9, "ns")
    show("memory", resident / written, "bytes")


if __name__ == "__main__":
    main()

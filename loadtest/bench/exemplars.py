"""The cost of each stage of exemplars, in process: `python -m loadtest.bench.exemplars`.

An exemplar has a trace id and a span id, as in OpenTelemetry. Figures are nanoseconds of CPU time, the median of
several runs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np

from coordinator.series import remote_write, remote_write_v2
from coordinator.series.split_request import SplitRequest
from loadtest.bench.ingest import RUNS, START_MS, show
from loadtest.harness.remote_write_bodies import UNLIMITED, Symbols, body
from proto import remote_write_pb2, remote_write_v2_pb2
from shared.frames import exemplars as exemplar_frames
from shared.promql.rendering import exemplars as rendering
from shared.settings import Settings
from worker.series import arrivals
from worker.series.exemplar_record import ExemplarRecord
from worker.series.exemplars import Exemplars
from worker.storage.rows.store import Store

SERIES = 2_000
HELD = 70_000
"""What fits into one of eight shards by default."""
TIMED_S = 0.002
"""Work that takes less is repeated, since the clock of CPU time is coarse."""


def processor_ns(work: Callable[[], object], items: int) -> float:
    """The CPU time of `work` in this thread, divided by `items`."""
    work()
    repeats = 1
    took: list[float] = []
    while len(took) < RUNS:
        started = time.thread_time()
        for _ in range(repeats):
            work()
        seconds = time.thread_time() - started
        if seconds < TIMED_S:
            repeats *= 2
        else:
            took.append(seconds / repeats)
    return statistics.median(took) / items * 1e9


def _labelled(i: int) -> tuple[dict[str, str], dict[str, str]]:
    """Labels of a series, and of its exemplar."""
    series = {"__name__": "request_seconds_bucket", "job": "api", "pod": f"api-{i:07d}-x2k4q"}
    return series, {"trace_id": f"{i:032x}", "span_id": f"{i:016x}"}


def request(at: int) -> bytes:
    """A request of Prometheus with one exemplar of each series: it sends them apart from samples."""
    message = remote_write_pb2.WriteRequest()
    for i in range(SERIES):
        own_labels, exemplar_labels = _labelled(i)
        entry = message.timeseries.add()
        exemplar = entry.exemplars.add(value=0.25 * i, timestamp=START_MS + at)
        for target, pairs in ((entry.labels, own_labels), (exemplar.labels, exemplar_labels)):
            for name, value in pairs.items():
                target.add(name=name, value=value)
    return message.SerializeToString()


def request_v2(at: int) -> bytes:
    """The same by version 2.0."""
    symbols, message = Symbols(), remote_write_v2_pb2.Request()
    for i in range(SERIES):
        own, of_exemplar = ([symbols.place(t) for pair in pairs.items() for t in pair] for pairs in _labelled(i))
        entry = message.timeseries.add(labels_refs=own)
        entry.exemplars.add(labels_refs=of_exemplar, value=0.25 * i, timestamp=START_MS + at)
    message.symbols.extend(symbols.places)
    return message.SerializeToString()


def _split_v2(raw: bytes) -> SplitRequest:
    return remote_write_v2.split(remote_write_v2.survey(raw, UNLIMITED, len(raw) * 100), 8, UNLIMITED)


def coordinator() -> None:
    plain = body([({"__name__": "m", "i": str(i)}, [(START_MS, 1.0)]) for i in range(SERIES)])
    walked = remote_write.walk(plain, UNLIMITED)
    assert walked is not None
    none = processor_ns(lambda: remote_write._divide_exemplars([walked], 8, UNLIMITED, SplitRequest(), {}), 1)
    show("a request without exemplars, more than before", none, "request")
    raw = request(0)
    second = request_v2(0)
    assert _split_v2(second).exemplars == remote_write.split(raw, 8, UNLIMITED).exemplars == SERIES
    for version, work in (("1.0", lambda: remote_write.split(raw, 8, UNLIMITED)), ("2.0", lambda: _split_v2(second))):
        show(f"walk, check and split by 8 shards, {version}", processor_ns(work, SERIES), "exemplar")


def worker() -> None:
    plain = remote_write.split(body([({"__name__": "m"}, [(START_MS, 1.0)])]), 1, UNLIMITED).parts[0][0]
    show(
        "tell a frame of samples from one of exemplars",
        processor_ns(lambda: exemplar_frames.is_exemplars(plain), 1),
        "frame",
    )
    (frame,) = remote_write.split(request(0), 1, UNLIMITED).parts[0]
    show("read in the worker", processor_ns(lambda: arrivals.parse(frame), SERIES), "exemplar")
    record = ExemplarRecord.of_columns(exemplar_frames.parse(frame), np.arange(SERIES))
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory))
        own = Exemplars(store, Settings(shards=1, exemplars_per_series=10_000, exemplars_retention_ms=0))
        times = count()

        def add() -> None:
            shifted = record.times_ms + next(times)
            own.add(ExemplarRecord(record.series, shifted, record.values, record.label_offsets, record.labels))

        show("add to a shard", processor_ns(add, SERIES), "exemplar")
        own = Exemplars(store, Settings(shards=1, exemplars_per_series=10_000, exemplars_retention_ms=0))
        while len(own) < HELD:
            add()
        window = (START_MS, START_MS + next(times))
        show(
            f"find those of 1 series among {len(own)}",
            processor_ns(lambda: own.find(np.arange(1), *window), 1),
            "query",
        )
        everything = own.find(np.arange(SERIES), *window)
        show("find all of them", processor_ns(lambda: own.find(np.arange(SERIES), *window), len(own)), "exemplar")
        columns = (everything.times_ms, everything.values, everything.label_offsets, everything.labels)
        show("write them as JSON", processor_ns(lambda: list(rendering.texts(*columns)), len(own)), "exemplar")
        print(f"{'memory':<52} {own.size_bytes / len(own):>10.0f} bytes an exemplar")
        store.close()


if __name__ == "__main__":
    coordinator()
    worker()

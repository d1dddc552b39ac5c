"""`python -m loadtest.bench.histograms`: nanoseconds a bucket of what is done with native histograms in arrays, and of
queries over them.

1,000 series of 40 buckets with 200 histograms each, once with one layout for all of them and once with a layout for
each series, as series have that saw different values. Queries read 240 histograms of each series, 15 s apart, over 200
steps of 15 s, and are evaluated in one thread without workers. A request has four histograms of each series, and is
read into the frames of 8 shards. Times are CPU time, which depends least on other work on the machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from coordinator.series.remote_write import Limits, split
from loadtest.harness.histogram_messages import body_of, histogram_message
from loadtest.harness.local_queries import range_query
from loadtest.harness.memory_source import MemorySource, label_set
from proto.remote_write_pb2 import WriteRequest
from shared.histograms import buckets, frames, merging, operators, readouts, resets, trimming
from shared.histograms.batch import HistogramBatch, sealed
from shared.histograms.decoding import decoded
from shared.histograms.references import references
from shared.labels import LabelFrame, Symbols
from shared.process import allocator
from shared.promql.model import Grid, Matrix
from shared.promql.rendering.series import SeriesWriter
from shared.settings import Settings

SERIES, STEPS, BUCKETS, JOBS, ROUNDS = 1000, 200, 40, 10, 5
SHARDS, AT_ONCE = 8, 4
LIMITS = Limits.of(Settings())


def messages(*, own_layouts: bool) -> list[bytes]:
    """A message for each series."""
    random = np.random.default_rng(3)
    encoded = []
    for series in range(SERIES):
        counts = random.integers(1, 200, BUCKETS)
        gap = int(random.integers(1, BUCKETS - 1)) if own_layouts else BUCKETS // 2
        start = int(random.integers(-10, 10)) if own_layouts else -5
        encoded.append(
            histogram_message(
                schema=3,
                count_int=int(counts.sum()) + 3,
                sum=float(series),
                zero_threshold=2.0**-128,
                zero_count_int=3,
                positive_spans=[(start, gap), (2, BUCKETS - gap)],
                positive_deltas=np.diff(counts, prepend=0).tolist(),
                timestamp=1_700_000_000_000,
            )
        )
    return encoded


def request(encoded: list[bytes]) -> bytes:
    """A body of remote write 1.0 that has each AT_ONCE times in a series of its own."""
    body = WriteRequest()
    for i, message in enumerate(encoded):
        series = body.timeseries.add(histograms=[message] * AT_ONCE)
        for name, value in (("__name__", "h"), ("instance", f"instance-{i:04d}"), ("job", f"job-{i % JOBS}")):
            series.labels.add(name=name, value=value)
    return body.SerializeToString()


def arrivals(encoded: list[bytes]) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured over these messages, one for each series, AT_ONCE times each."""
    messages, body = body_of([message for message in encoded for _ in range(AT_ONCE)]), request(encoded)
    batch = decoded(*messages).batch
    yield "decode", lambda: decoded(*messages)
    yield "write as bytes", lambda: frames.encode(batch)
    yield "read a request into frames", lambda: split(body, SHARDS, LIMITS)


def operations(batch: HistogramBatch) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured over batch, whose rows are [series, steps]."""
    rows = np.arange(SERIES * STEPS, dtype=np.int64).reshape(SERIES, STEPS)
    # [job, step, series of the job]: neighbouring groups have the same series.
    members = rows.reshape(JOBS, SERIES // JOBS, STEPS).transpose(0, 2, 1).ravel()
    groups = np.arange(0, len(members) + 1, SERIES // JOBS)
    q = np.full(len(batch), 0.99)
    batch.layouts.edges  # noqa: B018 - computed once for all operations
    yield "sum by job", lambda: merging.summed(batch, members, groups)
    yield "add", lambda: operators.added(batch, batch)
    yield (
        "subtract the step before",
        lambda: operators.subtracted(batch.rows(1, len(batch)), batch.rows(0, len(batch) - 1)),
    )
    yield "multiply", lambda: operators.scaled(batch, q)
    yield "resets", lambda: resets.resets(batch, rows[:, :-1].ravel(), rows[:, 1:].ravel())
    yield "quantile", lambda: readouts.quantiles(batch, q)
    yield "fraction", lambda: readouts.fractions(batch, np.zeros(len(batch)), q)
    yield "variance", lambda: readouts.variances(batch)
    yield "trim", lambda: trimming.trimmed(batch, q, keeps_below=True)
    yield "compare", lambda: operators.equal(batch, batch)
    yield "compact", lambda: buckets.compacted(batch)
    yield "take", lambda: batch.take(members)
    yield "write as JSON", lambda: written(batch)


def written(batch: HistogramBatch) -> int:
    """The bytes of a range answer that shows all of the batch."""
    labels = LabelFrame.of([{"series": str(i)} for i in range(SERIES)], Symbols())
    values = references(np.arange(SERIES * STEPS)).reshape(SERIES, STEPS)
    value = Matrix(labels, values, np.ones(values.shape, np.bool_), np.zeros(SERIES, np.bool_), batch)
    writer = SeriesWriter(value, np.arange(SERIES), Grid(0, (STEPS - 1) * 15_000, 15_000), instant=False)
    return sum(len(writer.write(*span).data) for span in writer.spans())


QUERIES = (
    "h", "histogram_count(h)", "histogram_quantile(0.9, h)", "rate(h[5m])", "histogram_quantile(0.9, rate(h[5m]))",
    "sum(rate(h[5m]))", "resets(h[5m])", "last_over_time(h[5m])", "avg_over_time(h[1m])", "sum_over_time(h[5m])",
)  # fmt: skip
SAMPLES, INTERVAL_MS = 240, 15_000


def counters(series: HistogramBatch) -> MemorySource:
    """Series whose every histogram has what the one of its series has more than the one before."""
    batch = series.take(np.repeat(np.arange(SERIES), SAMPLES))
    columns, age = batch.columns, np.tile(np.arange(1.0, SAMPLES + 1), SERIES)
    grown = columns._replace(
        observations=columns.observations * age,
        sum=columns.sum * age,
        counts=columns.counts * np.repeat(age, np.diff(columns.start)),
    )
    times = INTERVAL_MS * np.arange(SAMPLES)
    values = references(np.arange(len(batch))).reshape(SERIES, SAMPLES)
    labels = [label_set({"__name__": "h", "i": str(i), "job": str(i % JOBS)}) for i in range(SERIES)]
    return MemorySource(
        {labels[i]: (times, values[i]) for i in range(SERIES)}, HistogramBatch(batch.layouts, sealed(grown))
    )


def queries(series: HistogramBatch) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured over counters of these histograms, one for each series."""
    source = counters(series)
    grid = Grid((SAMPLES - STEPS) * INTERVAL_MS, (SAMPLES - 1) * INTERVAL_MS, INTERVAL_MS)
    for text in QUERIES:
        yield f"`{text}`", lambda text=text: range_query(text, source, grid)  # type: ignore[misc]


def best_s(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def main() -> None:
    allocator.keep_pages()  # as all servers do
    sys.stdout.write(
        "CPU time in ns a bucket, best of 5\n| work | one layout | a layout for each series |\n|---|---|---|\n"
    )
    columns = []
    for own_layouts in (False, True):
        encoded = messages(own_layouts=own_layouts)
        body = body_of(encoded)
        results = {name: best_s(work) / (SERIES * AT_ONCE * BUCKETS) for name, work in arrivals(encoded)}
        batch = decoded(*body).batch.take(np.repeat(np.arange(SERIES), STEPS))
        for name, work in operations(batch):
            results[name] = best_s(work) / (SERIES * STEPS * BUCKETS)
        for name, work in queries(decoded(*body).batch):
            results[name] = best_s(work) / (SERIES * STEPS * BUCKETS)
        columns.append(results)
        size = sum(map(len, encoded)) / SERIES / BUCKETS
        sys.stderr.write(f"{len(batch.layouts)} layouts, {batch.nbytes / len(batch) / BUCKETS:.1f} bytes a bucket")
        sys.stderr.write(f" in memory, {size:.1f} in a message\n")
    for name, seconds in columns[0].items():
        sys.stdout.write(f"| {name} | {seconds * 1e9:.2f} | {columns[1][name] * 1e9:.2f} |\n")


if __name__ == "__main__":
    main()

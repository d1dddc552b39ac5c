"""What each stage of metric ingest and reading costs, in process: `python -m loadtest.bench.ingest [series]`.

Stages are those of one request of 2,000 series, and of one shard with many series on a real store in a temporary
directory. Figures are the median of several runs, in nanoseconds a series or sample.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import snappy

from coordinator.series import decompression, known_samples, lessons, remote_write, remote_write_v2
from coordinator.series.known_labels import KnownLabels
from coordinator.series.lessons import Receipt
from coordinator.series.remote_write import NO_REFERENCES
from coordinator.series.remote_write_v2 import KEEPS_NONE
from coordinator.series.request_templates import NO_TEMPLATES, RequestTemplates
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from loadtest.bench import histograms as bench_histograms
from loadtest.harness.histogram_messages import body_of
from loadtest.harness.remote_write_bodies import UNLIMITED, Series, body, request_v2
from proto import remote_write_pb2
from shared import wire
from shared.frames.samples import parse
from shared.histograms.decoding import decoded
from shared.labels import Symbols
from shared.process import allocator
from shared.promql.ast import Matcher
from shared.settings import Settings
from worker.queries.source import ShardSource
from worker.series.head import Head
from worker.series.index.texts import TextTable
from worker.series.journal import Written, encode
from worker.series.part import SeriesPart
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog

REQUEST_SERIES = 2_000
RUNS = 15
TURNS = 200
START_MS = 1_700_000_000_000


def series_of(first: int, series: int, samples: int, at: int) -> Iterator[Series]:
    """What an agent sends: seven labels, 170 bytes a series."""
    for i in range(first, first + series):
        own = {
            "__name__": "http_requests_total",
            "cluster": "eu-west-1",
            "instance": f"10.0.{i // 256 % 256}.{i % 256}:9100",
            "job": "api",
            "path": f"/v1/{i % 17}",
            "pod": f"api-{i:07d}-x2k4q",
            "zone": f"zone-{i % 3}",
        }
        yield own, [(START_MS + (at + j) * 15_000, float(i * j % 1000)) for j in range(samples)]


def request(first: int, series: int, samples: int, at: int) -> bytes:
    """A WriteRequest as an agent sends it."""
    return body(series_of(first, series, samples, at))


def wide(first: int, series: int) -> Iterator[Series]:
    """Series of a cluster of containers: sixteen labels of 567 bytes."""
    for own, samples in series_of(first, series, 1, 0):
        assert isinstance(own, dict)
        more = {f"kubernetes_label_{i:02}": f"value-of-the-label-{i:02}" for i in range(9)}
        yield {**own, **more}, samples


def scraped(series: int, instance: str) -> Iterator[Series]:
    """The scrape of one target: five labels of 110 bytes, most of them the same in all series."""
    for i in range(series):
        own = {"__name__": f"node_metric_{i // 16}_total", "instance": instance, "job": "node"}
        yield {**own, "cpu": str(i % 16), "cluster": "eu-west-1"}, [(START_MS, float(i))]


def metadata_of(metric: str) -> tuple[int, str]:
    """(type, help), as a sender has them."""
    return 1, f"How often {metric} happened since the start."


def with_metadata(series: list[Series]) -> bytes:
    """A request of version 2.0, in which each series has the metadata of its metric."""
    request = request_v2(series)
    places = {text: place for place, text in enumerate(request.symbols)}
    for (own, _), entry in zip(series, request.timeseries, strict=True):
        assert isinstance(own, dict)
        entry.metadata.type, text = metadata_of(own["__name__"])
        if text not in places:
            places[text] = len(request.symbols)
            request.symbols.append(text)
        entry.metadata.help_ref = places[text]
    return request.SerializeToString()


def median_ns(work: Callable[[], object], items: int) -> float:
    work()
    took = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return statistics.median(took) / items * 1e9


def show(stage: str, nanoseconds: float, unit: str) -> None:
    print(f"{stage:<52} {nanoseconds:>10.1f} ns a {unit}")


def stages() -> None:
    raw = request(0, REQUEST_SERIES, 1, 0)
    packed = snappy.compress(raw)
    n = REQUEST_SERIES
    show("decompress", median_ns(lambda: decompression.decompress(packed, 1 << 30), n), "series")
    show("walk and hash", median_ns(lambda: remote_write.walk(raw, UNLIMITED), n), "series")
    show("walk, hash and split by 8 shards", median_ns(lambda: remote_write.split(raw, 8, UNLIMITED), n), "series")
    (frame,) = remote_write.split(raw, 1, UNLIMITED).parts[0]
    show("read in the worker", median_ns(lambda: parse(frame), n), "series")
    versions()


def versions() -> None:
    """All of the decoding, from the body that was sent to the frames of 8 shards: version 2.0, with the metadata that
    it carries, beside 1.0. Of both with series that were sent before, as nearly always, so that their numbers are sent
    on; of 2.0 also as a whole request that comes again. Of 2.0 with labels that are known to the coordinator only; with
    series that were not sent before; with new ones each time, long after there is no room for more; and without known
    labels. In turn, since a busy machine changes from one moment to the next."""
    allocator.keep_pages()  # as the coordinator does
    shapes: dict[str, Callable[[int], list[Series]]] = {
        "seven labels": lambda number: list(series_of(number * REQUEST_SERIES, REQUEST_SERIES, 1, 0)),
        "sixteen labels": lambda number: list(wide(number * REQUEST_SERIES, REQUEST_SERIES)),
        "one scrape": lambda number: list(scraped(REQUEST_SERIES, f"db-{number}.example:9100")),
    }
    for name, series in shapes.items():
        versions_of(name, [series(number) for number in range(TURNS // 4)])


def versions_of(name: str, requested: list[list[Series]]) -> None:
    """The same of requests of one shape, all of which have other series."""
    first = snappy.compress(body(requested[0]))
    second = [snappy.compress(with_metadata(each)) for each in requested]
    said = {key for sent in second for key in _split_v2(sent, set(), KEEPS_NONE).metadata_keys}
    known, empty, full = KnownLabels(64 << 20), KnownLabels(64 << 20), KnownLabels(1 << 20)
    for _ in range(2):  # the second time, there is no room left
        for sent in second:
            _split_v2(sent, said, full)
    _split_v2(second[0], said, known)
    references = _learned(_split_v1(first))
    templates = RequestTemplates(32 << 20, references)
    for _ in range(2):
        _split_v2(second[0], said, known, references, templates)
    took: dict[str, list[float]] = defaultdict(list)
    for sent in second:
        works: dict[str, Callable[[], object]] = {
            "1.0": partial(_split_v1, first),
            "1.0, by number": partial(_split_known, first, references),
            "1.0, by number among others": partial(_split_v1, first, references),
            "2.0, come again": partial(_split_again, second[0], said, templates),
            "2.0, by number": partial(_split_v2, second[0], said, known, references),
            "2.0, known labels": partial(_split_v2, second[0], said, known),
            "2.0, first time": partial(_split_v2, sent, said, empty),
            "2.0, new each time": partial(_split_v2, sent, said, full),
            "2.0, none kept": partial(_split_v2, sent, said, KEEPS_NONE),
        }
        for work, call in works.items():
            took[work].extend(_seconds(call) for _ in range(1 if "time" in work else 4))
    least = {work: min(times) / REQUEST_SERIES * 1e9 for work, times in took.items()}
    print(f"decode, {name}, ns a series, least of many; sent: {len(first)} bytes by 1.0, {len(second[0])} by 2.0")
    for work, nanoseconds in least.items():
        print(f"    {work:<30} {nanoseconds:>8.0f} {least['1.0'] / nanoseconds:>8.2f} times the rate of 1.0")


def histograms() -> None:
    """The same of a histogram of 40 buckets a series, once with one layout for all series and once with 1,000;
    and what a worker does with them: read the frame, journal them, append them to the head and read them there.
    CPU time, which other work on the machine changes least."""
    for name, own_layouts in (("one layout", False), ("own layouts", True)):
        messages = [*bench_histograms.messages(own_layouts=own_layouts)] * (REQUEST_SERIES // bench_histograms.SERIES)
        series = list(series_of(0, REQUEST_SERIES, 0, 0))
        second = request_v2(series)
        first = remote_write_pb2.WriteRequest.FromString(body(series))
        entries: Any = zip(first.timeseries, second.timeseries, messages, strict=True)
        for of_first, of_second, message in entries:
            of_first.histograms.append(message)
            of_second.histograms.append(message)
        sent = [snappy.compress(request.SerializeToString()) for request in (first, second)]
        arrays = body_of(messages)
        split_request = remote_write.split(first.SerializeToString(), 1, UNLIMITED)
        (frame,) = split_request.parts[0]
        columns = parse(frame)
        written = Written.of_columns(columns, np.arange(REQUEST_SERIES))
        own = Head()
        own.extend(REQUEST_SERIES)

        def append(written: Written = written, own: Head = own) -> None:
            own.append(written.rows(), written.times_ms, written.values, None, written.histograms)

        works: dict[str, Callable[[], object]] = {
            "1.0, body to the frames of 8 shards": partial(_split_v1, sent[0]),
            "2.0, body to the frames of 8 shards": partial(_split_v2, sent[1], set(), KEEPS_NONE),
            "of which decoding": partial(decoded, *arrays),
            "read in the worker": partial(parse, frame),
            "record for the journal": partial(encode, written, 1),
            "append to the head": append,
            "read from the head": partial(own.read, np.arange(REQUEST_SERIES), 0, 1 << 60),
        }
        took = zip(
            *([_seconds(work, time.thread_time) for work in works.values()] for _ in range(TURNS // 4)), strict=True
        )
        for stage, times in zip(works, took, strict=True):
            nanoseconds = min(times) / (REQUEST_SERIES * bench_histograms.BUCKETS) * 1e9
            show(f"{name}: {stage}", nanoseconds, "bucket")
        print(f"{name}: {len(sent[0])} and {len(sent[1])} bytes sent, {wire.size_of(frame)} in a frame")


def _split_v1(sent: bytes, references: SeriesReferences = NO_REFERENCES) -> SplitRequest:
    return remote_write.split(decompression.decompress(sent, 1 << 30), 8, UNLIMITED, references)


def _split_known(sent: bytes, references: SeriesReferences) -> None:
    known = known_samples.read(decompression.decompress(sent, 1 << 30), 8, references)
    assert known is not None
    known_samples.frames([known])


def _split_v2(
    sent: bytes,
    known: set[int],
    known_labels: KnownLabels,
    references: SeriesReferences = NO_REFERENCES,
    templates: RequestTemplates = NO_TEMPLATES,
) -> SplitRequest:
    body = decompression.decompress(sent, 1 << 30)
    surveyed = remote_write_v2.survey(body, UNLIMITED, 1 << 30, known, known_labels, references, templates)
    return remote_write_v2.split(surveyed, 8, UNLIMITED)


def _split_again(sent: bytes, known: set[int], templates: RequestTemplates) -> SplitRequest:
    instance = templates.read(np.frombuffer(decompression.decompress(sent, 1 << 30), np.uint8), 1 << 30, known)
    assert instance is not None
    split_request = instance.split(8)
    assert split_request is not None
    return split_request


def _learned(split_request: SplitRequest) -> SeriesReferences:
    """What the coordinator keeps of a request's series, with numbers as workers give them."""
    references = SeriesReferences(64 << 20, 8)
    numbers = {
        (shard, 0): np.arange(len(parse(frames[0]).counts), dtype=np.int32)
        for shard, frames in split_request.parts.items()
    }
    lessons.learn(split_request.lessons, references, Receipt(dict.fromkeys(split_request.parts, 1), numbers=numbers))
    return references


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started


def head(series: int, rounds: int) -> None:
    own = Head()
    own.extend(series)
    ids = np.arange(series)
    took = []
    for i in range(rounds):
        times = np.full(series, START_MS + 15_000 * i)
        started = time.perf_counter()
        own.append(ids, times, times * 0.5)
        took.append(time.perf_counter() - started)
    show(f"append to the head, {series} series in turn", statistics.median(took) / series * 1e9, "sample")
    whole = median_ns(lambda: own.read(ids, START_MS, START_MS + 15_000 * rounds), series * rounds)
    show(f"read all {rounds} samples of each", whole, "sample")
    last = START_MS + 15_000 * (rounds - 20)
    show("read the last 20 of each", median_ns(lambda: own.read(ids, last, 1 << 60), series), "series")


def shard(series: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        before = psutil.Process().memory_info().rss
        part, _, close = opened(Path(directory))
        for stage, at in (("write, new series", 0), ("write, known series", 1), ("write, known series", 2)):
            took = 0.0
            for body in bodies(series, at):
                started = time.perf_counter()
                write_to(part, remote_write.split(body, 1, UNLIMITED).parts[0], 60.0)
                took += time.perf_counter() - started
            show(f"{stage}, {REQUEST_SERIES} a commit, durable", took / series * 1e9, "sample")
        grown = psutil.Process().memory_info().rss - before
        print(f"{'memory of the shard':<52} {grown / series:>10.0f} bytes a series")
        queries(part)
        close()
        started = time.perf_counter()
        part, _, close = opened(Path(directory))
        took = time.perf_counter() - started
        show(f"start: replay {series} series with 3 samples", took / series * 1e9, "series")
        close()


def opened(directory: Path) -> tuple[SeriesPart, Store, Callable[[], None]]:
    store = Store(directory / "store")
    log = WriteAheadLog(directory / "wal").open()
    part = SeriesPart(
        store, SeriesServices(Settings(), TextTable()), LocalObjects(directory / "blocks"), log.stream(0, SERIES)
    )
    part.load()

    def close() -> None:
        part.close()
        store.close()
        log.close()

    return part, store, close


def bodies(series: int, at: int) -> Iterator[bytes]:
    for first in range(0, series, REQUEST_SERIES):
        yield request(first, REQUEST_SERIES, 1, at)


def queries(part: SeriesPart) -> None:
    source = ShardSource([part])
    base = [Matcher("__name__", "=", "http_requests_total")]
    cases = [
        ("one series", [*base, Matcher("pod", "=", "api-0000042-x2k4q")]),
        ("about 1/17", [*base, Matcher("path", "=", "/v1/3")]),
        ("regex on a wide label", [*base, Matcher("pod", "=~", "api-00000.*")]),
        ("all", base),
    ]
    for text, matchers in cases:
        found = source.select(matchers, 0, 1 << 60, Symbols(part.symbols)).labels.size
        took = median_ns(partial(source.select, matchers, 0, 1 << 60, Symbols(part.symbols)), 1)
        print(f"{'select ' + text + f' ({found} series), labels as columns':<52} {took / 1e6:>10.3f} ms")


if __name__ == "__main__":
    stages()
    histograms()
    head(10_000, 240)
    shard(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)

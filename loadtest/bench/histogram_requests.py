"""The cost of a request of native histograms in the coordinator, from its body to the frames of 8 shards, by stage and
by version of remote write: `python -m loadtest.bench.histogram_requests`.

The requests are those of `loadtest.bench.native_histograms`, and the same in version 2.0: 4 histograms of 40 buckets
for each of 500 series, whose numbers are known, as is usual. Several requests take turns, so that the CPU does not
adapt to a single one. Figures are nanoseconds of CPU time per histogram, the median of all turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np
import snappy

from coordinator.series import decompression, histograms, lessons, remote_write, remote_write_v2
from coordinator.series.histogram_frames import GroupedHistograms
from coordinator.series.histograms import BEGIN, MESSAGE_END, ROW
from coordinator.series.known_labels import KnownLabels
from coordinator.series.lessons import Receipt
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from coordinator.series.walked import Walk
from loadtest.bench.native_histograms import BUCKETS, SAMPLES_AT_ONCE, native_requests
from loadtest.harness.remote_write_bodies import UNLIMITED, Symbols
from proto import remote_write_v2_pb2
from proto.remote_write_pb2 import WriteRequest
from shared.frames.samples import parse
from shared.histograms import decoding
from shared.kernels import compile_all
from shared.process import allocator
from shared.wire import Frame

SERIES, REQUESTS, ROUNDS, SHARDS = 500, 12, 20, 8
START_MS, STEP_MS, SAMPLES = 1_700_000_000_000, 15_000, 240
WHOLE = "all, in one"

Result = TypeVar("Result")


def by_version_2(request: bytes) -> bytes:
    """A request of version 1.0 by version 2.0."""
    symbols, second = Symbols(), remote_write_v2_pb2.Request()
    for series in WriteRequest.FromString(request).timeseries:
        entry = second.timeseries.add(histograms=series.histograms)
        entry.labels_refs.extend(symbols.place(text) for label in series.labels for text in (label.name, label.value))
    second.symbols.extend(symbols.places)
    return second.SerializeToString()


class Stages:
    """The seconds that each stage of a request took, by version."""

    def __init__(self) -> None:
        self.took: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def timed(self, version: str, stage: str, work: Callable[[], Result]) -> Result:
        started = time.thread_time()
        result = work()
        self.took[version][stage].append(time.thread_time() - started)
        return result

    def table(self) -> Iterator[str]:
        yield f"| stage, ns a histogram of {BUCKETS} buckets | {' | '.join(self.took)} |\n"
        yield f"|---|{'---|' * len(self.took)}\n"
        for stage in dict.fromkeys(stage for took in self.took.values() for stage in took):
            columns = (took.get(stage) for took in self.took.values())
            figures = (
                f"{statistics.median(column) / (SERIES * SAMPLES_AT_ONCE) * 1e9:,.0f}" if column else ""
                for column in columns
            )
            yield f"| {stage} | {' | '.join(figures)} |\n"


class Coordinator:
    """What a coordinator knows of the series that it was sent."""

    def __init__(self, sent: bytes) -> None:
        self.known_labels = KnownLabels(64 << 20)
        self.references = SeriesReferences(64 << 20, SHARDS)
        split_request = remote_write.split(decompression.decompress(sent, 1 << 30), SHARDS, UNLIMITED)
        numbers = {
            (shard, 0): np.arange(len(parse(frames[0]).counts), dtype=np.int32)
            for shard, frames in split_request.parts.items()
        }
        lessons.learn(
            split_request.lessons, self.references, Receipt(dict.fromkeys(split_request.parts, 1), numbers=numbers)
        )

    def first(self, sent: bytes) -> SplitRequest:
        return remote_write.split(decompression.decompress(sent, 1 << 30), SHARDS, UNLIMITED, self.references)

    def survey(self, body: Frame) -> remote_write_v2.Survey:
        return remote_write_v2.survey(body, UNLIMITED, 1 << 30, (), self.known_labels, self.references)

    def second(self, sent: bytes) -> SplitRequest:
        return remote_write_v2.split(self.survey(decompression.decompress(sent, 1 << 30)), SHARDS, UNLIMITED)

    def first_by_stage(self, stages: Stages, sent: bytes) -> None:
        version = "1.0"
        body = stages.timed(version, "decompress", lambda: decompression.decompress(sent, 1 << 30))
        walk = stages.timed(version, "walk", lambda: remote_write.walk(body, UNLIMITED, self.references))
        assert walk is not None
        located = stages.timed(version, "locate", lambda: remote_write.histograms_of(walk))
        self._frames(stages, version, walk, located)

    def second_by_stage(self, stages: Stages, sent: bytes) -> None:
        version = "2.0"
        body = stages.timed(version, "decompress", lambda: decompression.decompress(sent, 1 << 30))
        surveyed = stages.timed(version, "survey", lambda: self.survey(body))
        stages.timed(version, "expand", lambda: remote_write_v2._expand(surveyed))
        located = stages.timed(version, "locate", lambda: histograms.of_spans(surveyed.walk, surveyed.references))
        self._frames(stages, version, surveyed.walk, located)

    def _frames(self, stages: Stages, version: str, walk: Walk, located: np.ndarray | None) -> None:
        assert located is not None
        decoded = stages.timed(
            version, "decode", lambda: decoding.decoded(walk.body, located[BEGIN], located[MESSAGE_END])
        )
        grouped = stages.timed(version, "sort", lambda: GroupedHistograms.of(walk, located[ROW], decoded, SHARDS))
        stages.timed(version, "write the frames", lambda: grouped.slice(walk, decoded))


def main() -> None:
    allocator.keep_pages()  # as the coordinator does
    compile_all()
    times_ms = START_MS + STEP_MS * np.arange(SAMPLES, dtype=np.int64)
    bodies = [snappy.decompress(sent) for sent in native_requests(times_ms, range(SERIES))][-REQUESTS:]
    sent = [(snappy.compress(body), snappy.compress(by_version_2(body))) for body in bodies]
    coordinator, stages = Coordinator(sent[0][0]), Stages()
    for _, second in sent * 2:
        coordinator.second(second)
    for first, second in sent * ROUNDS:
        coordinator.first_by_stage(stages, first)
        coordinator.second_by_stage(stages, second)
        assert stages.timed("1.0", WHOLE, partial(coordinator.first, first)).known_series == SERIES
        assert stages.timed("2.0", WHOLE, partial(coordinator.second, second)).known_series == SERIES
    sys.stdout.writelines(stages.table())
    sys.stdout.write(f"\n{len(sent[0][0])} and {len(sent[0][1])} bytes sent, {len(bodies[0])} decompressed by 1.0\n")


if __name__ == "__main__":
    main()

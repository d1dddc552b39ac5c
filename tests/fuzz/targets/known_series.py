"""Remote writes to a coordinator that knows their series: they lead to the same as to one that knows none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from coordinator.series import known_samples, lessons, remote_write, remote_write_v2
from coordinator.series.known_labels import KnownLabels
from coordinator.series.lessons import EMPTY_RECEIPT, Receipt
from coordinator.series.request_templates import SERIES_MIN, RequestTemplates
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from loadtest.harness.histogram_messages import histogram_message
from loadtest.harness.remote_write_bodies import body, request_v2
from proto.remote_write_pb2 import WriteRequest
from shared.errors import TriptychError
from shared.frames import exemplars as exemplar_frames
from shared.frames import references as reference_frames
from shared.frames import samples as sample_frames
from shared.histograms.references import is_reference, rows_of
from shared.wire import Frame
from tests.fuzz import write_requests
from tests.fuzz.target import Target
from tests.fuzz.targets.remote_write import DECOMPRESSED_BYTES_MAX, LIMITS, SHARDS

TABLES_BYTES = 1 << 17
TURNS = 4
"""Requests until a series is known, its request was seen, and one has a template."""
NOW_MS = 1_735_689_600_000

Series = tuple[int, bytes]
"""Its shard and its labels."""
Stored = dict[tuple[Series, int], tuple[Any, int]]
"""Series, time → value (of a histogram: its sum, and how many observations it has) and start timestamp."""


class Shards:
    """Stand in for the workers. `numbers`: of each series; no two shards give the same ones."""

    def __init__(self) -> None:
        self.numbers: dict[Series, int] = {}

    def write(self, split_request: SplitRequest) -> tuple[Stored, list[tuple[int, bytes]], Receipt]:
        """What is stored of these frames, their exemplars, and what is to be learned from them."""
        stored, exemplars, numbers = Stored(), list[tuple[int, bytes]](), {}
        frames = ((n, place, bytes(one)) for n, own in split_request.parts.items() for place, one in enumerate(own))
        for shard, place, frame in frames:
            if exemplar_frames.is_exemplars(frame):
                exemplars.append((shard, frame))
            elif reference_frames.is_references(frame):
                known = reference_frames.parse(frame)
                assert known.epoch == 1 + shard
                every = list(self.numbers)
                _store(known, [every[number] for number in known.series.tolist()], stored)
            else:
                columns = sample_frames.parse(frame)
                spans = zip(columns.starts.tolist(), columns.ends.tolist(), strict=True)
                series = [(shard, columns.data[begin:end].tobytes()) for begin, end in spans]
                given = [self.numbers.setdefault(one, len(self.numbers)) for one in series]
                numbers[shard, place] = np.array(given, dtype=np.int32)
                _store(columns, series, stored)
        receipt = Receipt({shard: 1 + shard for shard, _ in numbers}, numbers=numbers) if numbers else EMPTY_RECEIPT
        return stored, sorted(exemplars), receipt


def _store(
    columns: sample_frames.SampleColumns | reference_frames.ReferenceColumns, series: list[Series], stored: Stored
) -> None:
    starts, times, bits = columns.start_timestamps_ms, columns.times_ms.tolist(), columns.values.view(np.int64).tolist()
    histograms = columns.histograms.unpacked().columns if columns.histograms is not None else None
    owners = np.repeat(np.arange(len(series)), columns.counts).tolist()
    for i, owner in enumerate(owners):
        value: Any = bits[i]
        if histograms is not None and is_reference(columns.values[i : i + 1])[0]:
            row = rows_of(columns.values[i : i + 1])[0]
            value = repr((histograms.sum[row], histograms.observations[row]))
        stored[series[owner], times[i]] = value, 0 if starts is None else int(starts[i])


class Coordinator:
    """Splits and learns as `coordinator.api.write` does."""

    def __init__(self) -> None:
        self.shards = Shards()
        self.references = SeriesReferences(TABLES_BYTES, SHARDS)
        self._templates = RequestTemplates(TABLES_BYTES, self.references)
        self._known_labels = KnownLabels(TABLES_BYTES)
        self._metadata: set[int] = set()

    def first(self, data: bytes) -> SplitRequest:
        known = known_samples.read(data, SHARDS, self.references)
        return remote_write.split(data, SHARDS, LIMITS, self.references) if known is None else _of_known(known)

    def second(self, data: bytes) -> SplitRequest:
        instance = self._templates.read(np.frombuffer(data, np.uint8), DECOMPRESSED_BYTES_MAX, self._metadata)
        split_request = instance.split(SHARDS) if instance is not None else None
        if split_request is None:
            surveyed = remote_write_v2.survey(
                data, LIMITS, DECOMPRESSED_BYTES_MAX, self._metadata, self._known_labels, self.references,
                self._templates,
            )  # fmt: skip
            split_request = remote_write_v2.split(surveyed, SHARDS, LIMITS)
            self._metadata.update(split_request.metadata_keys)
        return split_request if split_request.known is None else _of_known(split_request.known)

    def store(self, split_request: SplitRequest) -> tuple[Stored, list[tuple[int, bytes]]]:
        stored, exemplars, receipt = self.shards.write(split_request)
        lessons.learn(split_request.lessons, self.references, receipt)
        return stored, exemplars


def _of_known(known: known_samples.KnownSamples) -> SplitRequest:
    parts: dict[int, Sequence[Frame]] = {shard: [frame] for shard, frame in known_samples.frames([known]).items()}
    return SplitRequest(parts, samples=known.samples)


def _told(split_request: SplitRequest) -> tuple[Any, ...]:
    counts = (
        split_request.samples,
        split_request.histograms,
        split_request.histograms_refused,
        split_request.exemplars,
        split_request.exemplars_refused,
    )
    return *counts, split_request.exemplars_left_out, split_request.refused_count, split_request.refused


def _check(data: bytes, *, is_second: bool) -> None:
    knowing, forgetful = Coordinator(), Coordinator()
    split = knowing.second if is_second else knowing.first
    for seed in bodies_v2() if is_second else bodies():
        for _ in range(TURNS):
            knowing.store(split(seed))
    expected: Any
    try:
        plain = forgetful.second(data) if is_second else forgetful.first(data)
        expected = _told(plain), forgetful.store(plain)
    except TriptychError as error:
        expected = str(error)
    for turn in range(TURNS):
        try:
            own = split(data)
            outcome: Any = _told(own), knowing.store(own)
        except TriptychError as error:
            outcome = str(error)
        assert outcome == expected, f"turn {turn}: {outcome}; without known series: {expected}"


def _entries(first: int = 0) -> Iterator[tuple[dict[str, str], list[tuple[int, float]]]]:
    """Series with labels of the same lengths, whatever the first one is."""
    for n in range(first, first + SERIES_MIN):
        yield {"__name__": f"m{n % 3}", "i": f"{n:02}"}, [(NOW_MS + n, n + 0.5)]


def bodies() -> Iterator[bytes]:
    yield body(_entries())
    yield body(_entries(9))
    request = WriteRequest.FromString(body(_entries()))
    for n, series in enumerate(request.timeseries):
        series.samples.add(value=0.0, timestamp=-1)
        if n % 3 == 0:
            series.histograms.append(histogram_message(timestamp=NOW_MS + 50, sum=float(n)))
    yield request.SerializeToString()


def bodies_v2() -> Iterator[bytes]:
    yield request_v2(_entries()).SerializeToString()
    yield request_v2(_entries(9)).SerializeToString()
    request = request_v2(_entries())
    request.symbols.append("how many")
    for n, series in enumerate(request.timeseries):
        series.metadata.type, series.metadata.help_ref = 1, len(request.symbols) - 1
        if n % 3 == 0:
            series.histograms.append(histogram_message(timestamp=NOW_MS + 50, sum=float(n)))
        series.samples[0].start_timestamp = NOW_MS - 9
    yield request.SerializeToString()


def _near(bodies: Iterator[bytes], others: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Known bodies of which some bytes are others, often those of other references, and known bodies beside others."""
    known = st.sampled_from(list(bodies))
    edits = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 40) | st.integers(0, 255)), max_size=3)
    return st.tuples(known, edits).map(_edited) | st.lists(known | others, min_size=1, max_size=2).map(b"".join)


def _edited(given: tuple[bytes, list[tuple[int, int]]]) -> bytes:
    known, edits = given
    data = bytearray(known)
    for at, byte in edits:
        data[at % len(data)] = byte
    return bytes(data)


TARGETS = [
    Target(
        "known-series",
        lambda data: _check(data, is_second=False),
        bodies,
        lambda: _near(bodies(), write_requests.bodies()),
    ),
    Target(
        "known-series-v2",
        lambda data: _check(data, is_second=True),
        bodies_v2,
        lambda: _near(bodies_v2(), write_requests.bodies_v2()),
    ),
]

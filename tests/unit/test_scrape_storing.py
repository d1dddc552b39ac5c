"""How scrapes are stored: by the numbers of series, without missing shards, and once more where numbers are stale."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.limits.pressure import Level
from coordinator.scraping import protobuf_families, written
from coordinator.scraping.series_text import Exemplar
from coordinator.scraping.storing import ScrapeStore
from coordinator.scraping.target_series import Labelling, TargetSeries
from coordinator.series.lessons import Receipt
from coordinator.series.series_references import SeriesReferences
from proto import exposition_pb2
from shared import labels
from shared.errors import Unavailable
from shared.frames import references as reference_frames
from shared.protobuf_fields import varint
from shared.settings import Settings

SHARDS = 2
SERIES = 20


class Place:
    """`messages`: of each write, shard → how many series came with labels and how many by their number."""

    def __init__(self) -> None:
        self.settings = Settings(shards=SHARDS)
        self.missing: dict[int, str] = {}
        self.pressure = SimpleNamespace(level=Level.NONE)
        self.messages: list[dict[int, tuple[int, int]]] = []
        self.receipts: list[Receipt] = []
        here: Any = self
        pressure: Any = self.pressure
        references = SeriesReferences(1 << 20, SHARDS)
        self.store = ScrapeStore(self.settings, here, here, references, pressure)

    def unready(self, shards: Any) -> dict[int, str]:
        return {shard: why for shard, why in self.missing.items() if shard in shards}

    async def write(self, parts: Any) -> Receipt:
        counts = {}
        for shard, frames in parts.items():
            words = [np.frombuffer(frame, np.int64) for frame in frames]
            by_number = sum(int(own[2]) for own in words if own[0] == reference_frames.MARK)
            counts[shard] = (sum(int(own[1]) for own in words if own[0] != reference_frames.MARK), by_number)
        self.messages.append(counts)
        return self.receipts.pop(0) if self.receipts else Receipt()

    async def scrape(self) -> None:
        own = [labels.encode((("__name__", "a"), ("i", str(i)))) for i in range(SERIES)]
        zeros = np.zeros(SERIES, np.int64)
        body = written.samples(own, np.arange(SERIES, dtype=np.float64), zeros + 1_700_000_000_000, zeros)
        await self.store.store(body, self.store.split(body))


@pytest.fixture
def place() -> Iterator[Place]:
    own = Place()
    yield own
    own.store.stop()


def totals(message: dict[int, tuple[int, int]]) -> tuple[int, int]:
    return sum(count for count, _ in message.values()), sum(count for _, count in message.values())


async def test_series_are_sent_by_number_once_the_shards_have_given_them(place: Place) -> None:
    place.receipts = [Receipt()]
    await place.scrape()
    (first,) = place.messages
    given = {(shard, 0): np.arange(count, dtype=np.int32) for shard, (count, _) in first.items()}
    place.receipts = [Receipt(dict.fromkeys(first, 7), frozenset(), given)]
    await place.scrape()
    await place.scrape()
    assert [totals(message) for message in place.messages] == [(SERIES, 0), (SERIES, 0), (0, SERIES)]
    stale = Receipt(dict.fromkeys(first, 8), frozenset({(0, 0)}))
    place.receipts = [stale]
    await place.scrape()
    assert totals(place.messages[-2]) == (0, SERIES)
    assert place.messages[-1] == {0: first[0]}, "what was stale is sent once more, with its labels"


async def test_of_missing_shards_the_part_is_dropped_and_told(place: Place) -> None:
    place.missing = {1: "its worker is down"}
    with pytest.raises(Unavailable, match="shard 1: its worker is down"):
        await place.scrape()
    assert list(place.messages[0]) == [0]


def test_histograms_and_exemplars_are_what_remote_write_takes(place: Place) -> None:
    spans = [exposition_pb2.BucketSpan(offset=-2, length=2)]
    exposed = exposition_pb2.Histogram(
        sample_count=6, sample_sum=2.5, schema=3, zero_threshold=0.001, zero_count=1, positive_span=spans,
        positive_delta=[2, 1], created_timestamp=exposition_pb2.Timestamp(seconds=5),
    )  # fmt: skip
    floats = exposition_pb2.Histogram(
        sample_count_float=1.5, sample_sum=1, positive_span=spans[:1], positive_count=[0.5, 1.0]
    )
    series = TargetSeries(Labelling({"job": "j"}))
    metrics = [
        exposition_pb2.Metric(histogram=exposed),
        exposition_pb2.Metric(histogram=floats, label=[exposition_pb2.LabelPair(name="a", value="b")]),
    ]
    family = exposition_pb2.MetricFamily(name="lat", type=exposition_pb2.HISTOGRAM, metric=metrics).SerializeToString()
    read = protobuf_families.read(
        series, varint(len(family)) + family, 1_700_000_000_000, with_histograms=True, keeps_classic=False
    )
    parts = [written.histogram(series.labels[number], message) for number, _, message in read.histograms]
    found = Exemplar((("span_id", "s"), ("trace_id", "t")), 0.5, 1_700_000_000_000)
    split_request = place.store.split(b"".join([*parts, written.exemplar(series.labels[0], found)]))
    assert (split_request.histograms, split_request.exemplars, split_request.refused) == (2, 1, [])


def test_writes_are_refused_under_overload(place: Place) -> None:
    assert not place.store.refuses
    place.pressure.level = Level.WRITES
    assert place.store.refuses

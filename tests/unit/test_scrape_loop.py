"""The scrapes of one target: what is stored of each, which series are ended, and how the target is shown."""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from coordinator.prometheus_config import config_file
from coordinator.scraping import jobs, targets
from coordinator.scraping import loop as loop_module
from coordinator.scraping.fetching import FetchFailed, ScrapeResponse
from coordinator.scraping.jobs import Group
from coordinator.scraping.loop import Counts, ScrapeLoop
from proto import exposition_pb2, remote_write_pb2
from shared.errors import Unavailable
from shared.promql.model import STALE_NAN_BITS
from shared.settings import Settings

NOW = 1_700_000_000_000
Stored = dict[str, float | None]


class Place:
    """A target, and a store that keeps what it is given. `None` is the value that ends a series."""

    def __init__(self, **fields: Any) -> None:
        content = orjson.dumps({"scrape_configs": [{"job_name": "j", **fields}]})
        (self.job,) = jobs.read(config_file.parse(content, Path("/prometheus.yml")))
        (self.target,) = targets.targets_of(self.job, [Group(("h:1",), {})], 1).targets
        self.counts = Counts()
        self.refuses = False
        self.error: Exception | None = None
        self.answer: bytes | Exception = b""
        self.content_type = "text/plain; version=0.0.4"
        self.requests: list[remote_write_pb2.WriteRequest] = []
        self.metadata: list[str] = []
        self.loop = self.new_loop()

    def new_loop(self) -> ScrapeLoop:
        here: Any = self
        return ScrapeLoop(self.job, self.target, here, here, here, Settings(), self.counts)

    # As a store

    async def work(self, function: Callable[[], Any]) -> Any:
        return function()

    def split(self, body: bytes) -> Any:
        return SimpleNamespace(refused_count=0)

    async def store(self, body: bytes, _: Any) -> None:
        if self.error is not None:
            raise self.error
        self.requests.append(remote_write_pb2.WriteRequest.FromString(body))

    async def keep(self, families: list[Any]) -> None:
        self.metadata += [f"{family.family} {family.type}" for family in families]

    # As what fetches

    async def get(self, *_: Any, **__: Any) -> ScrapeResponse:
        if isinstance(self.answer, Exception):
            raise self.answer
        return ScrapeResponse(self.answer, "", self.content_type, 0)

    def release(self, _: int) -> None:
        pass

    async def scrape(self, answer: str | bytes | Exception, time_ms: int = NOW) -> Stored:
        """What is stored of a scrape with this answer."""
        self.answer = answer.encode() if isinstance(answer, str) else answer
        await self.loop.scrape(time_ms)
        return self.stored()

    def stored(self) -> Stored:
        return {name: value for name, (_, value) in self.samples().items()}

    def samples(self) -> dict[str, tuple[int, float | None]]:
        """Those of the last request: (time, value) by metric and own labels."""
        found: dict[str, tuple[int, float | None]] = {}
        for series in self.requests[-1].timeseries:
            pairs = {label.name: label.value for label in series.labels}
            assert pairs.pop("job") == "j" and pairs.pop("instance") == "h:1"
            assert list(pairs) == sorted(pairs)
            for sample in series.samples:
                is_stale = struct.pack("<d", sample.value) == struct.pack("<q", STALE_NAN_BITS)
                name = " ".join([pairs["__name__"], *(v for k, v in pairs.items() if k != "__name__")])
                assert name not in found
                found[name] = sample.timestamp, None if is_stale else sample.value
        return found


def own(stored: Stored) -> Stored:
    """Without what a scrape adds."""
    return {name: value for name, value in stored.items() if name != "up" and not name.startswith("scrape_")}


async def test_samples_are_stored_with_what_tells_of_the_scrape() -> None:
    place = Place()
    stored = await place.scrape('# TYPE a counter\na{b="c"} 1\nd 2\n')
    assert own(stored) == {"a c": 1, "d": 2}
    assert stored["up"] == 1 and stored["scrape_samples_scraped"] == 2 and stored["scrape_series_added"] == 2
    assert stored["scrape_samples_post_metric_relabeling"] == 2 and 0 <= (stored["scrape_duration_seconds"] or 0) < 5
    assert {time_ms for time_ms, _ in place.samples().values()} == {NOW}
    assert (place.loop.health, place.loop.last_error) == ("up", "") and place.loop.last_scrape == NOW / 1000
    again = await place.scrape('# TYPE a counter\na{b="c"} 3\nd 2\n', NOW + 15_000)
    assert again["scrape_series_added"] == 0 and again["a c"] == 3
    assert place.metadata == ["a counter"] and place.counts.ok == 2 and place.counts.samples == 4


async def test_a_series_that_vanishes_is_ended_once_and_may_come_back() -> None:
    place = Place()
    await place.scrape("a 1\nb 2\n")
    assert own(await place.scrape("a 1\n")) == {"a": 1, "b": None}
    assert own(await place.scrape("a 1\n")) == {"a": 1}
    back = await place.scrape("a 1\nb 3\n")
    assert own(back) == {"a": 1, "b": 3} and back["scrape_series_added"] == 1


@pytest.mark.parametrize("failure", [FetchFailed("it is gone"), b"a 1\nwrong\n"])
async def test_a_scrape_that_fails_ends_all_series(failure: Any) -> None:
    place = Place()
    await place.scrape("a 1\nb 2\n")
    stored = await place.scrape(failure)
    assert own(stored) == {"a": None, "b": None} and stored["up"] == 0 and stored["scrape_samples_scraped"] == 0
    assert place.loop.health == "down" and place.loop.last_error and place.counts.failed == 1
    assert own(await place.scrape("a 1\n")) == {"a": 1}


async def test_series_with_times_of_their_own_are_not_ended_unless_the_job_says_so() -> None:
    place = Place()
    await place.scrape("a 1 1600000000000\nb 2\n")
    assert place.samples()["a"] == (1600000000000, 1)
    assert own(await place.scrape("")) == {"b": None}
    tracking = Place(track_timestamps_staleness=True)
    await tracking.scrape("a 1 1600000000000\n")
    assert own(await tracking.scrape("")) == {"a": None}
    ignoring = Place(honor_timestamps=False)
    await ignoring.scrape("a 1 1600000000000\n")
    assert ignoring.samples()["a"] == (NOW, 1)
    assert own(await ignoring.scrape("")) == {"a": None}


async def test_relabelling_drops_and_renames_samples() -> None:
    rules = [
        {"source_labels": ["__name__"], "regex": "go_.*", "action": "drop"},
        {"regex": "id", "action": "labeldrop"},
    ]
    place = Place(metric_relabel_configs=rules)
    stored = await place.scrape('go_x 1\na{id="1"} 2\na{id="2"} 3\nb{id="3"} 4\n')
    assert own(stored) == {"a": 2, "b": 4}  # of those that became equal, the first
    assert stored["scrape_samples_scraped"] == 4 and stored["scrape_samples_post_metric_relabeling"] == 3


async def test_limits_of_the_job_fail_the_scrape() -> None:
    place = Place(sample_limit=2, label_limit=4, extra_scrape_metrics=True)
    assert (await place.scrape("a 1\nb 2\nc 3\n"))["up"] == 0 and "sample_limit is 2" in place.loop.last_error
    assert (await place.scrape('a{b="1",c="2"} 1\n'))["up"] == 0 and "the limit is 4" in place.loop.last_error
    stored = await place.scrape("a 1\n")
    assert stored["up"] == 1 and stored["scrape_sample_limit"] == 2 and stored["scrape_body_size_bytes"] == 4
    place.loop.forced_error = "too many targets"
    assert (await place.scrape("a 1\n"))["up"] == 0 and place.loop.last_error == "too many targets"


REPORT = ("scrape_samples_scraped", "scrape_samples_post_metric_relabeling", "scrape_series_added")


async def test_a_scrape_beyond_a_limit_tells_of_the_samples_that_were_read() -> None:
    place = Place(sample_limit=2)
    for added in (2, 0):  # as Prometheus, which remembers their labels
        stored = await place.scrape("a 1\nb 2\nc 3\n")
        assert [stored[name] for name in ("up", *REPORT)] == [0, 3, 3, added] and own(stored) == {}
    drop_b = {"source_labels": ["__name__"], "regex": "b", "action": "drop"}
    place = Place(label_limit=3, metric_relabel_configs=[drop_b])
    for added in (1, 0):
        stored = await place.scrape('a 1\nb 2\nc{d="1",e="2"} 3\nf 4\n')
        assert [stored[name] for name in ("up", *REPORT)] == [0, 3, 1, added] and own(stored) == {}
    assert [(await place.scrape("a b c\n"))[name] for name in REPORT] == [0, 0, 0]


def told(i: str, trace: str) -> str:
    return f'# TYPE m counter\nm_total{{i="{i}"}} 1 # {{trace_id="{trace}"}} 0.5 1700000000\n'


async def test_what_a_scrape_tells_that_fails_late_is_stored_with_the_next_one() -> None:
    place = Place(sample_limit=1)
    place.content_type = "application/openmetrics-text; version=1.0.0"

    def exemplars() -> list[str]:
        return [one.labels[0].value for series in place.requests[-1].timeseries for one in series.exemplars]

    await place.scrape(told("1", "a") + 'm_total{i="2"} 1\n# EOF\n')
    assert place.loop.health == "down" and not place.metadata and not exemplars() and not place.loop.families
    await place.scrape(told("1", "a") + "# EOF\n")
    assert place.metadata == ["m_total counter"] and exemplars() == ["a"]
    place.error = Unavailable("no shard")
    await place.scrape(told("1", "b") + "# EOF\n")
    place.error = None
    await place.scrape(told("1", "b") + "# EOF\n")
    assert exemplars() == ["b"]
    await place.scrape(told("1", "b") + "# EOF\n")
    assert exemplars() == [] and place.metadata == ["m_total counter"]


async def test_the_series_of_all_targets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "ALL_SERIES_MAX", 2)
    place = Place()
    await place.scrape("a 1\nb 2\n")
    assert place.counts.series == 2 and (await place.scrape("a 1\nb 2\n"))["up"] == 1, "it goes on"
    first, place.loop = place.loop, place.new_loop()
    assert (await place.scrape("c 1\n"))["up"] == 0 and "the limit of all is 2" in place.loop.last_error
    task = asyncio.create_task(first.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert place.counts.series == 0 and (await place.scrape("c 1\n"))["up"] == 1


async def test_a_store_that_fails_is_shown_and_ends_are_told_later() -> None:
    place = Place()
    await place.scrape("a 1\nb 2\n")
    place.error = Unavailable("shard 3 is down")
    await place.scrape("a 1\n")
    assert place.loop.health == "down" and "shard 3 is down" in place.loop.last_error
    place.error = None
    assert own(await place.scrape("a 1\n")) == {"a": 1, "b": None}
    assert place.counts.refused == 1


async def test_under_overload_nothing_is_asked_and_nothing_stored() -> None:
    place = Place()
    place.refuses = True
    await place.loop.scrape(NOW)
    assert place.requests == [] and place.counts.skipped == 1 and "overloaded" in place.loop.last_error


async def test_a_target_that_goes_is_ended_with_all_its_series() -> None:
    place = Place()
    await place.scrape("a 1\n")
    await place.loop.end(NOW + 1)
    assert set(place.stored()) == {"a", "up", *(name for name in place.stored() if name.startswith("scrape_"))}
    assert set(place.stored().values()) == {None} and len(place.stored()) == 6


async def test_series_that_are_being_stored_when_the_target_goes_are_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    await place.scrape("a 1\n")
    is_stored = asyncio.Event()

    async def store(*_: Any) -> None:
        is_stored.set()
        await asyncio.sleep(3600)

    with monkeypatch.context() as patched:
        patched.setattr(place, "store", store)
        scraping = asyncio.create_task(place.scrape("b 1\n"))
        await is_stored.wait()
        # A loop of the same target that goes on takes them over in the turn in which this one is cancelled.
        scraping.cancel()
        assert len(place.loop.live()) == 2
        await asyncio.wait([scraping])
    await place.loop.end(NOW + 1)
    assert own(place.stored()) == {"a": None, "b": None}


async def test_the_ends_of_a_target_are_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    await place.scrape("a 1\n")
    made: list[str] = []
    live = place.loop.live
    monkeypatch.setattr(place.loop, "live", lambda: made.append(threading.current_thread().name) or live())
    with ThreadPoolExecutor(1, thread_name_prefix="scrape") as threads:
        monkeypatch.setattr(place, "work", partial(asyncio.get_running_loop().run_in_executor, threads))
        await place.loop.end(NOW + 1)
    assert own(place.stored()) == {"a": None} and made == ["scrape_0"]


async def test_a_loop_goes_on_with_the_series_of_the_one_before() -> None:
    place = Place()
    await place.scrape("a 1\nb 2\n")
    live = place.loop.live()
    place.loop = place.new_loop()
    place.loop.inherit(live)
    stored = await place.scrape("b 1\nc 2\n")
    assert own(stored) == {"a": None, "b": 1, "c": 2} and stored["scrape_series_added"] == 1


async def test_a_loop_that_is_stopped_tells_its_series_while_its_thread_still_renumbers_them() -> None:
    loop = Place().loop
    own = loop._series
    own.live = np.array([own.number(b"live %d" % number) for number in range(20_000)])
    live = loop.live()
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(5):
            for number in range(50_000):
                own.number(b"gone %d %d" % (turn, number))
            with ThreadPoolExecutor(1) as threads:
                tidied = threads.submit(own.tidy)
                while not tidied.done():
                    assert loop.live() == live
    finally:
        sys.setswitchinterval(switch_s)
    assert loop.live() == own.labels == live


async def test_openmetrics_brings_exemplars_and_start_timestamps() -> None:
    place = Place()
    place.content_type = "application/openmetrics-text; version=1.0.0"
    text = '# TYPE a counter\na_total 5 # {trace_id="t"} 2\na_created 1600000000\n# EOF\n'
    await place.scrape(text)
    by_name = [(series.labels[0].value, series) for series in place.requests[-1].timeseries]
    (sample,) = next(series.samples for name, series in by_name if name == "a_total" and series.samples)
    assert sample.start_timestamp == 1_600_000_000_000
    (exemplar,) = next(series.exemplars for name, series in by_name if name == "a_total" and series.exemplars)
    assert (exemplar.value, exemplar.timestamp, exemplar.labels[0].value) == (2, NOW, "t")
    assert place.metadata == ["a_total counter"]


async def test_native_histograms_are_stored_as_such() -> None:
    place = Place(scrape_native_histograms=True)
    place.content_type = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
    histogram = exposition_pb2.Histogram(
        sample_count=3, sample_sum=1, positive_span=[exposition_pb2.BucketSpan(length=1)], positive_delta=[3]
    )
    metric = exposition_pb2.Metric(histogram=histogram)
    family = exposition_pb2.MetricFamily(name="lat", type=exposition_pb2.HISTOGRAM, metric=[metric])
    message = family.SerializeToString()
    stored = await place.scrape(bytes([len(message)]) + message)
    assert stored["scrape_samples_scraped"] == 1 and stored["scrape_series_added"] == 1
    (encoded,) = next(series.histograms for series in place.requests[-1].timeseries if series.histograms)
    assert exposition_pb2.StoredHistogram.FromString(encoded).timestamp == NOW
    assert own(await place.scrape(b"")) == {"lat": None}


@pytest.mark.parametrize(
    ("honors", "tracks", "time_ms", "is_ended"), [(0, 0, NOW, 1), (0, 1, NOW, 1), (1, 0, 77, 0), (1, 1, 77, 1)]
)
async def test_times_of_native_histograms_count_as_those_of_other_samples(
    honors: int, tracks: int, time_ms: int, is_ended: int
) -> None:
    place = Place(scrape_native_histograms=True, honor_timestamps=bool(honors), track_timestamps_staleness=bool(tracks))
    place.content_type = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
    histogram = exposition_pb2.Histogram(sample_count=3, positive_span=[exposition_pb2.BucketSpan(length=1)])
    histogram.positive_delta.append(3)
    messages = [
        exposition_pb2.MetricFamily(
            name="lat",
            type=exposition_pb2.HISTOGRAM,
            metric=[exposition_pb2.Metric(histogram=histogram, timestamp_ms=77)],
        ).SerializeToString(),
        exposition_pb2.MetricFamily(
            name="g",
            type=exposition_pb2.GAUGE,
            metric=[exposition_pb2.Metric(gauge=exposition_pb2.Value(value=1), timestamp_ms=77)],
        ).SerializeToString(),
    ]
    await place.scrape(b"".join(bytes([len(message)]) + message for message in messages))
    assert place.samples()["g"] == (time_ms, 1)
    (encoded,) = next(series.histograms for series in place.requests[-1].timeseries if series.histograms)
    assert exposition_pb2.StoredHistogram.FromString(encoded).timestamp == time_ms
    assert own(await place.scrape(b"")) == ({"lat": None, "g": None} if is_ended else {})


async def test_an_answer_of_an_unknown_type_needs_a_fallback() -> None:
    place = Place()
    place.content_type = "text/html"
    assert (await place.scrape("a 1\n"))["up"] == 0 and "fallback_scrape_protocol" in place.loop.last_error
    place = Place(fallback_scrape_protocol="PrometheusText0.0.4")
    place.content_type = "text/html"
    assert own(await place.scrape("a 1\n")) == {"a": 1}


async def test_a_defect_does_not_end_the_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(scrape_interval="1ms", scrape_timeout="1ms")
    turns = 0

    async def scrape(_: int) -> None:
        nonlocal turns
        turns += 1
        raise RuntimeError("a defect")

    monkeypatch.setattr(place.loop, "scrape", scrape)
    task = asyncio.create_task(place.loop.run())
    while turns < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    assert place.loop.health == "down"


async def test_scrapes_have_regular_times_unless_they_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(scrape_interval="10s")
    offset_ms, interval_ms = place.target.offset_ms(), 10_000
    begin_ms = NOW // interval_ms * interval_ms + offset_ms
    clock_ms = begin_ms + 1_000
    late_ms, turns_ms, times_ms = [0, 7, -3, 400, 25_000, 0, 0], list[int](), list[int]()

    async def sleep(seconds: float) -> None:
        nonlocal clock_ms
        if not late_ms:
            raise asyncio.CancelledError
        clock_ms += round(seconds * 1000) + late_ms.pop(0)
        turns_ms.append(clock_ms - begin_ms)

    async def scrape(time_ms: int) -> None:
        nonlocal clock_ms
        times_ms.append(time_ms - begin_ms)
        clock_ms += 50
        if len(times_ms) == 6:
            clock_ms -= 3_600_000  # somebody sets the clock

    monkeypatch.setattr(place.loop, "scrape", scrape)
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(time=lambda: clock_ms / 1000))
    monkeypatch.setattr(loop_module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        await place.loop.run()
    assert times_ms == [10_000, 20_000, 30_000, 40_400, 75_000, 80_000, 90_000 - 3_600_000]

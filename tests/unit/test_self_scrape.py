"""The service's own metrics on their way into it: what is stored, what is dropped and why, which series are ended."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.limits.pressure import Level
from coordinator.series import own_samples
from coordinator.watching import self_scrape
from coordinator.watching.self_scrape import SelfScrape
from coordinator.watching.telemetry import Telemetry
from shared import labels
from shared.errors import Unavailable
from shared.frames.samples import parse
from shared.measurements import Latencies, Values
from shared.promql.model import STALE_NAN_BITS
from shared.settings import Settings

SHARDS = 4
Stored = dict[str, float]


class Place:
    """What the self-scrape sees of the service; `stored`: what came with each write, by metric name and shard label."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = Settings(shards=SHARDS)
        self.telemetry = Telemetry()
        self.telemetry._sources.clear()
        self.telemetry.watch(lambda values: values.update(self.values))
        self.values = Values()
        self.missing: dict[int, str] = {}
        self.pressure = SimpleNamespace(level=Level.NONE)
        self.stored: list[Stored] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.metadata = 0
        monkeypatch.setattr(self_scrape.metadata, "keep", self._keep)
        watch: Any = SimpleNamespace(telemetry=self.telemetry, refresh=self._refresh)
        links: Any = SimpleNamespace(unready=lambda: self.missing)
        pressure: Any = self.pressure
        self.scraping = SelfScrape(self.settings, watch, links, self, pressure, "host:1")  # type: ignore[arg-type]

    async def _refresh(self) -> None:
        pass

    async def _keep(self, *_: Any) -> None:
        self.metadata += 1

    async def write(self, parts: dict[int, Iterable[Any]]) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        stored: Stored = {}
        for shard, frames in parts.items():
            assert shard not in self.missing
            for frame in frames:
                columns = parse(frame)
                for at, (start, end) in enumerate(zip(columns.starts, columns.ends, strict=True)):
                    pairs = dict(labels.decode(bytes(columns.data[start:end])))
                    assert pairs["job"] == "triptych" and pairs["instance"] == "host:1"
                    own = [v for k, v in sorted(pairs.items()) if k not in ("__name__", "job", "instance")]
                    stored[" ".join([pairs["__name__"], *own])] = columns.values[at]
        self.stored.append(stored)

    async def scrape(self, **series: float) -> Stored:
        """Store these as triptych_head_bytes by shard; returns what was written of it."""
        self.values = Values()
        for shard, value in series.items():
            self.values.put("triptych_head_bytes", value, shard)
        await self.scraping.scrape()
        before = len(self.stored)
        if self.scraping._write is not None:
            await asyncio.wait([self.scraping._write], timeout=0.2)
        return self.stored[-1] if len(self.stored) > before or self.stored else {}


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def is_stale(value: float) -> bool:
    return int(np.float64(value).view(np.int64)) == STALE_NAN_BITS


async def test_series_are_stored_with_what_a_scrape_adds(place: Place) -> None:
    stored = await place.scrape(a=1.0, b=2.0)
    assert stored["triptych_head_bytes a"] == 1.0 and stored["triptych_head_bytes b"] == 2.0
    assert stored["up"] == 1.0
    own = len(stored) - 5
    assert stored["scrape_samples_scraped"] == stored["scrape_samples_post_metric_relabeling"] == own
    assert stored["scrape_series_added"] == own
    assert (await place.scrape(a=1.0, b=2.0))["scrape_series_added"] == 0
    assert place.metadata == 1


async def test_a_histogram_is_stored_as_cumulative_buckets_count_and_sum(place: Place) -> None:
    latencies = Latencies()
    for seconds in (0.0001, 0.002, 99.0):
        latencies.add(seconds)
    place.values.put("triptych_loop_lag_seconds", latencies)
    await place.scraping.scrape()
    await asyncio.wait([place.scraping._write])  # type: ignore[type-var]
    [stored] = place.stored
    bucket = {key.split()[1]: value for key, value in stored.items() if key.startswith("triptych_loop_lag_seconds_bu")}
    assert (bucket["0.0001"], bucket["0.001"], bucket["0.0025"], bucket["5.0"], bucket["+Inf"]) == (1, 1, 2, 2, 3)
    assert stored["triptych_loop_lag_seconds_count"] == 3
    assert math.isclose(stored["triptych_loop_lag_seconds_sum"], 99.0021)


async def test_a_series_that_vanishes_is_ended_once_and_may_come_back(place: Place) -> None:
    await place.scrape(a=1.0, b=2.0)
    stored = await place.scrape(a=1.0)
    assert is_stale(stored["triptych_head_bytes b"]) and not is_stale(stored["triptych_head_bytes a"])
    assert "triptych_head_bytes b" not in await place.scrape(a=1.0)
    assert (await place.scrape(a=1.0, b=3.0))["triptych_head_bytes b"] == 3.0


async def test_of_missing_shards_only_their_part_is_dropped_and_series_are_ended_later(place: Place) -> None:
    names = [f"s{i}" for i in range(40)]
    whole = await place.scrape(**dict.fromkeys(names, 1.0))
    place.missing = {0: "down", 2: "down"}
    half = await place.scrape(**dict.fromkeys(names[20:], 1.0))
    dropped = place.scraping.dropped["shard"]
    assert 0 < dropped < len(whole) and half.keys() < whole.keys()
    ended = {key for key, value in half.items() if is_stale(value)}
    assert ended < {f"triptych_head_bytes {name}" for name in names[:20]}
    place.missing = {}
    again = await place.scrape(**dict.fromkeys(names[20:], 1.0))
    rest = {key for key, value in again.items() if is_stale(value)}
    assert ended | rest == {f"triptych_head_bytes {name}" for name in names[:20]} and not ended & rest


async def test_while_writes_are_refused_only_what_says_so_is_stored(place: Place) -> None:
    place.pressure.level = Level.WRITES
    place.values.put("triptych_overload_level", 3)
    place.values.put("triptych_head_bytes", 3, "a")
    await place.scraping.scrape()
    await asyncio.wait([place.scraping._write])  # type: ignore[type-var]
    [stored] = place.stored
    assert stored["triptych_overload_level"] == 3 and stored["up"] == 1
    assert "triptych_head_bytes a" not in stored
    assert place.scraping.dropped["overload"] > 0


async def test_a_scrape_whose_predecessor_is_not_written_yet_is_dropped(place: Place) -> None:
    place.gate.clear()
    await place.scrape(a=1.0)
    await place.scrape(a=2.0)
    assert place.scraping.dropped["late"] > 0 and place.stored == []
    place.gate.set()
    await asyncio.sleep(0)
    assert (await place.scrape(a=3.0))["triptych_head_bytes a"] == 3.0


async def test_a_refused_write_is_counted_and_the_ends_in_it_are_sent_again(place: Place) -> None:
    await place.scrape(a=1.0, b=2.0)
    place.error = Unavailable("the disk is full")
    await place.scrape(a=1.0)
    assert place.scraping.dropped["refused"] > 0
    place.error = None
    assert is_stale((await place.scrape(a=1.0))["triptych_head_bytes b"])


def test_the_marker_has_the_bits_that_staleness_has() -> None:
    assert struct.pack("<d", own_samples.STALE) == struct.pack("<q", STALE_NAN_BITS)


async def test_without_an_interval_nothing_is_stored(place: Place) -> None:
    place.scraping._settings = Settings(shards=SHARDS, self_scrape_ms=0)
    await asyncio.wait_for(place.scraping.run(), 1.0)
    assert place.scraping.scrapes == 0

"""Jobs that come, change and go with the configuration: which targets are scraped, and who ends their series."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from coordinator.prometheus_config import config_file
from coordinator.scraping import scraper as module
from coordinator.scraping.jobs import Job
from coordinator.scraping.scraper import Scraper
from coordinator.scraping.targets import Target
from shared.errors import Unavailable
from shared.measurements import Values
from shared.settings import Settings


class Loop:
    """What a pool sees of a loop. Of all: how many are being ended, now and at most, and how many ends are to fail."""

    ending = ending_most = failures = 0

    def __init__(self, job: Job, target: Target, ended: list[str]) -> None:
        self.job, self.target, self._ended = job, target, ended
        self.health, self.forced_error, self.keeps_connection = "up", "", True
        self.inherited: list[bytes] = []
        self.is_running = False

    async def run(self) -> None:
        self.is_running = True
        try:
            await asyncio.sleep(3600)
        finally:
            self.is_running = False

    def live(self) -> list[bytes]:
        return [self.target.url.encode()]

    def inherit(self, live: list[bytes]) -> None:
        self.inherited = live

    async def end(self, _: int) -> None:
        Loop.ending += 1
        Loop.ending_most = max(Loop.ending_most, Loop.ending)
        await asyncio.sleep(0)
        Loop.ending -= 1
        if Loop.failures:
            Loop.failures -= 1
            raise Unavailable("shard 3 is down")
        self._ended.append(self.target.labels["instance"])


class Store:
    async def work(self, function: Callable[[], Any]) -> Any:
        return function()

    def stop(self) -> None:
        pass


class Place:
    def __init__(self) -> None:
        store: Any = Store()
        self.scraper = Scraper(store, Settings())
        self.ended: list[str] = []
        make: Any = lambda job, target, _: Loop(job, target, self.ended)  # noqa: E731
        self.scraper.loop = make  # type: ignore[method-assign]

    async def use(self, *scrape_configs: dict[str, Any]) -> None:
        content = orjson.dumps({"scrape_configs": scrape_configs})
        self.scraper.use(self.scraper.prepare(config_file.parse(content, Path("/nowhere/prometheus.yml"))))
        for _ in range(20):
            await asyncio.sleep(0)

    def loops(self, job: str) -> dict[str, Any]:
        return {loop.target.labels["instance"]: loop for loop in self.scraper.pools[job].shown()}


def job(name: str, *addresses: str, **fields: Any) -> dict[str, Any]:
    return {"job_name": name, "static_configs": [{"targets": addresses}], **fields}


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    own = Place()
    yield own
    await own.scraper.stop()


async def test_a_job_that_has_not_changed_goes_on_and_others_are_ended(place: Place) -> None:
    await place.use(job("a", "h:1", "h:2"), job("b", "h:3"))
    before = place.loops("a")
    assert all(loop.is_running for loop in before.values()) and len(before) == 2
    await place.use(job("a", "h:1", "h:2"))
    assert place.loops("a") == before and all(loop.is_running for loop in before.values())
    assert place.ended == ["h:3"] and list(place.scraper.pools) == ["a"]


async def test_a_job_that_has_changed_goes_on_with_the_series_of_its_targets(place: Place) -> None:
    await place.use(job("a", "h:1", "h:2"))
    before = place.loops("a")
    await place.use(job("a", "h:1", "h:9", scrape_interval="5s"))
    after = place.loops("a")
    assert not any(loop.is_running for loop in before.values()) and all(loop.is_running for loop in after.values())
    assert after["h:1"].inherited == [b"http://h:1/metrics"] and after["h:9"].inherited == []
    assert place.ended == ["h:2"]


async def test_a_job_whose_discovery_has_not_answered_keeps_the_targets_of_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(module.Url, "run", silent)
    await place.use(job("a", "h:1"))
    await place.use(job("a", "h:2", http_sd_configs=[{"url": "http://h/"}]))
    assert list(place.loops("a")) == ["h:1"] and place.loops("a")["h:1"].is_running
    await place.use(job("a", "h:3"))
    assert list(place.loops("a")) == ["h:3"] and place.ended == ["h:1"]


async def test_a_discovery_that_changes_the_interval_of_a_target_is_followed(place: Place, tmp_path: Path) -> None:
    def discovered(interval: str) -> None:
        group = {"targets": ["h:1", "h:2"], "labels": {"__scrape_interval__": interval}}
        rest = {"targets": ["h:3"], "labels": {"__scrape_timeout__": "1s"}}
        (tmp_path / "t.json").write_bytes(orjson.dumps([group, rest]))

    discovered("30s")
    files = [{"files": [str(tmp_path / "*.json")], "refresh_interval": "10ms"}]
    await place.use({"job_name": "a", "file_sd_configs": files})
    async with asyncio.timeout(10):
        while len(place.scraper.pools["a"].loops) < 3:
            await asyncio.sleep(0.01)
        before = place.loops("a")
        discovered("15s")
        while place.loops("a")["h:1"] is before["h:1"]:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)  # the task of the new loop begins in the next turn
    after = place.loops("a")
    assert [after[address].target.interval_ms for address in ("h:1", "h:2")] == [15_000, 15_000]
    assert after["h:1"].inherited == [b"http://h:1/metrics"] and after["h:1"].is_running
    assert not before["h:1"].is_running and after["h:3"] is before["h:3"] and place.ended == []


async def test_more_targets_than_the_job_may_have_are_not_scraped(place: Place) -> None:
    await place.use(job("a", "h:1", "h:2", target_limit=1))
    assert {loop.forced_error for loop in place.loops("a").values()} == {"the job has 2 targets; target_limit is 1"}


async def test_targets_of_all_jobs_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_TARGETS_MAX", 3)
    await place.use(job("a", "h:1", "h:2"), job("b", "h:3", "h:4"))
    assert len(place.loops("a")) + len(place.loops("b")) == 3
    values = Values()
    place.scraper.put(values)
    assert values.get("triptych_scrape_targets", "up") == 3.0


async def test_of_many_targets_that_go_at_once_the_series_of_some_are_ended_at_a_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDS_AT_ONCE", 3)
    monkeypatch.setattr(Loop, "ending_most", 0)
    gone = [f"h:{number}" for number in range(20)]
    await place.use(job("a", *gone, "h:99"))
    await place.use(job("a", "h:99"))
    assert place.ended == gone and Loop.ending_most == 3


@pytest.mark.parametrize("fields", [{}, {"scrape_interval": "5s"}])
async def test_ends_that_cannot_be_stored_are_stored_later(
    place: Place, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENDING_PAUSE_S", 0.0)
    monkeypatch.setattr(Loop, "failures", 3)
    await place.use(job("a", "h:1", "h:2"), job("b", "h:3"))
    await place.use(job("a", "h:1", **fields))
    assert sorted(place.ended) == ["h:2", "h:3"]


async def test_ends_that_cannot_be_stored_are_given_up_and_keep_no_service_from_ending(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Loop, "failures", 1000)
    await place.use(job("a", "h:1"), job("b", "h:2"))
    await place.use(job("b", "h:2"))
    assert len(place.scraper._endings) == 1
    monkeypatch.setattr(module, "ENDING_S_MAX", 0.0)
    await place.use()
    assert len(place.scraper._endings) == 1 and place.ended == []
    assert "series of targets that are gone could not be ended" in caplog.text
    await place.scraper.stop()
    assert not place.scraper._endings


async def test_a_stop_ends_no_series(place: Place) -> None:
    await place.use(job("a", "h:1"))
    loop = place.loops("a")["h:1"]
    await place.scraper.stop()
    assert place.ended == [] and not loop.is_running

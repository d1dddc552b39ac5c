"""Scraping as the configuration file describes it: jobs, each with its discoveries and the loops of its targets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from coordinator.prometheus_config.config_file import Configuration
from coordinator.scraping import jobs
from coordinator.scraping.discovery import Discovery, Files, Url, ordered
from coordinator.scraping.fetching import KEPT_CONNECTIONS_MAX, Client, Fetches
from coordinator.scraping.jobs import TARGETS_MAX, Job
from coordinator.scraping.loop import Counts, ScrapeLoop
from coordinator.scraping.storing import ScrapeStore
from coordinator.scraping.targets import DiscoveredTargets, Key, Target, targets_of
from shared.measurements import Values
from shared.settings import Settings
from shared.telemetry import event

SETTLE_S = 0.2
"""Changes of discoveries within this time are applied together."""
DISCOVERED_WITHIN_S = 30.0
"""A job takes over the targets of its predecessor when each discovery has been tried, and after this time at the
latest."""
ALL_TARGETS_MAX = 20_000
"""The limit on the targets of all jobs, each of which has a task and memory for its series."""
ENDS_AT_ONCE = 32
"""Targets whose series are ended at once, because all targets of a job may disappear at the same moment."""
ENDING_PAUSE_S, ENDING_S_MAX = 5.0, 60.0
"""Ends that cannot be stored are tried again after a pause, for this time. After that the series end after the
lookback, without markers."""
KEEP_INTERVALS = 2
KEEP_S_MAX = 300.0
"""A connection is kept for this many intervals, and at most for this time."""
NO_TARGETS = DiscoveredTargets((), (), 0, (), 0)


class Pool:
    """The targets of one job. For the event loop's thread only."""

    def __init__(self, job: Job, scraper: Scraper, predecessor: Pool | None) -> None:
        self.job = job
        self.discovered = NO_TARGETS
        self.loops: dict[Key, ScrapeLoop] = {}
        self._scraper = scraper
        self._predecessor = predecessor
        self._client = Client(job.http, min(KEEP_INTERVALS * job.interval_ms / 1000, KEEP_S_MAX))
        self._changed = asyncio.Event()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._sources: list[Discovery] = [Files(one, job.name, self._changed.set) for one in job.files]
        self._sources += [Url(one, job.name, self._changed.set, scraper.fetches) for one in job.urls]
        self._work = [asyncio.create_task(source.run()) for source in self._sources]  # type: ignore[attr-defined]
        self._work.append(asyncio.create_task(self._follow()))

    @property
    def failures(self) -> int:
        """How often a discovery has failed."""
        return sum(source.failures for source in self._sources)

    def shown(self) -> Iterable[ScrapeLoop]:
        """The loops of the job: those of its predecessor until its own targets have been discovered."""
        return self._predecessor.shown() if self._predecessor is not None else self.loops.values()

    async def _follow(self) -> None:
        """Follow the discoveries, until this is cancelled."""
        tried = [asyncio.create_task(source.tried.wait()) for source in self._sources]
        if tried:
            await asyncio.wait(tried, timeout=DISCOVERED_WITHIN_S)
            for task in tried:
                task.cancel()
        while True:
            self._changed.clear()
            # Relabelling thousands of targets takes some 20 µs each.
            groups = ordered(self.job.groups, self._sources)
            self.discovered = await self._scraper.store.work(lambda: targets_of(self.job, groups, TARGETS_MAX))  # noqa: B023
            self._say_problems()
            await self._sync(self.job.limits.targets)
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)

    def _say_problems(self) -> None:
        problems = self.discovered.problems
        if problems:
            event(logging.WARNING, "targets are not valid", job=self.job.name, count=len(problems), first=problems[0])
        if self.discovered.left_out:
            event(
                logging.ERROR,
                "targets are left out",
                job=self.job.name,
                count=self.discovered.left_out,
                limit=TARGETS_MAX,
            )

    async def _sync(self, limit: int) -> None:
        """Scrape the discovered targets, and no others."""
        targets = {target.key: target for target in self.discovered.targets}
        gone = [self._drop(key) for key in list(self.loops) if key not in targets]
        before = self._predecessor
        self._predecessor = None
        inherited = dict(await before.hand_over()) if before is not None else {}
        room = ALL_TARGETS_MAX - self._scraper.targets
        for key, target in targets.items():
            running = self.loops.get(key)
            if running is not None:
                if running.target.times_ms == target.times_ms:
                    continue
                inherited[key] = self._drop(key)
                room += 1
            if room <= 0:
                event(logging.ERROR, "all jobs have too many targets", job=self.job.name, limit=ALL_TARGETS_MAX)
                break
            room -= 1
            loop = self._scraper.loop(self.job, target, self._client)
            if key in inherited:
                loop.inherit(inherited.pop(key).live())
            self.loops[key] = loop
            self._tasks[key] = asyncio.create_task(loop.run())
        count = len(self.discovered.targets)
        for loop in self.loops.values():
            loop.forced_error = f"the job has {count} targets; target_limit is {limit}" if count > limit else ""
            loop.keeps_connection = count <= KEPT_CONNECTIONS_MAX
        self._scraper.end([*gone, *inherited.values()])

    def _drop(self, key: Key) -> ScrapeLoop:
        self._tasks.pop(key).cancel()
        return self.loops.pop(key)

    async def hand_over(self) -> Mapping[Key, ScrapeLoop]:
        """Stop, and return the loops, whose series the next job continues or ends."""
        before = self._predecessor
        self._predecessor = None
        inherited = dict(await before.hand_over()) if before is not None else {}
        tasks = [*self._work, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()
        loops, self.loops, self._tasks = self.loops, {}, {}
        return {**inherited, **loops}


class Scraper:
    """Applies the section `scrape_configs`. For the event loop's thread only, apart from `prepare`."""

    def __init__(self, store: ScrapeStore, settings: Settings) -> None:
        self.store = store
        self.fetches = Fetches()
        self.pools: dict[str, Pool] = {}
        self.counts = Counts()
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def targets(self) -> int:
        """How many targets are scraped."""
        return sum(len(pool.loops) for pool in self.pools.values())

    def prepare(self, configuration: Configuration) -> Sequence[Job]:
        """The jobs of a configuration. Raises ConfigError."""
        return jobs.read(configuration)

    def use(self, prepared: Sequence[Job]) -> None:
        """Use these jobs from now on. A job that has not changed continues."""
        before, self.pools = self.pools, {}
        for job in prepared:
            same_name = before.pop(job.name, None)
            is_same = same_name is not None and same_name.job.source == job.source
            self.pools[job.name] = same_name if same_name is not None and is_same else Pool(job, self, same_name)
        for pool in before.values():
            self._begin(self._end_pool(pool), self._tasks)

    def loop(self, job: Job, target: Target, client: Client) -> ScrapeLoop:
        return ScrapeLoop(job, target, client, self.fetches, self.store, self._settings, self.counts)

    async def _end_pool(self, pool: Pool) -> None:
        self.end(list((await pool.hand_over()).values()))

    def end(self, loops: Sequence[ScrapeLoop]) -> None:
        """Begin to end the series of targets that have disappeared. A target that returns meanwhile has later
        samples."""
        if loops:
            self._begin(self._end(loops, int(time.time() * 1000)), self._endings)

    async def _end(self, loops: Sequence[ScrapeLoop], time_ms: int) -> None:
        give_up_s = time.monotonic() + ENDING_S_MAX
        unended, why = list(loops), ""

        async def end_some(waiting: Iterator[ScrapeLoop]) -> None:
            nonlocal why
            for loop in waiting:
                try:
                    if time.monotonic() < give_up_s:
                        await loop.end(time_ms)
                        unended.remove(loop)
                except Exception as error:
                    # A defect of the program that one target meets must not keep the others from being ended.
                    why = str(error) or type(error).__name__

        while True:
            waiting = iter(tuple(unended))
            await asyncio.gather(*(end_some(waiting) for _ in range(ENDS_AT_ONCE)))
            if not unended:
                return
            if time.monotonic() + ENDING_PAUSE_S >= give_up_s:
                break
            await asyncio.sleep(ENDING_PAUSE_S)
        event(logging.WARNING, "series of targets that are gone could not be ended", targets=len(unended), why=why)

    def _begin(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def stop(self) -> None:
        """Stop all loops. Series are not ended, because the targets may go on, and this service may be started
        again."""
        pools, self.pools = self.pools, {}
        await asyncio.gather(*(pool.hand_over() for pool in pools.values()), *self._tasks, return_exceptions=True)
        for task in self._endings:
            task.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        self.store.stop()

    def put(self, values: Values) -> None:
        """Add the metrics about this."""
        counts = self.counts
        by_health = dict.fromkeys(("up", "down", "unknown"), 0)
        for pool in self.pools.values():
            for loop in pool.shown():
                by_health[loop.health] += 1
        for health, count in by_health.items():
            values.put("triptych_scrape_targets", count, health)
        for outcome, count in (("ok", counts.ok), ("failed", counts.failed), ("skipped", counts.skipped)):
            values.put("triptych_scrapes_total", count, outcome)
        values.put("triptych_scrape_series", counts.series)
        values.put("triptych_scrape_samples_total", counts.samples)
        values.put("triptych_scrape_refused_total", counts.refused)
        values.put("triptych_scrape_seconds_total", counts.seconds)
        values.put("triptych_scrape_discovery_failures_total", sum(pool.failures for pool in self.pools.values()))

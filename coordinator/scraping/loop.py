"""The scrapes of one target, one after another: what is fetched and stored, and the health of the target.

https:

prometheus.io/docs/concepts/jobs_instances/ describes `up` and the other series about a scrape, and
…/prometheus/latest/querying/basics/#staleness the markers that end series.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coordinator.scraping import exposition, written
from coordinator.scraping.fetching import Client, Fetches, FetchFailed, ScrapeResponse, inflated
from coordinator.scraping.jobs import Job
from coordinator.scraping.labelling import Labelling, Unusable
from coordinator.scraping.series_text import Family
from coordinator.scraping.storing import ScrapeStore
from coordinator.scraping.target_series import Ints, Samples, TargetSeries
from coordinator.scraping.targets import Target
from coordinator.series.metadata import TEXT_BYTES_MAX
from coordinator.series.own_samples import STALE
from coordinator.series.split_request import SplitRequest
from coordinator.watching.catalogue import SCRAPE_SERIES
from shared import labels
from shared.errors import TriptychError
from shared.labels import METRIC_NAME
from shared.messages.series import FamilyMetadata
from shared.settings import Settings
from shared.telemetry import event

EXTRA_SERIES = ("scrape_timeout_seconds", "scrape_sample_limit", "scrape_body_size_bytes")
TOLERANCE_MS = 10
"""A scrape that begins at most this late gets the time at which it should have begun, because regular times take less
space."""
METADATA_INTERVAL_S = 3600.0
"""Types and help texts are stored when they change, and again after this time."""
FAMILIES_MAX = 10_000
"""The limit on the families of one target whose metadata is stored."""
ALL_SERIES_MAX = 2_000_000
"""The limit on the remembered series of all targets, at some 550 bytes each. Beyond it, further targets are not
scraped."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A scrape that is ready to be stored. `now`: numbers of the series that it has without a time of their own.
    `families`: None if they are those of the last scrape, or if this scrape has failed."""

    body: bytes
    split_request: SplitRequest
    now: Ints
    kept: int
    families: Mapping[str, Family] | None = None


@dataclass(slots=True)
class Counts:
    """Of all targets."""

    ok: int = 0
    failed: int = 0
    skipped: int = 0
    """Because of overload."""
    samples: int = 0
    refused: int = 0
    """Samples that were not stored."""
    seconds: float = 0.0
    """Processor time of parsing."""
    series: int = 0
    """Series that are remembered now."""


class ScrapeLoop:
    """For the event loop's thread only, apart from `_prepare`."""

    def __init__(
        self,
        job: Job,
        target: Target,
        client: Client,
        fetches: Fetches,
        store: ScrapeStore,
        settings: Settings,
        counts: Counts,
    ) -> None:
        self.job = job
        self.target = target
        self.forced_error = ""
        """Why the targets of the job are not scraped at all."""
        self.keeps_connection = True
        self.health = "unknown"
        self.last_error = ""
        self.last_scrape: float | None = None
        """The Unix time at which the last scrape began, None before the first."""
        self.last_duration_s = 0.0
        self.families: Mapping[str, Family] = {}
        self._client = client
        self._fetches = fetches
        self._store = store
        self._counts = counts
        self._labelling = _labelling(job, target, settings)
        self._series = TargetSeries(self._labelling)
        names = SCRAPE_SERIES + (EXTRA_SERIES if job.has_extra_metrics else ())
        self._report = [labels.encode(tuple({**target.labels, METRIC_NAME: name}.items())) for name in names]
        self._metadata_due = 0.0
        self._remembered = 0
        timeout_s = target.timeout_ms / 1000
        self._headers = {
            "Accept": job.accept,
            "Accept-Encoding": "gzip" if job.is_compressed else "identity",
            "X-Prometheus-Scrape-Timeout-Seconds": f"{timeout_s:g}",
        }

    # The series that a successor has to end

    def live(self) -> list[bytes]:
        """Canonical labels of the series that were stored last without a staleness marker."""
        return self._series.live_labels()

    def inherit(self, live: list[bytes]) -> None:
        """The series of the loop before this one, until the first scrape."""
        self._series.live = np.array([self._series.number(label_bytes) for label_bytes in live], np.int64)

    # Scrapes

    async def run(self) -> None:
        """Scrape at intervals, until this is cancelled."""
        try:
            await self._run()
        finally:
            self._count_series(0)

    async def _run(self) -> None:
        interval_ms, offset_ms = self.target.interval_ms, self.target.offset_ms()
        due_ms = 0
        while True:
            now_ms = int(time.time() * 1000)
            # A turn that was missed is left out; where the clock was set back, the turns begin anew.
            after_ms = max(now_ms, due_ms) if due_ms < now_ms + interval_ms else now_ms
            due_ms = (after_ms - offset_ms) // interval_ms * interval_ms + offset_ms + interval_ms
            await asyncio.sleep((due_ms - now_ms) / 1000)
            began_ms = int(time.time() * 1000)
            is_in_time = abs(began_ms - due_ms) <= min(TOLERANCE_MS, interval_ms // 100)
            try:
                await self.scrape(due_ms if is_in_time else began_ms)
            except Exception:
                # One answer that meets a defect of the program must not end the scrapes of its target.
                self.health, self.last_error = "down", "the scrape has failed within the service; its log says how"
                event(logging.ERROR, "a scrape has failed", job=self.job.name, url=self.target.url, trace=True)

    async def scrape(self, time_ms: int) -> None:
        """Make one scrape with this time. A failure of the target or of the store is shown and counted."""
        if self._store.refuses:
            self._counts.skipped += 1
            self.last_error = "the service is overloaded and stores no samples"
            return
        began = time.perf_counter()
        self.last_scrape = time_ms / 1000
        try:
            answer = await self._fetch()
            try:
                prepared = await self._store.work(partial(self._prepare, answer, time_ms, began))
            finally:
                self._fetches.release(answer.held)
            self.health, self.last_error = "up", ""
        except (FetchFailed, TriptychError) as error:
            self.health, self.last_error = "down", str(error)
            prepared = await self._store.work(partial(self._prepare_failed, time_ms, began, error))
        self.last_duration_s = time.perf_counter() - began
        self._count_series(len(self._series.labels))
        await self._write(prepared)
        if self.health == "up":
            self._counts.ok += 1
        else:
            self._counts.failed += 1

    def _count_series(self, count: int) -> None:
        self._counts.series += count - self._remembered
        self._remembered = count

    async def _fetch(self) -> ScrapeResponse:
        if self.forced_error:
            raise FetchFailed(self.forced_error)
        if self._counts.series >= ALL_SERIES_MAX and not self._remembered:
            raise FetchFailed(
                f"the targets before it have {self._counts.series} series; the limit of all is {ALL_SERIES_MAX}"
            )
        target, bytes_max = self.target, self.job.limits.body_bytes
        timeout_s = target.timeout_ms / 1000
        return await self._fetches.get(
            self._client, target.url, self._headers, timeout_s, bytes_max, keeps=self.keeps_connection
        )

    async def _write(self, prepared: _Prepared) -> None:
        series = self._series
        # Some of it may be stored, also if that fails, or is cut off because the target is gone. Then the next scrape,
        # or the end of the target, ends it.
        if not np.array_equal(series.live, prepared.now):
            series.live = np.union1d(series.live, prepared.now)
        try:
            await self._store.store(prepared.body, prepared.split_request)
            series.live = prepared.now
            self._counts.samples += prepared.kept
            if self.health == "up":
                series.accept()
            if prepared.families is not None and prepared.families != self.families:
                self.families, self._metadata_due = prepared.families, 0.0
            if self.families and time.monotonic() >= self._metadata_due:
                await self._store.keep(_metadata(self.families))
                self._metadata_due = time.monotonic() + METADATA_INTERVAL_S
        except TriptychError as error:
            self.health, self.last_error = "down", f"what was scraped could not be stored: {error}"
            self._counts.refused += prepared.kept
        self._counts.refused += prepared.split_request.refused_count

    async def end(self, time_ms: int) -> None:
        """End all series of the target. Raises TriptychError when that cannot be stored."""
        ends = await self._store.work(partial(self._ends, time_ms))
        if ends is not None:
            await self._store.store(*ends)

    # In a thread

    def _ends(self, time_ms: int) -> tuple[bytes, SplitRequest] | None:
        """The markers that end all series of the target; None if it has none."""
        ended = [*self.live(), *(self._report if self.last_scrape is not None else ())]
        if not ended:
            return None
        body = _samples(ended, np.full(len(ended), STALE), time_ms)
        return body, self._store.split(body)

    def _prepare(self, answer: ScrapeResponse, time_ms: int, began: float) -> _Prepared:
        """Raises BadData, FetchFailed and TooLarge for an answer that cannot be used."""
        started_s = time.thread_time()
        job, series = self.job, self._series
        body = inflated(answer, job.limits.body_bytes)
        samples = exposition.read(
            series,
            body,
            answer.content_type,
            job.fallback,
            time_ms,
            with_histograms=job.with_native_histograms,
            keeps_classic=job.keeps_classic_histograms,
            honors_times=job.honor_timestamps,
        )
        kept = len(samples.numbers) + len(samples.histograms)
        if job.limits.samples and kept > job.limits.samples:
            raise Unusable(
                f"it has {kept} samples after relabelling; sample_limit is {job.limits.samples}",
                samples.total,
                kept,
                _numbers(samples.numbers, samples.histograms)[: job.limits.samples],
            )
        now = _numbers_without_time(samples, job)
        added = len(np.setdiff1d(now, series.live))
        total = samples.total
        report = [1.0, time.perf_counter() - began, total, kept, added, *self._extra(len(body))]
        parts = [self._of_samples(samples, time_ms)]
        parts += [written.exemplar(series.labels[number], found) for number, found in samples.exemplars]
        parts += [written.histogram(series.labels[number], message) for number, _, message in samples.histograms]
        prepared = replace(self._ready(parts, now, report, time_ms, kept), families=samples.families)
        self._counts.seconds += time.thread_time() - started_s
        return prepared

    def _prepare_failed(self, time_ms: int, began: float, error: Exception) -> _Prepared:
        """The failed scrape. As in Prometheus, it reports the samples that were read before the failure, though none of
        them is stored."""
        read = (0, 0, 0)
        if isinstance(error, Unusable):
            read = error.total, error.kept, self._series.unknown(error.numbers)
        report = [0.0, time.perf_counter() - began, *read, *self._extra(0)]
        return self._ready([], np.empty(0, np.int64), report, time_ms, 0)

    def _extra(self, body_bytes: int) -> list[float]:
        if not self.job.has_extra_metrics:
            return []
        return [self.target.timeout_ms / 1000, self.job.limits.samples, body_bytes]

    def _of_samples(self, samples: Samples, time_ms: int) -> bytes:
        times_ms = samples.times_ms
        if not self.job.honor_timestamps:
            times_ms = np.full(len(times_ms), time_ms)
        rows = _first_of_each(samples.numbers, times_ms, len(self._series.labels))
        starts_ms = np.zeros(len(times_ms), np.int64) if samples.starts_ms is None else samples.starts_ms
        label_bytes = [self._series.labels[number] for number in samples.numbers[rows].tolist()]
        return written.samples(label_bytes, samples.values[rows], times_ms[rows], starts_ms[rows])

    def _ready(self, parts: list[bytes], now: Ints, report: list[float], time_ms: int, kept: int) -> _Prepared:
        """Add the ends of the series that have disappeared, and the series about the scrape."""
        ended = np.setdiff1d(self._series.live, now)
        own = [self._series.labels[number] for number in ended.tolist()] + self._report
        values = np.concatenate([np.full(len(ended), STALE), np.array(report)])
        body = b"".join([*parts, _samples(own, values, time_ms)])
        return _Prepared(body, self._store.split(body), now, kept)


def _labelling(job: Job, target: Target, settings: Settings) -> Labelling:
    """The lower of the limits of the job and of the service."""
    limits = job.limits
    return Labelling(
        target.labels,
        job.honor_labels,
        job.metric_relabel,
        min(limits.labels or settings.labels_per_series_max, settings.labels_per_series_max),
        min(limits.name_bytes or settings.label_name_bytes_max, settings.label_name_bytes_max),
        min(limits.value_bytes or settings.label_value_bytes_max, settings.label_value_bytes_max),
        job.only_plain_names,
    )


def _numbers_without_time(samples: Samples, job: Job) -> Ints:
    """The series that are ended when they disappear. Those with the target's own times are not: the target itself says
    how old a sample is."""
    numbers, histograms = samples.numbers, samples.histograms
    if job.honor_timestamps and not job.tracks_timestamped:
        numbers = numbers[~samples.is_timed]
        histograms = [histogram for histogram in histograms if not histogram[1]]
    return np.unique(_numbers(numbers, histograms))


def _numbers(numbers: Ints, histograms: Sequence[tuple[int, bool, bytes]]) -> Ints:
    """The numbers of the series with samples, and of those with native histograms."""
    return np.concatenate([numbers, np.array([number for number, *_ in histograms], np.int64)])


def _first_of_each(numbers: Ints, times_ms: Ints, series: int) -> Ints | slice:
    """The rows without those that repeat the series and the time of an earlier row."""
    if not len(numbers) or np.bincount(numbers, minlength=series).max() == 1:
        return slice(None)
    _, first = np.unique(np.stack((numbers, times_ms), axis=1), axis=0, return_index=True)
    return np.sort(first)


def _samples(label_bytes: list[bytes], values: np.ndarray, time_ms: int) -> bytes:
    times_ms = np.full(len(label_bytes), time_ms, np.int64)
    return written.samples(label_bytes, values, times_ms, np.zeros(len(label_bytes), np.int64))


def _metadata(families: Mapping[str, Family]) -> list[FamilyMetadata]:
    entries = []
    for name, family in families.items():
        full = name if name.endswith(family.suffix) else name + family.suffix
        if 0 < len(full.encode()) <= TEXT_BYTES_MAX["name"]:
            texts = [_cut(text, TEXT_BYTES_MAX[what]) for what, text in (("help", family.help), ("unit", family.unit))]
            entries.append(FamilyMetadata(full, family.type, *texts))
    return entries[:FAMILIES_MAX]


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")

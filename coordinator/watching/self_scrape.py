"""The service stores its own metrics in itself, as a Prometheus that scrapes it would.

The samples take the path of remote write from the decompressed body on. They never wait: if the last write has not
ended, they are dropped and counted. Samples for missing shards are dropped, and while writes are refused because of
overload, all but a few. So a cluster that is overloaded or lacks shards still reports its state. Dropped samples are
not sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from coordinator.fanout.links import Links
from coordinator.limits.pressure import Level, Pressure
from coordinator.series import metadata, remote_write
from coordinator.series.groups import SampleWrites
from coordinator.series.own_samples import STALE, body, sample
from coordinator.series.remote_write import Limits
from coordinator.series.split_request import SplitRequest
from coordinator.watching.catalogue import METRICS, SCRAPE_SERIES
from coordinator.watching.telemetry import buckets_of
from coordinator.watching.watch import Watch
from shared import labels
from shared.errors import TriptychError
from shared.hashing import shard_of
from shared.labels import METRIC_NAME
from shared.measurements import Values
from shared.messages.series import FamilyMetadata
from shared.settings import Settings
from shared.telemetry import event

JOB = "triptych"
FIRST_AFTER_S = 1.0
SERIES_MAX = 100_000
"""Series that are remembered as gone until their end is stored. Some 300 for each worker are usual."""
VITAL = frozenset(
    (
        "triptych_overload_level",
        "triptych_overload_refused_total",
        "triptych_queue_wait_seconds",
        "triptych_memory_available_bytes",
        "triptych_memory_reserve_bytes",
        "triptych_disk_free_bytes",
        "triptych_disk_size_bytes",
        "triptych_shard_ready",
        "triptych_cluster_shards",
        "triptych_workers",
        "triptych_workers_expected",
        "triptych_self_scrape_dropped_total",
    )
)
"""Metrics that are stored even while writes are refused: some ten samples and two for each shard."""
METADATA_INTERVAL_S = 3600.0
"""Types and help texts are stored at the start, and again after this time."""
FAILED_LOG_INTERVAL_S = 300.0

Key = tuple[str, ...]
"""The name of a series and the values of its labels, in the order of the catalogue; the bound of a bucket comes
last."""


@dataclass(slots=True)
class _Prepared:
    """One scrape, ready to be sent. `left_out`: samples that are dropped, by reason. `ended`: series that it ends."""

    split_request: SplitRequest
    left_out: Counter[str]
    ended: list[Key]


class SelfScrape:
    """Stores the metrics every `self_scrape_ms`. For the event loop's thread only."""

    def __init__(
        self, settings: Settings, watch: Watch, links: Links, samples: SampleWrites, pressure: Pressure, instance: str
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._links = links
        self._samples = samples
        self._pressure = pressure
        self.instance = instance
        self._target = (("instance", instance), ("job", JOB))
        self._known: dict[Key, tuple[bytes, int]] = {}  # series of the last scrape → canonical labels, shard
        self._vanished: dict[Key, tuple[bytes, int]] = {}  # series whose end is not stored yet
        self._metadata_due = 0.0
        self._failed_logged_at = -FAILED_LOG_INTERVAL_S
        self._write: asyncio.Task[None] | None = None
        self.health = "unknown"
        """The health, as of a target: up when the last scrape was stored, down when it was not."""
        self.last_error = ""
        self.last_scrape: float | None = None
        """Unix time of the last one, None before the first."""
        self.last_duration_s = 0.0
        self.scrapes = self.stored = 0
        self.seconds = 0.0
        self.dropped: Counter[str] = Counter()
        """Samples that were dropped, by reason."""
        watch.telemetry.watch(self.put)

    def put(self, values: Values) -> None:
        """Add the metrics about this."""
        values.put("triptych_self_scrapes_total", self.scrapes)
        values.put("triptych_self_scrape_samples_total", self.stored)
        values.put("triptych_self_scrape_seconds_total", self.seconds)
        for reason in ("overload", "shard", "late", "refused"):
            values.put("triptych_self_scrape_dropped_total", self.dropped[reason], reason)

    async def run(self) -> None:
        """Store the metrics at intervals, until this is cancelled; returns at once if the setting says 0."""
        interval_s = self._settings.self_scrape_ms / 1000
        if not interval_s:
            return
        due = time.monotonic() + min(FIRST_AFTER_S, interval_s)
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - interval_s) + interval_s  # those that were missed are left out
            try:
                await self.scrape()
            except Exception:
                # The metrics must not end with the first that cannot be gathered.
                event(logging.ERROR, "the service's own metrics could not be gathered", trace=True)

    async def scrape(self) -> None:
        """Gather the metrics and begin to store them, unless they have to be dropped."""
        time_ms = int(time.time() * 1000)
        started_s = time.perf_counter()
        await self._watch.refresh()
        gathering_s = time.perf_counter()
        values = self._watch.telemetry.values()
        self.scrapes += 1
        self.last_scrape = time_ms / 1000
        self.seconds += time.perf_counter() - gathering_s
        samples = sum(map(len, values.by_name.values()))
        if self._write is not None and not self._write.done():
            self.dropped["late"] += samples
            self.health, self.last_error = "down", "the last write has not ended"
        else:
            missing = self._links.unready()
            # In a thread, since it takes some 5 µs for each series.
            is_overloaded = self._pressure.level >= Level.WRITES
            prepared = await asyncio.to_thread(
                self._prepare, values, missing.keys(), time_ms, started_s, is_overloaded=is_overloaded
            )
            self.last_duration_s = time.perf_counter() - started_s
            self._write = asyncio.create_task(self._send(prepared, is_whole=not missing))

    def _prepare(
        self, values: Values, missing: Collection[int], time_ms: int, started_s: float, *, is_overloaded: bool
    ) -> _Prepared:
        began_s = time.thread_time()
        series = dict(_series_of(values))
        identities = {key: self._known.get(key) or self._identity(key) for key in series}
        gone = {key: identity for key, identity in self._known.items() if key not in identities}
        for key in identities:
            self._vanished.pop(key, None)
        for key, identity in gone.items():
            if len(self._vanished) < SERIES_MAX:
                self._vanished[key] = identity
        added = len(identities.keys() - self._known.keys())
        numbers = (1.0, time.perf_counter() - started_s, len(series), len(series), added)
        self._known = identities
        ended = [key for key, (_, shard) in self._vanished.items() if shard not in missing]
        end = sample(STALE, time_ms)
        messages = [self._vanished[key][0] + end for key in ended]
        left_out: Counter[str] = Counter()
        for key, value in series.items():
            label_bytes, shard = identities[key]
            if shard in missing:
                left_out["shard"] += 1
            elif is_overloaded and key[0] not in VITAL:
                left_out["overload"] += 1
            else:
                messages.append(label_bytes + sample(value, time_ms))
        for name, number in zip(SCRAPE_SERIES, numbers, strict=True):
            label_bytes, shard = self._identity((name,))
            if shard not in missing:
                messages.append(label_bytes + sample(float(number), time_ms))
        split_request = remote_write.split(body(messages), self._settings.shard_count(), Limits.of(self._settings))
        self.seconds += time.thread_time() - began_s
        return _Prepared(split_request, left_out, ended)

    def _identity(self, key: Key) -> tuple[bytes, int]:
        """(canonical labels, shard) of a series."""
        label_bytes = labels.encode(
            ((METRIC_NAME, key[0]), *zip(_label_names(key[0]), key[1:], strict=True), *self._target)
        )
        return label_bytes, shard_of(label_bytes, self._settings.shard_count())

    async def _send(self, prepared: _Prepared, *, is_whole: bool) -> None:
        split_request = prepared.split_request
        self.dropped.update(prepared.left_out)
        self.dropped["refused"] += split_request.refused_count
        try:
            if split_request.parts:
                await self._samples.write(split_request.parts)
            self.stored += split_request.samples
            self.health = "up"
            self.last_error = "" if is_whole else "shards are missing; their part is not stored"
            for key in prepared.ended:
                self._vanished.pop(key, None)
            if is_whole and time.monotonic() >= self._metadata_due:
                await metadata.keep(self._links, _METADATA, self._settings.write_timeout_ms / 1000)
                self._metadata_due = time.monotonic() + METADATA_INTERVAL_S
        except TriptychError as error:
            self.health, self.last_error = "down", str(error)
            self.dropped["refused"] += split_request.samples
            now = time.monotonic()
            if now - self._failed_logged_at >= FAILED_LOG_INTERVAL_S:
                self._failed_logged_at = now
                event(logging.WARNING, "the service's own metrics could not be stored", why=error)


def _series_of(values: Values) -> Iterator[tuple[Key, float]]:
    """Each series with its value; a histogram has its buckets, count and sum."""
    for name, all_series in values.by_name.items():
        metric = METRICS[name]
        bucket, count, total = metric.series_names() if metric.type == "histogram" else (name, "", "")
        for series_labels, value in all_series:
            if not isinstance(value, list):
                yield (name, *series_labels), value
                continue
            buckets, sum_ = buckets_of(metric, value)
            for bound, up_to in buckets:
                yield (bucket, *series_labels, bound), up_to
            yield (count, *series_labels), buckets[-1][1]
            yield (total, *series_labels), sum_


def _names_of_labels() -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for metric in METRICS.values():
        names.update(dict.fromkeys(metric.series_names(), metric.labels))
        if metric.type == "histogram":
            names[metric.series_names()[0]] = (*metric.labels, "le")
    return names | dict.fromkeys(SCRAPE_SERIES, ())


_LABEL_NAMES = _names_of_labels()
_METADATA = [FamilyMetadata(metric.name, metric.type, metric.help, "") for metric in METRICS.values()]


def _label_names(name: str) -> tuple[str, ...]:
    return _LABEL_NAMES[name]

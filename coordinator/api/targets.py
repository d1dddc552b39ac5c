"""Targets in Prometheus's formats: those of the scrape jobs, and this service itself as the job `triptych`.

Parameters and shapes: https:

prometheus.io/docs/prometheus/latest/querying/api/#targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web
from multidict import MultiDict

from coordinator.api import parameters
from coordinator.api.selectors import selectors
from coordinator.context import CONTEXT, Context
from coordinator.http.responses import made_in_thread, success
from coordinator.rfc_3339 import NEVER, time_text
from coordinator.scraping.loop import ScrapeLoop
from coordinator.scraping.scraper import Pool
from coordinator.watching import self_scrape
from shared.durations import format_duration
from shared.errors import BadData
from shared.promql.ast import Matcher
from shared.promql.label_tests import label_test

STATES = ("active", "dropped", "any")
METADATA_MAX = 100_000
"""Entries of an answer, at some microseconds each."""

Item = dict[str, Any]


async def targets(request: web.Request) -> web.Response:
    """Raises BadData for an unknown state."""
    context = request.app[CONTEXT]
    fields = await parameters.form(request)
    state = fields.get("state", "").lower() or "any"
    if state not in STATES:
        raise BadData(f"parameter 'state' is {fields['state'][:100]!r}; it must be one of {', '.join(STATES)}")
    name = fields.get("scrapePool", "")
    pools = [pool for pool in context.scraper.pools.values() if name in ("", pool.job.name)]
    own_targets = _own_target(context) if name in ("", self_scrape.JOB) and state != "dropped" else []
    loops = [] if state == "dropped" else [loop for pool in pools for loop in pool.shown()]
    dropped = [] if state == "active" else pools
    counts = {pool.job.name: pool.discovered.dropped_count for pool in pools}
    answer = partial(_targets, own_targets, loops, dropped, counts)
    if len(loops) + sum(len(pool.discovered.dropped) for pool in dropped) < 100:
        return answer()
    return await made_in_thread(request, answer)


def _targets(
    own_targets: list[Item], loops: Sequence[ScrapeLoop], pools: Sequence[Pool], counts: Mapping[str, int]
) -> web.Response:
    dropped = [
        {"discoveredLabels": dict(labels), "scrapePool": pool.job.name}
        for pool in pools
        for labels in pool.discovered.dropped
    ]
    active = [*map(_active, loops), *own_targets]
    return success({"activeTargets": active, "droppedTargets": dropped, "droppedTargetCounts": counts})


def _active(loop: ScrapeLoop) -> Item:
    target = loop.target
    return {
        "discoveredLabels": dict(target.discovered),
        "labels": dict(target.labels),
        "scrapePool": loop.job.name,
        "scrapeUrl": target.url,
        "globalUrl": target.url,
        "lastError": loop.last_error,
        "lastScrape": _shown_time(loop.last_scrape),
        "lastScrapeDuration": loop.last_duration_s,
        "health": loop.health,
        "scrapeInterval": format_duration(target.interval_ms),
        "scrapeTimeout": format_duration(target.timeout_ms),
    }


def _own_target(context: Context) -> list[Item]:
    """The target for the service's scrape metrics, which are stored without a request over HTTP."""
    scrape = context.self_scrape
    if scrape is None or not context.settings.self_scrape_ms:
        return []
    interval = format_duration(context.settings.self_scrape_ms)
    labels = {"instance": scrape.instance, "job": self_scrape.JOB}
    scheme = "https" if context.access.tls else "http"
    url = f"{scheme}://{scrape.instance}/metrics"
    item = {
        "discoveredLabels": {
            "__address__": scrape.instance,
            "__metrics_path__": "/metrics",
            "__scheme__": scheme,
            **labels,
        },
        "labels": labels,
        "scrapePool": self_scrape.JOB,
        "scrapeUrl": url,
        "globalUrl": url,
        "lastError": scrape.last_error,
        "lastScrape": _shown_time(scrape.last_scrape),
        "lastScrapeDuration": scrape.last_duration_s,
        "health": scrape.health,
        "scrapeInterval": interval,
        "scrapeTimeout": interval,
    }
    return [item]


def _shown_time(unix_s: float | None) -> str:
    return NEVER if unix_s is None else time_text(unix_s)


async def scrape_pools(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    own_jobs = [self_scrape.JOB] if context.self_scrape is not None and context.settings.self_scrape_ms else []
    return success({"scrapePools": sorted({*context.scraper.pools, *own_jobs})})


async def target_metadata(request: web.Request) -> web.Response:
    """The metadata of metrics by target. Raises BadData for a malformed selector."""
    fields = await parameters.form(request)
    limit = parameters.optional(fields, "limit", parameters.limit, 0)
    selector, metric = fields.get("match_target", ""), fields.get("metric", "")
    matchers: Sequence[Matcher] = ()
    if selector:
        (matchers,) = await selectors(MultiDict({"match[]": selector}), shown_as="match_target")
    loops = [loop for pool in request.app[CONTEXT].scraper.pools.values() for loop in pool.shown()]
    return await made_in_thread(request, partial(_metadata, loops, matchers, metric, limit))


def _metadata(loops: Sequence[ScrapeLoop], matchers: Sequence[Matcher], metric: str, limit: int) -> web.Response:
    most = min(limit or METADATA_MAX, METADATA_MAX)
    is_chosen = label_test(matchers)
    entries: list[Item] = []
    for loop in loops:
        if not is_chosen(loop.target.labels):
            continue
        for name, family in loop.families.items():
            if metric in ("", name, name + family.suffix):
                if len(entries) == most:
                    warnings = (
                        None if limit == most else [f"there are more than {most} entries; give a limit or a metric"]
                    )
                    return success(entries, warnings)
                entries.append(
                    {
                        "target": dict(loop.target.labels),
                        **({} if metric else {"metric": name}),
                        "type": family.type,
                        "help": family.help,
                        "unit": family.unit,
                    }
                )
    return success(entries)


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/targets", targets),
    web.get("/api/v1/scrape_pools", scrape_pools),
    web.get("/api/v1/targets/metadata", target_metadata),
]

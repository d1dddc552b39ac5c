"""GET /federate: the newest samples of the series that selectors choose, as a scraper reads them.

Parameters: https://prometheus.io/docs/prometheus/latest/federation/; `lookback_delta`, `timeout` and `partial_response`
are those of a query.
"""

from __future__ import annotations

import time
from functools import partial

from aiohttp import hdrs, web
from multidict import MultiDict

from coordinator.api import gated, parameters
from coordinator.api.listed import listed
from coordinator.api.selectors import required_selectors
from coordinator.context import CONTEXT
from coordinator.headers.exposition_format import format_for
from coordinator.headers.negotiation import accepts_gzip, boolean
from coordinator.http.streaming import Body
from coordinator.queries.evaluation import Query, Replies, ask, learn, made, require_fitting
from coordinator.queries.exposition import exposition
from coordinator.queries.federation import each_once, federation_plan
from coordinator.queries.gate import Place
from coordinator.queries.gathered import gather
from coordinator.queries.running import RunningQuery
from shared.messages.series import Selectors
from shared.process.array_memory import Account
from shared.promql.model import Grid
from shared.settings import Settings


async def federate(request: web.Request) -> web.StreamResponse:
    """A scraper takes a missing series for one that has ended. So by default, an answer that would lack shards is 503.
    Raises BadData, NotExecutable, Unavailable."""
    fields = await parameters.form(request)
    selectors = await required_selectors(fields)
    query = _read_query(fields, request.app[CONTEXT].settings)
    return await listed(request, "federate", query.text, partial(_served, request, selectors, query))


def _read_query(fields: MultiDict[str], settings: Settings) -> Query:
    now_ms = int(time.time() * 1000)
    timeout_ms, lookback_ms = (
        parameters.optional(fields, name, parameters.positive_duration_ms, default)
        for name, default in (("timeout", settings.query_timeout_ms), ("lookback_delta", settings.lookback_ms))
    )
    return Query(
        " ".join(fields.getall("match[]")),
        Grid(now_ms, now_ms),
        is_range=False,
        limit=0,
        lookback_ms=lookback_ms,
        samples_max=settings.query_samples_max,
        timeout_ms=min(timeout_ms, settings.query_timeout_ms),
        partial_response=boolean(fields, "partial_response", False),
        bytes_max=settings.query_bytes_max,
    )


async def _served(
    request: web.Request, selectors: Selectors, query: Query, running: RunningQuery
) -> web.StreamResponse:
    """As for a query: a thread merges the samples and writes the first piece; the rest is written while it is sent."""
    context = request.app[CONTEXT]
    shown = format_for(",".join(request.headers.getall(hdrs.ACCEPT, ())))
    gzip = accepts_gzip(request)
    query_plan = federation_plan(query.text, selectors)
    require_fitting(query, query_plan, context.links.worker_count())
    estimate = context.costs.estimate(query_plan.demands)
    running.query, running.plan, running.estimate = query, query_plan, estimate
    types = await context.metric_types.types()

    async def attempt(place: Place) -> tuple[Body, Account | None]:
        replies: Replies = await ask(query, query_plan, context.links, place)

        def work() -> Body:
            gathered = gather(replies)
            running.shares, running.samples_read = gathered.shares, gathered.samples_read
            running.enter("rendering")
            learn(context.costs, query_plan, gathered.shares)
            value = each_once(gathered.parts)
            return Body(exposition(value, types, shown), gzip=gzip, content_type=shown.content_type)

        running.enter("merging")
        return await made(work, query, replies)

    return await gated.answer(request, query, estimate, running, hash(("federate", query.text)), attempt)


ROUTES: list[web.RouteDef] = [web.get("/federate", federate)]

"""POST /api/v1/read: the Prometheus remote-read protocol, as samples or as streamed chunks.

Protocol: https://prometheus.io/docs/prometheus/latest/querying/remote_read_api/. The URL may have `timeout` and
`partial_response`, which are those of a query: a Prometheus sends the URL of its configuration with each request.
"""

from __future__ import annotations

import time
from functools import partial

from aiohttp import web
from multidict import MultiDict

from coordinator.api import gated, parameters, selectors
from coordinator.api.listed import listed
from coordinator.context import CONTEXT
from coordinator.headers.negotiation import REMOTE_WRITE, boolean
from coordinator.http.bodies import hold, read_body
from coordinator.http.streaming import Body
from coordinator.queries.evaluation import Query, Replies, ask, learn, made, require_fitting
from coordinator.queries.gate import Place
from coordinator.queries.gathered import gather
from coordinator.queries.planner import Plan
from coordinator.queries.running import RunningQuery
from coordinator.remote_read import frames, samples
from coordinator.remote_read.plan import read_plan, results_of, text_of
from coordinator.remote_read.requests import ReadRequest, ResponseType, decode
from coordinator.series import decompression
from shared.process.array_memory import Account
from shared.promql.model import Grid

BODY_BYTES_MAX = 1 << 20
"""The limit on a decompressed request. Requests of Prometheus have some hundred bytes, or some thousand with long
regular expressions."""
INLINE_BYTES_MAX = 16 << 10
"""A larger request is decoded in a thread: the worst of this size takes 1 ms."""
STREAMED = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"


async def read(request: web.Request) -> web.StreamResponse:
    """The protocol has no place for warnings. A Prometheus would take missing series for ended ones, and alerts would
    fire or end. So an answer that would lack shards is 503, unless the URL has `partial_response=true`. Raises BadData,
    NotExecutable, Unavailable."""
    raw = await read_body(request, BODY_BYTES_MAX, encoding="snappy")
    size = decompression.decompressed_size(raw)
    hold(request, min(size, BODY_BYTES_MAX))  # larger bodies are refused before they are decompressed
    decoding = partial(_decoded, raw)
    context = request.app[CONTEXT]
    wanted = decoding() if size <= INLINE_BYTES_MAX else await context.decodings.run(size, decoding)
    matchers = await selectors.parsed([selection.text for selection in wanted.selections], "matchers")
    query_plan = read_plan(wanted.selections, matchers)
    query = _query(request, wanted)
    return await listed(request, "read", query.text, partial(_served, request, wanted, query_plan, query))


def _decoded(raw: bytes) -> ReadRequest:
    return decode(decompression.decompress(raw, BODY_BYTES_MAX))


def _query(request: web.Request, wanted: ReadRequest) -> Query:
    settings, fields = request.app[CONTEXT].settings, MultiDict(request.query)
    now_ms = int(time.time() * 1000)
    timeout_ms = parameters.optional(fields, "timeout", parameters.positive_duration_ms, settings.query_timeout_ms)
    return Query(
        text_of(wanted.selections),
        Grid(now_ms, now_ms),
        is_range=False,
        limit=0,
        lookback_ms=settings.lookback_ms,
        samples_max=settings.query_samples_max,
        timeout_ms=min(timeout_ms, settings.query_timeout_ms),
        partial_response=boolean(fields, "partial_response", False),
        bytes_max=settings.query_bytes_max,
    )


async def _served(
    request: web.Request, wanted: ReadRequest, query_plan: Plan, query: Query, running: RunningQuery
) -> web.StreamResponse:
    """As for a query: a thread merges the samples and writes the first piece; the rest is written while it is sent."""
    context = request.app[CONTEXT]
    require_fitting(query, query_plan, context.links.worker_count())
    estimate = context.costs.estimate(query_plan.demands)
    running.query, running.plan, running.estimate = query, query_plan, estimate

    async def attempt(place: Place) -> tuple[Body, Account | None]:
        replies: Replies = await ask(query, query_plan, context.links, place)

        def work() -> Body:
            gathered = gather(replies)
            running.shares, running.samples_read = gathered.shares, gathered.samples_read
            running.enter("rendering")
            learn(context.costs, query_plan, gathered.shares)
            results = results_of(wanted.selections, gathered.parts)
            if wanted.accepted[0] is ResponseType.STREAMED_XOR_CHUNKS:
                return Body(frames.chunks(results), gzip=False, content_type=STREAMED)
            return Body(samples.chunks(results), gzip=False, content_type=REMOTE_WRITE, encoding="snappy")

        running.enter("merging")
        return await made(work, query, replies)

    lengths_ms = tuple(selection.end_ms - selection.start_ms for selection in wanted.selections)
    return await gated.answer(request, query, estimate, running, hash(("read", query.text, lengths_ms)), attempt)


ROUTES: list[web.RouteDef] = [web.post("/api/v1/read", read)]

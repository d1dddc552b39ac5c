"""The query endpoints: `/api/v1/query`, `/query_range`, `/format_query`, `/parse_query`.

Parameters and answers are the interface's; `lookback_delta`, `limit` and `stats` are the Prometheus HTTP API's,
`explain` and `partial_response` our own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web
from multidict import MultiDict

from coordinator.api import arrow_answers, gated, parameters
from coordinator.api.listed import listed
from coordinator.api.lists import LIMIT_WARNING
from coordinator.context import CONTEXT, Context
from coordinator.headers.negotiation import ARROW, JSON, accepts_gzip, boolean
from coordinator.http import arrow_streams
from coordinator.http.protocol import connection_of
from coordinator.http.responses import success
from coordinator.http.streaming import Body
from coordinator.limits.admission import Holder
from coordinator.queries.answers import answered
from coordinator.queries.cost import Demand, Estimate
from coordinator.queries.evaluation import (
    Conclusion,
    Query,
    Replies,
    learn,
    learn_whereabouts,
    made,
    merge,
    planned,
    remark_texts,
    require_fitting,
)
from coordinator.queries.explain import explain, stats
from coordinator.queries.gate import Place
from coordinator.queries.joining import Joined
from coordinator.queries.results import Chunk, Result, as_range, envelope, ordered, truncated
from coordinator.queries.running import RunningQuery
from shared.errors import BadData, NotExecutable
from shared.process.array_memory import Account
from shared.promql import parser, printer
from shared.promql.ast import ValueType
from shared.promql.model import Grid, Matrix, RangeVector, Value
from shared.settings import Settings

STEPS_MAX = 11_000
"""Points of one series in an answer, as in Prometheus."""

_RANGE_TYPES = (ValueType.SCALAR, ValueType.VECTOR)
_TYPE_NAMES = {ValueType.MATRIX: "range vector", ValueType.STRING: "string"}


async def query(request: web.Request) -> web.StreamResponse:
    """The result of an expression at one time. Raises BadData, NotExecutable, Unavailable."""
    fields = await parameters.form(request)
    return await _answer(request, fields, instant(fields, request.app[CONTEXT].settings))


async def query_range(request: web.Request) -> web.StreamResponse:
    """The result of an expression over a range of times: a sorted matrix. Raises as `query`."""
    fields = await parameters.form(request)
    return await _answer(request, fields, over_range(fields, request.app[CONTEXT].settings))


def instant(fields: Mapping[str, str], settings: Settings) -> Query:
    """The instant query that these parameters ask for. Raises BadData."""
    time_ms = parameters.optional(fields, "time", parameters.timestamp_ms, int(time.time() * 1000))
    return _read_query(fields, Grid(time_ms, time_ms), False, settings)


def over_range(fields: Mapping[str, str], settings: Settings) -> Query:
    """The range query that these parameters ask for. Raises BadData."""
    start_ms = parameters.timestamp_ms(parameters.required(fields, "start"), "start")
    end_ms = parameters.timestamp_ms(parameters.required(fields, "end"), "end")
    if end_ms < start_ms:
        raise BadData('invalid parameter "end": end timestamp must not be before start time')
    step_ms = parameters.duration_ms(parameters.required(fields, "step"), "step")
    if step_ms <= 0:
        raise BadData(
            'invalid parameter "step": zero or negative query resolution step widths are not accepted. '
            "Try a positive integer"
        )
    if (end_ms - start_ms) // step_ms > STEPS_MAX:
        raise BadData(
            "exceeded maximum resolution of 11,000 points per timeseries. "
            "Try decreasing the query resolution (?step=XX)"
        )
    return _read_query(fields, Grid(start_ms, end_ms, step_ms), True, settings)


async def format_query(request: web.Request) -> web.Response:
    """The query formatted in the standard way. Raises ParseError, NotExecutable."""
    text = parameters.required(await parameters.form(request), "query")
    return success(await asyncio.to_thread(lambda: printer.pretty(parser.parse(text))))


async def parse_query(request: web.Request) -> web.Response:
    """The query's tree, in the shape the Prometheus API gives it. Raises ParseError, NotExecutable."""
    text = parameters.required(await parameters.form(request), "query")
    return success(await asyncio.to_thread(lambda: printer.to_json(parser.parse(text))))


def _read_query(fields: Mapping[str, str], grid: Grid, is_range: bool, settings: Settings) -> Query:
    timeout_ms = parameters.optional(fields, "timeout", parameters.positive_duration_ms, settings.query_timeout_ms)
    lookback_ms = parameters.optional(fields, "lookback_delta", parameters.positive_duration_ms, settings.lookback_ms)
    return Query(
        parameters.required(fields, "query"),
        grid,
        is_range,
        parameters.optional(fields, "limit", parameters.limit, 0),
        lookback_ms=lookback_ms,
        samples_max=settings.query_samples_max,
        timeout_ms=min(timeout_ms, settings.query_timeout_ms),
        partial_response=parameters.partial_response(fields),
        bytes_max=settings.query_bytes_max,
    )


async def _answer(request: web.Request, fields: MultiDict[str], query: Query) -> web.StreamResponse:
    beside_result = fields.get("stats") or fields.get("explain")  # only JSON has them
    query.is_arrow = not beside_result and await arrow_answers.is_wanted(request)
    kind = "range" if query.is_range else "instant"
    return await listed(request, kind, query.text, partial(_served, request, fields, query))


async def _served(
    request: web.Request, fields: MultiDict[str], query: Query, running: RunningQuery
) -> web.StreamResponse:
    told = Told(bool(fields.get("stats", "")), boolean(fields, "explain", False), accepts_gzip(request))
    body, account = await evaluated(request.app[CONTEXT], connection_of(request).holder, query, told, running)
    return await gated.sent(request, query, running, body, account)


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer has beside its result, and whether it may be compressed."""

    stats: bool = False
    explain: bool = False
    gzip: bool = False


async def evaluated(
    context: Context, holder: Holder, query: Query, told: Told, running: RunningQuery
) -> tuple[Body, Account | None]:
    """The answer to the query of this holder's client, and the account of the memory that the rest of it holds.

    Plans the query. When there is a place for it, asks the workers, merges their replies and renders the result. One
    thread does the merging and renders the first piece. Raises BadData, NotExecutable, Unavailable, Overloaded.
    """
    running.query = query
    query_plan = await planned(query)
    if query.is_range and query_plan.type not in _RANGE_TYPES:
        named = _TYPE_NAMES[query_plan.type]
        raise NotExecutable(f'invalid expression type "{named}" for range query, must be Scalar or instant Vector')

    require_fitting(query, query_plan, context.links.worker_count())
    estimate = context.costs.estimate(query_plan.demands)
    query.explains = told.explain
    of_leaves = {demand: context.costs.estimate([demand]) for demand in query_plan.demands} if told.explain else {}
    beside = _Beside(told.stats, told.explain, estimate, of_leaves)
    running.plan, running.estimate = query_plan, estimate

    async def merged_and_rendered(replies: Replies) -> tuple[Body, Account | None]:
        def work() -> Body:
            conclusion = merge(query, replies)
            running.shares, running.samples_read = conclusion.shares, conclusion.merged.samples_read
            conclusion.timings_s |= running.phases()
            running.enter("rendering")
            learn(context.costs, conclusion.plan, conclusion.shares)
            content_type, chunks = _chunks(query, conclusion, beside)
            return Body(chunks, gzip=told.gzip, content_type=content_type)

        running.enter("merging")
        body, account = await made(work, query, replies)
        learn_whereabouts(context.whereabouts, replies, running.shares)
        return body, account

    # The facts about a query that it shows are those of all workers together.
    whereabouts = None if told.stats or told.explain else context.whereabouts

    async def attempt(place: Place) -> tuple[Body, Account | None]:
        return await answered(query, running, query_plan, context.links, place, merged_and_rendered, whereabouts)

    return await gated.made(context, holder, query, estimate, running, query.identity(), attempt)


@dataclass(frozen=True, slots=True)
class _Beside:
    """What an answer is to have beside its result. `estimate`: the expected cost of the query; `of_leaves`: the facts
    about each leaf, if the query is to be explained."""

    stats: bool
    explain: bool
    estimate: Estimate
    of_leaves: Mapping[Demand, Estimate]


def _chunks(query: Query, conclusion: Conclusion, beside: _Beside) -> tuple[str, Iterator[Chunk]]:
    """(The content type of the answer, its bytes.) The bytes are rendered as they are consumed."""
    started = time.perf_counter()
    value, cut = _shown(query, conclusion)
    conclusion.timings_s["resultSortTime"] = time.perf_counter() - started
    text, annotations = query.text, conclusion.merged.annotations
    warnings = [*remark_texts(annotations, "warning", text), *conclusion.warnings, *([LIMIT_WARNING] if cut else [])]
    remarks = {"warnings": warnings, "infos": remark_texts(annotations, "info", text)}

    def members(render_s: float) -> dict[str, Any]:
        conclusion.timings_s["renderTime"] = render_s
        told: dict[str, Any] = {}
        if beside.stats:
            told["stats"] = stats(query, conclusion)
        if beside.explain:
            told["explain"] = explain(query, conclusion, beside.estimate, beside.of_leaves)
        return told

    result = Result(value, query.grid, query.is_range)
    if query.is_arrow and isinstance(value, Matrix | RangeVector) and not arrow_streams.has_histograms(value):
        metadata = {name: arrow_streams.remarks_text(texts) for name, texts in remarks.items()}
        return ARROW, arrow_streams.series_chunks(value, query.grid, {"resultType": result.type, **metadata})
    return JSON, envelope(result, members, remarks)


def _shown(query: Query, conclusion: Conclusion) -> tuple[Value | Joined, bool]:
    """(The value in the order of the answer, whether series were left out.)"""
    value = conclusion.merged.value
    if isinstance(value, Joined):
        return value, False
    if query.is_range:
        value = as_range(value, query.grid)
    if query.is_range or not conclusion.plan.keeps_order:
        value = ordered(value)
    return truncated(value, query.limit)


ROUTES = [
    route
    for path, handler in (
        ("/api/v1/query", query),
        ("/api/v1/query_range", query_range),
        ("/api/v1/format_query", format_query),
        ("/api/v1/parse_query", parse_query),
    )
    for route in (web.get(path, handler), web.post(path, handler))
]

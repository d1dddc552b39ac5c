"""GET /api/v1/status/tsdb: how many series there are by metric, label and label value, and how many are new.

The lists are Prometheus's (https:

prometheus.io/docs/prometheus/latest/querying/api/#tsdb-stats). The parameters and additions are VictoriaMetrics's,
whose users use them to find what causes so many series.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from aiohttp import web

from coordinator.api import parameters
from coordinator.api.lists import Listing, answer
from coordinator.api.selectors import selectors, time_range
from coordinator.context import CONTEXT
from coordinator.fanout.calls import FanOut
from coordinator.http.responses import success
from coordinator.series.cardinality import merged, request_body
from shared.errors import BadData
from shared.messages.cardinality import CardinalityReply
from shared.wire import unpack

LIMIT, LIMIT_MAX = 10, 10_000
FOCUS_CHARS_MAX = 65_536


async def cardinality(request: web.Request) -> web.Response:
    fields = await parameters.form(request)
    limit = parameters.optional(fields, "limit", _limit, parameters.optional(fields, "topN", _limit, LIMIT))
    focus = fields.get("focusLabel", "")
    if len(focus) > FOCUS_CHARS_MAX:
        raise BadData(f"parameter 'focusLabel' has {len(focus)} characters; the limit is {FOCUS_CHARS_MAX}")
    workers = max(1, request.app[CONTEXT].links.worker_count())
    body = request_body(await selectors(fields) or [()], time_range(fields), focus, limit, workers)
    return await answer(request, Listing.of("series.cardinality", fields, body, partial(_answered, limit=limit)))


def _answered(result: FanOut, limit: int) -> web.Response:
    replies = []
    for reply in result.replies:
        frames = reply.message.frames
        hashes = np.frombuffer(frames[0], dtype=np.uint64) if frames else np.zeros(0, dtype=np.uint64)
        replies.append((unpack(reply.message.body, CardinalityReply), hashes))
    data, hints = merged(replies, limit)
    return success(data, result.warnings(), hints)


def _limit(text: str, name: str) -> int:
    limit = parameters.limit(text, name)
    if not 1 <= limit <= LIMIT_MAX:
        raise BadData(f"parameter {name!r} is {limit}; it must be a whole number from 1 to {LIMIT_MAX}")
    return limit


ROUTES: list[web.RouteDef] = [web.get("/api/v1/status/tsdb", cardinality)]

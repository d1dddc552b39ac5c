"""GET /api/v1/log/tail: new records as server-sent events, which a reader that reconnects continues without a gap."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.log import answers, log_parameters, scan, times
from coordinator.api.log.log_parameters import RECORD_FORM, SEARCH, SELECTION, SEQUENCES, TIMES
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.queries.running import FOLLOW, TEXT_MAX
from shared.messages.log import SEQUENCE_MAX


@known_parameters(*SELECTION, *SEQUENCES, *TIMES, *SEARCH, *RECORD_FORM, "limit", "timeout")
async def tail(request: web.Request) -> web.StreamResponse:
    """Records of `key`, or of all keys with `prefix`: after `Last-Event-ID`, else from `start_seq` or `start_time` on,
    else from now on. The first event has only an id, so that a reader that has had no record yet resumes at the right
    place, too."""
    query = request.query
    selection, times_ms = log_parameters.selection(query), log_parameters.times_ms(query)
    times.require_past(times_ms)
    area = request.app[CONTEXT].log
    await area.wait_for_state()
    begin = area.readable if times_ms[0] is None else 0
    start = log_parameters.whole(query, ("start_seq", "startSeq"), begin, 0, SEQUENCE_MAX)
    end = log_parameters.whole(query, ("end_seq", "endSeq"), SEQUENCE_MAX, 0, SEQUENCE_MAX)
    numbers = log_parameters.resumed(request, start), end
    form = answers.form(query)
    streamed = partial(scan.event_stream, request, selection, numbers, times_ms, form, begins_with_id=True)
    return await listed(request, FOLLOW, request.query_string[:TEXT_MAX], streamed)


ROUTES: list[web.RouteDef] = [web.get("/api/v1/log/tail", tail, allow_head=False)]

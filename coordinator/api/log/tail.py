"""GET /api/v1/log/tail: new records as server-sent events, which a reader that comes back continues without a gap."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.log import answers, log_parameters, scan
from coordinator.api.log.log_parameters import SEARCH, SELECTION, SEQUENCES
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.queries.running import FOLLOW, TEXT_MAX
from shared.errors import BadData
from shared.messages.log import SEQUENCE_MAX


@known_parameters(*SELECTION, *SEQUENCES, *SEARCH, "limit", "timeout", "encoding")
async def tail(request: web.Request) -> web.StreamResponse:
    """Records of `key`, or of all keys with `prefix`: after `Last-Event-ID`, else from `start_seq` on, else from now
    on. The first event has only an id, so that also a reader that had no record yet comes back to where it was."""
    selection = log_parameters.selection(request.query)
    area = request.app[CONTEXT].log
    await area.wait_for_state()
    start = log_parameters.whole(request.query, ("start_seq", "startSeq"), area.readable, 0, SEQUENCE_MAX)
    end = log_parameters.whole(request.query, ("end_seq", "endSeq"), SEQUENCE_MAX, 0, SEQUENCE_MAX)
    start = _resumed(request, start)
    encoding = answers.encoding(request.query)
    text = request.query_string[:TEXT_MAX]
    streamed = partial(scan.event_stream, request, selection, start, end, encoding, first=b"id: %d\n\n" % (start - 1))
    return await listed(request, FOLLOW, text, streamed)


def _resumed(request: web.Request, start: int) -> int:
    """After the last event that the reader had; −1 stands for the place before the first record."""
    text = request.headers.get("Last-Event-ID", "")
    if not text:
        return start
    if text == "-1":
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < SEQUENCE_MAX):
        raise BadData(f"Last-Event-ID is {text!r}; it must be a sequence number")
    return int(text) + 1


ROUTES: list[web.RouteDef] = [web.get("/api/v1/log/tail", tail, allow_head=False)]

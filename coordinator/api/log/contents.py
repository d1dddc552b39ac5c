"""The contents of the log: its segments and keys, how many records, and how far it may be read (docs/guide/log.md)."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.log import answers, log_parameters, times
from coordinator.api.log.log_parameters import SEARCH, SELECTION, SEQUENCES, TIMES
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.http.responses import json_answer
from coordinator.log.reads import KeySelection, Warnings
from coordinator.queries.running import RunningQuery
from shared.messages.log import SEQUENCE_MAX

SEGMENT_MAX = (1 << 32) - 1
SEGMENTS_MAX = 100_000
KEYS_DEFAULT = 1000
KEYS_MAX = 100_000


@known_parameters(*SEQUENCES, "limit")
async def segments(request: web.Request) -> web.Response:
    """The first `limit` segments. If there are more, `nextSequence` is the `start_seq` that gives the rest."""
    start, end = log_parameters.sequences(request.query)
    limit = log_parameters.whole(request.query, ("limit",), SEGMENTS_MAX, 0, SEGMENTS_MAX)
    area = request.app[CONTEXT].log
    await area.wait_for_state()
    in_range = [s for s in area.sequencer.segments if start <= s.start_seq < end]
    rows = [{"id": s.id, "startSeq": s.start_seq, "startTimeMs": s.start_time_ms} for s in in_range[:limit]]
    answer: dict[str, Any] = {"status": "success", "segments": rows}
    if len(in_range) > limit:
        answer |= {"more": True, "nextSequence": in_range[limit].start_seq}
    return json_answer(answer)


@known_parameters(
    *("prefix", "prefix_base64", "after", "after_base64", "limit", "encoding"),
    *("start_segment", "startSegment", "end_segment", "endSegment"),
    *TIMES,
)
async def keys(request: web.Request) -> web.Response:
    """Distinct keys, ascending. If there are more, the next page begins `after` the last key."""
    query = request.query
    prefix = log_parameters.octets(query, "prefix") or b""
    after = log_parameters.octets(query, "after")
    first = log_parameters.whole(query, ("start_segment", "startSegment"), 0, 0, SEGMENT_MAX)
    last = log_parameters.whole(query, ("end_segment", "endSegment"), SEGMENT_MAX, 0, SEGMENT_MAX)
    limit = log_parameters.whole(query, ("limit",), KEYS_DEFAULT, 1, KEYS_MAX)
    encoding = answers.encoding(query)
    times_ms = log_parameters.times_ms(query)

    async def served(running: RunningQuery) -> web.Response:
        running.enter("running")
        warnings = Warnings()
        reader = request.app[CONTEXT].log.reader
        numbers = await times.between(reader, KeySelection(None), (0, SEQUENCE_MAX), times_ms, warnings)
        page, more = await reader.keys(prefix, after, (first, last), limit, warnings, numbers)
        rows = [answers.key_json(key, encoding) for key in page]
        return json_answer(_warned({"status": "success", "keys": rows, "more": more}, warnings))

    return await listed(request, "log.keys", request.query_string, served)


@known_parameters(*SELECTION, *SEQUENCES, *TIMES, *SEARCH)
async def count(request: web.Request) -> web.Response:
    """The exact number of records of a key, of all keys with a prefix, or (without either) of the whole log."""
    numbers, times_ms = log_parameters.sequences(request.query), log_parameters.times_ms(request.query)
    selection = log_parameters.selection_or_all(request.query)

    async def served(running: RunningQuery) -> web.Response:
        running.enter("running")
        warnings = Warnings()
        reader = request.app[CONTEXT].log.reader
        start, end = await times.between(reader, selection, numbers, times_ms, warnings)
        records = await reader.count(selection, start, end, warnings)
        return json_answer(_warned({"status": "success", "count": records}, warnings))

    return await listed(request, "log.count", request.query_string, served)


def _warned(answer: dict[str, Any], warnings: Warnings) -> dict[str, Any]:
    return {**answer, "warnings": warnings.texts()} if len(warnings) else answer


@known_parameters()
async def frontier(request: web.Request) -> web.Response:
    area = request.app[CONTEXT].log
    await area.wait_for_state()
    answer: dict[str, Any] = {
        "status": "success",
        "nextSequence": area.sequencer.next,
        "readableSequence": min(area.readable, SEQUENCE_MAX),
        "durableSequence": area.frontier.on_disk,
        "logStartSequence": area.sequencer.log_start,
    }
    if warnings := area.warnings():
        answer["warnings"] = warnings
    return json_answer(answer)


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/log/segments", segments, allow_head=False),
    web.get("/api/v1/log/keys", keys, allow_head=False),
    web.get("/api/v1/log/count", count, allow_head=False),
    web.get("/api/v1/log/frontier", frontier, allow_head=False),
]

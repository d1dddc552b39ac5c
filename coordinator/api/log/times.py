"""Reads of the log by time: `start_time` and `end_time`, and GET /api/v1/log/offsets."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.log import log_parameters
from coordinator.api.log.log_parameters import SELECTION
from coordinator.api.parameters import timestamp_ms
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.http.responses import json_answer
from coordinator.log.reads import KeySelection, Reader, Warnings
from coordinator.queries.running import RunningQuery
from shared.errors import BadData
from shared.messages.log import SEQUENCE_MAX

TimesMs = tuple[int | None, int | None]
"""(start, inclusive; end, exclusive) in Unix ms; None: not bounded."""


def require_past(times_ms: TimesMs) -> None:
    """Raises BadData if the end is in the future: a read that follows the log must know at its beginning with which
    number it ends."""
    end_ms = times_ms[1]
    if end_ms is not None and end_ms > time.time() * 1000:
        raise BadData("parameter 'end_time' is in the future; a read that follows ends at a time of the past only")


async def between(
    reader: Reader, selection: KeySelection, numbers: tuple[int, int], times_ms: TimesMs, warnings: Warnings
) -> tuple[int, int]:
    """The sequence numbers (start, inclusive; end, exclusive) of the records that are within both `numbers` and
    `times_ms`."""
    start, end = numbers
    start_ms, end_ms = times_ms
    if start_ms is not None:
        start = max(start, await reader.sequence_at(start_ms, selection, warnings))
    if end_ms is not None:
        end = min(end, await reader.sequence_at(end_ms, selection, warnings))
    return start, end


@known_parameters(*SELECTION, "time")
async def offsets(request: web.Request) -> web.Response:
    """The first record that was appended at or after `time`: of a key, of the keys with a prefix, or of the whole log.
    If there is none, the number from which on the next records are to be expected."""
    time_ms = timestamp_ms(log_parameters.required(request.query, "time"), "time")
    selection = log_parameters.selection_or_all(request.query)

    async def served(running: RunningQuery) -> web.Response:
        running.enter("running")
        reader = request.app[CONTEXT].log.reader
        warnings = Warnings()
        sequence = await reader.sequence_at(time_ms, selection, warnings)
        answer: dict[str, Any] = {"status": "success", "sequence": sequence}
        async for page in reader.pages(selection, sequence, SEQUENCE_MAX, 1, warnings=warnings):
            answer["sequence"] = page.next
            if len(page.records):
                answer["sequence"] = int(page.records.sequences[0])
                if found_ms := int(page.records.times[0]):
                    answer["timeMs"] = found_ms
        if len(warnings):
            answer["warnings"] = warnings.texts()
        return json_answer(answer)

    return await listed(request, "log.offsets", request.query_string, served)


ROUTES: list[web.RouteDef] = [web.get("/api/v1/log/offsets", offsets, allow_head=False)]

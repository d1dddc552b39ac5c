"""DELETE /api/v1/log/keys: deletion of a key's records."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.api.log import log_parameters
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.http.responses import json_answer
from shared.errors import BadData
from shared.messages.log import SEQUENCE_MAX


@known_parameters("key", "key_base64", "before_seq", "beforeSeq")
async def delete(request: web.Request) -> web.Response:
    """Delete the present records of `key`, or those below `before_seq`. Answered when the deletion is on disk and no
    read returns the records any more."""
    key = log_parameters.octets(request.query, "key")
    if key is None:
        raise BadData("parameter 'key' is missing; give 'key' or 'key_base64': one key is deleted at a time")
    before = log_parameters.whole(request.query, ("before_seq", "beforeSeq"), SEQUENCE_MAX, 0, SEQUENCE_MAX)
    trimmed = await request.app[CONTEXT].log.trims.trim(key, before)
    answer: dict[str, Any] = {"status": "success", "deletedBeforeSequence": trimmed.start}
    if trimmed.records is None:
        answer["infos"] = ["the records are deleted; they were too many to be counted in time"]
    else:
        answer["recordsDeleted"] = trimmed.records
    return json_answer(answer)


ROUTES: list[web.RouteDef] = [web.delete("/api/v1/log/keys", delete)]

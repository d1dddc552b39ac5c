"""POST /api/v1/log/append."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.api.log.answers import Encoding, key_json
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.headers.negotiation import PROTOBUF, boolean, content_type, wants_protobuf
from coordinator.http.bodies import read_body
from coordinator.http.responses import json_answer
from coordinator.log import records
from coordinator.log.record_forms import hints
from coordinator.log.records import Append
from proto import log_pb2
from shared.settings import Settings

INLINE_BYTES_MAX = 128 << 10
WALKED_BYTES_MAX = 256 << 10
"""A body of at most INLINE_BYTES_MAX is read on the event loop, and one of at most WALKED_BYTES_MAX if the kernels can
read it, which takes 0.2 ms, and 0.8 ms at the worst. A larger one is read in a thread: handing it over costs the event
loop as much as reading 200 KB."""
ECHO_KEYS_MAX = 16


@known_parameters("echo")
async def append(request: web.Request) -> web.Response:
    """With `awaitDurable: true` the answer comes when the records are on the disk of every shard concerned (fsync);
    otherwise when the shards hold them: they then survive the death of any process, and are on disk within 100 ms.

    With `echo=true` the answer has the keys of the first records as they are stored."""
    context = request.app[CONTEXT]
    echo = bool(request.query_string) and boolean(request.query, "echo", False)
    batch = await _batch(request)
    infos = hints(batch.records) if content_type(request) != PROTOBUF else []
    start, count = await context.log.append(batch)
    context.telemetry.records_in += count
    if wants_protobuf(request):
        message = log_pb2.AppendResponse(status="success", records_appended=count, start_sequence=start)
        return web.Response(body=message.SerializeToString(), content_type=PROTOBUF)
    answer: dict[str, Any] = {"status": "success", "recordsAppended": count, "startSequence": start}
    if echo:
        answer["keys"] = [key_json(batch.records.key(at), Encoding.TEXT) for at in range(min(count, ECHO_KEYS_MAX))]
    if infos:
        answer["infos"] = infos
    return json_answer(answer)


async def _batch(request: web.Request) -> Append:
    """The batch in the body. The body is released."""
    context = request.app[CONTEXT]
    settings = context.settings
    body = await read_body(request, settings.body_bytes_max)
    kind = content_type(request)
    if (batch := read_at_once(kind, body, settings)) is not None:
        return batch
    return await context.decodings.run(len(body), lambda: records.parse(kind, body, settings).cut(context.links.shards))


def read_at_once(kind: str, body: bytes, settings: Settings) -> Append | None:
    """The batch in the body, if it may be read on the event loop; else None. Raises what `records.parse` raises."""
    if len(body) <= INLINE_BYTES_MAX:
        return records.parse(kind, body, settings)
    return records.walked(kind, body, settings) if len(body) <= WALKED_BYTES_MAX else None


ROUTES: list[web.RouteDef] = [web.post("/api/v1/log/append", append)]

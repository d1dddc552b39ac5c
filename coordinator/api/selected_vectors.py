"""The endpoints of the vectors that a filter selects: scrolls, counts, facets, deletes and updates."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.strict import known_parameters
from coordinator.api.vector_bodies import (
    context_of,
    decoded_body,
    fill_protobuf,
    is_partial,
    json_answer,
    protobuf_answer,
    vectors_json,
)
from coordinator.headers.negotiation import wants_protobuf
from coordinator.queries.running import RunningQuery
from coordinator.vectors import changes, facets, scroll
from coordinator.vectors.values import to_protobuf
from proto import vector_pb2

REQUEST_BYTES_MAX = 2 << 20
"""The limit on the body of a read: its filter, and a page's token, which may contain a text of 1 MiB."""


@known_parameters("partial_response")
async def read_scroll(request: web.Request) -> web.Response:
    """POST /api/v1/vector/scroll."""
    query = await decoded_body(request, scroll.from_json, scroll.from_protobuf, REQUEST_BYTES_MAX)

    async def answered(running: RunningQuery) -> web.Response:
        running.enter("running")
        page = await context_of(request).vectors.selected.scroll(query, partial=is_partial(request))
        running.enter("rendering")
        token = "" if page.end is None else scroll.token_of(query, page.end)
        if wants_protobuf(request):
            message = vector_pb2.ScrollResponse(next_page_token=token, warnings=page.warnings, infos=page.infos)
            await fill_protobuf(page.vectors, message.vectors)
            return protobuf_answer(message)
        content: dict[str, Any] = {"vectors": orjson.Fragment(await vectors_json(page.vectors))}
        if token:
            content["nextPageToken"] = token
        return json_answer(content, page.warnings, page.infos)

    return await listed(request, "vector.scroll", query.summary(), answered)


@known_parameters("partial_response")
async def read_count(request: web.Request) -> web.Response:
    """POST /api/v1/vector/count."""
    query = await decoded_body(request, facets.count_from_json, facets.count_from_protobuf, REQUEST_BYTES_MAX)

    async def answered(running: RunningQuery) -> web.Response:
        running.enter("running")
        total = await context_of(request).vectors.selected.count(query, partial=is_partial(request))
        if wants_protobuf(request):
            message = vector_pb2.CountResponse(count=total.count, warnings=total.warnings, infos=total.infos)
            return protobuf_answer(message)
        return json_answer({"count": total.count}, total.warnings, total.infos)

    return await listed(request, "vector.count", query.summary(), answered)


@known_parameters("partial_response")
async def read_facets(request: web.Request) -> web.Response:
    """POST /api/v1/vector/facets."""
    query = await decoded_body(request, facets.facets_from_json, facets.facets_from_protobuf, REQUEST_BYTES_MAX)

    async def answered(running: RunningQuery) -> web.Response:
        running.enter("running")
        answer = await context_of(request).vectors.selected.facets(query, partial=is_partial(request))
        if wants_protobuf(request):
            message = vector_pb2.FacetsResponse(warnings=answer.warnings, infos=answer.infos)
            for value, count in answer.facets:
                facet = message.facets.add(count=count)
                to_protobuf(value, facet.value)
            return protobuf_answer(message)
        values = [{"value": value, "count": count} for value, count in answer.facets]
        return json_answer({"facets": values}, answer.warnings, answer.infos)

    return await listed(request, "vector.facets", query.summary(), answered)


@known_parameters()
async def delete(request: web.Request) -> web.Response:
    """POST /api/v1/vector/delete."""
    change = await decoded_body(request, changes.delete_from_json, changes.delete_from_protobuf)
    count, infos = await context_of(request).vectors.selected.delete(change)
    if wants_protobuf(request):
        return protobuf_answer(vector_pb2.DeleteVectorsResponse(vectors_deleted=count, infos=infos))
    return json_answer({"vectorsDeleted": count}, infos=infos)


@known_parameters()
async def update(request: web.Request) -> web.Response:
    """POST /api/v1/vector/update."""
    change = await decoded_body(request, changes.update_from_json, changes.update_from_protobuf)
    count, infos = await context_of(request).vectors.selected.update(change)
    if wants_protobuf(request):
        return protobuf_answer(vector_pb2.UpdateVectorsResponse(vectors_updated=count, infos=infos))
    return json_answer({"vectorsUpdated": count}, infos=infos)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/vector/scroll", read_scroll),
    web.post("/api/v1/vector/count", read_count),
    web.post("/api/v1/vector/facets", read_facets),
    web.post("/api/v1/vector/delete", delete),
    web.post("/api/v1/vector/update", update),
]

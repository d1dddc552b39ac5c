"""The endpoints that show what a collection is like: its map, and the names of its attributes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.selected_vectors import REQUEST_BYTES_MAX
from coordinator.api.strict import known_parameters
from coordinator.api.vector_bodies import context_of, decoded_body, is_partial, json_answer, protobuf_answer
from coordinator.fanout.calls import require_whole
from coordinator.headers.negotiation import wants_protobuf
from coordinator.queries.running import RunningQuery
from coordinator.vectors import map_request
from coordinator.vectors.map import VectorMap
from coordinator.vectors.values import to_protobuf
from proto import vector_pb2


@known_parameters("partial_response")
async def read_map(request: web.Request) -> web.Response:
    """POST /api/v1/vector/map."""
    query = await decoded_body(request, map_request.from_json, map_request.from_protobuf, REQUEST_BYTES_MAX)

    async def answered(running: RunningQuery) -> web.Response:
        running.enter("running")
        vector_map = await context_of(request).vectors.maps.compute(query, partial=is_partial(request))
        if wants_protobuf(request):
            return protobuf_answer(_protobuf(vector_map, has_values=bool(query.attribute)))
        points: dict[str, Any] = {
            "ids": [name.decode() for name in vector_map.ids],
            "x": vector_map.places[:, 0].tolist(),
            "y": vector_map.places[:, 1].tolist(),
        }
        if query.attribute:
            points["values"] = vector_map.values
        content = {"points": points, "variance": vector_map.variance, "vectors": vector_map.vectors}
        return json_answer(content, vector_map.warnings, vector_map.infos)

    return await listed(request, "vector.map", query.summary(), answered)


def _protobuf(vector_map: VectorMap, *, has_values: bool) -> vector_pb2.MapResponse:
    message = vector_pb2.MapResponse(
        variance=vector_map.variance, vectors=vector_map.vectors, warnings=vector_map.warnings, infos=vector_map.infos
    )
    message.points.ids.extend([name.decode() for name in vector_map.ids])
    message.points.x.extend(vector_map.places[:, 0].tolist())
    message.points.y.extend(vector_map.places[:, 1].tolist())
    for value in vector_map.values if has_values else ():
        into = message.points.values.add()
        if value is None:
            into.MergeFrom(vector_pb2.AttributeValue(null_value="NULL_VALUE"))
        else:
            to_protobuf(value, into)
    return message


@known_parameters("partial_response")
async def read_attributes(request: web.Request) -> web.Response:
    """GET /api/v1/vector/collections/{name}/attributes."""
    counts, warnings, infos = await context_of(request).vectors.maps.attributes(request.match_info["name"])
    if not is_partial(request):
        require_whole(warnings)
    attributes = [{"name": name, "types": types} for name, types in counts.items()]
    return json_answer({"attributes": attributes}, warnings, infos)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/vector/map", read_map),
    web.get("/api/v1/vector/collections/{name}/attributes", read_attributes),
]

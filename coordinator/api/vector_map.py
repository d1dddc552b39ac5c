"""The endpoints that show what a collection is like: its map, and the names of its attributes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.selected_vectors import REQUEST_BYTES_MAX
from coordinator.api.strict import known_parameters
from coordinator.api.vector_bodies import context_of, decoded_body, is_partial, json_answer, protobuf_answer
from coordinator.calls import require_whole
from coordinator.negotiation import wants_protobuf
from coordinator.queries.running import RunningQuery
from coordinator.vectors import map_request
from coordinator.vectors.map import VectorMap
from coordinator.vectors.values import to_protobuf
from proto import vector_pb2


@known_parameters("partial_response")
async def read_map(request: web.Request) -> web.Response:
    """POST /api/v1/vector/map."""
    wanted = await decoded_body(request, map_request.from_json, map_request.from_protobuf, REQUEST_BYTES_MAX)

    async def answered(running: RunningQuery) -> web.Response:
        running.enter("running")
        made = await context_of(request).vectors.maps.compute(wanted, partial=is_partial(request))
        if wants_protobuf(request):
            return protobuf_answer(_protobuf(made, has_values=bool(wanted.attribute)))
        points: dict[str, Any] = {
            "ids": [name.decode() for name in made.ids],
            "x": made.places[:, 0].tolist(),
            "y": made.places[:, 1].tolist(),
        }
        if wanted.attribute:
            points["values"] = made.values
        content = {"points": points, "variance": made.variance, "vectors": made.vectors}
        return json_answer(content, made.warnings, made.infos)

    return await listed(request, "vector.map", wanted.summary(), answered)


def _protobuf(made: VectorMap, *, has_values: bool) -> vector_pb2.MapResponse:
    message = vector_pb2.MapResponse(
        variance=made.variance, vectors=made.vectors, warnings=made.warnings, infos=made.infos
    )
    message.points.ids.extend([name.decode() for name in made.ids])
    message.points.x.extend(made.places[:, 0].tolist())
    message.points.y.extend(made.places[:, 1].tolist())
    for value in made.values if has_values else ():
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

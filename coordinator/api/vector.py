"""The vector area's endpoints. Requests are ProtoJSON or binary protobuf by Content-Type; answers are JSON, or binary
protobuf where `Accept` asks for `application/protobuf`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import orjson
from aiohttp import web

from coordinator.api.parameters import partial_response
from coordinator.bodies import read_body
from coordinator.calls import require_whole
from coordinator.context import CONTEXT, Context
from coordinator.negotiation import JSON, PROTOBUF, PROTOBUF_JSON, content_type, wants_protobuf
from coordinator.vectors import search as searches
from coordinator.vectors.answers import hits_json, hits_protobuf, vector_json, vector_protobuf
from coordinator.vectors.decode import (
    check_ids,
    decode_json,
    ids_from_json,
    ids_from_protobuf,
    parse_protobuf,
    write_from_json,
    write_from_protobuf,
)
from coordinator.vectors.values import id_bytes
from proto import vector_pb2
from shared.errors import BadData, NotFound
from shared.messages.vectors import Collection

JSON_TYPES = (JSON, PROTOBUF_JSON)
THREAD_BYTES_MIN = 64 << 10  # bodies from here on are decoded in a thread: 1 ms of the event loop

T = TypeVar("T")


async def _body(request: web.Request, from_json: Callable[[bytes], T], from_protobuf: Callable[[bytes], T]) -> T:
    """The body by its Content-Type. Raises BadData for another type."""
    kind = content_type(request)
    if kind not in (PROTOBUF, *JSON_TYPES):
        raise BadData(f"Content-Type is {kind!r}; it must be {PROTOBUF}, {' or '.join(reversed(JSON_TYPES))}")
    body = await read_body(request, request.app[CONTEXT].settings.body_bytes_max)
    decode = from_protobuf if kind == PROTOBUF else from_json
    if len(body) < THREAD_BYTES_MIN:
        return decode(body)
    return await asyncio.to_thread(decode, body)


def _json(content: dict[str, Any], warnings: list[str] | None = None) -> web.Response:
    if warnings:
        content["warnings"] = warnings
    body = orjson.dumps({"status": "success", **content}, option=orjson.OPT_SERIALIZE_NUMPY)
    return web.Response(body=body, content_type=JSON)


def _protobuf(message: Any) -> web.Response:
    message.status = "success"
    return web.Response(body=message.SerializeToString(), content_type=PROTOBUF)


def _context(request: web.Request) -> Context:
    return request.app[CONTEXT]


async def write(request: web.Request) -> web.Response:
    """POST /api/v1/vector/write."""
    upserts = await _body(request, write_from_json, write_from_protobuf)
    context = _context(request)
    count = await context.vectors.write(upserts)
    context.telemetry.vectors_in.inc(count)
    if wants_protobuf(request):
        return _protobuf(vector_pb2.UpsertVectorsResponse(vectors_upserted=count))
    return _json({"vectorsUpserted": count})


async def delete(request: web.Request) -> web.Response:
    """POST /api/v1/vector/delete."""
    collection, ids = await _body(request, ids_from_json, ids_from_protobuf)
    count = await _context(request).vectors.delete(collection, ids)
    if wants_protobuf(request):
        return _protobuf(vector_pb2.DeleteVectorsResponse(vectors_deleted=count))
    return _json({"vectorsDeleted": count})


async def search(request: web.Request) -> web.Response:
    """POST /api/v1/vector/search."""
    asked = await _body(request, searches.from_json, searches.from_protobuf)
    area = _context(request).vectors
    partial = _partial(request)
    answer = await area.search(asked, partial=partial)
    collection = answer.collection
    metric = collection.metric if collection is not None and not asked.text_query else ""
    if wants_protobuf(request):
        message = vector_pb2.SearchResponse(warnings=answer.warnings)
        for hits in answer.lists:
            hits_protobuf(hits, metric, message.result_sets.add().results if asked.batch else message.results)
        return _protobuf(message)
    lists = [hits_json(hits, metric) for hits in answer.lists]
    if asked.batch:
        sets = ",".join([f'{{"results":{results}}}' for results in lists])
        return _json({"resultSets": orjson.Fragment(f"[{sets}]")}, answer.warnings)
    return _json({"results": orjson.Fragment(lists[0])}, answer.warnings)


def _partial(request: web.Request) -> bool:
    return not request.query_string or partial_response(request.query)


async def get_one(request: web.Request) -> web.Response:
    """GET /api/v1/vector/vectors/{id}."""
    name = request.match_info["id"]
    entries, warnings = await _context(request).vectors.get(
        request.query.get("collection", ""), [id_bytes(name, "id")], None
    )
    if not entries:
        require_whole(warnings)  # what is missing may have it
        raise NotFound(f"there is no vector {name!r}")
    if wants_protobuf(request):
        message = vector_pb2.GetResponse()
        vector_protobuf(entries[0], message.vector)
        return _protobuf(message)
    return _json({"vector": vector_json(entries[0])}, warnings)


class _Get(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]
    includeFields: list[str] | None = None
    include_fields: list[str] | None = None
    collection: str = ""


def _get_from_json(body: bytes) -> tuple[str, list[bytes], tuple[str, ...] | None]:
    asked = decode_json(body, _Get)
    fields = asked.includeFields if asked.includeFields is not None else asked.include_fields
    return asked.collection, _get_ids(asked.ids), None if fields is None else tuple(fields)


def _get_from_protobuf(body: bytes) -> tuple[str, list[bytes], tuple[str, ...] | None]:
    asked = parse_protobuf(body, vector_pb2.GetRequest())
    return asked.collection, _get_ids(list(asked.ids)), tuple(asked.include_fields) or None


def _get_ids(ids: list[str]) -> list[bytes]:
    if len(ids) > searches.K_MAX:
        raise BadData(f"ids has {len(ids)} entries; at most {searches.K_MAX} are read at once")
    return check_ids(ids)


async def get_many(request: web.Request) -> web.Response:
    """POST /api/v1/vector/get."""
    collection, ids, fields = await _body(request, _get_from_json, _get_from_protobuf)
    entries, warnings = await _context(request).vectors.get(collection, ids, fields, partial=_partial(request))
    if wants_protobuf(request):
        message = vector_pb2.GetManyResponse(warnings=warnings)
        for entry in entries:
            vector_protobuf(entry, message.vectors.add())
        return _protobuf(message)
    return _json({"vectors": [vector_json(entry) for entry in entries]}, warnings)


async def stats(request: web.Request) -> web.Response:
    """GET /api/v1/vector/stats."""
    area = _context(request).vectors
    collections, _ = await area.collections()
    entries, warnings = await area.stats()
    names = {collection.id: collection for collection in collections}
    totals = {
        collection.name: {
            **_settings_json(collection),
            "vectors": 0,
            "indexed": 0,
            "pending": 0,
            "dead": 0,
            "bytes": 0,
            "expansion": 0,
        }
        for collection in names.values()
    }
    for entry in entries:
        if entry.collection not in names:
            continue
        total: dict[str, Any] = totals[names[entry.collection].name]
        total["vectors"] += entry.vectors
        total["indexed"] += entry.indexed
        total["pending"] += entry.vectors + entry.dead - entry.indexed
        total["dead"] += entry.dead
        total["bytes"] += entry.memory_bytes
        total["expansion"] = max(total["expansion"], entry.expansion)
    return _json({"vectors": sum(t["vectors"] for t in totals.values()), "collections": totals}, warnings)


def _settings_json(collection: Collection) -> dict[str, Any]:
    return {
        "dimension": collection.dimension,
        "metric": collection.metric,
        "storage": collection.storage,
        "textFields": list(collection.text),
    }


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    dimension: int
    metric: str | None = None
    storage: str | None = None
    textFields: list[str] = []


async def put_collection(request: web.Request) -> web.Response:
    """PUT /api/v1/vector/collections/{name}: make it, or confirm that it is so."""
    context = _context(request)
    kind = content_type(request)
    if kind not in JSON_TYPES:
        raise BadData(f"Content-Type is {kind!r}; it must be {JSON_TYPES[0]}")
    asked = decode_json(await read_body(request, context.settings.body_bytes_max), _Settings)
    collection = await context.vectors.create(
        request.match_info["name"],
        asked.dimension,
        asked.metric or context.settings.vector_metric,
        asked.storage or "f32",
        asked.textFields,
    )
    return _json({"collection": {"name": collection.name, **_settings_json(collection)}})


async def get_collection(request: web.Request) -> web.Response:
    """GET /api/v1/vector/collections/{name}."""
    name = request.match_info["name"]
    collection = await _context(request).vectors.find(name)
    if collection is None:
        raise NotFound(f"there is no collection {name!r}")
    return _json({"collection": {"name": collection.name, **_settings_json(collection)}})


async def list_collections(request: web.Request) -> web.Response:
    """GET /api/v1/vector/collections."""
    collections, warnings = await _context(request).vectors.collections()
    return _json({"collections": [{"name": c.name, **_settings_json(c)} for c in collections]}, warnings)


async def delete_collection(request: web.Request) -> web.Response:
    """DELETE /api/v1/vector/collections/{name}: warnings name the shards that drop its vectors later."""
    warnings = await _context(request).vectors.drop(request.match_info["name"])
    return _json({}, warnings)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/vector/write", write),
    web.post("/api/v1/vector/delete", delete),
    web.post("/api/v1/vector/search", search),
    web.post("/api/v1/vector/get", get_many),
    web.get("/api/v1/vector/vectors/{id:.+}", get_one),
    web.get("/api/v1/vector/stats", stats),
    web.get("/api/v1/vector/collections", list_collections),
    web.put("/api/v1/vector/collections/{name}", put_collection),
    web.get("/api/v1/vector/collections/{name}", get_collection),
    web.delete("/api/v1/vector/collections/{name}", delete_collection),
]

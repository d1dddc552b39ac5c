"""The vector area's endpoints. Requests are ProtoJSON or binary protobuf by Content-Type; answers are JSON, or binary
protobuf where `Accept` asks for `application/protobuf`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from aiohttp import web

from coordinator.api import arrow_answers
from coordinator.api.listed import listed
from coordinator.api.strict import known_parameters
from coordinator.api.vector_bodies import (
    JSON_TYPES,
    context_of,
    decoded_body,
    fill_protobuf,
    is_partial,
    json_answer,
    protobuf_answer,
    vectors_json,
)
from coordinator.fanout.calls import require_whole
from coordinator.headers.negotiation import ARROW, content_type, wants_protobuf
from coordinator.http import arrow_streams
from coordinator.http.bodies import read_body
from coordinator.queries.running import RunningQuery
from coordinator.vectors import search as searches
from coordinator.vectors import text_settings
from coordinator.vectors.answers import highlights_protobuf, hits_json, hits_protobuf, vector_json, vector_protobuf
from coordinator.vectors.decode import (
    get_from_json,
    settings_from_json,
    write_from_json,
)
from coordinator.vectors.decode_protobuf import get_from_protobuf, write_from_protobuf
from coordinator.vectors.values import id_bytes, to_protobuf
from proto import vector_pb2
from shared.errors import BadData, NotFound
from shared.messages.vectors import Collection, CollectionStats

COLLECTION_BYTES_MAX = 64 << 10
"""The settings of a collection."""


@known_parameters()
async def write(request: web.Request) -> web.Response:
    """POST /api/v1/vector/write."""
    upserts = await decoded_body(request, write_from_json, write_from_protobuf)
    context = context_of(request)
    count = await context.vectors.write(upserts)
    context.telemetry.vectors_in += count
    if wants_protobuf(request):
        return protobuf_answer(vector_pb2.UpsertVectorsResponse(vectors_upserted=count))
    return json_answer({"vectorsUpserted": count})


@known_parameters("partial_response")
async def search(request: web.Request) -> web.Response:
    """POST /api/v1/vector/search."""
    wanted = await decoded_body(request, searches.from_json, searches.from_protobuf)
    return await listed(request, "vector.search", wanted.summary(), lambda running: _searched(request, wanted, running))


async def _searched(request: web.Request, wanted: searches.SearchRequest, running: RunningQuery) -> web.Response:
    running.enter("running")
    answer = await context_of(request).vectors.search(wanted, partial=is_partial(request))
    running.enter("rendering")
    collection = answer.collection
    metric = collection.metric if collection is not None and wanted.text is None else ""
    # Groups and highlights are lists in lists, which only JSON and protobuf have.
    if answer.groups is None and not answer.highlights and await arrow_answers.is_wanted(request):
        body = arrow_streams.hits_stream(answer.lists, metric, answer.warnings, answer.infos)
        return web.Response(body=body, content_type=ARROW)
    if wants_protobuf(request):
        message = vector_pb2.SearchResponse(warnings=answer.warnings, infos=answer.infos)
        for group in answer.groups or []:
            into = message.groups.add()
            to_protobuf(group.value, into.value)
            hits_protobuf(group.hits, metric, into.results)
        for hits in answer.lists:
            results = message.result_sets.add().results if wanted.batch else message.results
            hits_protobuf(hits, metric, results)
            highlights_protobuf(answer.highlights, results)
        return protobuf_answer(message)
    if answer.groups is not None:
        groups = [
            {"value": group.value, "results": orjson.Fragment(hits_json(group.hits, metric))} for group in answer.groups
        ]
        return json_answer({"groups": groups}, answer.warnings, answer.infos)
    lists = [hits_json(hits, metric, answer.highlights) for hits in answer.lists]
    if wanted.batch:
        sets = ",".join([f'{{"results":{results}}}' for results in lists])
        return json_answer({"resultSets": orjson.Fragment(f"[{sets}]")}, answer.warnings, answer.infos)
    return json_answer({"results": orjson.Fragment(lists[0])}, answer.warnings, answer.infos)


@known_parameters("collection")
async def get_one(request: web.Request) -> web.Response:
    """GET /api/v1/vector/vectors/{id}."""
    name = request.match_info["id"]
    entries, warnings = await context_of(request).vectors.get(
        request.query.get("collection", ""), [id_bytes(name, "id")], None
    )
    if not entries:
        require_whole(warnings)  # a missing shard may have the vector
        raise NotFound(f"there is no vector {name!r}")
    if wants_protobuf(request):
        message = vector_pb2.GetResponse()
        vector_protobuf(entries[0], message.vector)
        return protobuf_answer(message)
    return json_answer({"vector": vector_json(entries[0])}, warnings)


@known_parameters("partial_response")
async def get_many(request: web.Request) -> web.Response:
    """POST /api/v1/vector/get."""
    collection, ids, fields = await decoded_body(request, get_from_json, get_from_protobuf)
    entries, warnings = await context_of(request).vectors.get(collection, ids, fields, partial=is_partial(request))
    if wants_protobuf(request):
        message = vector_pb2.GetManyResponse(warnings=warnings)
        await fill_protobuf(entries, message.vectors)
        return protobuf_answer(message)
    return json_answer({"vectors": orjson.Fragment(await vectors_json(entries))}, warnings)


@known_parameters()
async def stats(request: web.Request) -> web.Response:
    """GET /api/v1/vector/stats."""
    area = context_of(request).vectors
    collections, _ = await area.collections()
    entries, warnings = await area.stats()
    totals = {collection.id: _Totals(collection) for collection in collections}
    for entry in entries:
        if entry.collection in totals:
            totals[entry.collection].add(entry)
    vectors = sum(total.vectors for total in totals.values())
    by_name = {total.collection.name: total.json() for total in totals.values()}
    return json_answer({"vectors": vectors, "collections": by_name}, warnings)


@dataclass(slots=True)
class _Totals:
    """What all workers have of a collection."""

    collection: Collection
    vectors: int = 0
    indexed: int = 0
    dead: int = 0
    bytes: int = 0
    expansion: int = 0
    queries_measured: int = 0

    def add(self, stats: CollectionStats) -> None:
        self.vectors += stats.vectors
        self.indexed += stats.indexed
        self.dead += stats.dead
        self.bytes += stats.memory_bytes
        self.expansion = max(self.expansion, stats.expansion)
        self.queries_measured = max(self.queries_measured, stats.queries_measured)

    def json(self) -> dict[str, Any]:
        return {
            **_settings_json(self.collection),
            "vectors": self.vectors,
            "indexed": self.indexed,
            "pending": self.vectors + self.dead - self.indexed,
            "dead": self.dead,
            "bytes": self.bytes,
            "expansion": self.expansion,
            "queriesMeasured": self.queries_measured,
        }


def _settings_json(collection: Collection) -> dict[str, Any]:
    return {
        "dimension": collection.dimension,
        "metric": collection.metric,
        "storage": collection.storage,
        "index": collection.kind_of_index,
        "textFields": text_settings.as_json(collection.text),
    }


@known_parameters()
async def put_collection(request: web.Request) -> web.Response:
    """PUT /api/v1/vector/collections/{name}: create the collection, or confirm that it exists with these settings."""
    context = context_of(request)
    kind = content_type(request)
    if kind not in JSON_TYPES:
        raise BadData(f"Content-Type is {kind!r}; it must be {JSON_TYPES[0]}")
    most = min(COLLECTION_BYTES_MAX, context.settings.body_bytes_max)
    wanted = settings_from_json(await read_body(request, most))
    collection = await context.vectors.create(
        Collection(
            0,
            request.match_info["name"],
            wanted.dimension,
            wanted.metric or context.settings.vector_metric,
            wanted.storage or "f32",
            tuple(wanted.textFields),
            msgspec.UNSET if wanted.index is None else wanted.index,
        )
    )
    return json_answer({"collection": {"name": collection.name, **_settings_json(collection)}})


@known_parameters()
async def get_collection(request: web.Request) -> web.Response:
    """GET /api/v1/vector/collections/{name}."""
    name = request.match_info["name"]
    collection = await context_of(request).vectors.find(name)
    if collection is None:
        raise NotFound(f"there is no collection {name!r}")
    return json_answer({"collection": {"name": collection.name, **_settings_json(collection)}})


@known_parameters()
async def list_collections(request: web.Request) -> web.Response:
    """GET /api/v1/vector/collections."""
    collections, warnings = await context_of(request).vectors.collections()
    return json_answer({"collections": [{"name": c.name, **_settings_json(c)} for c in collections]}, warnings)


@known_parameters()
async def delete_collection(request: web.Request) -> web.Response:
    """DELETE /api/v1/vector/collections/{name}: warnings name the shards that drop its vectors later."""
    warnings = await context_of(request).vectors.drop(request.match_info["name"])
    return json_answer({}, warnings)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/vector/write", write),
    web.post("/api/v1/vector/search", search),
    web.post("/api/v1/vector/get", get_many),
    web.get("/api/v1/vector/vectors/{id:.+}", get_one),
    web.get("/api/v1/vector/stats", stats),
    web.get("/api/v1/vector/collections", list_collections),
    web.put("/api/v1/vector/collections/{name}", put_collection),
    web.get("/api/v1/vector/collections/{name}", get_collection),
    web.delete("/api/v1/vector/collections/{name}", delete_collection),
]

"""The vector area behind its HTTP endpoints: collections, writes, reads and searches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import msgspec
import numpy as np

from coordinator.calls import FanOut, require_whole
from coordinator.links import Links
from coordinator.vectors.batching import SearchBatches
from coordinator.vectors.catalogue import DEFAULT
from coordinator.vectors.collections import Collections
from coordinator.vectors.decode import Upserts
from coordinator.vectors.fusion import RECIPROCAL, fuse
from coordinator.vectors.infos import unknown_fields
from coordinator.vectors.merging import NO_HITS, Hits, MergedHits, merge
from coordinator.vectors.search import SearchRequest
from coordinator.vectors.text_calls import highlights, informed
from shared import wire
from shared.config import Settings
from shared.control import Control
from shared.errors import BadData, ConfigError
from shared.hashing import shard_of
from shared.messages.vector_text import TextField
from shared.messages.vectors import (
    Collection,
    CollectionStats,
    Floats,
    IdsBody,
    SearchBody,
    StatsReply,
    UpsertBody,
    VectorCountReply,
    pack_blobs,
    unpack_blobs,
)
from shared.telemetry import event

THREAD_NUMBERS_MIN = (
    64_000  # a write of this many components is checked and cut in a thread: it would block the event loop for 1 ms
)
THREAD_IDS_MIN = 1000  # the same for ids, at a microsecond each


@dataclass(slots=True)
class Searched:
    """A search's answer: the hits of each query, the warnings, the collection (None: the default one, which has no
    vector yet), the highlights of each hit as JSON, if asked for, and hints."""

    lists: list[Hits]
    warnings: list[str]
    collection: Collection | None = None
    highlights: list[bytes] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StoredVector:
    """One vector as read: its id, its packed attributes, and its components if the request includes them."""

    id: bytes
    attributes: bytes
    vector: Floats | None


class VectorArea:
    """One object for the cluster. Everything runs on the coordinator's event loop, except cutting large writes."""

    def __init__(self, settings: Settings, links: Links, control: Control) -> None:
        self._settings = settings
        self._links = links
        self._collections = Collections(settings, links, control)
        self._timeout_s = settings.vector_timeout_ms / 1000
        self._batches = SearchBatches(self._ask, self._timeout_s)
        self._write_timeout_s = settings.write_timeout_ms / 1000

    async def start(self) -> None:
        """Read the collections. Raises ConfigError when a setting contradicts what the data directory holds."""
        await self._collections.start()
        default, settings = self._collections.find(DEFAULT), self._settings
        if default is None:
            return
        if settings.vector_dimension not in (0, default.dimension):
            raise ConfigError(
                f"TRIPTYCH_VECTOR_DIMENSION is {settings.vector_dimension}; "
                f"the vectors in {settings.data} have {default.dimension} components"
            )
        if (settings.vector_metric, settings.vector_storage) != (default.metric, default.storage):
            event(
                logging.WARNING,
                "vector settings are those of the data directory",
                metric=default.metric,
                storage=default.storage,
            )

    async def stop(self) -> None:
        """Cancel the searches under way; wait for the changes of collections to finish."""
        self._batches.stop()
        await self._collections.stop()

    # Collections

    def held(self) -> AbstractAsyncContextManager[None]:
        """A context in which the list of collections does not change."""
        return self._collections.held()

    async def collections(self) -> tuple[list[Collection], list[str]]:
        """(all collections, warnings). Raises Unavailable while the list of collections is not known."""
        await self._collections.known()
        return self._collections.all(), self._collections.warnings()

    async def find(self, name: str) -> Collection | None:
        """The collection `name`: None for the default one while it has no vector. Raises NotFound for others that do
        not exist, Unavailable while the list of collections is not known."""
        await self._collections.known()
        return self._collections.find(name)

    async def create(
        self, name: str, dimension: int, metric: str, storage: str, text: Sequence[str | TextField]
    ) -> Collection:
        """Create a collection: durable when this returns. Raises BadData for settings that are wrong or differ from
        those of the existing collection, and Unavailable."""
        fixed_dimension = self._settings.vector_dimension
        if name == DEFAULT and fixed_dimension not in (0, dimension):
            raise BadData(f"dimension is {dimension}; TRIPTYCH_VECTOR_DIMENSION fixes it to {fixed_dimension}")
        return await self._collections.create(name, dimension, metric, storage, text)

    async def drop(self, name: str) -> list[str]:
        """Delete a collection and its vectors; see `Collections.drop`."""
        return await self._collections.drop(name)

    async def _for_write(self, upserts: Upserts) -> Collection:
        """The collection to write to. The first vector of all creates the default one."""
        collection = await self.find(upserts.collection)
        await self._collections.settle()
        if collection is not None:
            return collection
        settings = self._settings
        dimension = settings.vector_dimension or upserts.dimension()
        # A wrong request is refused before its dimension becomes the collection's.
        upserts.matrix(Collection(0, DEFAULT, dimension, settings.vector_metric, settings.vector_storage))
        self._links.require(range(self._links.shards))
        return await self._collections.find_or_create(
            DEFAULT, dimension, settings.vector_metric, settings.vector_storage
        )

    # Writes

    async def write(self, upserts: Upserts) -> int:
        """Insert or replace vectors: on the disks of all shards concerned when this returns. Returns how many vectors
        the request has.

        Raises BadData with nothing applied. Raises Unavailable when a shard is missing or fails; some shards may then
        have stored their part, and it is safe to send the whole request again.
        """
        collection = await self._for_write(upserts)
        if len(upserts.flat) < THREAD_NUMBERS_MIN and len(upserts.ids) < THREAD_IDS_MIN:
            parts = self._parts(upserts, collection)
        else:
            parts = await asyncio.to_thread(self._parts, upserts, collection)
        await self._links.call(
            "vector.write", body=wire.pack(UpsertBody(collection)), parts=parts, timeout_s=self._write_timeout_s
        )
        return len(upserts.ids)

    def _parts(self, upserts: Upserts, collection: Collection) -> dict[int, list[bytes]]:
        """Shard → its frames, as described in `UpsertBody`. Raises BadData for vectors the collection cannot hold."""
        ids, table, attributes = upserts.last_wins(upserts.matrix(collection))
        parts = {}
        for shard, places in self._places(ids).items():
            chosen = table[places]
            parts[shard] = [
                *pack_blobs([ids[place] for place in places]),
                chosen.tobytes(),
                *pack_blobs([attributes[place] for place in places]),
            ]
        return parts

    async def delete(self, name: str, ids: Sequence[bytes]) -> int:
        """Delete vectors, as durably as `write`. Returns how many existed."""
        collection = await self.find(name)
        await self._collections.settle()
        if collection is None or not ids:
            return 0
        parts = self._id_parts(ids) if len(ids) < THREAD_IDS_MIN else await asyncio.to_thread(self._id_parts, ids)
        replies = await self._links.call(
            "vector.delete",
            body=wire.pack(IdsBody(collection)),
            parts=parts,
            timeout_s=self._write_timeout_s,
        )
        return sum(wire.unpack(reply.message.body, VectorCountReply).count for reply in replies)

    def _places(self, ids: Sequence[bytes]) -> dict[int, list[int]]:
        """Shard → the positions in `ids` of the ids that belong to it."""
        shards = self._links.shards
        places: dict[int, list[int]] = {}
        for place, name in enumerate(ids):
            places.setdefault(shard_of(name, shards), []).append(place)
        return places

    def _id_parts(self, ids: Sequence[bytes]) -> dict[int, tuple[bytes, bytes]]:
        distinct_ids = list(dict.fromkeys(ids))
        return {
            shard: pack_blobs([distinct_ids[place] for place in places])
            for shard, places in self._places(distinct_ids).items()
        }

    # Reads

    async def get(
        self, name: str, ids: Sequence[bytes], fields: tuple[str, ...] | None, *, partial: bool = True
    ) -> tuple[list[StoredVector], list[str]]:
        """(the vectors of `ids` that exist, in that order; warnings). Raises Unavailable when no shard answers, or when
        the answer is not whole and `partial` is false."""
        collection = await self.find(name)
        if collection is None or not ids:
            return [], []
        outcome = await self._links.fan_out(
            "vector.get",
            body=wire.pack(IdsBody(collection, fields)),
            parts=self._id_parts(ids),
            timeout_s=self._timeout_s,
        )
        if not partial:
            require_whole(outcome.warnings())
        stored: dict[bytes, StoredVector] = {}
        for reply in outcome.replies:
            id_bytes, lengths, attributes, attribute_lengths, vectors = reply.message.frames
            stored_ids = unpack_blobs(id_bytes, lengths)
            table = np.frombuffer(vectors, dtype=np.float32).reshape(-1, collection.dimension)
            rows: Sequence[Floats | None] = list(table) if len(table) else [None] * len(stored_ids)
            packed_attributes = unpack_blobs(attributes, attribute_lengths)
            stored.update((entry.id, entry) for entry in map(StoredVector, stored_ids, packed_attributes, rows))
        return [stored[name] for name in dict.fromkeys(ids) if name in stored], outcome.warnings()

    async def stats(self) -> tuple[list[CollectionStats], list[str]]:
        """(an entry for each collection of each worker; warnings, including those about the list of collections)."""
        outcome = await self._links.fan_out("vector.stats", timeout_s=self._timeout_s)
        replies = [wire.unpack(reply.message.body, StatsReply) for reply in outcome.replies]
        entries = [entry for reply in replies for entry in reply.collections]
        return entries, [*outcome.warnings(), *self._collections.warnings()]

    async def search(self, request: SearchRequest, *, partial: bool) -> Searched:
        """Search all shards. Raises BadData, DeadlineExceeded, or Unavailable when no shard answers, or when the answer
        is not whole and `partial` is false."""
        collection = await self.find(request.collection)
        if collection is None:
            if request.text is not None:
                named = ", ".join(request.text.boosts) or "missing"
                raise BadData(f"{request.text.label} is {named}; the default collection has no text fields")
            return Searched([NO_HITS] * len(request.counts), [])
        deadline = time.monotonic() + self._timeout_s
        queries = request.queries(collection)
        highlighting = request.text.highlighting(collection, request.k) if request.text is not None else None
        body = request.body(collection, self._settings.vector_expansion, self._settings.vector_recall)
        results, outcome = await self._batches.submit(body, queries)
        warnings = outcome.warnings()
        if not partial:
            require_whole(warnings)
        # What is missing may have the field.
        is_known = results.vectors > 0 and not warnings
        infos = unknown_fields(collection.name, results.unknown, results.nearest) if is_known else []
        lists = results.lists
        if request.hybrid():
            lists = [fuse(lists, request.k, request.fusion or RECIPROCAL)]
        answer = Searched(lists, warnings, collection, infos=infos)
        if highlighting is not None and body.text is not None and lists[0].ids:
            found = lists[0].ids
            answer.highlights, missing = await highlights(
                self._links,
                collection,
                body.text,
                highlighting,
                found,
                self._id_parts(found),
                max(0.001, deadline - time.monotonic()),
            )
            if not partial:
                require_whole(missing)
            answer.warnings = list(dict.fromkeys([*warnings, *missing]))
        return answer

    async def _ask(self, body: SearchBody, queries: Floats) -> tuple[MergedHits, FanOut]:
        deadline = time.monotonic() + self._timeout_s
        body = msgspec.structs.replace(body, shards_asked=self._links.shards - len(self._links.unready()))
        found, outcome = await self._ask_once(body, queries, self._timeout_s)
        text = informed(body.text, found.words) if body.text is not None else None
        if text is not None:
            body = msgspec.structs.replace(body, text=text)
            ranked, again = await self._ask_once(body, queries[:0], max(0.001, deadline - time.monotonic()))
            found.lists[-1] = ranked.lists[0]
            outcome = FanOut(outcome.replies, {**outcome.missing, **again.missing})
        return found, outcome

    async def _ask_once(self, body: SearchBody, queries: Floats, timeout_s: float) -> tuple[MergedHits, FanOut]:
        outcome = await self._links.fan_out(
            "vector.search", body=wire.pack(body), frames=[queries.tobytes()], timeout_s=timeout_s
        )
        lists = len(queries) + (body.text is not None)
        messages = [reply.message for reply in outcome.replies]
        return merge(messages, lists, body.collection.dimension, body.k), outcome

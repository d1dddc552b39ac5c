"""The vector area behind its HTTP endpoints: collections, writes, reads and searches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import msgspec
import numpy as np

from coordinator.fanout.calls import FanOut, require_whole
from coordinator.fanout.links import Links
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.vectors.batching import Found, SearchBatches, SearchKind
from coordinator.vectors.catalogue import DEFAULT
from coordinator.vectors.collections import Collections
from coordinator.vectors.decode import Upserts
from coordinator.vectors.fusion import RECIPROCAL, fuse
from coordinator.vectors.groups import Group, GroupedSearch
from coordinator.vectors.infos import unknown_fields
from coordinator.vectors.map import VectorMaps
from coordinator.vectors.merging import NO_HITS, Hits, MergedHits, merge
from coordinator.vectors.placing import THREAD_IDS_MIN, id_parts, places
from coordinator.vectors.refinements import GroupBy
from coordinator.vectors.scroll import ScrollRequest
from coordinator.vectors.search import SearchRequest
from coordinator.vectors.selected import SelectedVectors
from coordinator.vectors.stored import StoredVector, stored_vectors
from coordinator.vectors.text_calls import highlights, informed
from shared import wire
from shared.control import Control
from shared.errors import BadData, ConfigError, DeadlineExceeded, NotFound
from shared.messages.vectors import (
    READ_WHOLE,
    VECTOR_FIELD,
    Collection,
    CollectionStats,
    Floats,
    IdsBody,
    SearchBody,
    StatsReply,
    UpsertBody,
    pack_blobs,
)
from shared.settings import Settings
from shared.telemetry import event

THREAD_NUMBERS_MIN = (
    64_000  # a write of this many components is checked and cut in a thread: it would block the event loop for 1 ms
)


READ_BYTES_MAX = 128 << 20
"""Bytes of the vectors of a read of more than READ_WHOLE ids, in all workers together."""


@dataclass(slots=True)
class Searched:
    """A search's answer: the hits of each query, the warnings, the collection (None: the default one, which has no
    vector yet), the highlights of each hit as JSON, if asked for, and hints. `groups`: instead of hits, for a search
    that groups."""

    lists: list[Hits]
    warnings: list[str]
    collection: Collection | None = None
    highlights: list[bytes] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)
    groups: list[Group] | None = None


class VectorArea:
    """One object for the cluster. Everything runs on the coordinator's event loop, except cutting large writes."""

    def __init__(self, settings: Settings, links: Links, control: Control) -> None:
        self._settings = settings
        self._links = links
        self._collections = Collections(settings, links, control)
        self.selected = SelectedVectors(settings, links, self._collections)
        self.maps = VectorMaps(settings, links, self._collections)
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

    def at_hand(self, name: str) -> Collection | None:
        """The collection `name`; None if it does not exist, or while the list of collections is not known."""
        return self._collections.at_hand(name)

    async def create(self, wanted: Collection) -> Collection:
        """Create a collection, whose id `wanted` leaves open: durable when this returns. Raises BadData for settings
        that are wrong or differ from those of the existing collection, and Unavailable."""
        fixed_dimension = self._settings.vector_dimension
        if wanted.name == DEFAULT and fixed_dimension not in (0, wanted.dimension):
            raise BadData(f"dimension is {wanted.dimension}; TRIPTYCH_VECTOR_DIMENSION fixes it to {fixed_dimension}")
        return await self._collections.create(wanted)

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
        wanted = Collection(0, DEFAULT, dimension, settings.vector_metric, settings.vector_storage)
        upserts.matrix(wanted)
        self._links.require(range(self._links.shards))
        return await self._collections.find_or_create(wanted)

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
        for shard, shard_places in places(ids, self._links.shards).items():
            chosen = table[shard_places]
            parts[shard] = [
                *pack_blobs([ids[place] for place in shard_places]),
                chosen.tobytes(),
                *pack_blobs([attributes[place] for place in shard_places]),
            ]
        return parts

    # Reads

    async def get(
        self, name: str, ids: Sequence[bytes], fields: tuple[str, ...] | None, *, partial: bool = True
    ) -> tuple[list[StoredVector], list[str]]:
        """(the vectors of `ids` that exist, in that order; warnings). Raises Unavailable when no shard answers, or when
        the answer is not whole and `partial` is false; TooLarge for many ids whose vectors take too many bytes."""
        collection = await self.find(name)
        if collection is None or not ids:
            return [], []
        is_large = len(ids) >= THREAD_IDS_MIN
        bytes_max = READ_BYTES_MAX // max(1, self._links.worker_count()) if len(ids) > READ_WHOLE else 0
        shards = self._links.shards
        outcome = await self._links.fan_out(
            "vector.get",
            body=wire.pack(IdsBody(collection, fields, bytes_max, len(ids))),
            parts=await asyncio.to_thread(id_parts, ids, shards) if is_large else id_parts(ids, shards),
            timeout_s=self._timeout_s,
        )
        if not partial:
            require_whole(outcome.warnings())

        def in_order() -> list[StoredVector]:
            stored: dict[bytes, StoredVector] = {}
            for reply in outcome.replies:
                entries = stored_vectors(reply.message.frames, collection.dimension)
                stored.update((entry.id, entry) for entry in entries)
            return [stored[name] for name in dict.fromkeys(ids) if name in stored]

        return (await asyncio.to_thread(in_order) if is_large else in_order()), outcome.warnings()

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
        if request.id:
            request = await self._with_vector(request, partial=partial)
        if collection is None:
            if request.text is not None:
                named = ", ".join(request.text.boosts) or "missing"
                raise BadData(f"{request.text.label} is {named}; the default collection has no text fields")
            groups: list[Group] | None = [] if request.refinement.group is not None else None
            return Searched([NO_HITS] * max(1, len(request.counts)), [], groups=groups)
        deadline = time.monotonic() + self._timeout_s
        queries = request.queries(collection)
        if request.is_browse:
            return await self._browse(request, collection, partial=partial)
        highlighting = request.text.highlighting(collection, request.k) if request.text is not None else None
        body = request.body(collection, self._settings.vector_expansion, self._settings.vector_recall)
        if request.refinement.group is not None:
            return await self._search_groups(request, request.refinement.group, body, queries, partial=partial)
        answer = self.searched(request, collection, await self._batches.submit(body, queries), partial=partial)
        lists, warnings = answer.lists, answer.warnings
        if highlighting is not None and body.text is not None and lists[0].ids:
            found_ids = lists[0].ids
            answer.highlights, missing = await highlights(
                self._links,
                collection,
                body.text,
                highlighting,
                found_ids,
                id_parts(found_ids, self._links.shards),
                max(0.001, deadline - time.monotonic()),
            )
            if not partial:
                require_whole(missing)
            answer.warnings = list(dict.fromkeys([*warnings, *missing]))
        return answer

    def kind(self, request: SearchRequest, collection: Collection) -> SearchKind:
        """The kind of a search for one vector, without texts, groups and ids."""
        return SearchKind.of(request.body(collection, self._settings.vector_expansion, self._settings.vector_recall))

    def begin(self, kind: SearchKind, queries: Floats | bytes) -> PromptFuture[Found]:
        """Search for one vector, float32[1, dimension] or in JSON. The result is for `searched`. The future has the
        errors of `search`; canceling it cancels the search."""
        return self._batches.begin(kind, queries)

    def searched(self, request: SearchRequest, collection: Collection, found: Found, *, partial: bool) -> Searched:
        """The answer, from the results of the workers. Raises Unavailable when it is not complete and `partial` is
        false."""
        results, outcome = found
        warnings = list(dict.fromkeys(outcome.warnings()))  # workers that were asked twice say the same twice
        if not partial:
            require_whole(warnings)
        lists = results.lists
        if request.id:
            lists = [hits.without(request.id) for hits in lists]
        if request.hybrid():
            lists = [fuse(lists, request.depth, request.fusion or RECIPROCAL)]
        metric = "" if request.text is not None else collection.metric
        lists = [request.refinement.cut(hits, request.k, metric) for hits in lists]
        return Searched(lists, warnings, collection, infos=_infos(collection, results, warnings))

    async def _with_vector(self, request: SearchRequest, *, partial: bool) -> SearchRequest:
        """The search by an id as a search by its vector. Raises NotFound, or Unavailable if a missing shard may have
        it."""
        stored, warnings = await self.get(request.collection, [request.id], (VECTOR_FIELD,), partial=partial)
        if not stored or stored[0].vector is None:
            require_whole(warnings)
            raise NotFound(f"there is no vector {request.id.decode()!r}")
        return request.of_vector(stored[0].vector)

    async def _browse(self, request: SearchRequest, collection: Collection, *, partial: bool) -> Searched:
        """The vectors that satisfy the filter, in the order of their ids, all with the score 0."""
        page = ScrollRequest(request.collection, request.filter)
        offset, k = request.refinement.offset, request.k
        found: list[StoredVector] = []
        warnings: list[str] = []
        infos: list[str] = []
        while len(found) < offset + k:
            is_skipped = len(found) < offset
            page.limit = offset - len(found) if is_skipped else offset + k - len(found)
            page.fields = () if is_skipped else request.fields
            part = await self.selected.scroll(page, partial=partial)
            found += part.vectors
            warnings += [text for text in part.warnings if text not in warnings]
            infos = part.infos
            if part.end is None:
                break
            page.after = part.end
        return Searched([_unranked(found[offset:])], warnings, collection, infos=infos)

    async def _search_groups(
        self, request: SearchRequest, wanted: GroupBy, body: SearchBody, queries: Floats, *, partial: bool
    ) -> Searched:
        """The groups of the search, each with its results."""
        grouped = GroupedSearch(lambda part: self._ask(part, queries), body, wanted)
        try:
            async with asyncio.timeout(self._timeout_s):
                groups = await grouped.run()
        except TimeoutError:
            raise DeadlineExceeded(f"the search took longer than {self._timeout_s:g} s") from None
        if not partial:
            require_whole(grouped.warnings)
        infos = _infos(body.collection, grouped.found, grouped.warnings) + grouped.infos
        metric = "" if request.text is not None else body.collection.metric
        for group in groups:
            group.hits = request.refinement.cut(group.hits, wanted.perGroup, metric)
        groups = [group for group in groups if group.hits.ids]
        ids = [name for group in groups for name in group.hits.ids]
        stored: dict[bytes, StoredVector] = {}
        if request.fields != ():
            vectors, _ = await self.get(request.collection, ids, request.fields, partial=partial)
            stored = {vector.id: vector for vector in vectors}
        for group in groups:
            group.hits = _with_contents(group.hits, stored, is_shown=request.fields != ())
        return Searched([], grouped.warnings, body.collection, infos=infos, groups=groups)

    async def _ask(self, body: SearchBody, queries: Floats) -> tuple[MergedHits, FanOut]:
        deadline = time.monotonic() + self._timeout_s
        body = msgspec.structs.replace(body, shards_asked=self._links.shards - len(self._links.unready()))
        results, outcome = await self._ask_once(body, queries, self._timeout_s)
        text = informed(body.text, results.words) if body.text is not None else None
        if text is not None:
            body = msgspec.structs.replace(body, text=text)
            ranked, again = await self._ask_once(body, queries[:0], max(0.001, deadline - time.monotonic()))
            results.lists[-1] = ranked.lists[0]
            outcome = FanOut([*outcome.replies, *again.replies], {**outcome.missing, **again.missing})
        return results, outcome

    async def _ask_once(self, body: SearchBody, queries: Floats, timeout_s: float) -> tuple[MergedHits, FanOut]:
        outcome = await self._links.fan_out(
            "vector.search", body=wire.pack(body), frames=[queries.tobytes()], timeout_s=timeout_s
        )
        lists = len(queries) + (body.text is not None)
        messages = [reply.message for reply in outcome.replies]
        return merge(messages, lists, body.collection.dimension, body.k), outcome


def _infos(collection: Collection, results: MergedHits, warnings: Sequence[str]) -> list[str]:
    """Hints about fields that no vector has. There are none while shards are missing, which may have them."""
    is_known = results.vectors > 0 and not warnings
    return unknown_fields(collection.name, results.unknown, results.nearest) if is_known else []


def _unranked(vectors: Sequence[StoredVector]) -> Hits:
    """Vectors as hits, all with the similarity 0."""
    table = [vector.vector for vector in vectors if vector.vector is not None]
    return Hits(
        np.zeros(len(vectors), dtype=np.float32),
        [vector.id for vector in vectors],
        [vector.attributes for vector in vectors],
        np.array(table, dtype=np.float32) if table else None,
    )


def _with_contents(hits: Hits, stored: Mapping[bytes, StoredVector], *, is_shown: bool) -> Hits:
    """The hits with these contents, without vectors that have been deleted since."""
    if not is_shown:
        return Hits(hits.near, hits.ids, [], None)
    places = [place for place, name in enumerate(hits.ids) if name in stored]
    unranked_hits = _unranked([stored[hits.ids[place]] for place in places])
    unranked_hits.near = hits.near[places]
    return unranked_hits

"""Reads and changes of the vectors that a filter selects, over all shards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from coordinator.fanout.calls import FanOut, WorkerReply, require_whole
from coordinator.fanout.links import Links
from coordinator.vectors.changes import ChangeRequest
from coordinator.vectors.collections import Collections
from coordinator.vectors.facets import CountRequest, most_frequent
from coordinator.vectors.infos import unknown_of
from coordinator.vectors.placing import THREAD_IDS_MIN, id_parts
from coordinator.vectors.scroll import Page, ScrollRequest, merge
from coordinator.vectors.stored import StoredVector
from shared import wire
from shared.messages.selected_vectors import (
    FacetsBody,
    FacetsReply,
    PageBody,
    PageReply,
    Position,
    SelectedReply,
    SelectionBody,
    UpdateBody,
)
from shared.messages.vectors import Collection, IdsBody, Value, VectorCountReply
from shared.settings import Settings

PAGE_BYTES_MAX = 16 << 20
"""Bytes of the vectors in a page, in all workers together. A page that reaches this limit ends early, and says where
the next one begins."""
THREAD_ENTRIES_MIN = 500
"""Pages with at least so many vectors are merged in a thread."""

Body = msgspec.Struct
T = TypeVar("T")


@dataclass(slots=True)
class Scrolled:
    """A page: its vectors, and its end (None: it is the last one)."""

    vectors: list[StoredVector]
    end: Position | None = None
    warnings: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Counted:
    """A number of vectors, or the most frequent values of a field with the number of vectors that have each."""

    count: int = 0
    facets: list[tuple[Value, int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)


class SelectedVectors:
    """For the event loop's thread only, except that large replies are merged in threads.

    All reads raise Unavailable when no shard answers, or when the answer is not whole and `partial` is false, and
    NotFound for a collection that does not exist. All changes need every shard, and raise Unavailable when one is
    missing or fails; it is safe to send the whole request again.
    """

    def __init__(self, settings: Settings, links: Links, collections: Collections) -> None:
        self._links = links
        self._collections = collections
        self._timeout_s = settings.vector_timeout_ms / 1000
        self._write_timeout_s = settings.write_timeout_ms / 1000

    async def _find(self, name: str) -> Collection | None:
        await self._collections.known()
        return self._collections.find(name)

    # Reads

    async def _read(self, method: str, body: Body, *, partial: bool) -> FanOut:
        outcome = await self._links.fan_out(method, body=wire.pack(body), timeout_s=self._timeout_s)
        if not partial:
            require_whole(outcome.warnings())
        return outcome

    async def scroll(self, request: ScrollRequest, *, partial: bool) -> Scrolled:
        """One page. It has fewer vectors than the request's limit if they take PAGE_BYTES_MAX."""
        collection = await self._find(request.collection)
        if collection is None:
            return Scrolled([])
        body = PageBody(
            collection,
            request.filter,
            request.order_field,
            request.descending,
            request.after,
            request.limit,
            PAGE_BYTES_MAX // max(1, self._links.worker_count()),
            request.fields,
        )
        outcome = await self._read("vector.page", body, partial=partial)
        replies = [reply.message for reply in outcome.replies]
        entries = sum(len(reply.frames[1]) // 4 for reply in replies)
        page: Page
        if entries < THREAD_ENTRIES_MIN:
            page = merge(request, replies, collection.dimension)
        else:
            page = await asyncio.to_thread(merge, request, replies, collection.dimension)
        warnings = outcome.warnings()
        infos = unknown_of(collection.name, _unpacked(outcome.replies, PageReply), warnings)
        return Scrolled(page.vectors, page.end, warnings, infos)

    async def count(self, request: CountRequest, *, partial: bool) -> Counted:
        """The number of selected vectors."""
        collection = await self._find(request.collection)
        if collection is None:
            return Counted()
        outcome = await self._read("vector.count", SelectionBody(collection, request.filter), partial=partial)
        replies = _unpacked(outcome.replies, SelectedReply)
        warnings = outcome.warnings()
        infos = unknown_of(collection.name, replies, warnings)
        return Counted(sum(reply.count for reply in replies), [], warnings, infos)

    async def facets(self, request: CountRequest, *, partial: bool) -> Counted:
        """The most frequent values of a field. Raises BadData if the field has too many values."""
        collection = await self._find(request.collection)
        if collection is None:
            return Counted()
        body = FacetsBody(collection, request.filter, request.field)
        outcome = await self._read("vector.facets", body, partial=partial)
        warnings = outcome.warnings()

        def merged() -> Counted:
            replies = _unpacked(outcome.replies, FacetsReply)
            return Counted(
                0, most_frequent(replies, request.limit), warnings, unknown_of(collection.name, replies, warnings)
            )

        return await asyncio.to_thread(merged)

    # Changes

    async def delete(self, request: ChangeRequest) -> tuple[int, list[str]]:
        """(how many vectors were deleted, infos). They are deleted on the disks of all shards when this returns."""
        collection = await self._find(request.collection)
        await self._collections.settle()
        if collection is None or request.ids == []:
            return 0, []
        if request.ids is None:
            return await self._change("vector.delete_matching", SelectionBody(collection, request.filter), collection)
        replies = await self._links.call(
            "vector.delete",
            body=wire.pack(IdsBody(collection)),
            parts=await self._parts(request.ids),
            timeout_s=self._write_timeout_s,
        )
        return sum(reply.count for reply in _unpacked(replies, VectorCountReply)), []

    async def update(self, request: ChangeRequest) -> tuple[int, list[str]]:
        """(how many vectors exist and are selected, infos). They have the attributes on the disks of all shards when
        this returns. Raises BadData if a vector would have too many attributes; others may have been updated then."""
        collection = await self._find(request.collection)
        await self._collections.settle()
        if collection is None or request.ids == []:
            return 0, []
        parts = None if request.ids is None else await self._parts(request.ids)
        body = UpdateBody(collection, request.filter, request.set, request.unset)
        return await self._change("vector.update", body, collection, parts)

    async def _change(
        self,
        method: str,
        body: Body,
        collection: Collection,
        parts: dict[int, tuple[bytes, bytes]] | None = None,
    ) -> tuple[int, list[str]]:
        answers = await self._links.call(method, body=wire.pack(body), parts=parts, timeout_s=self._write_timeout_s)
        replies = _unpacked(answers, SelectedReply)
        return sum(reply.count for reply in replies), unknown_of(collection.name, replies, [])

    async def _parts(self, ids: Sequence[bytes]) -> dict[int, tuple[bytes, bytes]]:
        if len(ids) < THREAD_IDS_MIN:
            return id_parts(ids, self._links.shards)
        return await asyncio.to_thread(id_parts, ids, self._links.shards)


def _unpacked(replies: Iterable[WorkerReply], kind: type[T]) -> list[T]:
    return [wire.unpack(reply.message.body, kind) for reply in replies]

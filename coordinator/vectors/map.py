"""The map of a collection: a sample of its vectors on the two axes along which they vary most (PCA).

The vectors stay in the workers. The coordinator sums what the workers compute from their own vectors: first the mean,
then repeatedly the covariance applied to some directions, until the axes are found (`axes_search`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from coordinator.fanout.calls import FanOut, require_whole
from coordinator.fanout.links import Links
from coordinator.vectors.axes_search import SHOWN_AXES, AxesSearch, Table
from coordinator.vectors.collections import Collections
from coordinator.vectors.infos import unknown_of
from coordinator.vectors.map_request import MapRequest, points_max
from coordinator.vectors.placing import id_parts
from shared import wire
from shared.errors import DeadlineExceeded, NotFound
from shared.messages.vector_map import (
    AttributesBody,
    AttributesReply,
    CoordinatesBody,
    CoordinatesReply,
    MomentsBody,
    MomentsReply,
    SampleBody,
    SampleReply,
    SpreadBody,
)
from shared.messages.vectors import Collection, Floats, Value, unpack_blobs
from shared.settings import Settings
from shared.wire import Frame

AT_ONCE = 2
"""The limit on maps that are computed at once; others wait for their turn."""

Parts = Mapping[int, Sequence[Frame]]


@dataclass(slots=True)
class VectorMap:
    """`places` float64[n, 2] of the vectors `ids`; `values` of the attribute, None for a vector without it.
    `variance`: the share of the sample's variance that each axis has. `vectors`: how many the sample was drawn from."""

    ids: list[bytes] = field(default_factory=list)
    places: Table = field(default_factory=lambda: np.zeros((0, SHOWN_AXES)))
    values: list[Value | None] = field(default_factory=list)
    variance: list[float] = field(default_factory=lambda: [0.0] * SHOWN_AXES)
    vectors: int = 0
    warnings: list[str] = field(default_factory=list)
    infos: list[str] = field(default_factory=list)


class VectorMaps:
    """For the event loop's thread only, except that axes are turned in threads."""

    def __init__(self, settings: Settings, links: Links, collections: Collections) -> None:
        self._links = links
        self._collections = collections
        self._timeout_s = settings.vector_timeout_ms / 1000
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def compute(self, request: MapRequest, *, partial: bool) -> VectorMap:
        """The map. Raises NotFound, DeadlineExceeded, and Unavailable when no shard answers, or when the map is not
        complete and `partial` is false."""
        await self._collections.known()
        collection = self._collections.find(request.collection)
        if collection is None:
            return VectorMap()
        try:
            async with asyncio.timeout(self._timeout_s), self._turns:
                calculation = _Calculation(self._links, collection, request, time.monotonic() + self._timeout_s)
                vector_map = await calculation.run()
        except TimeoutError:
            raise DeadlineExceeded(f"the map took longer than {self._timeout_s:g} s; ask for fewer vectors") from None
        if not partial:
            require_whole(vector_map.warnings)
        return vector_map

    async def attributes(self, name: str) -> tuple[dict[str, dict[str, int]], list[str], list[str]]:
        """(name → type → how many vectors have a value of it, warnings, infos). Raises NotFound, Unavailable."""
        await self._collections.known()
        collection = self._collections.find(name)
        if collection is None:
            raise NotFound(f"there is no collection {name!r}")
        body = wire.pack(AttributesBody(collection))
        outcome = await self._links.fan_out("vector.attributes", body=body, timeout_s=self._timeout_s)
        counts: dict[str, dict[str, int]] = {}
        infos: list[str] = []
        for reply in outcome.replies:
            content = wire.unpack(reply.message.body, AttributesReply)
            for attribute, types in content.attributes.items():
                sums = counts.setdefault(attribute, {})
                for kind, count in types.items():
                    sums[kind] = sums.get(kind, 0) + count
            if content.names > len(content.attributes):
                infos = [f"the collection {name!r} has {content.names} attributes or more; some are left out"]
        return {name: types for name, types in sorted(counts.items()) if types}, outcome.warnings(), infos


class _Calculation:
    """The computation of one map."""

    def __init__(self, links: Links, collection: Collection, request: MapRequest, deadline: float) -> None:
        self._links = links
        self._collection = collection
        self._request = request
        self._deadline = deadline
        self._warnings: dict[str, None] = {}

    async def run(self) -> VectorMap:
        vector_map = VectorMap()
        ids = await self._sample(vector_map)
        if ids:
            parts = await asyncio.to_thread(id_parts, ids, self._links.shards)
            scale, mean = await self._mean(parts)
            axes = await self._axes(parts, scale, mean)
            await self._place(vector_map, ids, parts, scale, mean, axes)
        vector_map.warnings = list(self._warnings)
        return vector_map

    async def _ask(self, method: str, body: msgspec.Struct, parts: Parts | None, *frames: bytes) -> FanOut:
        left_s = max(0.001, self._deadline - time.monotonic())
        outcome = await self._links.fan_out(method, body=wire.pack(body), frames=frames, parts=parts, timeout_s=left_s)
        outcome.replies.sort(key=lambda reply: reply.shards)  # sums of floats depend on their order
        self._warnings.update(dict.fromkeys(outcome.warnings()))
        return outcome

    async def _sample(self, made: VectorMap) -> list[bytes]:
        request, dimension = self._request, self._collection.dimension
        limit = min(request.limit, points_max(dimension))
        body = SampleBody(self._collection, request.filter, limit, request.attribute)
        outcome = await self._ask("vector.sample", body, None)
        replies = [wire.unpack(reply.message.body, SampleReply) for reply in outcome.replies]
        made.vectors = sum(reply.count for reply in replies)
        made.infos = unknown_of(self._collection.name, replies, outcome.warnings())
        if limit < min(request.limit, made.vectors):
            made.infos.append(f"limit is {request.limit}; a map of {dimension} components has at most {limit} vectors")
        frames = [reply.message.frames for reply in outcome.replies]
        return await asyncio.to_thread(lowest_draws, frames, limit)  # each worker may have sent `limit` ids

    async def _mean(self, parts: Parts) -> tuple[float, Floats]:
        """(the largest component, by which the vectors are divided so that no product overflows; their mean after
        that)."""
        outcome = await self._ask("vector.moments", MomentsBody(self._collection), parts)
        replies = [wire.unpack(reply.message.body, MomentsReply) for reply in outcome.replies]
        scale = max(reply.largest for reply in replies) or 1.0
        total = np.sum([np.frombuffer(reply.message.frames[0]) for reply in outcome.replies], axis=0)
        mean = total / (scale * max(1, sum(reply.count for reply in replies)))
        return scale, mean.astype(np.float32)

    async def _axes(self, parts: Parts, scale: float, mean: Floats) -> Floats:
        """The first axes, float32[a, dimension], orthonormal. There is one axis if there is one component only."""
        search = await asyncio.to_thread(AxesSearch, self._collection.dimension)
        body = SpreadBody(self._collection, scale)
        while not search.is_over:
            outcome = await self._ask("vector.spread", body, parts, mean.tobytes(), search.block.tobytes())
            products = [np.frombuffer(reply.message.frames[0], np.float32) for reply in outcome.replies]
            total = np.stack(products).sum(axis=0, dtype=np.float64)
            await asyncio.to_thread(search.add, total.reshape(search.block.shape))
        return search.axes

    async def _place(
        self, made: VectorMap, ids: Sequence[bytes], parts: Parts, scale: float, mean: Floats, axes: Floats
    ) -> None:
        body = CoordinatesBody(self._collection, scale, self._request.attribute)
        outcome = await self._ask("vector.coordinates", body, parts, mean.tobytes(), axes.tobytes())
        replies = [wire.unpack(reply.message.body, CoordinatesReply) for reply in outcome.replies]
        frames = [reply.message.frames for reply in outcome.replies]
        names = [name for reply_frames in frames for name in unpack_blobs(reply_frames[0], reply_frames[1])]
        values = [value for reply in replies for value in reply.values]
        table = np.concatenate([np.frombuffer(reply_frames[2], np.float32) for reply_frames in frames]).reshape(
            -1, len(axes)
        )
        at = {name: place for place, name in enumerate(names)}
        made.ids = [name for name in ids if name in at]
        order = [at[name] for name in made.ids]
        squares = sum(reply.squares for reply in replies)
        # Of equal vectors, rounding leaves differences, which would look like points spread over the map.
        if squares > len(names) * len(mean) * np.finfo(np.float32).eps ** 2:
            made.places = np.zeros((len(order), SHOWN_AXES))
            made.places[:, : len(axes)] = table[order].astype(np.float64)
            made.variance = (np.square(made.places).sum(axis=0) / squares).tolist()
            made.places *= scale
        else:
            made.places = np.zeros((len(order), SHOWN_AXES))
        if self._request.attribute:
            made.values = [values[place] for place in order]


def lowest_draws(replies: Sequence[Sequence[Frame]], limit: int) -> list[bytes]:
    """The ids with the `limit` lowest draws of all workers, lowest first. `replies`: the frames of `SampleReply`."""
    draws = np.frombuffer(b"".join(frames[0] for frames in replies), np.uint64)
    ids = [name for frames in replies for name in unpack_blobs(frames[1], frames[2])]
    return [ids[place] for place in np.argsort(draws, kind="stable")[:limit].tolist()]

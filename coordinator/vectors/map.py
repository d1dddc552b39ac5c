"""The map of a collection: a sample of its vectors on the two axes along which they differ most (PCA).

The vectors stay in the workers. The coordinator adds up what the workers compute of their own ones: first the mean,
then, again and again, the covariance applied to some axes, until the first two hardly turn any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.calls import FanOut, require_whole
from coordinator.links import Links
from coordinator.vectors.collections import Collections
from coordinator.vectors.infos import unknown_of
from coordinator.vectors.map_request import MapRequest
from coordinator.vectors.placing import id_parts
from shared import wire
from shared.config import Settings
from shared.errors import DeadlineExceeded, NotFound
from shared.messages.vector_map import (
    AXES_MAX,
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
from shared.wire import Frame

SHOWN_AXES = 2
STEPS_MAX = 16
"""Steps of the iteration. Vectors that differ in all directions alike have no first axes to be found, and then any will
do."""
TURN_MAX = 0.01
"""The axes are good enough when a step turns them by less, as the sine of the angle: a point moves by 1 % of its
distance from the centre."""
AT_ONCE = 2
"""Maps that are computed at once; others wait for their turn."""

Parts = Mapping[int, Sequence[Frame]]
Table = NDArray[np.float64]


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
        whole and `partial` is false."""
        await self._collections.known()
        collection = self._collections.find(request.collection)
        if collection is None:
            return VectorMap()
        try:
            async with asyncio.timeout(self._timeout_s), self._turns:
                calculation = _Calculation(self._links, collection, request, time.monotonic() + self._timeout_s)
                made = await calculation.run()
        except TimeoutError:
            raise DeadlineExceeded(f"the map took longer than {self._timeout_s:g} s; ask for fewer vectors") from None
        if not partial:
            require_whole(made.warnings)
        return made

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
    """Of one map."""

    def __init__(self, links: Links, collection: Collection, request: MapRequest, deadline: float) -> None:
        self._links = links
        self._collection = collection
        self._request = request
        self._deadline = deadline
        self._warnings: dict[str, None] = {}

    async def run(self) -> VectorMap:
        made = VectorMap()
        ids = await self._sample(made)
        if ids:
            parts = await asyncio.to_thread(id_parts, ids, self._links.shards)
            scale, mean = await self._mean(parts)
            axes = await self._axes(parts, scale, mean)
            await self._place(made, ids, parts, scale, mean, axes)
        made.warnings = list(self._warnings)
        return made

    async def _ask(self, method: str, body: msgspec.Struct, parts: Parts | None, *frames: bytes) -> FanOut:
        left_s = max(0.001, self._deadline - time.monotonic())
        outcome = await self._links.fan_out(method, body=wire.pack(body), frames=frames, parts=parts, timeout_s=left_s)
        outcome.replies.sort(key=lambda reply: reply.shards)  # sums of floats depend on their order
        self._warnings.update(dict.fromkeys(outcome.warnings()))
        return outcome

    async def _sample(self, made: VectorMap) -> list[bytes]:
        request = self._request
        body = SampleBody(self._collection, request.filter, request.limit, request.attribute)
        outcome = await self._ask("vector.sample", body, None)
        replies = [wire.unpack(reply.message.body, SampleReply) for reply in outcome.replies]
        made.vectors = sum(reply.count for reply in replies)
        made.infos = unknown_of(self._collection.name, replies, outcome.warnings())
        frames = [reply.message.frames for reply in outcome.replies]
        draws = np.frombuffer(b"".join(some[0] for some in frames), np.uint64)
        ids = [name for some in frames for name in unpack_blobs(some[1], some[2])]
        return [ids[place] for place in np.argsort(draws, kind="stable")[: request.limit].tolist()]

    async def _mean(self, parts: Parts) -> tuple[float, Floats]:
        """(the largest component, by which the vectors are divided, so that no product overflows; their mean then)."""
        outcome = await self._ask("vector.moments", MomentsBody(self._collection), parts)
        replies = [wire.unpack(reply.message.body, MomentsReply) for reply in outcome.replies]
        scale = max(reply.largest for reply in replies) or 1.0
        total = np.sum([np.frombuffer(reply.message.frames[0]) for reply in outcome.replies], axis=0)
        mean = total / (scale * max(1, sum(reply.count for reply in replies)))
        return scale, mean.astype(np.float32)

    async def _axes(self, parts: Parts, scale: float, mean: Floats) -> Floats:
        """The first axes, float32[a, dimension], orthonormal. One axis if there is one component only."""
        dimension = self._collection.dimension
        axes = await asyncio.to_thread(first_axes, dimension)
        for _ in range(STEPS_MAX):
            body = SpreadBody(self._collection, scale)
            outcome = await self._ask("vector.spread", body, parts, mean.tobytes(), axes.tobytes())
            products = [np.frombuffer(reply.message.frames[0], np.float32) for reply in outcome.replies]
            total = np.sum(products, axis=0, dtype=np.float64).reshape(axes.shape)
            axes, turn = await asyncio.to_thread(turned, axes, total)
            if turn < TURN_MAX:
                break
        return axes[:SHOWN_AXES]

    async def _place(
        self, made: VectorMap, ids: Sequence[bytes], parts: Parts, scale: float, mean: Floats, axes: Floats
    ) -> None:
        body = CoordinatesBody(self._collection, scale, self._request.attribute)
        outcome = await self._ask("vector.coordinates", body, parts, mean.tobytes(), axes.tobytes())
        replies = [wire.unpack(reply.message.body, CoordinatesReply) for reply in outcome.replies]
        frames = [reply.message.frames for reply in outcome.replies]
        names = [name for some in frames for name in unpack_blobs(some[0], some[1])]
        values = [value for reply in replies for value in reply.values]
        table = np.concatenate([np.frombuffer(some[2], np.float32) for some in frames]).reshape(-1, len(axes))
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


def first_axes(dimension: int) -> Floats:
    """Directions to begin with, always the same ones: float32[a, dimension], orthonormal."""
    random = np.random.default_rng(0)
    start = random.standard_normal((dimension, min(AXES_MAX, dimension)))
    return np.ascontiguousarray(np.linalg.qr(start)[0].T, dtype=np.float32)


def turned(axes: Floats, products: Table) -> tuple[Floats, float]:
    """(the next axes, by how much the shown ones have turned: the sine of the angle).

    `axes` float32[a, dimension] are orthonormal, `products` float64[a, dimension] the covariance applied to them. The
    axes are first turned among themselves to where they are the covariance's best (Rayleigh and Ritz), in descending
    order of the variance along them. The sign of an axis is that of its largest component.
    """
    basis = axes.astype(np.float64)
    within = products @ basis.T
    _, directions = np.linalg.eigh((within + within.T) / 2)
    best_first = directions[:, ::-1].T
    next_axes = np.linalg.qr((best_first @ products).T)[0].T
    largest = np.abs(next_axes).argmax(axis=1)
    next_axes *= np.sign(next_axes[np.arange(len(next_axes)), largest])[:, None]
    before, after = best_first[:SHOWN_AXES] @ basis, next_axes[:SHOWN_AXES]
    beside = after - (after @ before.T) @ before
    return np.ascontiguousarray(next_axes, dtype=np.float32), float(np.linalg.norm(beside, 2))

"""Shards that know which collections there are, and the catalogue over them, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from coordinator.fanout.calls import FanOut, WorkerReply
from coordinator.fanout.links import Links
from coordinator.vectors.catalogue import Catalogue
from coordinator.vectors.collections import Collections
from shared import catalogue_file, wire
from shared.catalogue_file import NAMES
from shared.control import LocalControl
from shared.errors import Unavailable
from shared.messages.vectors import Collection, CollectionBody, CollectionsReply, ShardCollections, VectorCountReply
from shared.settings import Settings
from shared.wire import Reply

SHARDS = 3


class Shards:
    """Shards that know collections and forget what is dropped; those `away` do not answer."""

    shards = SHARDS

    def __init__(self) -> None:
        self.stored = {number: ShardCollections(number, [], []) for number in range(SHARDS)}
        self.away: set[int] = set()
        self.asked: list[str] = []

    def hold(self, collection: Collection, shards: Iterable[int] = range(SHARDS)) -> None:
        for number in shards:
            self.stored[number].collections.append(collection)

    def unready(self, shards: Any = None) -> dict[int, str]:
        return dict.fromkeys(sorted(self.away), "it is down")

    async def fan_out(self, method: str, *, shards: list[int], body: bytes = b"", timeout_s: float) -> FanOut:
        self.asked.append(method)
        await asyncio.sleep(0)
        there = [number for number in shards if number not in self.away]
        missing = dict.fromkeys(self.away & set(shards), "it is down")
        if not there:
            raise Unavailable("no shard is there")
        if method == "vector.collections":
            reply: msgspec.Struct = CollectionsReply([self.stored[number] for number in there])
        else:
            assert method == "vector.drop"
            gone = wire.unpack(body, CollectionBody).collection
            for number in there:
                stored = self.stored[number]
                stored.collections = [one for one in stored.collections if one.id != gone.id]
                if gone.id not in stored.dropped:
                    stored.dropped.append(gone.id)
            reply = VectorCountReply(len(there))
        return FanOut([WorkerReply("worker-0", tuple(there), Reply(wire.pack(reply)), 1.0)], missing)

    def holding(self, number: int) -> list[int]:
        return [shard for shard, stored in self.stored.items() if number in [one.id for one in stored.collections]]


def run(directory: Path, shards: Shards, act: Callable[[Collections], Awaitable[None]], timeout_ms: int = 2000) -> None:
    """A coordinator's collections from start to stop."""

    async def whole() -> None:
        settings = Settings(data=directory, shards=SHARDS, workers=1, write_timeout_ms=timeout_ms)
        collections = Collections(settings, cast(Links, shards), LocalControl(settings.data / "vector"))
        await collections.start()
        try:
            await act(collections)
        finally:
            await collections.stop()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def make(collections: Collections, name: str = "a") -> Collection:
    return await collections.create(Collection(0, name, 3, "l2", "f32"))


def files(directory: Path) -> list[Path]:
    return [directory / catalogue_file.DIRECTORY / name for name in NAMES]


def names(collections: Collections) -> list[str]:
    return [collection.name for collection in collections.all()]


def on_disk(directory: Path) -> list[str]:
    kept = Catalogue(LocalControl(directory / "vector"))
    kept.load()
    return [one.name for one in kept.all()]

"""Shards of one worker share an index; shards that move between workers take their vectors with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from shared import wire
from shared.messages import vectors as messages
from shared.messages.vectors import Collection, SearchBody
from shared.settings import Settings
from shared.wire import Request
from worker.damage import DamageReport
from worker.methods import vectors as methods
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors.engine import Engine
from worker.vectors.part import VectorPart

COLLECTION = Collection(1, "default", 8, "cosine")
TABLE = np.random.default_rng(5).standard_normal((1200, 8)).astype(np.float32)


class Worker:
    """Parts of some shards with one engine, as in a worker process."""

    def __init__(self, directory: Path, shards: Sequence[int]) -> None:
        engine = Engine(Settings(data=directory, shards=4, workers=1), LocalObjects(directory / "vector-index"))
        self.stores = {}
        self.shards = {}
        for number in shards:
            place = directory / "shards" / f"{number:04d}"
            self.stores[number] = Store(place / "store")
            part = VectorPart(self.stores[number], engine, number, DamageReport())
            part.load()
            self.shards[number] = SimpleNamespace(vectors=part)

    def close(self) -> None:
        for shard in self.shards.values():
            shard.vectors.close()
        for store in self.stores.values():
            store.close()

    def write(self, numbers: Sequence[int]) -> None:
        parts = {}
        for shard in self.shards:
            own = [number for number in numbers if number % 4 == shard]
            names = [f"{number:04d}".encode() for number in own]
            blank = messages.pack_blobs([b""] * len(own))
            parts[shard] = [*messages.pack_blobs(names), TABLE[own].tobytes(), *blank]
        request = Request("", tuple(self.shards), 0, wire.pack(messages.UpsertBody(COLLECTION)), (), parts)
        methods.write(self.shards, request)  # type: ignore[arg-type]

    def search(self, row: int, k: int, shards: Sequence[int] | None = None, exact: bool = False) -> list[int]:
        asked = {number: self.shards[number] for number in shards or self.shards}
        body = SearchBody(COLLECTION, k, fields=(), exact=exact, shards_asked=len(asked))
        request = Request("", tuple(asked), time.monotonic() + 9, wire.pack(body), [TABLE[row : row + 1].tobytes()])
        reply = methods.search(asked, request)  # type: ignore[arg-type]
        return [int(name) for name in messages.unpack_blobs(reply.frames[2], reply.frames[3])]

    def vectors(self) -> dict[int, int]:
        return {number: shard.vectors.counts()["vectors"] for number, shard in self.shards.items()}

    def to_index(self) -> int:
        return sum(shard.vectors.counts()["vectors_to_index"] for shard in self.shards.values())

    def wait_indexed(self) -> None:
        deadline = time.monotonic() + 30
        while self.to_index():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@contextmanager
def worker(directory: Path, shards: Sequence[int]) -> Iterator[Worker]:
    running = Worker(directory, shards)
    try:
        yield running
    finally:
        running.close()


def test_search_answers_only_for_the_shards_it_is_asked_about(tmp_path: Path) -> None:
    with worker(tmp_path, [0, 1, 2, 3]) as one:
        one.write(range(1200))
        assert one.vectors() == {0: 300, 1: 300, 2: 300, 3: 300}
        for _ in range(2):
            for exact in (True, False):
                assert one.search(6, 1, exact=exact) == [6]
                found = one.search(6, 1000, [0, 3], exact=exact)
                assert sorted(found) == [n for n in range(1200) if n % 4 in (0, 3)]
            one.wait_indexed()


def test_snapshot_of_all_shards_is_loaded_again(tmp_path: Path) -> None:
    with worker(tmp_path, [0, 1, 2, 3]) as one:
        one.write(range(1200))
        one.wait_indexed()
    with worker(tmp_path, [0, 1, 2, 3]) as again:
        assert again.to_index() == 0
        assert again.search(77, 1) == [77]


def test_shards_that_moved_to_other_workers_are_all_found(tmp_path: Path) -> None:
    with worker(tmp_path, [0, 1, 2, 3]) as one:
        one.write(range(1200))
        one.wait_indexed()
    with worker(tmp_path, [0, 2]) as first, worker(tmp_path, [1, 3]) as second:
        for part in (first, second):
            assert set(part.vectors().values()) == {300}
            part.wait_indexed()
        assert first.search(8, 1) == [8]
        assert second.search(9, 1) == [9]
        second.write([9])
    with worker(tmp_path, [0, 1, 2, 3]) as one:
        assert sum(one.vectors().values()) == 1200
        one.wait_indexed()
        assert all(one.search(row, 1) == [row] for row in range(0, 1200, 100))

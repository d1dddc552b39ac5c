"""One shard's vectors over a store of their own, for tests, asked through the worker's methods."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from shared import wire
from shared.messages import vectors as messages
from shared.messages.vectors import Collection, SearchBody
from shared.settings import Settings
from shared.wire import Request
from worker.damage import DamageReport
from worker.methods import table as methods
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors.engine import Engine
from worker.vectors.part import VectorPart

COSINE = Collection(1, "default", 8, "cosine")


class OneShard:
    """A VectorPart on its own store, asked through the worker's methods."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.damage = DamageReport()
        self.store = Store(self.path / "shards" / "0000" / "store")
        settings = Settings(data=self.path, shards=1, workers=1)
        self.vectors = VectorPart(
            self.store, Engine(settings, LocalObjects(self.path / "vector-index")), 0, self.damage
        )
        self.vectors.load()

    def close(self) -> None:
        self.vectors.close()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def call(self, name: str, body: msgspec.Struct, frames: Sequence[bytes] = (), part: Sequence[bytes] = ()) -> Any:
        request = Request(name, (0,), time.monotonic() + 10, wire.pack(body), frames, {0: part})
        return methods.METHODS[name].run({0: SimpleNamespace(vectors=self.vectors)}, request)  # type: ignore[dict-item]

    def write(
        self,
        ids: Sequence[str],
        vectors: np.ndarray,
        attributes: Sequence[Mapping] | None = None,
        into: Collection = COSINE,
    ) -> None:
        packed = [msgspec.msgpack.encode(entry) if entry else b"" for entry in attributes or [{}] * len(ids)]
        part = [
            *messages.pack_blobs([i.encode() for i in ids]),
            vectors.astype(np.float32).tobytes(),
            *messages.pack_blobs(packed),
        ]
        self.call("vector.write", messages.UpsertBody(into), part=part)

    def delete(self, ids: Sequence[str], of: Collection = COSINE) -> int:
        part = messages.pack_blobs([i.encode() for i in ids])
        return wire.unpack(
            self.call("vector.delete", messages.IdsBody(of), part=part).body, messages.VectorCountReply
        ).count

    def search(self, query: np.ndarray, k: int, of: Collection = COSINE, **options: Any) -> list[tuple[str, float]]:
        reply = self.call(
            "vector.search",
            SearchBody(of, k, fields=(), **options),
            frames=[np.atleast_2d(query).astype(np.float32).tobytes() if len(query) else b""],
        )
        names = messages.unpack_blobs(reply.frames[2], reply.frames[3])
        return [(n.decode(), float(s)) for n, s in zip(names, np.frombuffer(reply.frames[1], np.float32), strict=True)]

    def ids(self, query: np.ndarray, k: int, of: Collection = COSINE, **options: Any) -> list[str]:
        return [name for name, _ in self.search(query, k, of, **options)]

    def wait_indexed(self) -> None:
        deadline = time.monotonic() + 30
        while self.vectors.counts()["vectors_to_index"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def clustered(count: int, dimension: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(2, count // 50), dimension))
    return (centres[random.integers(0, len(centres), count)] + 0.4 * random.standard_normal((count, dimension))).astype(
        np.float32
    )

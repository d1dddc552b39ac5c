"""A process that writes and deletes vectors until it is killed: `python -m tests.vector_writer directory seed`.

It says on its output what it is about to do (`{"put": [[id, version], …]}` or `{"delete": [id, …]}`) and, on a line
`done`, that it was acknowledged. Snapshots and rebuilds are made to happen all the time.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np

from shared.messages.vectors import Collection
from shared.settings import Settings
from worker.damage import DamageReport
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.vectors import indexing as indexing_module
from worker.vectors import loading as loading_module
from worker.vectors.engine import Engine
from worker.vectors.part import VectorPart

IDS = 3000
DIMENSION = 8
COLLECTION = Collection(1, "default", DIMENSION, "cosine")


def vector(number: int, version: int) -> np.ndarray:
    return np.random.default_rng((number, version)).standard_normal(DIMENSION).astype(np.float32)


def open_part(directory: Path) -> tuple[Store, VectorPart]:
    store = Store(directory / "shards" / "0000" / "store")
    settings = Settings(data=directory, shards=1, workers=1)
    part = VectorPart(store, Engine(settings, LocalObjects(directory / "vector-index")), 0, DamageReport())
    part.load()
    return store, part


def hasten() -> None:
    indexing_module.SNAPSHOT_ROWS = 100
    indexing_module.SNAPSHOT_SHARE = 0.02
    indexing_module.DEAD_ROWS_MIN = 100
    indexing_module.SAVED_ROWS_MIN = 1
    loading_module.SETTLED_S = 0.0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    hasten()
    _, part = open_part(Path(sys.argv[1]))
    choice = random.Random(int(sys.argv[2]))
    version = int(sys.argv[2]) * 1_000_000
    held = part.open(COLLECTION)
    while True:
        numbers = choice.sample(range(IDS), 100)
        version += 1
        if choice.random() < 0.8:
            say(json.dumps({"put": [[number, version] for number in numbers]}))
            table = np.stack([vector(number, version) for number in numbers])
            held.upsert(0, [str(number).encode() for number in numbers], table, [b""] * len(numbers))
        else:
            say(json.dumps({"delete": numbers}))
            held.delete(0, [str(number).encode() for number in numbers])
        part.sync()
        part.engine.wake()
        say("done")


if __name__ == "__main__":
    main()

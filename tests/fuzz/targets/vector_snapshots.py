"""Snapshots of a collection's index: the list of rows, the list of shards, the attributes' columns and the graph.

The checksums are made right, except that of the graph: a graph reaches its library only with the bytes that were
written, since nothing else bounds what the library reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import xxhash

from shared.messages.vectors import Collection, Condition
from tests.fuzz import scratch
from tests.fuzz.memory_objects import MemoryObjects
from tests.fuzz.pieces import joined, split
from tests.fuzz.target import Target
from worker.storage.faces import Objects
from worker.storage.objects import LocalObjects
from worker.vectors import snapshot
from worker.vectors.id_table import IdTable
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.row_filter import Allowed
from worker.vectors.snapshot import ATTRIBUTES, INDEX, ROWS, SHARDS
from worker.vectors.table import Table

PLACE = "0"
COLLECTION = Collection(1, "c", 2, "cosine", "f32", ("name",))
FILES = (ROWS, SHARDS, f"1{ATTRIBUTES}", f"1{INDEX}")
CONDITION = Condition("and", children=(Condition("eq", "name", ("a",)), Condition("lt", "n", (3,))))


def _directory() -> Path:
    """Where the small snapshot is."""
    path = scratch.directory() / "snapshots" / PLACE
    path.mkdir(parents=True, exist_ok=True)
    return path


def _snapshot(data: bytes) -> None:
    """A snapshot is as it was written, or there is none; what is read can be searched."""
    rows, shards, attributes, graph_change = [*split(data), *[b""] * len(FILES)][: len(FILES)]
    graph = _written()[-1]
    rows, shards = _repaired_rows(rows, attributes, graph), _repaired_shards(shards)
    graph = graph_change + graph[len(graph_change) :]
    contents = dict(zip(FILES, (rows, shards, attributes, graph), strict=True))
    saved = MemoryObjects(contents, paths={FILES[-1]: _directory() / FILES[-1]})
    snapshots = cast(Objects, MemoryObjects({}, {PLACE: saved}))
    found = snapshot.read(snapshots, 0, COLLECTION)
    snapshot.discard_newer(snapshots, 0, 3)
    if found is None:
        assert data != joined(_written()[:-1]), "the snapshot as it was written is not read"
        return
    ids = IdTable()
    ids.extend_packed(found.joined, found.lengths)
    assert len(ids) == len(found.versions)
    found.attributes.mask(CONDITION, len(ids))
    found.attributes.build_index(len(ids))
    found.attributes.mask(CONDITION, len(ids))
    nearest = found.index.search(np.zeros((1, 2), np.float32), 3, 3, 12, len(ids), Allowed())
    assert (nearest < len(ids)).all()


def _repaired_rows(rows: bytes, attributes: bytes, graph: bytes) -> bytes:
    try:
        content = msgspec.msgpack.decode(rows, type=snapshot._List)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    else:
        checksums = {
            "attributes_checksum": xxhash.xxh3_64_intdigest(attributes),
            "index_checksum": xxhash.xxh3_64_intdigest(graph),
        }
        rows = msgspec.msgpack.encode(msgspec.structs.replace(content, **checksums))
    return xxhash.xxh3_64_digest(rows) + rows


def _repaired_shards(shards: bytes) -> bytes:
    try:
        return snapshot._Shards(msgspec.json.decode(shards, type=snapshot._Shards).highest).encode()
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return shards


# Inputs


@cache
def _written() -> tuple[bytes, ...]:
    """The files of a small snapshot, without the checksum of the list of rows."""
    table = Table(COLLECTION)
    attributes = [
        msgspec.msgpack.encode({"name": "a", "n": 1}),
        b"",
        msgspec.msgpack.encode({"name": ["b", "a"], "n": 0.5}),
    ]
    vectors = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    table.append([b"x", b"y", b"zz"], vectors, np.arange(1, 4, dtype=np.uint64), 0, attributes, ())
    numbers, own, _ = table.index_slice(3)
    table.view.index.add(numbers, own)
    table.advance(3)
    directory = _directory()
    snapshot.write(
        LocalObjects(directory.parent), {0: 3, 1: 2}, COLLECTION, table.view, RecallCurve((48, 64), (0.9, 0.99), 128)
    )
    rows, *others = [(directory / name).read_bytes() for name in FILES]
    return rows[8:], *others


def _snapshots() -> Iterator[bytes]:
    yield joined(_written()[:-1])


TARGETS = [Target("vector-snapshot", _snapshot, _snapshots, refusals=(), bytes_max=8192)]

"""Snapshots of a collection's index: the lists of rows and of shards, the attributes' columns, the vectors, the graph.

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
from worker.vectors import saved_vectors, snapshot
from worker.vectors.change_log import Position
from worker.vectors.id_table import IdTable
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.row_filter import Allowed
from worker.vectors.snapshot import ATTRIBUTES, INDEX, ROWS, SHARDS, IndexSnapshot
from worker.vectors.table import Table

PLACE = "0"
COLLECTION = Collection(1, "c", 2, "cosine", "f32", ("name",))
FILES = (ROWS, SHARDS, f"1{ATTRIBUTES}", f"1{saved_vectors.SUFFIX}", f"1{INDEX}")
CONDITION = Condition("and", children=(Condition("eq", "name", ("a",)), Condition("lt", "n", (3,))))


def _directory() -> Path:
    """Where the small snapshot is."""
    path = scratch.directory() / "snapshots" / PLACE
    path.mkdir(parents=True, exist_ok=True)
    return path


def _snapshot(data: bytes) -> None:
    """A snapshot is as it was written, or there is none; what is read can be searched."""
    rows, shards, attributes, vectors, graph_change = [*split(data), *[b""] * len(FILES)][: len(FILES)]
    graph = _written()[-1]
    rows, shards = _repaired_rows(rows, attributes, vectors, graph), _repaired_shards(shards)
    graph = graph_change + graph[len(graph_change) :]
    contents = dict(zip(FILES, (rows, shards, attributes, vectors, graph), strict=True))
    segment = _directory() / "segment"
    segment.write_bytes(vectors)
    saved = MemoryObjects(contents, paths={FILES[-1]: _directory() / FILES[-1], FILES[-2]: segment})
    snapshots = cast(Objects, MemoryObjects({}, {PLACE: saved}))
    found = snapshot.read(snapshots, 0, COLLECTION)
    snapshot.discard_newer(snapshots, 0, 3)
    if found is None:
        assert data != joined(_written()[:-1]), "the snapshot as it was written is not read"
        return
    _load_vectors(found, is_written=data == joined(_written()[:-1]))
    ids = IdTable()
    ids.extend_packed(found.joined, found.lengths)
    assert len(ids) == len(found.versions)
    found.attributes.mask(CONDITION, len(ids))
    found.attributes.build_index(len(ids))
    found.attributes.mask(CONDITION, len(ids))
    nearest = found.index.search(np.zeros((1, 2), np.float32), 3, 3, 12, len(ids), Allowed())
    assert (nearest < len(ids)).all()


def _load_vectors(found: IndexSnapshot, is_written: bool) -> None:
    """They are read as they were written, or refused, in which case the rows of the store are read."""
    table = Table(COLLECTION)
    table.restore(found.index, found.joined, found.lengths, found.versions, found.attributes)
    if not found.positions:
        assert not is_written
        return
    try:
        table.restore_vectors(lambda places: saved_vectors.read(found.saved, found.segments, places), found.norms)
    except (OSError, ValueError):
        assert not is_written
        return
    for shard in found.positions:
        rows = found.rows_of(shard)
        assert (rows < len(found.versions)).all()
        table.confirm(rows, shard % 2**16)
    if is_written:
        view = table.view
        assert view.alive[: view.size].all() and np.isclose(view.norms[: view.size], 1).all()
        assert np.isclose(np.linalg.norm(view.vectors[: view.size], axis=1), 1).all()


def _repaired_rows(rows: bytes, attributes: bytes, vectors: bytes, graph: bytes) -> bytes:
    try:
        content = msgspec.msgpack.decode(rows, type=snapshot._List)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    else:
        checksums = {
            "attributes_checksum": xxhash.xxh3_64_intdigest(attributes),
            "index_checksum": xxhash.xxh3_64_intdigest(graph),
            "segments": tuple(
                msgspec.structs.replace(segment, checksum=xxhash.xxh3_64_intdigest(vectors))
                for segment in content.segments
            ),
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
    positions = {0: Position(3, 0)}
    curve = RecallCurve((48, 64), (0.9, 0.99), 128)
    saving = snapshot.Saving(COLLECTION, table.view, {0: 3, 1: 2}, curve, positions, positions)
    snapshot.write(LocalObjects(directory.parent), saving)
    rows, *others = [(directory / name).read_bytes() for name in FILES]
    return rows[8:], *others


def _snapshots() -> Iterator[bytes]:
    yield joined(_written()[:-1])


TARGETS = [Target("vector-snapshot", _snapshot, _snapshots, refusals=(), bytes_max=8192)]

"""Snapshots of a worker's index of one collection: the index, the attributes' columns, and the list of its rows.

A snapshot only saves the time to build the index: which vectors exist, and with what content, is the store's word. The
list names each row's id and the version of the vector that was indexed; a row counts only if the store still has that
version. Index and columns are written and fsynced first, then the list, which carries all checksums, is renamed into
place: a crash at any point leaves the last whole snapshot or a list that fails its checksum, never a wrong one.

It is kept under the lowest shard's number. When shards have moved between workers since, a worker takes the snapshot
that has the first of its shards to load, and builds the rest from the store.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.durable import make_directory, write_atomically, write_synced
from shared.messages.vectors import Collection, pack_blobs, unpack_blobs
from shared.telemetry import event
from worker.vectors.ann import AnnIndex
from worker.vectors.attributes import Attributes
from worker.vectors.table import View

FORMAT = 3
READ_BYTES = 4 << 20


class _List(msgspec.Struct):
    format: int
    collection: Collection
    index_file: str
    index_checksum: int
    attributes_checksum: int
    expansion: int
    joined: bytes
    lengths: bytes
    versions: bytes


@dataclass(slots=True)
class Snapshot:
    """Rows 0 … n of `index`: their ids and versions (uint64[n]), the expansion measured (0: none), and the shards
    whose vectors they were."""

    index: AnnIndex
    attributes: Attributes
    expansion: int
    names: list[bytes]
    versions: NDArray[np.uint64]
    shards: frozenset[int]


def write(
    directory: Path,
    shards: Sequence[int],
    collection: Collection,
    view: View,
    expansion: int,
) -> None:
    """The indexed rows of `view`. Durable when this returns; older snapshots of these shards are removed.

    Raises OSError.
    """
    own = directory / str(min(shards))
    make_directory(own)
    number = max((int(path.stem) for path in own.glob("*.index") if path.stem.isdigit()), default=0) + 1
    index_path = own / f"{number}.index"
    view.index.save(index_path)
    attributes = view.attributes.save(view.indexed)
    write_synced(_attributes_path(index_path), attributes)
    joined, lengths = pack_blobs(view.names[: view.indexed])
    body = msgspec.msgpack.encode(
        _List(
            FORMAT,
            collection,
            index_path.name,
            _checksum(index_path),
            xxhash.xxh3_64_intdigest(attributes),
            expansion,
            joined,
            lengths,
            view.versions[: view.indexed].tobytes(),
        )
    )
    (own / "shards").write_text(json.dumps(sorted(shards)))
    write_atomically(own / "rows", xxhash.xxh3_64_digest(body) + body)
    for path in (*own.glob("*.index"), *own.glob("*.attributes")):
        if path.stem != index_path.stem:
            path.unlink()
    for other, held in _snapshots(directory):
        if other != own and held & set(shards):
            shutil.rmtree(other, ignore_errors=True)


def _attributes_path(index_path: Path) -> Path:
    return index_path.with_suffix(".attributes")


def _snapshots(directory: Path) -> Iterator[tuple[Path, set[int]]]:
    for path in directory.glob("*/shards"):
        try:
            yield path.parent, set(json.loads(path.read_text()))
        except (OSError, ValueError):
            continue  # being written, or cut off by a crash: of no use to anyone


def read(directory: Path, shard: int, collection: Collection) -> Snapshot | None:
    """The snapshot that has `shard`, or None if there is none, or it is damaged: build from the store."""
    for path, held in _snapshots(directory):
        if shard in held and (path / "rows").exists():
            try:
                return _read(path / "rows", collection, frozenset(held))
            except (OSError, ValueError, RuntimeError, msgspec.MsgspecError) as error:
                event(logging.WARNING, "vector index snapshot not usable, building anew", path=path, why=error)
    return None


def _read(path: Path, collection: Collection, shards: frozenset[int]) -> Snapshot:
    data = path.read_bytes()
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise ValueError("the list of rows fails its checksum")
    content = msgspec.msgpack.decode(data[8:], type=_List)
    if content.format != FORMAT or content.collection != collection:
        raise ValueError(f"it is of format {content.format} and {content.collection}")
    index_path = path.parent / content.index_file
    if _checksum(index_path) != content.index_checksum:
        raise ValueError(f"{index_path.name} fails its checksum")
    attributes = _attributes_path(index_path).read_bytes()
    if xxhash.xxh3_64_intdigest(attributes) != content.attributes_checksum:
        raise ValueError(f"{_attributes_path(index_path).name} fails its checksum")
    index = AnnIndex(collection.dimension, collection.metric, collection.storage)
    index.load(index_path)
    names = unpack_blobs(content.joined, content.lengths)
    versions = np.frombuffer(content.versions, dtype=np.uint64)
    return Snapshot(index, Attributes.restore(attributes), content.expansion, names, versions, shards)


def _checksum(path: Path) -> int:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.intdigest()

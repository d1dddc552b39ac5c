"""Snapshots of a worker's index of one collection: the index, the attributes' columns, and the list of its rows.

A snapshot only saves the time to build the index: which vectors exist, and with what content, is the store's word. The
list names each row's id and the version of the vector that was indexed; a row counts only if the store still has that
version, which no other vector ever gets (`stored_rows`). Index and columns are written and fsynced first, then the
list, which carries all checksums, is renamed into place: a crash at any point leaves the last whole snapshot or a list
that fails its checksum, never a wrong one. Everything is verified before it is used; what is damaged is said in the
log, and the index is built anew.

It is kept under the lowest shard's number. When shards have moved between workers since, a worker takes the snapshot
that has the first of its shards to load, and builds the rest from the store. The file `shards` says whose vectors a
snapshot has, and the highest version it may name of each: one that names more than a shard's store has ever given is of
another store, and is removed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
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

FORMAT = 1
READ_BYTES = 4 << 20
ROWS, SHARDS = "rows", "shards"


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
    highest: dict[int, int]


class _Shards(msgspec.Struct):
    """Shard → the highest version it had given; `checksum` is of the same with an empty one."""

    highest: dict[int, int]
    checksum: str = ""

    def encode(self) -> bytes:
        plain = msgspec.json.encode(_Shards(self.highest))
        return msgspec.json.encode(_Shards(self.highest, xxhash.xxh3_64_hexdigest(plain)))


@dataclass(slots=True)
class Snapshot:
    """Rows 0 … n of `index`: their ids and versions (uint64[n]), the expansion measured (0: none), and the highest
    version given in each of the shards whose vectors they were."""

    index: AnnIndex
    attributes: Attributes
    expansion: int
    ids: list[bytes]
    versions: NDArray[np.uint64]
    highest: Mapping[int, int]


def write(directory: Path, highest: Mapping[int, int], collection: Collection, view: View, expansion: int) -> None:
    """The indexed rows of `view`; `highest` is the highest version given in each shard. Durable when this returns;
    older snapshots of these shards are removed.

    Raises OSError.
    """
    target = directory / str(min(highest))
    make_directory(target)
    number = max((int(path.stem) for path in target.glob("*.index") if path.stem.isdigit()), default=0) + 1
    index_path = target / f"{number}.index"
    view.index.save(index_path)
    attributes = view.attributes.save(view.indexed)
    write_synced(_attributes_path(index_path), attributes)
    joined, lengths = pack_blobs(view.ids[: view.indexed])
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
            dict(highest),
        )
    )
    write_atomically(target / SHARDS, _Shards(dict(highest)).encode())
    write_atomically(target / ROWS, xxhash.xxh3_64_digest(body) + body)
    for path in (*target.glob("*.index"), *target.glob("*.attributes")):
        if path.stem != index_path.stem:
            path.unlink()
    for other in directory.glob("*"):
        if other != target and (other.name in map(str, highest) or _held(other).keys() & highest.keys()):
            shutil.rmtree(other, ignore_errors=True)


def _attributes_path(index_path: Path) -> Path:
    return index_path.with_suffix(".attributes")


def shards_of(path: Path) -> Mapping[int, int]:
    """Whose vectors the snapshot in a directory has: shard → the highest version given there. Raises OSError,
    ValueError."""
    content = (path / SHARDS).read_bytes()
    try:
        held = msgspec.json.decode(content, type=_Shards)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{SHARDS} cannot be read: {error}") from error
    if held.encode() != content:
        raise ValueError(f"{SHARDS} fails its checksum")
    return held.highest


def _held(path: Path) -> Mapping[int, int]:
    """As `shards_of`; empty for a snapshot of no use to anyone, which is removed."""
    try:
        return shards_of(path)
    except FileNotFoundError:
        return {}  # its first one is being written
    except (OSError, ValueError) as error:
        event(logging.WARNING, "vector index snapshot not usable, building anew", path=path, why=error)
        shutil.rmtree(path, ignore_errors=True)
        return {}


def _snapshots(directory: Path) -> Iterator[tuple[Path, Mapping[int, int]]]:
    for path in sorted(directory.glob("*")):
        yield path, _held(path)


def discard_newer(directory: Path, shard: int, highest: int) -> None:
    """Remove snapshots that name versions this shard's store never gave: the store is older than they are, and would
    give them to other vectors."""
    for path, held in _snapshots(directory):
        if held.get(shard, 0) > highest:
            why = f"it names version {held[shard]} of shard {shard}, whose store has given {highest} at most"
            event(logging.WARNING, "vector index snapshot is of another store, building anew", path=path, why=why)
            shutil.rmtree(path, ignore_errors=True)


def read(directory: Path, shard: int, collection: Collection) -> Snapshot | None:
    """The snapshot that has `shard`, or None if there is none, or it is damaged: build from the store."""
    for path, held in _snapshots(directory):
        if shard in held and (path / ROWS).exists():
            try:
                return _read(path, collection)
            except (OSError, ValueError, RuntimeError) as error:
                event(logging.WARNING, "vector index snapshot not usable, building anew", path=path, why=error)
    return None


def _read(path: Path, collection: Collection) -> Snapshot:
    content = verified(path)
    if content.collection != collection:
        raise ValueError(f"it is of {content.collection}")
    index_path = path / content.index_file
    ids = unpack_blobs(content.joined, content.lengths)
    versions = np.frombuffer(content.versions, dtype=np.uint64)
    attributes = Attributes.restore(_attributes_bytes(content, index_path), len(ids))
    index = AnnIndex(collection.dimension, collection.metric, collection.storage)
    index.load(index_path, len(ids))
    return Snapshot(index, attributes, content.expansion, ids, versions, content.highest)


def verified(path: Path) -> _List:
    """The list of a snapshot's rows, when it and all it refers to are whole. Raises OSError, ValueError."""
    content = _read_list(path)
    index_path = path / content.index_file
    if index_path.parent != path or _checksum(index_path) != content.index_checksum:
        raise ValueError(f"{index_path.name} fails its checksum")
    _attributes_bytes(content, index_path)
    return content


def _read_list(path: Path) -> _List:
    data = (path / ROWS).read_bytes()
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise ValueError("the list of rows fails its checksum")
    try:
        content = msgspec.msgpack.decode(data[8:], type=_List)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the list of rows is of another format: {error}") from error
    rows, rest = divmod(len(content.lengths), 4)
    if content.format != FORMAT or rest or len(content.versions) != 8 * rows:
        raise ValueError(f"it is of format {content.format}, with {len(content.versions)} bytes of versions")
    if sum(np.frombuffer(content.lengths, np.uint32).tolist()) != len(content.joined):
        raise ValueError(f"its ids have {len(content.joined)} bytes, and their lengths say others")
    if content.highest.keys() != shards_of(path).keys():
        raise ValueError(f"its rows are of the shards {sorted(content.highest)}, and {SHARDS} says others")
    return content


def _attributes_bytes(content: _List, index_path: Path) -> bytes:
    attributes_path = _attributes_path(index_path)
    attributes = attributes_path.read_bytes()
    if xxhash.xxh3_64_intdigest(attributes) != content.attributes_checksum:
        raise ValueError(f"{attributes_path.name} fails its checksum")
    return attributes


def _checksum(path: Path) -> int:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.intdigest()

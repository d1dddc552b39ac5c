"""The rows of a collection in a shard's store: their format, their checks, and the highest version given in the shard.

In the family "vectors", the key is the collection's id (4 bytes, big endian) and the vector's id; the value is the
version (8 bytes, little endian), the components as given (float32) and the attributes (a msgpack map, or no bytes).

A version is a number that no other vector of the collection ever had in that shard, not even a deleted one, so a
snapshot that names a version names exactly one content. The highest version has a row of its own, which is written
together with the vectors, so it does not depend on which vectors still exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import ID_BYTES_MAX, Attribute, Floats
from shared.xxh64 import Bytes
from worker.storage.faces import RowBatch, Rows
from worker.vectors import change_log
from worker.vectors.change_log import META

FAMILY = "vectors"
HIGHEST = b"vector/version/"
"""Prefix of the rows that contain the highest version of each collection."""
VERSION_BYTES = 8
READ_AT_ONCE = 32
"""Vectors to read from the stores before their bytes are counted: attributes may have a megabyte and more. Reading more
of them at once is hardly faster."""

Row = tuple[bytes, bytes]
"""(a vector's id, the value of its row)."""

_ATTRIBUTES = msgspec.msgpack.Decoder(dict[str, Attribute])
_SEPARATOR = b"\0"
"""Between ids: it ends a character of several bytes, so that no two damaged ids are whole together."""


def prefix(collection_id: int) -> bytes:
    """The first bytes of the keys of a collection's vectors."""
    return collection_id.to_bytes(4, "big")


def of_ids(store: Rows, collection_id: int, ids: Sequence[bytes]) -> list[Row]:
    """The rows of these vectors, without those that do not exist, in order. Raises StoreDamaged, Unavailable."""
    head = prefix(collection_id)
    values = store.get_many(FAMILY, [head + vector_id for vector_id in ids])
    return [(vector_id, value) for vector_id, value in zip(ids, values, strict=True) if value is not None]


def put_highest(batch: RowBatch, collection_id: int, version: int) -> None:
    """Add to the batch the highest version of the vectors that it writes."""
    batch.put(META, HIGHEST + str(collection_id).encode(), version.to_bytes(VERSION_BYTES, "little"))


def highest_version(store: Rows, collection_id: int) -> int:
    """The highest version ever given in this shard, 0 if none was. Raises StoreDamaged, Unavailable."""
    key = HIGHEST + str(collection_id).encode()
    value = store.get(META, key)
    with store.decoding(META, key):
        if value is not None and len(value) != VERSION_BYTES:
            raise ValueError(f"it has {len(value)} bytes instead of {VERSION_BYTES}")
    return 0 if value is None else int.from_bytes(value, "little")


def check_highest(store: Rows, collection_id: int, stored: int, seen: int) -> None:
    """Raises StoreDamaged if the highest version `seen` in a vector is above the highest version that was `stored`."""
    key = HIGHEST + str(collection_id).encode()
    with store.decoding(META, key):
        if seen > stored:
            raise ValueError(f"it says {stored}, and a vector has version {seen}")


def forget(batch: RowBatch, collection_id: int) -> None:
    """Add to the batch the removal of all rows of a collection's vectors, and of the records of their changes."""
    change_log.forget(batch, collection_id)
    batch.delete(META, HIGHEST + str(collection_id).encode())
    batch.delete_range(FAMILY, prefix(collection_id), prefix(collection_id + 1))


@dataclass(frozen=True, slots=True)
class Columns:
    """Whole rows: their ids, `versions` uint64[n], the components as given, `vectors` float32[n, dimension], and the
    `values` of the rows, in which the attributes begin at `head`."""

    ids: list[bytes]
    versions: NDArray[np.uint64]
    vectors: Floats
    values: list[bytes]
    head: int

    def attributes(self, places: Iterable[int]) -> list[bytes]:
        """The packed attributes of the rows at these places."""
        return [self.values[place][self.head :] for place in places]


@kernel(
    types.void(Bytes, types.Array(types.int64, 1, "C", readonly=True), types.uint8[:, ::1], types.uint8[:, ::1]),
    allocates=False,
)
def _split(joined, starts, versions, vectors):  # type: ignore[no-untyped-def]
    """The beginning of each value, joined[starts[i]:], to `versions` uint8[n, VERSION_BYTES], what follows to `vectors`
    uint8[n, 4 × dimension]."""
    for i in range(len(starts)):
        start = starts[i]
        for place in range(versions.shape[1]):
            versions[i, place] = joined[start + place]
        start += versions.shape[1]
        for place in range(vectors.shape[1]):
            vectors[i, place] = joined[start + place]


def _lengths(blobs: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, blobs), np.int64, len(blobs))


def _columns(ids: list[bytes], values: list[bytes], lengths: NDArray[np.int64], dimension: int) -> Columns:
    """The columns of rows that are long enough; `lengths` of their values."""
    versions, vectors = np.empty(len(ids), np.uint64), np.empty((len(ids), dimension), np.float32)
    _split(
        np.frombuffer(b"".join(values), np.uint8),
        lengths.cumsum() - lengths,
        versions.view(np.uint8).reshape(len(ids), VERSION_BYTES),
        vectors.view(np.uint8),
    )
    return Columns(ids, versions, vectors, values, VERSION_BYTES + 4 * dimension)


def checked(rows: Sequence[Row], dimension: int) -> tuple[Columns, dict[bytes, str]]:
    """(the columns of the rows that are whole, id → what is wrong for each of the others)."""
    head = VERSION_BYTES + 4 * dimension
    ids, values = [vector_id for vector_id, _ in rows], [value for _, value in rows]
    lengths = _lengths(values)
    if (lengths >= head).all():
        found = _columns(ids, values, lengths, dimension)
        if np.isfinite(found.vectors).all() and _have_texts(found):
            return found, {}
    # A row is damaged: check the rows one by one.
    wrong = {vector_id: why for vector_id, value in rows if (why := _wrong(vector_id, value, head))}
    ids = [vector_id for vector_id in ids if vector_id not in wrong]
    values = [value for vector_id, value in rows if vector_id not in wrong]
    return _columns(ids, values, _lengths(values), dimension), wrong


def _have_texts(rows: Columns) -> bool:
    """Whether all ids and attributes can be decoded."""
    sizes = set(map(len, rows.ids))
    if sizes and not 1 <= min(sizes) <= max(sizes) <= ID_BYTES_MAX:
        return False
    decode, head = _ATTRIBUTES.decode, rows.head
    try:
        _SEPARATOR.join(rows.ids).decode()
        for value in rows.values:
            if len(value) > head:
                decode(value[head:])
    except (msgspec.MsgspecError, ValueError):
        return False
    return True


def _check_texts(vector_id: bytes, value: bytes, head: int) -> None:
    """Raises ValueError or MsgspecError if the id or the attributes cannot be decoded."""
    vector_id.decode()
    if len(value) > head:
        _ATTRIBUTES.decode(value[head:])


def _wrong(vector_id: bytes, value: bytes, head: int) -> str:
    """What is wrong with a row; empty if it is whole. `head`: bytes of the version and the components."""
    if not 1 <= len(vector_id) <= ID_BYTES_MAX:
        return f"its id has {len(vector_id)} bytes"
    if len(value) < head:
        return f"its row has {len(value)} bytes, at least {head} are right"
    if not np.isfinite(np.frombuffer(value[VERSION_BYTES:head], dtype=np.float32)).all():
        return "a component of it is not finite"
    try:
        _check_texts(vector_id, value, head)
    except (msgspec.MsgspecError, ValueError) as error:
        return f"its id or its attributes cannot be read ({error})"
    return ""

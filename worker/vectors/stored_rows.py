"""The rows of a collection in a shard's store: their form, how they are checked, and the highest version given there.

In the family "vectors", the key is the collection's id (4 bytes, big endian) and the vector's id; the value is the
version (8 bytes, little endian), the components as given (float32) and the attributes (a msgpack map, or nothing).

A version is a number that no other vector of the collection ever had in that shard, deleted ones included: a snapshot
that names it means that content and no other. The highest one is a row of its own, written with the vectors that have
it, so nothing depends on which vectors are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from shared.messages.vectors import ID_BYTES_MAX, Floats
from worker.storage.faces import RowBatch, Rows

FAMILY, META = "vectors", "meta"
HIGHEST = b"vector/version/"
VERSION_BYTES = 8

Row = tuple[bytes, bytes]
"""A vector's id, and the value of its row."""

_ATTRIBUTES = msgspec.msgpack.Decoder(dict[str, str | int | float | bool])


def prefix(collection_id: int) -> bytes:
    return collection_id.to_bytes(4, "big")


def put_highest(batch: RowBatch, collection_id: int, version: int) -> None:
    """The highest version of the vectors that the batch writes."""
    batch.put(META, HIGHEST + str(collection_id).encode(), version.to_bytes(VERSION_BYTES, "little"))


def highest_version(store: Rows, collection_id: int) -> int:
    """The highest version ever given in this shard, 0 when none was. Raises StoreDamaged."""
    key = HIGHEST + str(collection_id).encode()
    value = store.get(META, key)
    with store.decoding(META, key):
        if value is not None and len(value) != VERSION_BYTES:
            raise ValueError(f"it has {len(value)} bytes instead of {VERSION_BYTES}")
    return 0 if value is None else int.from_bytes(value, "little")


def check_highest(store: Rows, collection_id: int, kept: int, seen: int) -> None:
    """Raises StoreDamaged when a vector has a version above the highest one that was kept."""
    key = HIGHEST + str(collection_id).encode()
    with store.decoding(META, key):
        if seen > kept:
            raise ValueError(f"it says {kept}, and a vector has version {seen}")


def forget(batch: RowBatch, collection_id: int) -> None:
    """Remove all that the store has of a collection's vectors."""
    batch.delete(META, HIGHEST + str(collection_id).encode())
    batch.delete_range(FAMILY, prefix(collection_id), prefix(collection_id + 1))


def columns(rows: Sequence[Row], dimension: int) -> tuple[list[bytes], Floats, list[bytes]]:
    """Ids, components float32[n, dimension] and packed attributes of checked rows."""
    head = VERSION_BYTES + 4 * dimension
    joined = b"".join([value[VERSION_BYTES:head] for _, value in rows])
    vectors = np.frombuffer(joined, dtype=np.float32).reshape(len(rows), dimension)
    return [vector_id for vector_id, _ in rows], vectors, [value[head:] for _, value in rows]


def version_of(value: bytes) -> int:
    return int.from_bytes(value[:VERSION_BYTES], "little")


def checked(rows: Sequence[Row], dimension: int) -> tuple[list[Row], dict[bytes, str]]:
    """(the rows that are whole, what is wrong with each of the others)."""
    head = VERSION_BYTES + 4 * dimension
    whole = [row for row in rows if len(row[1]) >= head]
    try:
        if len(whole) == len(rows) and np.isfinite(columns(whole, dimension)[1]).all():
            for vector_id, value in whole:
                _check_texts(vector_id, value, head)
            return whole, {}
    except (msgspec.MsgspecError, ValueError):
        pass  # one of them is damaged: which, is found one by one
    wrong = {vector_id: why for vector_id, value in rows if (why := _wrong(vector_id, value, head))}
    return [row for row in rows if row[0] not in wrong], wrong


def _check_texts(vector_id: bytes, value: bytes, head: int) -> None:
    vector_id.decode()
    if len(value) > head:
        _ATTRIBUTES.decode(value[head:])


def _wrong(vector_id: bytes, value: bytes, head: int) -> str:
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

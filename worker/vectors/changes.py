"""Changes of selected vectors: deleted, or given other attributes.

Vectors are changed in slices, each under the collection's lock, against the state that they have then: a vector that a
concurrent write has changed is looked at again, so no write is lost or mixed with another, and each vector changes
whole or not at all. When the deadline ends a change early, what was changed stays so, and the same request goes on from
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from shared.errors import BadData
from shared.messages.vectors import ATTRIBUTES_MAX, Value
from worker.vectors.selection import Selection
from worker.vectors.stored_rows import READ_AT_ONCE

SLICE_IDS = 2000
SLICE_BYTES = 4 << 20
"""Bytes of vectors and their attributes, old or new, after which an update writes what it has read."""


def selected_ids(selection: Selection, shard: int) -> list[bytes]:
    """The ids of a shard's vectors that are selected at this moment."""
    view = selection.collection.view()
    ids = view.ids
    mask = selection.mask(view) & (view.shards[: view.size] == shard)
    return [ids[row] for row in np.flatnonzero(mask).tolist()]


def delete(selection: Selection, shard: int) -> int:
    """Delete a shard's selected vectors, as durably as `WorkerCollection.delete`; returns how many. Raises what that
    raises, and what `selection.check` does."""
    collection = selection.collection
    names = selected_ids(selection, shard)
    count = 0
    for start in range(0, len(names), SLICE_IDS):
        selection.check()
        with collection.lock:
            still_selected, _ = selection.present(names[start : start + SLICE_IDS])
            count += collection.delete(shard, still_selected)
    return count


def update(
    selection: Selection, shard: int, names: Sequence[bytes], values: Mapping[str, Value], unset: Sequence[str]
) -> int:
    """Set attributes of those of a shard's vectors that are selected, and remove others; returns how many vectors exist
    and are selected. As durable as `WorkerCollection.upsert`, and raises what that raises.

    An update writes the vector anew, as a replaced one: with a new version, in a new row that the index gets in the
    background. A vector that has all the attributes already is not written. Raises BadData for one that would have too
    many.
    """
    collection = selection.collection
    count = 0
    for start in range(0, len(names), SLICE_IDS):
        rest = list(names[start : start + SLICE_IDS])
        while rest:
            selection.check()
            with collection.lock:
                rest, _ = selection.present(rest)
                changed_ids: list[bytes] = []
                components: list[bytes] = []
                packed: list[bytes] = []
                size = read = 0
                while read < len(rest) and size < SLICE_BYTES:
                    some = rest[read : read + READ_AT_ONCE]
                    read += len(some)
                    for vector_id, content in zip(some, collection.contents(shard, some), strict=True):
                        if content is None:  # the row is damaged
                            continue
                        count += 1
                        attributes = _updated(vector_id, content[1], values, unset)
                        size += len(content[0]) + max(len(content[1]), len(attributes))
                        if attributes != content[1]:
                            changed_ids.append(vector_id)
                            components.append(content[0])
                            packed.append(attributes)
                if changed_ids:
                    table = np.frombuffer(b"".join(components), np.float32).reshape(len(changed_ids), -1)
                    collection.upsert(shard, changed_ids, table, packed)
            rest = rest[read:]
    return count


def _updated(vector_id: bytes, packed: bytes, values: Mapping[str, Value], unset: Sequence[str]) -> bytes:
    """The attributes of a vector after the update."""
    attributes = msgspec.msgpack.decode(packed) if packed else {}
    attributes.update(values)
    for name in unset:
        attributes.pop(name, None)
    if len(attributes) > ATTRIBUTES_MAX:
        raise BadData(
            f"set: the vector {vector_id.decode(errors='replace')!r} would have {len(attributes)} attributes; at most "
            f"{ATTRIBUTES_MAX} are kept"
        )
    return msgspec.msgpack.encode(attributes) if attributes else b""

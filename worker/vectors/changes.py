"""Changes of selected vectors: deleted, or given other attributes.

Vectors are changed in slices, each under the collection's lock and from the state that they have then. A vector that a
concurrent write has changed is examined again, so no write is lost or mixed with another, and each vector changes
completely or not at all. When the deadline ends a change early, the vectors that were changed stay changed, and the
same request sent again continues from there.
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

    An update writes a vector as a replacement does: with a new version, in a new row that is indexed in the background.
    A vector that already has all these attributes is not written. Raises BadData for a vector that would have too many
    attributes.
    """
    collection = selection.collection
    count = 0
    for start in range(0, len(names), SLICE_IDS):
        waiting_ids = list(names[start : start + SLICE_IDS])
        while waiting_ids:
            selection.check()
            with collection.lock:
                waiting_ids, _ = selection.present(waiting_ids)
                changed_ids: list[bytes] = []
                components: list[bytes] = []
                packed: list[bytes] = []
                size = read = 0
                while read < len(waiting_ids) and size < SLICE_BYTES:
                    ids = waiting_ids[read : read + READ_AT_ONCE]
                    read += len(ids)
                    for vector_id, content in zip(ids, collection.contents(shard, ids), strict=True):
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
            waiting_ids = waiting_ids[read:]
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

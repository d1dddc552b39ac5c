"""Vectors as they are stored, in replies of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.messages.vectors import Floats, unpack_blobs
from shared.wire import Frame


@dataclass(slots=True)
class StoredVector:
    """One vector as read: its id, its packed attributes, and its components if the request includes them."""

    id: bytes
    attributes: bytes
    vector: Floats | None


def stored_vectors(frames: Sequence[Frame], dimension: int) -> list[StoredVector]:
    """The vectors of a reply: [ids, id lengths, attributes, attribute lengths, vectors]; where a reply is of ids only,
    the last three are empty."""
    ids = unpack_blobs(frames[0], frames[1])
    attributes = unpack_blobs(frames[2], frames[3]) if len(frames[3]) else [b""] * len(ids)
    table = np.frombuffer(frames[4], dtype=np.float32).reshape(-1, dimension)
    rows: Sequence[Floats | None] = list(table) if len(table) else [None] * len(ids)
    return list(map(StoredVector, ids, attributes, rows))

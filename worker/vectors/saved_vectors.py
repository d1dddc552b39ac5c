"""The vectors of a snapshot, as they are compared, in segments: objects of consecutive rows of a table.

A row of a table never changes, so a snapshot of a table that has grown adds one segment for the new rows and keeps the
others. A segment that has no more rows than are new is written anew together with them: a table of n rows then has
O(log n) segments, and each row is written O(log n) times at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from worker.storage.faces import Objects

SUFFIX = ".vectors"
"""Suffix of the segments' names; the number of the snapshot that wrote the segment precedes it."""
CHUNK_BYTES = 4 << 20


class Segment(msgspec.Struct, frozen=True):
    """The rows of a table from where the segment before ends up to `end`. `checksum`: of its bytes (XXH3)."""

    name: str
    end: int
    checksum: int


def _chunks(vectors: NDArray[np.floating]) -> list[memoryview]:
    """The bytes of the rows, in pieces."""
    data = vectors.reshape(-1).view(np.uint8).data
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


def write(place: Objects, name: str, vectors: NDArray[np.floating], earlier: Sequence[Segment]) -> tuple[Segment, ...]:
    """The segments of `vectors` [n, dimension]: as many as possible of the `earlier` ones, which have the same first
    rows, and one under `name`, which is new. Its name is durable after the next `replace` in this place. Raises
    OSError."""
    reused = [segment for segment in earlier if segment.end <= len(vectors)]
    if any(not place.exists(segment.name) for segment in reused):
        reused = []
    while reused and reused[-1].end < len(vectors):
        first = reused[-2].end if len(reused) > 1 else 0
        if reused[-1].end - first > len(vectors) - reused[-1].end:
            break
        reused.pop()
    first = reused[-1].end if reused else 0
    if first == len(vectors):
        return tuple(reused)
    checksum = xxhash.xxh3_64()
    draft = place.draft(name)
    try:
        for chunk in _chunks(vectors[first:]):
            draft.write(chunk)
            checksum.update(chunk)
        draft.finish()
        draft.publish()
    except BaseException:
        draft.abandon()
        raise
    return (*reused, Segment(name, len(vectors), checksum.intdigest()))


def read(place: Objects, segments: Sequence[Segment], vectors: NDArray[np.floating]) -> None:
    """Fill the first rows of `vectors` [≥ n, dimension]. Raises OSError, and ValueError if a segment is damaged."""
    first = 0
    for segment in segments:
        data = vectors[first : segment.end]
        first = segment.end
        size = place.size(segment.name)
        if size != data.nbytes:
            raise ValueError(f"{segment.name} has {size} bytes instead of {data.nbytes}")
        place.get_by_path(segment.name, lambda path, data=data: _fill(str(path), data))  # type: ignore[misc]
        digest = xxhash.xxh3_64()
        for chunk in _chunks(data):
            digest.update(chunk)
        if digest.intdigest() != segment.checksum:
            raise ValueError(f"{segment.name} fails its checksum")


def _fill(path: str, data: NDArray[np.floating]) -> None:
    """Read a file into an array. Raises OSError, and ValueError if the file is shorter."""
    with open(path, "rb", buffering=0) as file:
        for chunk in _chunks(data):
            at = 0
            while at < len(chunk):
                size = file.readinto(chunk[at:])
                if not size:
                    raise ValueError(f"{path} has ended while it was read")
                at += size

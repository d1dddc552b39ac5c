"""Bringing rows of a table over to a fresh one without the dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from worker.vectors.similarity import Rows
from worker.vectors.table import Table

Contents = Callable[[Sequence[bytes], Sequence[int]], list[tuple[bytes, bytes] | None]]
"""(components float32, attributes) by ids and their shards, as the stores have them now; None where there is none."""


COPY_ROWS = 2048
SLICE_ROWS = 64  # no search waits for an index aside; this is how soon a stop is noticed


def build_aside(old: Table, fresh: Table, contents_of: Contents, rows: Rows) -> Iterator[None]:
    """Bring rows over and index them; yields between slices."""
    for start in range(0, len(rows), COPY_ROWS):
        copy_rows(old, fresh, contents_of, rows[start : start + COPY_ROWS])
        while fresh.pending():
            numbers, vectors = fresh.index_slice(SLICE_ROWS)
            fresh.view.index.add(numbers, vectors)
            fresh.advance(SLICE_ROWS)
            yield


def copy_rows(old: Table, fresh: Table, contents_of: Contents, rows: Rows) -> None:
    """Bring rows over, with the stores' components and attributes.

    A row whose vector was replaced or deleted since is brought over with something else; it is dead in the old
    table, so it is killed at the swap.
    """
    if not len(rows):
        return
    view = old.view
    ids = [view.ids[row] for row in rows.tolist()]
    shards = view.shards[rows]
    contents = contents_of(ids, shards.tolist())
    attributes = [b"" if content is None else content[1] for content in contents]
    vectors = view.vectors[rows].astype(np.float32)
    for place, content in enumerate(contents):
        if content is not None:
            vectors[place] = np.frombuffer(content[0], dtype=np.float32)
    fresh.append(ids, vectors, view.versions[rows], shards, attributes, ())

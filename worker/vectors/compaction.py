"""Copies the living rows of a table to a fresh one, and indexes them there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from worker.vectors.similarity import Rows
from worker.vectors.table import Table

Contents = Callable[[Sequence[bytes], Sequence[int]], list[tuple[bytes, bytes] | None]]
"""(components float32, attributes) of ids and their shards, as the stores have them now; None for an id without a
vector."""


COPY_ROWS = 2048


def build_aside(old: Table, fresh: Table, contents_of: Contents, rows: Rows) -> Iterator[None]:
    """Copy `rows` int64[n] of the old table to the fresh one and index them; yields between slices."""
    for start in range(0, len(rows), COPY_ROWS):
        copy_rows(old, fresh, contents_of, rows[start : start + COPY_ROWS])
        while fresh.pending():
            # No search waits for the index of the fresh table.
            numbers, vectors, end = fresh.index_slice(fresh.view.index.slice_rows)
            fresh.view.index.add(numbers, vectors)
            fresh.advance(end)
            yield


def copy_aside(old: Table, fresh: Table, contents_of: Contents, rows: Rows) -> Iterator[None]:
    """Copy `rows` int64[n] of the old table to the fresh one; yields between slices."""
    for start in range(0, len(rows), COPY_ROWS):
        copy_rows(old, fresh, contents_of, rows[start : start + COPY_ROWS])
        yield


def copy_rows(old: Table, fresh: Table, contents_of: Contents, rows: Rows) -> None:
    """Append copies of `rows` int64[n] of the old table to the fresh one, with the stores' components and attributes.

    If a vector was replaced or deleted since, its copy has other components or attributes. Such a row is dead in the
    old table, so its copy is killed before the fresh table is served.
    """
    if not len(rows):
        return
    view = old.view
    ids = view.ids.take(rows)
    shards = view.shards[rows]
    contents = contents_of(ids, shards.tolist())
    attributes = [b"" if content is None else content[1] for content in contents]
    vectors = view.vectors[rows].astype(np.float32)
    for place, content in enumerate(contents):
        if content is not None:
            vectors[place] = np.frombuffer(content[0], dtype=np.float32)
    fresh.append(ids, vectors, view.versions[rows], shards, attributes, ())

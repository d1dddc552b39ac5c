"""Bringing rows of a table over to a fresh one without the dead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from worker.vectors.similarity import Rows
from worker.vectors.table import Table

Contents = Callable[[Sequence[bytes], Sequence[int]], list[tuple[bytes, bytes] | None]]
"""(components float32, attributes) by ids and their shards, as the stores have them now; None where there is none."""


def copy_rows(old: Table, fresh: Table, contents_of: Contents, rows: Rows) -> None:
    """Bring rows over, with the stores' components and attributes.

    A row whose vector was replaced or deleted since is brought over with something else; it is dead in the old
    table, so it is killed at the swap.
    """
    if not len(rows):
        return
    view = old.view
    names = [view.names[row] for row in rows.tolist()]
    shards = view.shards[rows]
    contents = contents_of(names, shards.tolist())
    attributes = [b"" if content is None else content[1] for content in contents]
    vectors = view.vectors[rows].astype(np.float32)
    for place, content in enumerate(contents):
        if content is not None:
            vectors[place] = np.frombuffer(content[0], dtype=np.float32)
    fresh.append(names, vectors, view.versions[rows], shards, attributes, ())

"""Copies the living rows of a table, with their codes in the index, to a fresh table."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from worker.vectors.similarity import Rows
from worker.vectors.table import Table, TableView

COPY_ROWS = 512
COPY_COMPONENTS = 1 << 16
"""The most rows, and components of rows, to copy at once: some half of a millisecond."""


def copy_rows(view: TableView, fresh: Table, rows: Rows) -> Iterator[None]:
    """Append copies of `rows` int64[n], ascending, of a table to a fresh one; yields between slices."""
    at_once = max(1, min(COPY_ROWS, COPY_COMPONENTS // view.vectors.shape[1]))
    for start in range(0, len(rows), at_once):
        fresh.append_copies(view, rows[start : start + at_once])
        yield


def copy_table(view: TableView, fresh: Table, rows: Rows) -> Generator[None, None, None]:
    """Copy `rows` int64[n], ascending, of a table to an empty one, and what its index has of them; yields between
    slices."""
    indexed, pending = np.split(rows, [np.searchsorted(rows, view.indexed)])
    yield from copy_rows(view, fresh, indexed)
    numbers = np.full(view.indexed, -1)
    numbers[indexed] = np.arange(len(indexed))
    index = yield from view.index.renumbered(numbers, fresh.view.vectors)
    fresh.replace_index(index)
    fresh.advance(len(indexed))
    yield from copy_rows(view, fresh, pending)

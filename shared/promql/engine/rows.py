"""Operations on the rows of a matrix: taking some, leaving out empty ones, uniting rows of equal label sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shared.errors import NotExecutable
from shared.histograms.references import is_reference, stacked
from shared.labels import LabelFrame, Rows, Symbols, concat, in_order, row_ids
from shared.promql.engine.kernels.aggregation import occupy, unite_groups
from shared.promql.model import METADATA_LABELS, Bool, Matrix

SAME_LABELS = "vector cannot contain metrics with the same labelset"


def no_series(symbols: Symbols, steps: int) -> Matrix:
    """The empty vector at every step."""
    present = np.zeros((0, steps), dtype=np.bool_)
    return Matrix(LabelFrame(symbols, 0), np.zeros((0, steps)), present, np.zeros(0, dtype=np.bool_))


def take(matrix: Matrix, rows: Rows) -> Matrix:
    """The series of `rows` (int64 indices), in that order."""
    return Matrix(
        matrix.labels.take(rows), matrix.values[rows], matrix.present[rows], matrix.drop_name[rows], matrix.histograms
    )


def stack(parts: list[Matrix]) -> Matrix:
    """The series of several matrices over one grid and with one symbol table, one matrix after another."""
    if len(parts) == 1:
        return parts[0]
    values, histograms = stacked([(part.values, part.histograms) for part in parts])
    return Matrix(
        concat([part.labels for part in parts]),
        np.concatenate(values),
        np.concatenate([part.present for part in parts]),
        np.concatenate([part.drop_name for part in parts]),
        histograms,
    )


def floats_only(matrix: Matrix) -> Matrix:
    """The matrix without the values that are histograms, and without the series that have no other values."""
    if matrix.histograms is None:
        return matrix
    present = matrix.present & ~is_reference(matrix.values)
    return without_empty(Matrix(matrix.labels, matrix.values, present, matrix.drop_name))


def histograms_only(matrix: Matrix) -> Matrix:
    """The matrix without the values that are floats, and without the series that have no other values."""
    present = matrix.present & is_reference(matrix.values)
    return without_empty(Matrix(matrix.labels, matrix.values, present, matrix.drop_name, matrix.histograms))


def without_empty(matrix: Matrix) -> Matrix:
    """Leave out series that have no sample at any step."""
    if matrix.present.shape[1] and matrix.present.all():
        return matrix
    seen = matrix.present.any(axis=1)
    return matrix if seen.all() else take(matrix, np.flatnonzero(seen))


def name_dropped(labels: LabelFrame) -> LabelFrame:
    """`labels` without metric names, and without the type and unit that belong to them."""
    nameless = labels.without(METADATA_LABELS)
    derived = None if labels.derived is None else labels.derived.part("name dropped")
    return LabelFrame(nameless.symbols, nameless.size, nameless.columns, derived)


def layers(ids: Rows) -> Rows:
    """int64[n]: the number of earlier rows of the same group, so that layer k has at most one row of a group. `ids`:
    int64[n], the group of each row."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.flatnonzero(np.diff(sorted_ids, prepend=-1))
    layer = np.empty(len(ids), dtype=np.int64)
    layer[order] = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    return layer


def united(matrix: Matrix, *, message: str = SAME_LABELS, occupied: Bool | None = None) -> Matrix:
    """Merge series with equal label sets: those whose names are to be dropped into one series, the others into another.
    A label set then occurs once at every step, although its name may be dropped at some steps only.

    `occupied` (bool[n, steps], by default the presence): the steps at which a series counts for the check. Raises
    NotExecutable with `message` if two series with equal label sets have a step in common.
    """
    ids, first = matrix.labels.unique()
    if len(first) == matrix.labels.size:
        return matrix
    steps = matrix.present.shape[1]
    counted = np.ascontiguousarray(matrix.present if occupied is None else occupied)
    if occupy(counted, ids, np.zeros((len(first), steps), dtype=np.bool_)):
        raise NotExecutable(message)
    ids, first = in_order(*row_ids([ids.astype(np.int32), matrix.drop_name.astype(np.int32)], len(ids)))
    values, present = matrix.values[first], np.zeros((len(first), steps), dtype=np.bool_)
    unite_groups(np.ascontiguousarray(matrix.values), np.ascontiguousarray(matrix.present), ids, values, present)
    return Matrix(matrix.labels.take(first), values, present, matrix.drop_name[first], matrix.histograms)


def by_name(present: Bool, is_dropped: Bool) -> tuple[Rows, Bool, Bool]:
    """Split each series whose name is to be dropped at only some of its steps into two (bool[n, steps] both).

    Returns (the row of each series: int64[m], its presence: bool[m, steps], whether its name is dropped: bool[m]).
    """
    drop_name = np.asarray((present & is_dropped).any(axis=1))
    changing = np.flatnonzero(drop_name & (present & ~is_dropped).any(axis=1))
    rows = np.concatenate((np.arange(len(present)), changing))
    drop_name = drop_name[rows]
    drop_name[changing] = False
    return rows, present[rows] & (is_dropped[rows] == drop_name[:, np.newaxis]), drop_name


def with_one_name(matrix: Matrix) -> Matrix:
    """Merge the two series that `united` keeps apart: the name is dropped at all steps if it is at any."""
    if matrix.drop_name.all() or not matrix.drop_name.any():
        return matrix
    ids, first = matrix.labels.unique()
    is_dropped = np.bincount(ids, weights=matrix.drop_name, minlength=len(first)) > 0
    return united(replace(matrix, drop_name=is_dropped[ids]))

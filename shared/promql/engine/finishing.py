"""The last step of every evaluation: drops metric names, and merges or refuses series that then have equal labels."""

from __future__ import annotations

import numpy as np

from shared.errors import NotExecutable
from shared.labels import LabelFrame
from shared.promql.engine import rows
from shared.promql.model import METADATA_LABELS, Bool, Matrix, RangeVector, Value


def finish(value: Value) -> Value:
    """Remove the metric names that operators have dropped, and series without a sample.

    Series whose label sets become equal are merged unless a step has both. Raises NotExecutable if a step has both, or
    if they are series of a range vector.
    """
    if isinstance(value, Matrix):
        return _finish_matrix(value)
    if isinstance(value, RangeVector):
        labels = without_dropped_names(value.labels, value.drop_name)
        _, first = labels.unique()
        if len(first) != labels.size:
            raise NotExecutable(rows.SAME_LABELS)
        return RangeVector(labels, value.samples, np.zeros(labels.size, dtype=np.bool_))
    return value


def without_dropped_names(labels: LabelFrame, drop_name: Bool) -> LabelFrame:
    """`labels` without the name (and without type and unit, which belong to it) in the rows of `drop_name`
    (bool[series])."""
    if not drop_name.any():
        return labels
    if drop_name.all():
        return rows.name_dropped(labels)
    for name in METADATA_LABELS:
        if name in labels.columns:
            labels = labels.with_column(name, np.where(drop_name, np.int32(0), labels.columns[name]))
    return labels


def _finish_matrix(matrix: Matrix) -> Matrix:
    matrix = rows.without_empty(matrix)
    labels = without_dropped_names(matrix.labels, matrix.drop_name)
    return rows.united(
        Matrix(labels, matrix.values, matrix.present, np.zeros(labels.size, dtype=np.bool_), matrix.histograms)
    )

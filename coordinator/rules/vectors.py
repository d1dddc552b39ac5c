"""Values of PromQL as rules take them: label sets and numbers at one moment."""

from __future__ import annotations

import numpy as np

from coordinator.rules.alerts import Vector
from shared.errors import NotExecutable
from shared.histograms.references import is_reference
from shared.promql.model import Matrix, Scalar, Value

SERIES_MAX = 100_000
"""Series that one rule may give."""


def vector_of(value: Value) -> Vector:
    """The series of a finished value at its only step; a scalar is a series without labels. Raises NotExecutable for
    too many, for native histograms, and for values that are no vector."""
    if isinstance(value, Scalar):
        return [((), float(value.values[0]))]
    if not isinstance(value, Matrix):
        raise NotExecutable("the result of a rule must be a vector or a scalar")
    rows = np.flatnonzero(value.present[:, 0])
    if len(rows) > SERIES_MAX:
        raise NotExecutable(f"the rule gives {len(rows)} series; the limit is {SERIES_MAX}")
    values = value.values[rows, 0]
    if value.histograms is not None and is_reference(values).any():
        raise NotExecutable("the rule gives native histograms, which rules cannot store")
    names = sorted(value.labels.columns)
    texts = [value.labels.symbols.texts(value.labels.columns[name][rows]) for name in names]
    label_rows = zip(*texts, strict=True) if names else iter([()] * len(rows))
    return [
        (tuple((name, text) for name, text in zip(names, row, strict=True) if text), number)
        for row, number in zip(label_rows, values.tolist(), strict=True)
    ]

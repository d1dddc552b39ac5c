"""Matrices and contexts for tests of operators and functions, written as rows of label sets and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shared.labels import LabelFrame, Symbols
from shared.promql.engine.context import EvalContext
from shared.promql.model import Grid, Matrix, Scalar

Row = tuple[Mapping[str, str], Sequence[float | None]]
"""A label set and its values, None where there is no sample."""

STEP_MS = 60_000


class Bench:
    """One symbol table, one grid of `steps` steps a minute apart from 0, and the remarks made."""

    def __init__(self, steps: int = 1) -> None:
        self.grid = Grid(0, (steps - 1) * STEP_MS, STEP_MS if steps > 1 else 1)
        self.context = EvalContext(None, Symbols(), self.grid)

    def matrix(self, *rows: Row, drop_name: bool = False) -> Matrix:
        labels = LabelFrame.of([row[0] for row in rows], self.context.symbols)
        shape = (len(rows), self.grid.steps)
        cells = [[np.nan if value is None else value for value in row[1]] for row in rows]
        present = [[value is not None for value in row[1]] for row in rows]
        return Matrix(
            labels,
            np.array(cells, dtype=np.float64).reshape(shape),
            np.array(present, dtype=np.bool_).reshape(shape),
            np.full(len(rows), drop_name),
        )

    def scalar(self, *values: float) -> Scalar:
        return Scalar(np.array(values * (self.grid.steps if len(values) == 1 else 1), dtype=np.float64))

    @property
    def remarks(self) -> list[str]:
        return [annotation.text for annotation in self.context.annotations.items.values()]


def rows(matrix: Matrix) -> list[tuple[dict[str, str], list[float | None]]]:
    """What `matrix` holds, in its order."""
    return [
        (
            dict(matrix.labels.labels(row)),
            [
                float(value) if there else None
                for value, there in zip(matrix.values[row], matrix.present[row], strict=True)
            ],
        )
        for row in range(matrix.labels.size)
    ]


def by_labels(matrix: Matrix) -> dict[tuple[tuple[str, str], ...], list[float | None]]:
    return {tuple(sorted(labels.items())): values for labels, values in rows(matrix)}

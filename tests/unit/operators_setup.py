"""Matrices and contexts for tests of operators and functions, written as rows of label sets and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shared.histograms.references import is_reference, references, rows_of
from shared.labels import LabelFrame, Symbols
from shared.promql.engine.context import EvalContext
from shared.promql.model import Grid, Matrix, Scalar
from tests.histogram_batches import batch_of, histograms_of
from tests.oracle_native_histograms import NativeHistogram, compact

Cell = float | NativeHistogram | None
Row = tuple[Mapping[str, str], Sequence[Cell]]
"""A label set and its values, None where there is no sample."""

STEP_MS = 60_000


class Bench:
    """One symbol table, one grid of `steps` steps a minute apart from 0, and the remarks made."""

    def __init__(self, steps: int = 1) -> None:
        self.grid = Grid(0, (steps - 1) * STEP_MS, STEP_MS if steps > 1 else 0)
        self.context = EvalContext(None, Symbols(), self.grid)

    def matrix(self, *rows: Row, drop_name: bool = False) -> Matrix:
        labels = LabelFrame.of([row[0] for row in rows], self.context.symbols)
        shape = (len(rows), self.grid.steps)
        found = [value for row in rows for value in row[1] if isinstance(value, NativeHistogram)]
        numbers = iter(references(np.arange(len(found))))
        cells = [
            [
                np.nan if value is None else next(numbers) if isinstance(value, NativeHistogram) else value
                for value in row[1]
            ]
            for row in rows
        ]
        present = [[value is not None for value in row[1]] for row in rows]
        return Matrix(
            labels,
            np.array(cells, dtype=np.float64).reshape(shape),
            np.array(present, dtype=np.bool_).reshape(shape),
            np.full(len(rows), drop_name),
            batch_of(found) if found else None,
        )

    def scalar(self, *values: float) -> Scalar:
        return Scalar(np.array(values * (self.grid.steps if len(values) == 1 else 1), dtype=np.float64))

    @property
    def remarks(self) -> list[str]:
        return [annotation.text for annotation in self.context.annotations.items.values()]


def rows(matrix: Matrix) -> list[tuple[dict[str, str], list[Cell]]]:
    """What `matrix` holds, in its order; histograms without their empty buckets."""
    found = [] if matrix.histograms is None else histograms_of(matrix.histograms)

    def cell(value: np.ndarray) -> Cell:
        return compact(found[int(rows_of(value))]) if is_reference(value) else float(value)

    return [
        (
            dict(matrix.labels.labels(row)),
            [
                cell(matrix.values[row, step : step + 1].reshape(())) if matrix.present[row, step] else None
                for step in range(matrix.present.shape[1])
            ],
        )
        for row in range(matrix.labels.size)
    ]


def by_labels(matrix: Matrix) -> dict[tuple[tuple[str, str], ...], list[Cell]]:
    return {tuple(sorted(labels.items())): values for labels, values in rows(matrix)}

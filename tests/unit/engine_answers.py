"""Short forms for tests of the engine: small sources and answers as plain Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.harness.local_queries import instant, range_query
from loadtest.harness.memory_source import MemorySource
from shared.promql.model import STALE_NAN_BITS, Grid, Matrix, Scalar

STALE = float(np.array([STALE_NAN_BITS], dtype=np.int64).view(np.float64)[0])
INTERVAL_MS = 10_000


def source(series: dict[str, Sequence[float | None]], interval_ms: int = INTERVAL_MS) -> MemorySource:
    """Series of samples `interval_ms` apart from 0 on; None is a gap."""
    columns = {}
    for text, points in series.items():
        at = [i for i, point in enumerate(points) if point is not None]
        # Through an array: a Python float need not keep a staleness marker's bits.
        values = np.array([points[i] for i in at], dtype=np.float64)
        values.view(np.int64)[[points[i] is STALE for i in at]] = STALE_NAN_BITS
        columns[text] = (np.array(at, dtype=np.int64) * interval_ms, values)
    return MemorySource.of(columns)


def named(matrix: Matrix, row: int) -> str:
    labels = dict(matrix.labels.labels(row))
    name = labels.pop("__name__", "")
    return name + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


def rows(text: str, data: MemorySource, start_s: float, end_s: float, step_s: float, **options: object) -> dict:
    """{series: values over the grid, None where absent} of a range query; times in seconds."""
    grid = Grid(round(start_s * 1000), round(end_s * 1000), round(step_s * 1000))
    value = range_query(text, data, grid, **options).value
    assert isinstance(value, Matrix)
    cells = [
        [v if seen else None for v, seen in zip(*pair, strict=True)]
        for pair in zip(value.values.tolist(), value.present.tolist(), strict=True)
    ]
    return {named(value, i): cells[i] for i in range(value.labels.size)}


def at(text: str, data: MemorySource, time_s: float, **options: object) -> dict | float:
    """{series: value} of an instant query, or the value of a scalar."""
    value = instant(text, data, round(time_s * 1000), **options).value
    if isinstance(value, Scalar):
        return float(value.values[0])
    assert isinstance(value, Matrix) and value.present.all()
    return {named(value, i): float(value.values[i, 0]) for i in range(value.labels.size)}


def remarks(text: str, data: MemorySource, time_s: float) -> list[tuple[str, int | None]]:
    return [(a.text, a.offset) for a in instant(text, data, round(time_s * 1000)).annotations.items.values()]

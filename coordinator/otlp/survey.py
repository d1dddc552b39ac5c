"""The data points of an OTLP request, found by kernels."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from coordinator.otlp import bodies, point_walk, walk
from coordinator.otlp.known_sets import KnownSets, Sets
from coordinator.otlp.label_sets import NotValid
from shared.errors import BadData, TooLarge

POINTS_MAX = 1 << 18
METRICS_MAX = 1 << 17
SCOPES_MAX = RESOURCES_MAX = 1 << 16
"""Limits of one request. Exporters send up to some thousands of points in one."""

STEP_BYTES = 64
"""Bytes of resources, scopes and points that count as one more step: they may have half as many attributes, at some
2 µs each."""

_TABLES = (
    ("resources", walk.RESOURCE_COLUMNS, RESOURCES_MAX, 2),
    ("scopes", walk.SCOPE_COLUMNS, SCOPES_MAX, 2),
    ("metrics", walk.METRIC_COLUMNS, METRICS_MAX, 2),
    ("data points", point_walk.POINT_COLUMNS, POINTS_MAX, 2),
)
"""(name, number of columns, maximum of rows, minimum of bytes per row) of each table."""


@dataclass(slots=True)
class Survey:
    """A body and the points found in it. Tables int64[…, columns of `walk`]; `known`: the sets that the points' entries
    refer to; `missing`: the rows of the points that are READY or STALE and have no entry."""

    body: NDArray[np.uint8]
    resources: NDArray[np.int64]
    scopes: NDArray[np.int64]
    metrics: NDArray[np.int64]
    points: NDArray[np.int64]
    exemplars: int
    known: Sets
    missing: NDArray[np.int64]
    others: NDArray[np.int64]
    """The rows of all points that are neither READY nor STALE."""
    without_metadata: NDArray[np.int64]
    """The rows of metrics whose metadata is not known."""

    @property
    def steps(self) -> int:
        """How many items Python code reads one by one, with one more for each STEP_BYTES of them."""
        items = len(self.missing) + len(self.without_metadata) + 3 * len(self.others) + self.exemplars
        if not items:
            return 0
        points = self.points
        is_read = points[:, point_walk.OWN_EXEMPLARS] > 0
        is_read[self.missing] = is_read[self.others] = True
        read_bytes = (
            _bytes_of(points[is_read], point_walk.POINT_BEGIN)
            + _bytes_of(self.resources, walk.RESOURCE_BEGIN)
            + _bytes_of(self.scopes, walk.SCOPE_BEGIN)
        )
        return items + read_bytes // STEP_BYTES

    def of_state(self, state: int) -> NDArray[np.int64]:
        """The rows of the `others` that are in this state."""
        return self.others[self.points[self.others, point_walk.STATE] == state] if len(self.others) else self.others

    def text(self, row: NDArray[np.int64], column: int) -> str:
        """The text in these columns of a row. Raises NotValid if it is not UTF-8."""
        raw = self.body[row[column] : row[column + 1]].tobytes()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise NotValid(f"the text {raw[:80]!r} is not UTF-8") from None

    def message(self, row: NDArray[np.int64], column: int) -> bytes:
        return self.body[row[column] : row[column + 1]].tobytes()


def _bytes_of(rows: NDArray[np.int64], begin: int) -> int:
    """The bytes of the messages that begin and end at the offsets in these columns. (Points of `target_info` have no
    message.)"""
    return int(np.maximum(rows[:, begin + 1] - rows[:, begin], 0).sum())


def survey(
    body: bytes, known_sets: KnownSets, known_metadata: Container[int], *, custom_buckets: bool = False
) -> Survey:
    """Find the points of a body. With `custom_buckets`, those of histograms are left to the protobuf library. Raises
    BadData if the body is no ExportMetricsServiceRequest, TooLarge above the limits of this module."""
    state, tables, counts, data = _walk(body, known_sets)
    if state in (point_walk.ODD, point_walk.BROKEN):
        body = bodies.rewritten(body, ExportMetricsServiceRequest)
        state, tables, counts, data = _walk(body, known_sets)
    if state == point_walk.TOO_MANY:
        for (name, _, rows_max, _), table, count in zip(_TABLES, tables, counts, strict=False):
            if count == len(table):
                raise TooLarge(f"the request has more than {rows_max} {name}, the limit; send it in smaller ones")
    if state != point_walk.PLAIN:
        raise BadData("the body is not a protobuf ExportMetricsServiceRequest: a field is not whole")
    resources, scopes, metrics, points = (table[:count] for table, count in zip(tables, counts, strict=False))
    if custom_buckets:
        _leave_histograms_to_protobuf(metrics, points)
    known, missing = known_sets.look_up(points)
    families = metrics[:, walk.FAMILY_KEY].tolist()
    without_metadata = [
        row for row, key in enumerate(families) if key not in known_metadata and metrics[row, walk.KIND]
    ]
    others = np.flatnonzero(points[:, point_walk.STATE] > point_walk.STALE)
    return Survey(
        data, resources, scopes, metrics, points, counts[walk.EXEMPLARS], known, missing, others,
        np.array(without_metadata, np.int64),
    )  # fmt: skip


def _leave_histograms_to_protobuf(metrics: NDArray[np.int64], points: NDArray[np.int64]) -> None:
    of_metrics = points[points[:, point_walk.METRIC] != walk.TARGET_INFO]  # these rows come first
    is_histogram = metrics[of_metrics[:, point_walk.METRIC], walk.KIND] == walk.HISTOGRAM
    is_written = of_metrics[:, point_walk.STATE] <= point_walk.STALE
    rows = np.flatnonzero(is_histogram & is_written)
    points[rows, point_walk.STATE] = point_walk.BY_HAND


def _walk(body: bytes, known: KnownSets) -> tuple[int, list[NDArray[np.int64]], list[int], NDArray[np.uint8]]:
    data = np.frombuffer(body, np.uint8)
    # One row more, so that a full table means that a row did not fit. Memory that is never written to is not allocated.
    tables = [
        np.empty((min(rows_max, len(body) // row_bytes_min) + 1, columns), np.int64)
        for _, columns, rows_max, row_bytes_min in _TABLES
    ]
    counts = np.zeros(walk.COUNTS, np.int64)
    state = walk.walk(data, *tables, counts, known.hash_keys)
    return state, tables, counts.tolist(), data

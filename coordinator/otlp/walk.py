"""Kernels that find the data points of an OTLP metrics request without building an object for anything in it.

Messages: https://github.com/open-telemetry/opentelemetry-proto, opentelemetry/proto/metrics/v1/metrics.proto. A body
that is valid but that no exporter writes, for example with a singular field that occurs twice, is ODD: the protobuf
library rewrites it (`coordinator.otlp.bodies`). Every read is checked against the end of the enclosing message.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.otlp.keyed_hash import Keys, keyed_hash, mixed
from coordinator.otlp.point_walk import (
    BROKEN,
    BY_HAND,
    ENTRY,
    KEY,
    METRIC,
    ODD,
    OWN_EXEMPLARS,
    PLAIN,
    POINT_BEGIN,
    POINT_END,
    READY,
    SERIES,
    START_MS,
    STATE,
    TIME_MS,
    TOO_MANY,
    VALUE,
    next_field,
    read_histogram,
    read_number,
)
from shared.kernels import kernel, types
from shared.protobuf_fields import integer
from shared.xxh64 import Bytes

RESOURCES, SCOPES, METRICS, POINTS, EXEMPLARS = range(5)
"""What a walk counts; the first four are the lengths of the tables."""
COUNTS = 5

# Columns of the tables. The begin and the end of a message or text are a pair. LATEST: the newest time of a point.
RESOURCE_BEGIN, RESOURCE_END, RESOURCE_KEY, LATEST = range(4)
RESOURCE_COLUMNS = 4
SCOPE_BEGIN, SCOPE_END, URL_BEGIN, URL_END, SCOPE_RESOURCE, SCOPE_KEY = range(6)
SCOPE_COLUMNS = 6
# FAMILY_KEY depends on name, unit, help and kind only, not on the resource.
NAME, NAME_END, UNIT, UNIT_END, HELP, HELP_END, KIND, TEMPORALITY, MONOTONIC, SCOPE, METRIC_KEY, FAMILY_KEY = range(12)
METRIC_COLUMNS = 12
GAUGE, SUM, HISTOGRAM, EXPONENTIAL, SUMMARY = 5, 7, 9, 10, 11
"""KIND: the number of the field with the points."""
UNSPECIFIED, DELTA, CUMULATIVE = range(3)
"""TEMPORALITY."""
TARGET_INFO = -1
"""METRIC of a point that stands for a resource; its POINT_BEGIN is the resource's row. These points follow those of the
body."""

_ENUM = 0xFFFFFFFF
_ONE = np.float64(1).view(np.int64)

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")


@kernel(
    types.int64(Bytes, types.int64, types.int64, types.int64, _TABLE, _TABLE, _INTS, Keys),
    first=True,
    allocates=False,
)
def _data(
    body: np.ndarray,
    at: int,
    end: int,
    row: int,
    metrics: np.ndarray,
    points: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
) -> int:
    """Read the points of a Gauge, Sum, Histogram, ExponentialHistogram or Summary of the metric in this row."""
    first, kind = counts[POINTS], metrics[row, KIND]
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x0A:
            count = counts[POINTS]
            if count == len(points):
                return TOO_MANY
            point = points[count]
            point[:] = 0
            point[METRIC], point[POINT_BEGIN], point[POINT_END], point[ENTRY] = row, content, field_end, -1
            counts[POINTS] = count + 1
        elif tag == 0x10:
            metrics[row, TEMPORALITY], _ = integer(body, content, field_end)
        elif tag == 0x18:
            metrics[row, MONOTONIC], _ = integer(body, content, field_end)
        at = field_end
    metrics[row, TEMPORALITY] &= _ENUM  # as the protobuf library truncates a number that is too long
    metrics[row, MONOTONIC] = np.int64(metrics[row, MONOTONIC] != 0)
    traits = np.uint64(kind << 40 | metrics[row, TEMPORALITY] << 1 | metrics[row, MONOTONIC])
    name = keyed_hash(body, metrics[row, NAME], metrics[row, NAME_END], traits, keys)
    unit = keyed_hash(body, metrics[row, UNIT], metrics[row, UNIT_END], name, keys)
    metrics[row, METRIC_KEY] = np.int64(mixed(np.uint64(metrics[row, METRIC_KEY]), unit, keys))
    metrics[row, FAMILY_KEY] = np.int64(keyed_hash(body, metrics[row, HELP], metrics[row, HELP_END], unit, keys))
    for i in range(first, counts[POINTS]):
        point = points[i]
        point[KEY] = metrics[row, METRIC_KEY]
        result = np.int64(PLAIN)
        if kind in (GAUGE, SUM):
            result = read_number(body, point[POINT_BEGIN], point[POINT_END], point, keys)
        elif kind == HISTOGRAM:
            result = read_histogram(body, point[POINT_BEGIN], point[POINT_END], point, keys)
        else:
            point[STATE], point[SERIES] = BY_HAND, 0
        if result != PLAIN:
            return result
        if kind == GAUGE:
            point[START_MS] = 0
        counts[EXEMPLARS] += point[OWN_EXEMPLARS]
    return PLAIN


@kernel(
    types.int64(Bytes, types.int64, types.int64, types.int64, types.uint64, _TABLE, _TABLE, _INTS, Keys),
    first=True,
    allocates=False,
)
def _metric(
    body: np.ndarray,
    at: int,
    end: int,
    scope: int,
    scope_key: np.uint64,
    metrics: np.ndarray,
    points: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
) -> int:
    """Read a Metric into the next row of `metrics`."""
    row = counts[METRICS]
    if row == len(metrics):
        return TOO_MANY
    counts[METRICS] = row + 1
    metric = metrics[row]
    metric[:] = 0
    metric[SCOPE], metric[METRIC_KEY] = scope, np.int64(scope_key)
    data, data_end = np.int64(0), np.int64(0)
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x0A:
            metric[NAME], metric[NAME_END] = content, field_end
        elif tag == 0x12:
            metric[HELP], metric[HELP_END] = content, field_end
        elif tag == 0x1A:
            metric[UNIT], metric[UNIT_END] = content, field_end
        elif tag == 0x2A or tag == 0x3A or tag == 0x4A or tag == 0x52 or tag == 0x5A:
            if metric[KIND] != 0:
                return ODD
            metric[KIND], data, data_end = tag >> 3, content, field_end
        at = field_end
    if metric[KIND] == 0:
        return PLAIN
    return _data(body, data, data_end, row, metrics, points, counts, keys)


@kernel(
    types.int64(Bytes, types.int64, types.int64, types.int64, _TABLE, _TABLE, _TABLE, _TABLE, _INTS, Keys),
    first=True,
    allocates=False,
)
def _scope(
    body: np.ndarray,
    begin: int,
    end: int,
    resource: int,
    resources: np.ndarray,
    scopes: np.ndarray,
    metrics: np.ndarray,
    points: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
) -> int:
    """Read a ScopeMetrics into the next row of `scopes`."""
    row = counts[SCOPES]
    if row == len(scopes):
        return TOO_MANY
    counts[SCOPES] = row + 1
    scope = scopes[row]
    scope[:] = 0
    scope[SCOPE_RESOURCE] = resource
    at, has_scope = begin, 0
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x0A:
            if has_scope:
                return ODD
            has_scope, scope[SCOPE_BEGIN], scope[SCOPE_END] = 1, content, field_end
        elif tag == 0x1A:
            scope[URL_BEGIN], scope[URL_END] = content, field_end
        at = field_end
    key = keyed_hash(body, scope[SCOPE_BEGIN], scope[SCOPE_END], np.uint64(resources[resource, RESOURCE_KEY]), keys)
    key = keyed_hash(body, scope[URL_BEGIN], scope[URL_END], key, keys)
    scope[SCOPE_KEY] = np.int64(key)
    at = begin
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag == 0x12:
            result = _metric(body, content, field_end, row, key, metrics, points, counts, keys)
            if result != PLAIN:
                return result
        at = field_end
    return PLAIN


@kernel(
    types.int64(Bytes, types.int64, types.int64, _TABLE, _TABLE, _TABLE, _TABLE, _INTS, Keys),
    first=True,
    allocates=False,
)
def _resource(
    body: np.ndarray,
    begin: int,
    end: int,
    resources: np.ndarray,
    scopes: np.ndarray,
    metrics: np.ndarray,
    points: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
) -> int:
    """Read a ResourceMetrics into the next row of `resources`."""
    row = counts[RESOURCES]
    if row == len(resources):
        return TOO_MANY
    counts[RESOURCES] = row + 1
    resource = resources[row]
    resource[:] = 0
    at, has_resource = begin, 0
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x0A:
            if has_resource:
                return ODD
            has_resource, resource[RESOURCE_BEGIN], resource[RESOURCE_END] = 1, content, field_end
        at = field_end
    resource[RESOURCE_KEY] = np.int64(
        keyed_hash(body, resource[RESOURCE_BEGIN], resource[RESOURCE_END], np.uint64(0), keys)
    )
    at = begin
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag == 0x12:
            result = _scope(body, content, field_end, row, resources, scopes, metrics, points, counts, keys)
            if result != PLAIN:
                return result
        at = field_end
    return PLAIN


@kernel(
    types.int64(Bytes, _TABLE, _TABLE, _TABLE, _TABLE, _INTS, Keys),
    first=True,
    allocates=False,
)
def walk(
    body: np.ndarray,
    resources: np.ndarray,
    scopes: np.ndarray,
    metrics: np.ndarray,
    points: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
) -> int:
    """Fill the tables (int64[…, …_COLUMNS]) and `counts` (initially zeros) from a body. Returns PLAIN, or why the body
    cannot be read: ODD; BROKEN if a field is incomplete; TOO_MANY if a table is full, so that its count is its
    length."""
    at, end = np.int64(0), len(body)
    while at < end:
        tag, content, field_end = next_field(body, at, end)
        if tag < 0:
            return BROKEN
        if tag == 0x0A:
            result = _resource(body, content, field_end, resources, scopes, metrics, points, counts, keys)
            if result != PLAIN:
                return result
        at = field_end
    for i in range(counts[POINTS]):
        row = scopes[metrics[points[i, METRIC], SCOPE], SCOPE_RESOURCE]
        resources[row, LATEST] = max(resources[row, LATEST], points[i, TIME_MS])
    for row in range(counts[RESOURCES]):
        if resources[row, LATEST] > 0:
            if counts[POINTS] == len(points):
                return TOO_MANY
            point = points[counts[POINTS]]
            point[:] = 0
            point[METRIC], point[POINT_BEGIN], point[ENTRY] = TARGET_INFO, row, -1
            point[KEY] = np.int64(mixed(np.uint64(resources[row, RESOURCE_KEY]), np.uint64(1), keys))
            point[TIME_MS], point[VALUE], point[STATE], point[SERIES] = resources[row, LATEST], _ONE, READY, 1
            counts[POINTS] += 1
    return PLAIN

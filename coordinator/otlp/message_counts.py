"""Counts the messages inside a message of OTLP before any object is made for them.

Empty messages take two bytes each, and the protobuf library makes an object of some 50 bytes of each, which interpreted
code then reads.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.otlp.point_walk import next_field
from shared.kernels import inlined, kernel, types
from shared.xxh64 import Bytes

RECORDS, RESOURCES, SCOPES, ATTRIBUTES = range(4)
"""What is counted. RESOURCES: ResourceLogs; SCOPES: ScopeLogs; ATTRIBUTES: attributes, members and elements of nested
values, entities of a resource and their keys, quantiles of a summary."""
COUNTS = 4
DEPTH_MAX = 256
"""More than the protobuf library reads: it refuses messages that are nested more deeply than 100."""

LOGS_REQUEST, RESOURCE, SCOPE, NUMBER, HISTOGRAM, EXPONENTIAL, SUMMARY = range(7)
_RESOURCE_LOGS, _ENTITY, _SCOPE_LOGS, _RECORD, _EXEMPLAR, _KEY_VALUE, _VALUE, _LIST, _MAP, _LEAF = range(7, 17)
"""Kinds of messages. NUMBER to SUMMARY: data points; _LIST: ArrayValue; _MAP: KeyValueList; _LEAF: has no messages
inside."""
_INTS = types.Array(types.int64, 1, "C")


@inlined(allocates=False)
def _inside(kind: int, tag: int) -> tuple[int, int]:
    """(the kind of the message in the field `tag` of a message, or _LEAF; what it counts as, or -1)."""
    if kind == LOGS_REQUEST and tag == 0x0A:
        return _RESOURCE_LOGS, RESOURCES
    if kind == _RESOURCE_LOGS:
        if tag == 0x12:
            return _SCOPE_LOGS, SCOPES
        return (RESOURCE, -1) if tag == 0x0A else (_LEAF, -1)
    if kind == _SCOPE_LOGS:
        if tag == 0x12:
            return _RECORD, RECORDS
        return (SCOPE, -1) if tag == 0x0A else (_LEAF, -1)
    if kind == RESOURCE and tag == 0x1A:
        return _ENTITY, ATTRIBUTES
    if (kind == _ENTITY and (tag == 0x1A or tag == 0x22)) or (kind == SUMMARY and tag == 0x32):
        return _LEAF, ATTRIBUTES
    if (kind == NUMBER and tag == 0x2A) or (kind == HISTOGRAM and tag == 0x42) or (kind == EXPONENTIAL and tag == 0x5A):
        return _EXEMPLAR, -1
    if (
        (kind == RESOURCE and tag == 0x0A)
        or (kind == EXPONENTIAL and tag == 0x0A)
        or (kind == _MAP and tag == 0x0A)
        or (kind == SCOPE and tag == 0x1A)
        or (kind == _RECORD and tag == 0x32)
        or (kind == NUMBER and tag == 0x3A)
        or (kind == SUMMARY and tag == 0x3A)
        or (kind == _EXEMPLAR and tag == 0x3A)
        or (kind == HISTOGRAM and tag == 0x4A)
    ):
        return _KEY_VALUE, ATTRIBUTES
    if kind == _LIST and tag == 0x0A:
        return _VALUE, ATTRIBUTES
    if (kind == _KEY_VALUE and tag == 0x12) or (kind == _RECORD and tag == 0x2A):
        return _VALUE, -1
    if kind == _VALUE:
        if tag == 0x2A:
            return _LIST, -1
        return (_MAP, -1) if tag == 0x32 else (_LEAF, -1)
    return _LEAF, -1


@kernel(types.boolean(Bytes, types.int64, _INTS, _INTS, _INTS), first=True, allocates=False)
def _count(body: np.ndarray, kind: int, counts: np.ndarray, kinds: np.ndarray, ends: np.ndarray) -> bool:
    """As `counted`. `kinds`, `ends`: int64[DEPTH_MAX], for the messages around the current position."""
    at, depth = np.int64(0), np.int64(0)
    kinds[0], ends[0] = kind, len(body)
    while depth >= 0:
        if at >= ends[depth]:
            depth -= 1
            continue
        tag, content, field_end = next_field(body, at, ends[depth])
        if tag < 0:
            return False
        inner, counted_as = _inside(kinds[depth], tag)
        if counted_as >= 0:
            counts[counted_as] += 1
        if inner == _LEAF or content == field_end:
            at = field_end
            continue
        depth += 1
        if depth == DEPTH_MAX:
            return False
        kinds[depth], ends[depth], at = inner, field_end, content
    return True


def counted(message: bytes, kind: int) -> tuple[list[int], bool]:
    """(the number of messages inside a message of this kind, by what they count as; whether all of it was read: no
    field is incomplete, and none is nested more deeply than DEPTH_MAX)."""
    counts = np.zeros(COUNTS, np.int64)
    is_whole = _count(np.frombuffer(message, np.uint8), kind, counts, *np.zeros((2, DEPTH_MAX), np.int64))
    return counts.tolist(), bool(is_whole)

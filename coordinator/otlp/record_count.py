"""Counts the log records of a request before any object is made for them."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.otlp.point_walk import next_field
from shared.kernels import kernel, types
from shared.xxh64 import Bytes


@kernel(types.int64(Bytes, types.int64, types.int64, types.int64), first=True, allocates=False)
def _count(body: np.ndarray, at: int, end: int, tag_wanted: int) -> int:
    """The number of fields with this tag in the message body[at:end]."""
    count = np.int64(0)
    while at < end:
        tag, _, field_end = next_field(body, at, end)
        if tag < 0:
            return count
        count += np.int64(tag == tag_wanted)
        at = field_end
    return count


@kernel(types.int64(Bytes), first=True, allocates=False)
def count_records(body: np.ndarray) -> int:
    """The number of records in an ExportLogsServiceRequest, up to the first incomplete field."""
    at, end, count = np.int64(0), np.int64(len(body)), np.int64(0)
    while at < end:
        tag, resource, resource_end = next_field(body, at, end)
        if tag < 0:
            return count
        while tag == 0x0A and resource < resource_end:
            own_tag, scope, scope_end = next_field(body, resource, resource_end)
            if own_tag < 0:
                return count
            if own_tag == 0x12:
                count += _count(body, scope, scope_end, np.int64(0x12))
            resource = scope_end
        at = resource_end
    return count

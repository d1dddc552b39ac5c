"""Writes `timeseries` fields of remote write 1.0, with labels and samples.

For kernels only. The caller ensures that the output array has room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.bits import put_fixed64, put_number, varint_size
from shared.kernels import inlined
from shared.protobuf_fields import put_length
from shared.xxh64 import copy_bytes

SERIES_TAG, SAMPLE_TAG, HISTOGRAM_TAG, VALUE_TAG, TIME_TAG, START_TAG = 0x0A, 0x12, 0x22, 0x09, 0x10, 0x18
SERIES_BYTES_MAX = 48
"""The most bytes that a series with one sample has besides its labels: tags, lengths, and a sample of 31 bytes."""
SAMPLE_HEAD_BYTES = 12
"""Bytes of a sample's field before its time."""


@inlined(allocates=False)
def sample_size(time_ms: Any, start_ms: Any) -> Any:
    """The bytes of a sample's field. A start timestamp of 0 means none."""
    size = SAMPLE_HEAD_BYTES + varint_size(np.uint64(time_ms))
    if start_ms != 0:
        size += 1 + varint_size(np.uint64(start_ms))
    return size


@inlined(allocates=False)
def put_sample(out: Any, at: Any, word: Any, time_ms: Any, start_ms: Any) -> Any:
    """Write a sample; `word` has the bits of its value. Returns where it ends."""
    out[at], out[at + 1] = SAMPLE_TAG, np.uint8(sample_size(time_ms, start_ms) - 2)
    at = put_fixed64(out, at + 2, VALUE_TAG, np.uint64(word))
    at = put_number(out, at, TIME_TAG, np.uint64(time_ms))
    if start_ms != 0:
        at = put_number(out, at, START_TAG, np.uint64(start_ms))
    return at


@inlined(allocates=False)
def put_series(out: Any, at: Any, labels: Any, begin: Any, size: Any, word: Any, time_ms: Any, start_ms: Any) -> Any:
    """Write a series with the canonical labels labels[begin:begin + size] and one sample. Returns where it ends."""
    out[at] = SERIES_TAG
    at = put_length(out, at + 1, size + sample_size(time_ms, start_ms))
    copy_bytes(out, at, labels, begin, size)
    return put_sample(out, at + size, word, time_ms, start_ms)

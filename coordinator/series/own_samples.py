"""Samples that the service itself produces, as remote-write messages: its own metrics, and the results of rules."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from proto import remote_write_pb2
from shared.promql.model import STALE_NAN_BITS
from shared.protobuf_fields import delimited_head, varint

STALE: float = struct.unpack("<d", struct.pack("<q", STALE_NAN_BITS))[0]
"""The staleness marker: the value that ends a series."""

_TIMESERIES_FIELD = remote_write_pb2.RawWriteRequest.TIMESERIES_FIELD_NUMBER
_SAMPLES_FIELD = remote_write_pb2.RawTimeSeries.SAMPLES_FIELD_NUMBER
_VALUE = struct.Struct("<d")


def sample(value: float, time_ms: int) -> bytes:
    """A sample as a field of a TimeSeries message. In the message it comes after the canonical labels."""
    message = b"\x09" + _VALUE.pack(value) + b"\x10" + varint(time_ms)
    return delimited_head(_SAMPLES_FIELD, len(message)) + message


def body(messages: Iterable[bytes]) -> bytes:
    """A WriteRequest of these TimeSeries messages."""
    return b"".join(delimited_head(_TIMESERIES_FIELD, len(message)) + message for message in messages)

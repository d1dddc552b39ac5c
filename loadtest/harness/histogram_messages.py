"""Messages of native histograms as remote write has them, made by the protobuf library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

_TYPES = descriptor_pb2.FieldDescriptorProto
_NUMBERS = {
    "count_int": (1, _TYPES.TYPE_UINT64),
    "count_float": (2, _TYPES.TYPE_DOUBLE),
    "sum": (3, _TYPES.TYPE_DOUBLE),
    "schema": (4, _TYPES.TYPE_SINT32),
    "zero_threshold": (5, _TYPES.TYPE_DOUBLE),
    "zero_count_int": (6, _TYPES.TYPE_UINT64),
    "zero_count_float": (7, _TYPES.TYPE_DOUBLE),
    "reset_hint": (14, _TYPES.TYPE_INT32),
    "timestamp": (15, _TYPES.TYPE_INT64),
    "start_timestamp": (17, _TYPES.TYPE_INT64),
}
_ONEOFS = ["count", "zero_count"]
_LISTS = {
    "negative_deltas": (9, _TYPES.TYPE_SINT64),
    "negative_counts": (10, _TYPES.TYPE_DOUBLE),
    "positive_deltas": (12, _TYPES.TYPE_SINT64),
    "positive_counts": (13, _TYPES.TYPE_DOUBLE),
    "custom_values": (16, _TYPES.TYPE_DOUBLE),
}


def _message_class(package: str, *, is_packed: bool) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    span = file.message_type.add(name="BucketSpan")
    span.field.add(name="offset", number=1, type=_TYPES.TYPE_SINT32, label=_TYPES.LABEL_OPTIONAL)
    span.field.add(name="length", number=2, type=_TYPES.TYPE_UINT32, label=_TYPES.LABEL_OPTIONAL)
    histogram = file.message_type.add(name="Histogram")
    for oneof in _ONEOFS:
        histogram.oneof_decl.add(name=oneof)
    for name, (number, kind) in _NUMBERS.items():
        field = histogram.field.add(name=name, number=number, type=kind, label=_TYPES.LABEL_OPTIONAL)
        oneof = name.rpartition("_")[0]
        if oneof in _ONEOFS:
            field.oneof_index = _ONEOFS.index(oneof)
    for name, (number, kind) in _LISTS.items():
        field = histogram.field.add(name=name, number=number, type=kind, label=_TYPES.LABEL_REPEATED)
        field.options.packed = is_packed
    for name, number in (("negative_spans", 8), ("positive_spans", 11)):
        histogram.field.add(
            name=name,
            number=number,
            type=_TYPES.TYPE_MESSAGE,
            type_name=f".{package}.BucketSpan",
            label=_TYPES.LABEL_REPEATED,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Histogram"))


_PACKED = _message_class("packed", is_packed=True)
_UNPACKED = _message_class("unpacked", is_packed=False)


def histogram_message(
    *,
    positive_spans: Sequence[tuple[int, int]] = (),
    negative_spans: Sequence[tuple[int, int]] = (),
    is_packed: bool = True,
    **fields: Any,
) -> bytes:
    """A serialized histogram; `fields` as the protocol names them, spans as (offset, length)."""
    message = (_PACKED if is_packed else _UNPACKED)(**fields)
    for spans, pairs in ((message.positive_spans, positive_spans), (message.negative_spans, negative_spans)):
        for offset, length in pairs:
            spans.add(offset=offset, length=length)
    return bytes(message.SerializeToString())


def message_of(data: bytes) -> Any:
    """The histogram of a message. Raises DecodeError."""
    return _PACKED.FromString(data)


def parsed(data: bytes) -> Any | None:
    """The histogram of a message; None if it has fields that the protobuf library does not know, or that it would write
    with another number of bytes. Raises DecodeError."""
    for own in (_PACKED, _UNPACKED):
        message = own.FromString(data)
        if len(message.SerializeToString()) == len(data) and not len(UnknownFieldSet(message)):
            return message
    return None


def body_of(messages: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """(all messages, where each begins, where each ends), as the decoder takes them."""
    ends = np.cumsum([len(message) for message in messages], dtype=np.int64)
    begins = ends - np.array([len(message) for message in messages], np.int64)
    return np.frombuffer(b"".join(messages), np.uint8), begins, ends

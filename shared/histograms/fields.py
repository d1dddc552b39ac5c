"""Reads the fields of one histogram message into buffers; defines the faults that a histogram can have."""

# The types of a kernel do not tell numpy integers from ints.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import STALE_SUM_BITS, Floats, Ints
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import DELIMITED, FIXED_64, LENGTH_BYTES_MAX, VARINT, integer, past_field
from shared.xxh64 import Bytes, load64

BUCKETS_MAX = 10_000
"""The most buckets of a histogram, negative and positive together, and the most spans and custom boundaries: sixty
times the default maximum of instrumentation libraries."""

OBSERVATIONS, OBSERVATIONS_FLOAT, SUM, SCHEMA, ZERO_THRESHOLD, ZERO_COUNT, ZERO_COUNT_FLOAT = range(1, 8)
NEGATIVE_SPANS, NEGATIVE_DELTAS, NEGATIVE_COUNTS, POSITIVE_SPANS, POSITIVE_DELTAS, POSITIVE_COUNTS = range(8, 14)
RESET_HINT, TIMESTAMP, CUSTOM_VALUES, START_TIMESTAMP = range(14, 18)
"""Field numbers."""


_HIGH_BITS = np.uint64(0x8080_8080_8080_8080)
"""The high bits of eight bytes. None is set if each byte is a whole varint."""


class Fault(IntEnum):
    """Why a histogram is refused."""

    MALFORMED = 1
    SCHEMA = 2
    TOO_MANY_BUCKETS = 3
    TOO_MANY_SPANS = 4
    TOO_MANY_BOUNDS = 5
    MIXED_COUNTS = 6
    SPAN_OFFSET = 7
    SPAN_LENGTHS = 8
    INDEX = 9
    NEGATIVE_COUNT = 10
    NOT_A_NUMBER = 11
    COUNT = 12
    ZERO_THRESHOLD = 13
    BOUND_ORDER = 14
    BOUND_NOT_FINITE = 15
    BOUNDS_OF_EXPONENTIAL = 16
    CUSTOM_WITH_ZERO_OR_NEGATIVE = 17


FAULTS = {
    Fault.MALFORMED: "the message is not a histogram of remote write",
    Fault.SCHEMA: "schema {seen} is unknown; right are -4 to 8, and -53 for custom buckets",
    Fault.TOO_MANY_BUCKETS: "it has more than {wanted} buckets",
    Fault.TOO_MANY_SPANS: "it has more than {wanted} spans of buckets",
    Fault.TOO_MANY_BOUNDS: "it has more than {wanted} custom boundaries",
    Fault.MIXED_COUNTS: "it has both integer and float counts; right is one of the two",
    Fault.SPAN_OFFSET: "a span has the offset {seen}; only the first one may have a negative offset",
    Fault.SPAN_LENGTHS: "the spans have room for {seen} buckets, but there are counts of {wanted}",
    Fault.INDEX: "bucket {seen} does not exist in its schema; the last one has the index {wanted}",
    Fault.NEGATIVE_COUNT: "a count of {seen} is negative",
    Fault.NOT_A_NUMBER: "a count is NaN",
    Fault.COUNT: "its buckets have {seen} observations, but its count is {wanted}",
    Fault.ZERO_THRESHOLD: "the zero threshold {seen} is not a finite number from 0 on",
    Fault.BOUND_ORDER: "custom boundary {seen} comes after {wanted}; right are ascending ones, each once",
    Fault.BOUND_NOT_FINITE: "custom boundary {seen} is not finite",
    Fault.BOUNDS_OF_EXPONENTIAL: "schema {seen} has no custom boundaries, but there are {wanted}",
    Fault.CUSTOM_WITH_ZERO_OR_NEGATIVE: "custom buckets go with neither a zero bucket nor negative buckets",
}
"""The text of each fault; {seen} and {wanted} are its numbers."""


TIMESTAMP_AT, START_AT, HINT_AT, IS_FLOAT_AT, SCHEMA_AT = range(5)
"""Places in `Message.integers`. IS_FLOAT_AT: 1 if the counts are floats, 0 if they are integers."""
SUM_AT, THRESHOLD_AT, OBSERVATIONS_AT, ZERO_COUNT_AT = range(4)
"""Places in `Message.floats`."""
NEGATIVE_SPANS_AT, POSITIVE_SPANS_AT, NEGATIVES_AT, POSITIVES_AT, BOUNDS_AT = range(5)
"""Places in `Message.sizes`: those of the spans of each side, the counts of each side, and the custom boundaries."""


class Message(NamedTuple):
    """Buffers for the fields of one message after another, except the counts of positive buckets, which are read to
    where they usually stay."""

    integers: Ints
    floats: Floats
    sizes: Ints
    negative_spans: Ints
    positive_spans: Ints
    """int64[…, 2]: offset and length."""
    negative_counts: Floats
    bounds: Floats


_INT64, _FLOAT64, _SPANS = types.int64[::1], types.float64[::1], types.int64[:, ::1]
MESSAGE = types.NamedTuple(
    (_INT64, _FLOAT64, _INT64, _SPANS, _SPANS, _FLOAT64, _FLOAT64), Message
)  # fmt: skip
_FAULT = types.Tuple((types.int64, types.float64, types.float64))


def new_message() -> Message:
    """Uninitialised buffers of 480 kB."""
    negative, positive = np.empty((2, BUCKETS_MAX, 2), np.int64)
    return Message(
        np.empty(5, np.int64), np.empty(4), np.empty(5, np.int64), negative, positive, *np.empty((2, BUCKETS_MAX))
    )


@inlined(allocates=False)
def _integer(body: Any, at: Any, end: Any) -> Any:
    """`integer`, with a short way for one byte, the most frequent length."""
    if at < end and body[at] < 0x80:
        return np.int64(body[at]), at + 1
    return integer(body, at, end)


@inlined
def _signed(value: Any) -> Any:
    """A `sint` from its zigzag form."""
    return np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1)


@inlined
def _unsigned(value: Any) -> Any:
    """A `uint64` that was read as an int64."""
    return float(np.uint64(value))


@inlined
def _double(body: Any, at: Any) -> Any:
    return body[at : at + 8].view(np.float64)[0]


@kernel(
    _FAULT(Bytes, types.int64, types.int64, MESSAGE, _FLOAT64),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def read_message(
    body: NDArray[np.uint8], at: int, end: int, message: Message, positive_counts: Floats
) -> tuple[int, float, float]:
    """Read body[at:end] into the buffers, and the counts of positive buckets into `positive_counts`, which has room for
    BUCKETS_MAX. Lists of numbers may be packed or not. Returns (fault or 0, the number seen, the one wanted). A stale
    marker is read to its end, and may have counts that a histogram must not have."""
    integers, floats, sizes = message.integers, message.floats, message.sizes
    integers[:], floats[:], sizes[:] = 0, 0.0, 0
    integers[IS_FLOAT_AT] = -1
    has_deltas = has_counts = False
    negative = positive = np.int64(0)  # the last counts that deltas have led to
    below_zero = np.int64(0)  # the first count that is negative
    while at < end:
        tag, value, begin, at = _read_field(body, at, end)
        if at < 0:
            return Fault.MALFORMED.value, 0.0, 0.0
        field, wire_type = tag >> 3, tag & 7
        if field in (NEGATIVE_SPANS, POSITIVE_SPANS):
            place = NEGATIVE_SPANS_AT if field == NEGATIVE_SPANS else POSITIVE_SPANS_AT
            if sizes[place] == BUCKETS_MAX:
                return Fault.TOO_MANY_SPANS.value, 0.0, float(BUCKETS_MAX)
            spans = message.negative_spans if field == NEGATIVE_SPANS else message.positive_spans
            if wire_type != DELIMITED or not _read_span(body, begin, at, spans[sizes[place]]):
                return Fault.MALFORMED.value, 0.0, 0.0
            sizes[place] += 1
        elif field in (NEGATIVE_DELTAS, POSITIVE_DELTAS):
            has_deltas = True
            if wire_type not in (DELIMITED, VARINT):
                return Fault.MALFORMED.value, 0.0, 0.0
            is_negative = field == NEGATIVE_DELTAS
            place, counts = (NEGATIVES_AT, message.negative_counts) if is_negative else (POSITIVES_AT, positive_counts)
            size, last, fault = _read_deltas(
                body, begin, at, counts, sizes[place], negative if is_negative else positive,
                BUCKETS_MAX - sizes[NEGATIVES_AT] - sizes[POSITIVES_AT],
            )  # fmt: skip
            if fault == Fault.NEGATIVE_COUNT.value:
                below_zero, last = (below_zero if below_zero != 0 else last), np.int64(0)
            elif fault != 0:
                return fault, float(last), float(BUCKETS_MAX)
            if is_negative:
                negative = last
            else:
                positive = last
            sizes[place] = size
        elif field in (NEGATIVE_COUNTS, POSITIVE_COUNTS, CUSTOM_VALUES):
            has_counts = has_counts or field != CUSTOM_VALUES
            if wire_type not in (DELIMITED, FIXED_64) or (at - begin) % 8 != 0:
                return Fault.MALFORMED.value, 0.0, 0.0
            if not _read_floats(body, field, begin, at, message, positive_counts):
                fault = Fault.TOO_MANY_BOUNDS.value if field == CUSTOM_VALUES else Fault.TOO_MANY_BUCKETS.value
                return fault, 0.0, float(BUCKETS_MAX)
        elif not _read_number(body, field, wire_type, value, begin, integers, floats):
            return Fault.MALFORMED.value, 0.0, 0.0
    if integers[IS_FLOAT_AT] < 0:
        integers[IS_FLOAT_AT] = int(has_counts)
    if floats[:1].view(np.int64)[0] == STALE_SUM_BITS:
        return 0, 0.0, 0.0
    if below_zero != 0:
        return Fault.NEGATIVE_COUNT.value, float(below_zero), float(BUCKETS_MAX)
    if (has_counts and (has_deltas or integers[IS_FLOAT_AT] == 0)) or (has_deltas and integers[IS_FLOAT_AT] == 1):
        return Fault.MIXED_COUNTS.value, 0.0, 0.0
    return 0, 0.0, 0.0


@inlined(allocates=False)
def _read_field(body: Any, at: Any, end: Any) -> Any:
    """(tag, value, begin, following) of the field at `at`: its value if it is a varint; where its content begins, for a
    delimited one after the length; where the next field begins, or -1 if the message is malformed."""
    tag, content = _integer(body, at, min(end, at + LENGTH_BYTES_MAX))
    value, begin, following = np.int64(0), content, np.int64(-1)
    if content < 0 or tag < 8:
        return tag, value, begin, following
    if tag & 7 == VARINT:
        value, following = _integer(body, content, end)
    elif tag & 7 == DELIMITED:
        length, begin = _integer(body, content, min(end, content + LENGTH_BYTES_MAX))
        if begin >= 0 and length <= end - begin:
            following = begin + length
    else:
        following = past_field(body, content, end, tag & 7)
    return tag, value, begin, following


@inlined(allocates=False)
def _read_floats(body: Any, field: Any, begin: Any, end: Any, message: Any, positive_counts: Any) -> Any:
    """Append the float64 numbers in body[begin:end] to the counts or custom boundaries of `field`. False if there are
    too many."""
    sizes, count = message.sizes, (end - begin) // 8
    used = sizes[BOUNDS_AT] if field == CUSTOM_VALUES else sizes[NEGATIVES_AT] + sizes[POSITIVES_AT]
    if count > BUCKETS_MAX - used:
        return False
    for i in range(count):
        number = _double(body, begin + 8 * i)
        if field == CUSTOM_VALUES:
            message.bounds[sizes[BOUNDS_AT] + i] = number
        elif field == NEGATIVE_COUNTS:
            message.negative_counts[sizes[NEGATIVES_AT] + i] = number
        else:
            positive_counts[sizes[POSITIVES_AT] + i] = number
    sizes[BOUNDS_AT if field == CUSTOM_VALUES else NEGATIVES_AT if field == NEGATIVE_COUNTS else POSITIVES_AT] += count
    return True


@kernel(
    types.boolean(Bytes, types.int64, types.int64, types.int64, types.int64, _INT64, _FLOAT64),
    first=True,
    forceinline=True,
    allocates=False,
    error_model="numpy",
)
def _read_number(
    body: NDArray[np.uint8], field: int, wire_type: int, value: int, content: int, integers: Ints, floats: Floats
) -> bool:
    """Keep a field that is one number: `value` if it is a varint, otherwise that at `content`. False if it has the
    wrong wire type. Unknown fields are skipped."""
    if field in (OBSERVATIONS, SCHEMA, ZERO_COUNT, RESET_HINT, TIMESTAMP, START_TIMESTAMP):
        if wire_type != VARINT:
            return False
        if field == OBSERVATIONS:
            floats[OBSERVATIONS_AT], integers[IS_FLOAT_AT] = _unsigned(value), 0
        elif field == ZERO_COUNT:
            floats[ZERO_COUNT_AT] = _unsigned(value)
        elif field == SCHEMA:
            integers[SCHEMA_AT] = _signed(value)
        elif field == RESET_HINT:
            integers[HINT_AT] = value if 0 <= value <= 3 else 0
        else:
            integers[TIMESTAMP_AT if field == TIMESTAMP else START_AT] = value
    elif field in (OBSERVATIONS_FLOAT, SUM, ZERO_THRESHOLD, ZERO_COUNT_FLOAT):
        if wire_type != FIXED_64:
            return False
        number = _double(body, content)
        if field == OBSERVATIONS_FLOAT:
            floats[OBSERVATIONS_AT], integers[IS_FLOAT_AT] = number, 1
        else:
            floats[SUM_AT if field == SUM else THRESHOLD_AT if field == ZERO_THRESHOLD else ZERO_COUNT_AT] = number
    return True


@kernel(types.boolean(Bytes, types.int64, types.int64, _INT64), first=True, forceinline=True, allocates=False)
def _read_span(body: NDArray[np.uint8], at: int, end: int, span: Ints) -> bool:
    """Read a span's offset and length. False if the message is malformed."""
    span[:] = 0
    while at < end:
        tag, content = _integer(body, at, min(end, at + LENGTH_BYTES_MAX))
        if content < 0 or tag < 8:
            return False
        if tag == 1 << 3 | VARINT:
            value, at = _integer(body, content, end)
            low = value & 0xFFFFFFFF
            span[0] = (low >> 1) ^ -(low & 1)
        elif tag == 2 << 3 | VARINT:
            value, at = _integer(body, content, end)
            span[1] = value & 0xFFFFFFFF
        elif tag >> 3 in (1, 2):
            return False
        elif tag & 7 == DELIMITED:
            length, begin = _integer(body, content, min(end, content + LENGTH_BYTES_MAX))
            at = begin + length if begin >= 0 and length <= end - begin else -1
        else:
            at = past_field(body, content, end, tag & 7)
        if at < 0:
            return False
    return True


@kernel(
    types.UniTuple(types.int64, 3)(
        Bytes, types.int64, types.int64, _FLOAT64, types.int64, types.int64, types.int64
    ),
    first=True,
    forceinline=True, allocates=False,
    error_model="numpy",
)  # fmt: skip
def _read_deltas(
    body: NDArray[np.uint8], at: int, end: int, counts: Floats, size: int, count: int, room: int
) -> tuple[int, int, int]:
    """Append the counts that the deltas in body[at:end] lead to from `count`, at most `room`. Returns (the new number
    of counts, the last one, fault or 0); a count above 2^63 turns negative, which is a fault."""
    first: Any = size
    while at < end:
        if at + 8 <= end and size - first + 8 <= room and load64(body, at) & _HIGH_BITS == np.uint64(0):
            last, lowest = count, np.int64(0)
            for i in range(8):  # without an early exit, so that it is unrolled
                low = np.int64(body[at + i])
                last += (low >> 1) ^ -(low & 1)
                lowest |= last
                counts[size + i] = last
            if lowest >= 0:
                at, size, count = at + 8, size + 8, last
                continue
        low = np.int64(body[at])
        if low < 0x80:  # most deltas are small
            value = low
            at += 1
        elif at + 1 < end and body[at + 1] < 0x80:
            value = low & 0x7F | np.int64(body[at + 1]) << 7
            at += 2
        else:
            value, at = integer(body, at, end)
            if at < 0:
                return size, 0, Fault.MALFORMED.value
        if size - first == room:
            return size, 0, Fault.TOO_MANY_BUCKETS.value
        count += _signed(value)
        if count < 0:
            return size, count, Fault.NEGATIVE_COUNT.value
        counts[size] = count
        size += 1
    return size, count, 0

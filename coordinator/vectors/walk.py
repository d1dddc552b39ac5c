"""A kernel that finds the vectors in the body of a write, in protobuf, without an object for any of them.

It recognises what ordinary clients write and leaves the rest, and anything wrong, to the protobuf library.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.messages.vectors import ARRAY_ELEMENTS_MAX, Floats
from shared.protobuf_fields import LENGTH_BYTES_MAX, delimited_field, integer, past_field
from shared.xxh64 import Bytes, copy_bytes

UNUSUAL = -1
_VECTOR, _ARRAY = 5, 6
"""Numbers of fields of an AttributeValue."""


@kernel(types.boolean(Bytes, types.int64, types.int64))
def _one_field(body, at, end):  # type: ignore[no-untyped-def]
    """Whether body[at:end] is one field, so that parsing it makes one value; or nothing, which is for the library."""
    if at == end:
        return True
    tag, content = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
    return content >= 0 and past_field(body, content, end, tag & 7) == end


@kernel(types.boolean(Bytes, types.int64, types.int64))
def _small(body, at, end):  # type: ignore[no-untyped-def]
    """Whether the AttributeValue body[at:end], of one field, is no array, or one of single values and not too many: the
    library makes an object for each, even of a few bytes."""
    number, at, array_end = delimited_field(body, at, end)
    if number != _ARRAY:
        return True
    count = 0
    while at < array_end:
        number, element, at = delimited_field(body, at, array_end)
        count += 1
        if number != 1 or count > ARRAY_ELEMENTS_MAX or not _one_field(body, element, at):
            return False
        number, _, _ = delimited_field(body, element, at)
        if number in (_VECTOR, _ARRAY):
            return False
    return True


@kernel(types.int64(Bytes, types.int64[:, ::1], types.int64[::1]))
def _walk(body, rows, collection):  # type: ignore[no-untyped-def]
    """The vectors of a WriteRequest → `rows` int64[most + 1, 7]: start and end of the message, of its id and
    of its packed floats, and how many other attributes it has. Returns how many vectors, or UNUSUAL.
    """
    at, end, count = 0, len(body), 0
    while at < end:
        number, start, at = delimited_field(body, at, end)
        if number == 2:
            collection[0], collection[1] = start, at
            continue
        if number != 1:
            return UNUSUAL
        if count == len(rows):
            return count
        row = rows[count]
        count += 1
        row[0], row[1], row[2], row[3], row[4], row[5], row[6] = start, at, 0, 0, 0, 0, 0
        inner = start
        while inner < at:
            number, first, inner = delimited_field(body, inner, at)
            if number == 1:
                row[2], row[3] = first, inner
                continue
            if number != 3:
                return UNUSUAL
            number, key, key_end = delimited_field(body, first, inner)
            if number != 1:
                return UNUSUAL
            number, value, value_end = delimited_field(body, key_end, inner)
            if number != 2 or value_end != inner:
                return UNUSUAL
            if not _one_field(body, value, value_end):
                return UNUSUAL
            name = body[key:key_end]
            if len(name) == 6 and name[0] == 118 and name[1] == 101 and name[2] == 99 and name[3] == 116:
                if name[4] != 111 or name[5] != 114:
                    if not _small(body, value, value_end):
                        return UNUSUAL
                    row[6] += 1
                    continue
                number, floats, floats_end = delimited_field(body, value, value_end)
                if number != 5 or floats_end != value_end or row[5] != 0:
                    return UNUSUAL
                number, floats, floats_end = delimited_field(body, floats, value_end)
                if number != 1 or floats_end != value_end or (floats_end - floats) % 4 != 0:
                    return UNUSUAL
                row[4], row[5] = floats, floats_end
            else:
                if not _small(body, value, value_end):
                    return UNUSUAL
                row[6] += 1
    return count


@kernel(types.void(Bytes, types.Array(types.int64, 2, "C", readonly=True), types.Array(types.uint8, 1, "C")))
def _gather(body, rows, out):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(len(rows)):
        size = rows[i, 5] - rows[i, 4]
        copy_bytes(out, at, body, rows[i, 4], size)
        at += size


def gather(body: bytes, rows: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """(the packed floats of the vectors one after the other, how many each has), given what `walk_write` found."""
    counts = (rows[:, 5] - rows[:, 4]) // 4
    flat = np.empty(int(counts.sum()), np.float32)
    _gather(np.frombuffer(body, np.uint8), rows, flat.view(np.uint8))
    return flat, counts


def walk_write(body: bytes, most: int) -> tuple[NDArray[np.int64], tuple[int, int]] | None:
    """Where the vectors of a binary WriteRequest are, as `_walk` says, at most `most` + 1 of them, and the span of the
    collection's name. None where the body is not of the usual form, which includes every body that is malformed."""
    rows = np.empty((most + 1, 7), dtype=np.int64)
    collection = np.zeros(2, dtype=np.int64)
    count = _walk(np.frombuffer(body, dtype=np.uint8), rows, collection)
    return None if count == UNUSUAL else (rows[:count], (int(collection[0]), int(collection[1])))

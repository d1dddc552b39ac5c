"""Kernels that walk a remote-write 1.0 body (protobuf) without building an object for anything in it.

They recognise what well-behaved senders write and leave the rest to `shared.remote_write`'s exact path: a series
whose label bytes are canonical (`shared.labels.encode`), valid and within the limits is `PLAIN`, any other one is
`ODD`. Every read is checked against the end of what it is in, since bodies come from strangers.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np
from numba import njit, types

from shared.xxh64 import Bytes, copy_bytes, load64, xxh64

TIME_MS_MIN = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest time a sample may have; sums and differences of such times cannot overflow."""
TIME_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest."""

# Columns of a walk's table: the field (tag and length included), its labels, its samples.
START, LABELS, LABELS_END, END, SAMPLES, STATUS = range(6)
COLUMNS = 6
PLAIN, ODD = 0, 1

# What a walk counts beside the series.
METADATA, EXEMPLARS, HISTOGRAMS = range(3)
COUNTS = 3

_HIGH_BITS = np.uint64(0x8080808080808080)
_NAME = np.frombuffer(b"__name__", dtype=np.uint64)[0]

_PAIR = types.UniTuple(types.int64, 2)
_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_FLOATS = types.Array(types.float64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


@njit(_PAIR(Bytes, types.int64, types.int64), cache=True, nogil=True)
def _length(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """A minimal varint of at most four bytes: (value, position behind it), or (-1, at) for anything else."""
    value = 0
    for i in range(4):
        if at + i >= end:
            return -1, at
        byte = np.int64(body[at + i])
        if byte < 0x80:
            if byte == 0 and i > 0:
                return -1, at
            return value | byte << (7 * i), at + i + 1
        value |= (byte & 0x7F) << (7 * i)
    return -1, at


@njit(_PAIR(Bytes, types.int64, types.int64), cache=True, nogil=True)
def _integer(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """A varint of up to ten bytes as an int64: (value, position behind it); position -1 if it is cut off or longer."""
    value = np.uint64(0)
    for i in range(10):
        if at + i >= end:
            return 0, -1
        byte = np.uint64(body[at + i])
        value |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < np.uint64(0x80):
            return np.int64(value), at + i + 1
    return 0, -1


@njit(types.boolean(Bytes, types.int64, types.int64), cache=True, nogil=True)
def _is_utf8(body: np.ndarray, at: int, end: int) -> bool:
    """Whether body[at:end] is UTF-8 as RFC 3629 has it: shortest forms, no surrogates, nothing above U+10FFFF."""
    while at + 8 <= end and load64(body, at) & _HIGH_BITS == np.uint64(0):
        at += 8
    if at < end < at + 8 <= len(body):
        # A tail shorter than a word: read one, and look at its first bytes only.
        tail = _HIGH_BITS >> np.uint64(8 * (8 - (end - at)))
        if load64(body, at) & tail == np.uint64(0):
            return True
    while at < end:
        byte = np.int64(body[at])
        low, high = np.int64(0x80), np.int64(0xBF)
        if byte < 0x80:
            more = 0
        elif 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = np.int64(0xA0)
            elif byte == 0xED:
                high = np.int64(0x9F)
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = np.int64(0x90)
            elif byte == 0xF4:
                high = np.int64(0x8F)
        else:
            return False
        if at + more >= end:
            return False
        for i in range(more):
            byte = np.int64(body[at + 1 + i])
            if byte < low or byte > high:
                return False
            low, high = np.int64(0x80), np.int64(0xBF)
        at += 1 + more
    return True


@njit(types.boolean(Bytes, types.int64, types.int64, types.int64, types.int64), cache=True, nogil=True)
def _ascends(body: np.ndarray, a: int, a_end: int, b: int, b_end: int) -> bool:
    """Whether body[a:a_end] < body[b:b_end], compared byte by byte."""
    while a < a_end and b < b_end:
        if body[a] != body[b]:
            return bool(body[a] < body[b])
        a += 1
        b += 1
    return a == a_end and b < b_end


@njit(_PAIR(Bytes, types.int64, types.int64, _INTS), cache=True, nogil=True)
def _labels(body: np.ndarray, at: int, end: int, limits: np.ndarray) -> tuple[int, int]:
    """Check the label fields from `at`: (1, where they end) if they are a plain label set, (0, …) if not."""
    labels_max, name_max, value_max = limits[0], limits[1], limits[2]
    count, named = 0, False
    last, last_end = at, at
    while at < end and body[at] == 0x0A:
        size, at = _length(body, at + 1, end)
        label_end = at + size
        if size < 0 or label_end > end or at >= label_end or body[at] != 0x0A:
            return 0, at
        size, name = _length(body, at + 1, label_end)
        name_end = name + size
        if size <= 0 or size > name_max or name_end >= label_end or body[name_end] != 0x12:
            return 0, at
        size, value = _length(body, name_end + 1, label_end)
        if size <= 0 or size > value_max or value + size != label_end:
            return 0, at
        if count > 0 and not _ascends(body, last, last_end, name, name_end):
            return 0, at
        if not _is_utf8(body, name, name_end) or not _is_utf8(body, value, label_end):
            return 0, at
        if name_end - name == 8 and load64(body, name) == _NAME:
            named = True
        last, last_end = name, name_end
        count += 1
        at = label_end
    if not named or count > labels_max:
        return 0, at
    return 1, at


@njit(types.Tuple((types.int64, types.int64, types.float64))(Bytes, types.int64, types.int64), cache=True, nogil=True)
def _sample(body: np.ndarray, at: int, end: int) -> tuple[int, int, float]:
    """One Sample message: (1, timestamp, value), or (0, …) if it is none or its time is out of range.

    The value is carried over bit for bit: a NaN's payload is what marks a series as stale.
    """
    time = 0
    bits = np.uint64(0)
    while at < end:
        tag = body[at]
        at += 1
        if tag == 0x09:
            if at + 8 > end:
                return 0, 0, 0.0
            bits = load64(body, at)
            at += 8
        elif tag == 0x10:
            time, at = _integer(body, at, end)
            if at < 0:
                return 0, 0, 0.0
        else:
            return 0, 0, 0.0
    ok = TIME_MS_MIN <= time <= TIME_MS_MAX
    return np.int64(ok), time, np.uint64(bits).view(np.float64)


@njit(types.void(Bytes, _INTS, _INTS, _INTS), cache=True, nogil=True)
def _series(body: np.ndarray, row: np.ndarray, counts: np.ndarray, limits: np.ndarray) -> None:
    """Walk one TimeSeries between row[LABELS] and row[END] and fill in the rest of the row."""
    row[STATUS] = ODD
    end = row[END]
    ok, at = _labels(body, row[LABELS], end, limits)
    if ok == 0:
        return
    row[LABELS_END] = at
    samples, exemplars, histograms = 0, 0, 0
    while at < end:
        tag = body[at]
        size, at = _length(body, at + 1, end)
        if size < 0 or at + size > end:
            return
        if tag == 0x12:
            ok, _, _ = _sample(body, at, at + size)
            if ok == 0:
                return
            samples += 1
        elif tag == 0x1A:
            exemplars += 1
        elif tag == 0x22:
            histograms += 1
        else:
            return
        at += size
    row[SAMPLES] = samples
    row[STATUS] = PLAIN
    counts[EXEMPLARS] += exemplars
    counts[HISTOGRAMS] += histograms


@njit(types.int64(Bytes), cache=True, nogil=True)
def count_series(body: np.ndarray) -> int:
    """How many `timeseries` fields the body has; -1 if its top level is not all plain `timeseries` and `metadata`."""
    at, end, count = 0, len(body), 0
    while at < end:
        tag = body[at]
        size, at = _length(body, at + 1, end)
        if size < 0 or at + size > end or (tag != 0x0A and tag != 0x1A):
            return -1
        count += np.int64(tag == 0x0A)
        at += size
    return count


@njit(types.void(Bytes, _TABLE, _HASHES, _INTS, _INTS), cache=True, nogil=True)
def walk(body: np.ndarray, table: np.ndarray, hashes: np.ndarray, counts: np.ndarray, limits: np.ndarray) -> None:
    """Fill `table` (int64[series, COLUMNS], zeros before) and `hashes` (uint64[series], of the canonical label bytes).

    series is what `count_series` gave, which must not be -1. `counts` (int64[COUNTS]) is added to. `limits` is
    [labels a series, bytes a label name, bytes a label value]. The hash of an ODD row is unspecified.
    """
    at, end, i = 0, len(body), 0
    while at < end:
        start, tag = at, body[at]
        size, at = _length(body, at + 1, end)
        if tag == 0x0A:
            row = table[i]
            row[START], row[LABELS], row[END] = start, at, at + size
            _series(body, row, counts, limits)
            if row[STATUS] == PLAIN:
                hashes[i] = xxh64(body, at, row[LABELS_END])
            i += 1
        else:
            counts[METADATA] += 1
        at += size


@njit(types.void(Bytes, _TABLE, _INTS, _FLOATS), cache=True, nogil=True)
def read_samples(body: np.ndarray, table: np.ndarray, times: np.ndarray, values: np.ndarray) -> None:
    """Write the samples of the PLAIN rows of a walk's table one after another into `times` (Unix ms) and `values`,
    which have room for sum(table[:, SAMPLES])."""
    out = 0
    for i in range(len(table)):
        if table[i, STATUS] != PLAIN:
            continue
        at, end = table[i, LABELS_END], table[i, END]
        while at < end:
            tag = body[at]
            size, at = _length(body, at + 1, end)
            if tag == 0x12:
                _, time, value = _sample(body, at, at + size)
                times[out] = time
                values[out] = value
                out += 1
            at += size


@njit(types.void(Bytes, _INTS, _INTS, _INTS, _OUT), cache=True, nogil=True)
def gather(body: np.ndarray, starts: np.ndarray, ends: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """Copy the slices body[starts[i]:ends[i]] to out[places[i]:]."""
    for i in range(len(starts)):
        copy_bytes(out, places[i], body, starts[i], ends[i] - starts[i])

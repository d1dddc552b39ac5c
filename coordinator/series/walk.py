"""Kernels that walk a remote-write 1.0 body (protobuf) without building an object for anything in it.

They recognise what well-behaved senders write, and leave the rest to the protobuf library
(`coordinator.series.remote_write`). A series is `PLAIN` if its label bytes are canonical (`shared.labels.encode`),
valid and within the limits; any other series is `ODD`. Bodies are not trusted, so every read is checked against the end
of the message that it is in.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.series.series_references import BEGIN, HASH, TABLES, Tables, find, find_next, used
from coordinator.series.series_references import END as END_OF_ROW
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.histograms.references import refers
from shared.kernels import kernel, types
from shared.protobuf_fields import DELIMITED, LENGTH_BYTES_MAX, field_length, integer, past_field
from shared.xxh64 import Bytes, load64, xxh64

# Columns of a walk's table: where the labels begin and end, where the fields with the samples begin and end, the number
# of samples, PLAIN or ODD, the start timestamp of samples that have none of their own, and the number that the shard
# gave the series plus one, or 0 if it is not known. LABELS and END of an ODD series are where the whole series is.
LABELS, LABELS_END, FIELDS, END, SAMPLES, STATUS, CREATED, NUMBERED = range(8)
COLUMNS = 8
PLAIN, ODD = 0, 1

# What a walk counts. STARTS: samples with a start timestamp. ODDS: series that are ODD (version 1.0 only).
METADATA, EXEMPLARS, HISTOGRAMS, HISTOGRAM_BYTES, STARTS, ODDS = range(6)
COUNTS = 6

_HIGH_BITS = np.uint64(0x8080808080808080)
_NAN = np.uint64(0x7FF8000000000000)
_NAME = np.frombuffer(b"__name__", dtype=np.uint64)[0]

_PAIR = types.UniTuple(types.int64, 2)
_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")


@kernel(types.boolean(Bytes, types.int64, types.int64), first=True, allocates=False)
def is_utf8(body: np.ndarray, at: int, end: int) -> bool:
    """Whether body[at:end] is UTF-8 as RFC 3629 defines it: shortest forms, no surrogates, nothing above U+10FFFF."""
    while at + 8 <= end and load64(body, at) & _HIGH_BITS == np.uint64(0):
        at += 8
    if at < end < at + 8 <= len(body):
        # The tail is shorter than a word: read a whole word, and check only its first bytes.
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


@kernel(types.boolean(Bytes, types.int64, types.int64, types.int64, types.int64), first=True, allocates=False)
def ascends(body: np.ndarray, a: int, a_end: int, b: int, b_end: int) -> bool:
    """Whether body[a:a_end] < body[b:b_end], compared byte by byte."""
    while a < a_end and b < b_end:
        if body[a] != body[b]:
            return bool(body[a] < body[b])
        a += 1
        b += 1
    return a == a_end and b < b_end


@kernel(types.boolean(Bytes, types.int64, types.int64), first=True, allocates=False)
def _is_ascii(body: np.ndarray, at: int, end: int) -> bool:
    bits = np.uint64(0)
    while at + 8 <= end:
        bits |= load64(body, at)
        at += 8
    while at < end:
        bits |= np.uint64(body[at])
        at += 1
    return bool(bits & _HIGH_BITS == np.uint64(0))


@kernel(types.boolean(Bytes, types.int64, types.int64), first=True, allocates=False)
def _are_utf8(body: np.ndarray, at: int, end: int) -> bool:
    """Whether all names and values of the label fields body[at:end] are UTF-8. The fields must be well formed."""
    while at < end:
        _, at = field_length(body, at + 1, end)
        for _ in range(2):
            size, at = field_length(body, at + 1, end)
            if not is_utf8(body, at, at + size):
                return False
            at += size
    return True


@kernel(_PAIR(Bytes, types.int64, types.int64, _INTS), first=True, allocates=False)
def _labels(body: np.ndarray, at: int, end: int, limits: np.ndarray) -> tuple[int, int]:
    """Check the label fields from `at` on. Returns (1, where they end) if they are a plain label set, (0, …) if not."""
    labels_max, name_max, value_max = limits[0], limits[1], limits[2]
    count, has_metric_name = 0, False
    first = at
    previous, previous_end = at, at
    while at < end and body[at] == 0x0A:
        size, at = field_length(body, at + 1, end)
        label_end = at + size
        if size < 0 or label_end > end or at >= label_end or body[at] != 0x0A:
            return 0, at
        size, name = field_length(body, at + 1, label_end)
        name_end = name + size
        if size <= 0 or size > name_max or name_end >= label_end or body[name_end] != 0x12:
            return 0, at
        size, value = field_length(body, name_end + 1, label_end)
        if size <= 0 or size > value_max or value + size != label_end:
            return 0, at
        if count > 0 and not ascends(body, previous, previous_end, name, name_end):
            return 0, at
        if name_end - name == 8 and load64(body, name) == _NAME:
            has_metric_name = True
        previous, previous_end = name, name_end
        count += 1
        at = label_end
    if not has_metric_name or count > labels_max:
        return 0, at
    # Nearly always all bytes are ASCII, including lengths and tags; checking that takes one pass over the words.
    if not _is_ascii(body, first, at) and not _are_utf8(body, first, at):
        return 0, at
    return 1, at


@kernel(
    types.Tuple((types.int64, types.int64, types.float64, types.int64))(Bytes, types.int64, types.int64),
    first=True,
    allocates=False,
)
def sample(body: np.ndarray, at: int, end: int) -> tuple[int, int, float, int]:
    """Read a Sample message: (1, timestamp, value, start timestamp or 0), or (0, …) if it is malformed or a time is out
    of range.

    The value is copied bit for bit, since the payload of a NaN can mark a series as stale. Only a value that looks like
    a reference to a histogram becomes an ordinary NaN.
    """
    time, start = 0, 0
    bits = np.uint64(0)
    while at < end:
        tag = body[at]
        at += 1
        if tag == 0x09:
            if at + 8 > end:
                return 0, 0, 0.0, 0
            bits = load64(body, at)
            at += 8
        elif tag == 0x10:
            time, at = integer(body, at, end)
            if at < 0:
                return 0, 0, 0.0, 0
        elif tag == 0x18:
            start, at = integer(body, at, end)
            if at < 0:
                return 0, 0, 0.0, 0
        else:
            return 0, 0, 0.0, 0
    ok = TIME_MS_MIN <= time <= TIME_MS_MAX and TIME_MS_MIN <= start <= TIME_MS_MAX
    if refers(np.int64(bits)):
        bits = _NAN
    return np.int64(ok), time, np.uint64(bits).view(np.float64), start


@kernel(types.void(Bytes, _INTS, _INTS), first=True, allocates=False)
def _fields(body: np.ndarray, row: np.ndarray, counts: np.ndarray) -> None:
    """Walk the fields after the labels of a TimeSeries, from row[FIELDS] to row[END]. If they are all valid, fill in
    the rest of the row and make it PLAIN; otherwise it stays ODD."""
    at, end = row[FIELDS], row[END]
    samples, starts, exemplars, histograms, histogram_bytes = 0, 0, 0, 0, 0
    while at < end:
        tag = body[at]
        size, at = field_length(body, at + 1, end)
        if size < 0 or at + size > end:
            return
        if tag == 0x12:
            ok, _, _, start = sample(body, at, at + size)
            if ok == 0:
                return
            samples += 1
            starts += np.int64(start != 0)
        elif tag == 0x1A:
            exemplars += 1
        elif tag == 0x22:
            histograms += 1
            histogram_bytes += size
        else:
            return
        at += size
    row[SAMPLES] = samples
    row[STATUS] = PLAIN
    counts[EXEMPLARS] += exemplars
    counts[HISTOGRAMS] += histograms
    counts[HISTOGRAM_BYTES] += histogram_bytes
    counts[STARTS] += starts


@kernel(types.void(Bytes, types.int64, types.int64, types.int64, _INTS), first=True, allocates=False)
def _count_fields(body: np.ndarray, at: int, end: int, number: int, counts: np.ndarray) -> None:
    while at >= 0 and at < end:
        tag, at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
        if at < 0:
            return
        if tag & 7 == DELIMITED:
            length, at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
            if at >= 0:
                at += length
        else:
            at = past_field(body, at, end, tag & 7)
        counts[0] += np.int64(tag == number << 3 | DELIMITED)
        counts[1] += 1


@kernel(types.void(Bytes, _INTS, _INTS, types.int64, _TABLE), first=True, allocates=False)
def count_fields(body: np.ndarray, begins: np.ndarray, ends: np.ndarray, number: int, counts: np.ndarray) -> None:
    """Fill in `counts` (int64[n, 2], zeros before): for each message body[begins[i]:ends[i]], the number of
    length-delimited fields with this field number, and the number of all fields. Stops at a truncated field."""
    for i in range(len(counts)):
        _count_fields(body, begins[i], ends[i], number, counts[i])


@kernel(types.int64(Bytes), first=True, allocates=False)
def count_series(body: np.ndarray) -> int:
    """The number of `timeseries` fields of the body; -1 if it has fields other than plain `timeseries` and
    `metadata`."""
    at, end, count = 0, len(body), 0
    while at < end:
        tag = body[at]
        size, at = field_length(body, at + 1, end)
        if size < 0 or at + size > end or (tag != 0x0A and tag != 0x1A):
            return -1
        count += np.int64(tag == 0x0A)
        at += size
    return count


@kernel(types.void(Bytes, _TABLE, _HASHES, _INTS, _INTS, TABLES), first=True, allocates=False)
def walk(
    body: np.ndarray, table: np.ndarray, hashes: np.ndarray, counts: np.ndarray, limits: np.ndarray, tables: Tables
) -> None:
    """Fill in `table` (int64[series, COLUMNS], zeros before) and `hashes` (uint64[series], of the canonical label
    bytes).

    The number of series is the result of `count_series`, which must not be -1. The counts of the body are added to
    `counts` (int64[COUNTS]). `limits`: labels of a series, bytes of a label name, bytes of a label value. `tables`
    contain the known series. The hash of an ODD row is unspecified.
    """
    at, end, i = 0, len(body), 0
    next_known = np.int64(0)
    while at < end:
        tag = body[at]
        size, at = field_length(body, at + 1, end)
        if tag == 0x0A:
            row = table[i]
            row[LABELS], row[END], row[STATUS] = at, at + size, ODD
            if find_next(body, at, at + size, tables, next_known):
                known = next_known
                row[LABELS_END] = at + tables.rows[known, END_OF_ROW] - tables.rows[known, BEGIN]
                hashes[i] = np.uint64(tables.rows[known, HASH])
            else:
                known = np.int64(-1)
                is_plain, labels_end = _labels(body, at, at + size, limits)
                if is_plain == 1:
                    row[LABELS_END] = labels_end
                    hashes[i] = xxh64(body, at, labels_end)
                    known = find(body, at, labels_end, hashes[i], tables)
            if row[LABELS_END] > 0:
                row[FIELDS] = row[LABELS_END]
                _fields(body, row, counts)
            counts[ODDS] += np.int64(row[STATUS] == ODD)
            if known >= 0:
                row[NUMBERED] = used(tables, known)
                next_known = known + 1
            i += 1
        else:
            counts[METADATA] += 1
        at += size

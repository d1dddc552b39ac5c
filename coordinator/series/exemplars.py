"""Checks the exemplars of a remote-write request, and writes them as frames by shard (`shared.frames.exemplars`).

Not called for requests without exemplars. The labels of each exemplar are rewritten in canonical form, since even
well-behaved senders send them unsorted: `trace_id` before `span_id`.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.series.walk import END, LABELS, LABELS_END, PLAIN, STATUS, ascends, is_utf8
from shared.errors import TooLarge
from shared.frames.exemplars import HEADER_WORDS, LABEL_CHARACTERS_MAX, MARK, frame_words
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.kernels import kernel, types
from shared.protobuf_fields import LENGTH_BYTES_MAX, field_length, integer, past_field, put_length
from shared.wire import Frame
from shared.xxh64 import Bytes, copy_bytes, load64

EXEMPLARS_MAX = 100_000
"""Exemplars of one request: each takes 80 bytes until the request is split. Senders put a few thousand into one."""
NAME_SHOWN_MAX = 64

# Columns of the table of exemplars: the row of the series, where the message begins and ends, the time, the bits of the
# value, where the labels begin and end in the array of canonical labels, the fault (0 if it is valid), and details of
# the fault: a slice of the body, or one or two counts.
ROW, BEGIN, MESSAGE_END, TIME, VALUE, LABELS_AT, LABELS_AT_END, FAULT, DETAIL, DETAIL_END = range(10)
COLUMNS = 10
MALFORMED, BAD_TIME, NOT_UTF8, TOO_LONG, NAMELESS, TWICE, UNPAIRED, PAST_TABLE = range(1, 9)

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


@kernel(types.void(Bytes, _TABLE, _TABLE), first=True)
def _locate(body: np.ndarray, series: np.ndarray, exemplars: np.ndarray) -> None:
    """Fill in ROW, BEGIN and MESSAGE_END of the exemplars of all PLAIN series of a walk."""
    count = 0
    for row in range(len(series)):
        if series[row, STATUS] != PLAIN:
            continue
        at = series[row, LABELS_END]
        while at < series[row, END]:
            tag = body[at]
            size, at = field_length(body, at + 1, series[row, END])
            if tag == 0x1A:
                exemplars[count, ROW], exemplars[count, BEGIN], exemplars[count, MESSAGE_END] = row, at, at + size
                count += 1
            at += size


@kernel(types.UniTuple(types.int64, 5)(Bytes, types.int64, types.int64), first=True)
def _label(body: np.ndarray, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Read a Label message: (1, begin of its name, end of its name, begin of its value, end of its value), or (0, …) if
    it is malformed."""
    name, name_end, value, value_end = at, at, at, at
    while at < end:
        tag, at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
        if at < 0 or tag < 8:
            return 0, 0, 0, 0, 0
        if tag == 0x0A or tag == 0x12:
            size, at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
            if at < 0 or size > end - at:
                return 0, 0, 0, 0, 0
            if tag == 0x0A:
                name, name_end = at, at + size
            else:
                value, value_end = at, at + size
            at += size
        else:
            at = past_field(body, at, end, tag & 7)
            if at < 0:
                return 0, 0, 0, 0, 0
    return 1, name, name_end, value, value_end


@kernel(types.int64(Bytes, types.int64, types.int64), first=True)
def characters(body: np.ndarray, at: int, end: int) -> int:
    """The number of characters of body[at:end], which must be UTF-8."""
    count = 0
    for i in range(at, end):
        count += np.int64(body[i] & np.uint8(0xC0) != np.uint8(0x80))
    return count


@kernel(types.int64(Bytes, _TABLE, _INTS, types.int64, _OUT, types.int64), first=True)
def put_labels(body: np.ndarray, spans: np.ndarray, order: np.ndarray, count: int, out: np.ndarray, at: int) -> int:
    """Write the labels in rows order[:count] of `spans`, in canonical form (`shared.labels.encode`), to `out` from `at`
    on. Returns where they end."""
    for i in order[:count]:
        name_size, value_size = spans[i, 1] - spans[i, 0], spans[i, 3] - spans[i, 2]
        # Name and value have at most 512 bytes each, so each length has one or two bytes.
        size = name_size + value_size + 4 + np.int64(name_size >= 0x80) + np.int64(value_size >= 0x80)
        out[at] = 0x0A
        at = put_length(out, at + 1, size)
        out[at] = 0x0A
        at = put_length(out, at + 1, name_size)
        copy_bytes(out, at, body, spans[i, 0], name_size)
        at += name_size
        out[at] = 0x12
        at = put_length(out, at + 1, value_size)
        copy_bytes(out, at, body, spans[i, 2], value_size)
        at += value_size
    return at


@kernel(types.int64(Bytes, _TABLE, _INTS, types.int64), first=True)
def _insert(body: np.ndarray, spans: np.ndarray, order: np.ndarray, count: int) -> int:
    """Insert row `count` of `spans` into `order`, which has the rows before it in ascending order of their names.
    Returns 0 if one of them has the same name."""
    name, name_end = spans[count, 0], spans[count, 1]
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        other = order[middle]
        if ascends(body, spans[other, 0], spans[other, 1], name, name_end):
            low = middle + 1
        else:
            high = middle
    if low < count and not ascends(body, name, name_end, spans[order[low], 0], spans[order[low], 1]):
        return 0
    for i in range(count, low, -1):
        order[i] = order[i - 1]
    order[low] = count
    return 1


@kernel(types.int64(Bytes, _INTS, _TABLE, _INTS, types.int64, *[types.int64] * 4), first=True)
def add_label(
    body: np.ndarray,
    row: np.ndarray,
    spans: np.ndarray,
    order: np.ndarray,
    count: int,
    name: int,
    name_end: int,
    value: int,
    value_end: int,
) -> int:
    """Add a label to the first `count` rows of `spans` and to their ascending `order`. A label with an empty value
    counts as none. Returns the new number of labels, or -1, with the fault in `row`, if the name appears twice."""
    if value == value_end:
        return count
    spans[count, 0], spans[count, 1], spans[count, 2], spans[count, 3] = name, name_end, value, value_end
    if _insert(body, spans, order, count) == 0:
        row[FAULT], row[DETAIL], row[DETAIL_END] = TWICE, name, name_end
        return -1
    return count + 1


@kernel(types.void(_INTS, types.int64), first=True)
def settle(row: np.ndarray, label_characters: int) -> None:
    """Fill in FAULT of an exemplar that was read to its end, whose labels have so many characters."""
    row[FAULT] = 0
    if label_characters > LABEL_CHARACTERS_MAX:
        row[FAULT], row[DETAIL] = TOO_LONG, label_characters
    elif row[TIME] < TIME_MS_MIN or row[TIME] > TIME_MS_MAX:
        row[FAULT] = BAD_TIME


@kernel(types.int64(Bytes, _INTS, _TABLE, _INTS), first=True)
def _read_one(body: np.ndarray, row: np.ndarray, spans: np.ndarray, order: np.ndarray) -> int:
    """Read the message of one exemplar into TIME, VALUE, FAULT and DETAIL of its row, and its labels into `spans`, with
    their ascending `order`. Returns the number of labels."""
    at, end = row[BEGIN], row[MESSAGE_END]
    count, label_characters = 0, 0
    row[FAULT] = MALFORMED
    while at < end:
        tag, at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
        if at < 0 or tag < 8:
            return 0
        if tag == 0x0A:
            size, at = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
            if at < 0 or size > end - at:
                return 0
            is_valid, name, name_end, value, value_end = _label(body, at, at + size)
            at += size
            if is_valid == 0:
                return 0
            if not is_utf8(body, name, name_end) or not is_utf8(body, value, value_end):
                row[FAULT] = NOT_UTF8
                return 0
            if name == name_end:
                row[FAULT] = NAMELESS
                return 0
            label_characters += characters(body, name, name_end) + characters(body, value, value_end)
            if label_characters <= LABEL_CHARACTERS_MAX:
                count = add_label(body, row, spans, order, count, name, name_end, value, value_end)
                if count < 0:
                    return 0
        elif tag == 0x11:
            if end - at < 8:
                return 0
            row[VALUE] = np.int64(load64(body, at))
            at += 8
        elif tag == 0x18:
            row[TIME], at = integer(body, at, end)
            if at < 0:
                return 0
        else:
            at = past_field(body, at, end, tag & 7)
            if at < 0:
                return 0
    settle(row, label_characters)
    return count


@kernel(types.void(Bytes, _TABLE, _TABLE, _OUT), first=True)
def _read(body: np.ndarray, exemplars: np.ndarray, spans: np.ndarray, labels: np.ndarray) -> None:
    """Read all exemplars. Write the labels of the valid ones to `labels`, one after another."""
    at = 0
    order = np.empty(len(spans), dtype=np.int64)
    for i in range(len(exemplars)):
        row = exemplars[i]
        count = _read_one(body, row, spans, order)
        row[LABELS_AT] = at
        if row[FAULT] == 0:
            at = put_labels(body, spans, order, count, labels, at)
        row[LABELS_AT_END] = at


@kernel(types.void(Bytes, _TABLE, _HASHES, _TABLE, Bytes, _INTS, _TABLE, types.int64, _INTS, _OUT), first=True)
def _fill_frames(
    label_data: np.ndarray,
    series: np.ndarray,
    hashes: np.ndarray,
    exemplars: np.ndarray,
    labels: np.ndarray,
    order: np.ndarray,
    totals: np.ndarray,
    mark: int,
    words: np.ndarray,
    octets: np.ndarray,
) -> None:
    """Write the frames of all shards, one after another, into `words` (zeros before); `octets` is a view of its memory.
    `order`: the exemplars by shard, with those of one series next to each other. `totals` (int64[shards, 4]): series,
    exemplars, label bytes of series, and label bytes of exemplars of each shard."""
    first, at = 0, 0
    for shard in range(len(totals)):
        runs, count = totals[shard, 0], totals[shard, 1]
        if count == 0:
            continue
        words[at] = mark
        words[at + 1 : at + HEADER_WORDS] = totals[shard]
        hashes_at = at + HEADER_WORDS
        starts_at = hashes_at + runs
        counts_at = starts_at + runs + 1
        times_at = counts_at + runs
        values_at = times_at + count
        offsets_at = values_at + count
        series_first = 8 * (offsets_at + count + 1)
        labels_first = series_first + (totals[shard, 2] + 7) // 8 * 8
        series_at, labels_at = series_first, labels_first
        run, last = -1, np.int64(-1)
        for i in range(count):
            row = exemplars[order[first + i]]
            source = row[ROW]
            if source != last:
                run += 1
                last = source
                size = series[source, LABELS_END] - series[source, LABELS]
                copy_bytes(octets, series_at, label_data, series[source, LABELS], size)
                series_at += size
                words[hashes_at + run] = np.int64(hashes[source])
                words[starts_at + run + 1] = series_at - series_first
            words[counts_at + run] += 1
            words[times_at + i], words[values_at + i] = row[TIME], row[VALUE]
            size = row[LABELS_AT_END] - row[LABELS_AT]
            copy_bytes(octets, labels_at, labels, row[LABELS_AT], size)
            labels_at += size
            words[offsets_at + i + 1] = labels_at - labels_first
        at = (labels_at + 7) // 8
        first += count


@dataclass(frozen=True, slots=True)
class Exemplars:
    """The exemplars of a walked body. `table`: int64[n, COLUMNS]. `labels`: uint8[…], the canonical labels of the valid
    exemplars."""

    body: NDArray[np.uint8]
    table: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def valid(self) -> NDArray[np.int64]:
        """The rows of the valid exemplars."""
        return np.flatnonzero(self.table[:, FAULT] == 0)

    def faults(self) -> NDArray[np.int64]:
        """The rows of the exemplars with a fault."""
        return np.flatnonzero(self.table[:, FAULT])

    def series(self, exemplar: int) -> int:
        """The row of the series that this exemplar belongs to."""
        return int(self.table[exemplar, ROW])

    def fault(self, exemplar: int) -> str:
        """The fault of this exemplar, as text for error messages."""
        row = self.table[exemplar].tolist()
        detail = self.body[row[DETAIL] : row[DETAIL_END]].tobytes()[:NAME_SHOWN_MAX].decode(errors="replace")
        return {
            MALFORMED: "an exemplar is not an Exemplar message",
            BAD_TIME: f"an exemplar's timestamp is {row[TIME]} ms; it must lie within the years 1 to 9999",
            NOT_UTF8: "a label of an exemplar is not UTF-8",
            TOO_LONG: f"the labels of an exemplar have {row[DETAIL]} characters; the limit is {LABEL_CHARACTERS_MAX}",
            NAMELESS: "a label name of an exemplar is empty",
            TWICE: f"label name {detail!r} appears twice in an exemplar",
            UNPAIRED: f"an exemplar has {row[DETAIL]} label references; they must be pairs of name and value",
            PAST_TABLE: f"a label reference of an exemplar is {row[DETAIL]}; "
            f"the request has {row[DETAIL_END]} symbols, counted from 0",
        }[row[FAULT]]


def check_count(count: int, count_max: int) -> None:
    if count > count_max:
        raise TooLarge(f"the request has {count} exemplars; the limit is {count_max}, send fewer at a time")


def read(body: NDArray[np.uint8], series: NDArray[np.int64], count: int) -> Exemplars:
    """Read the exemplars of the PLAIN series of a walk, which has this table of series. There are `count` of them."""
    table = np.zeros((count, COLUMNS), dtype=np.int64)
    _locate(body, series, table)
    labels = np.empty(int((table[:, MESSAGE_END] - table[:, BEGIN]).sum()), dtype=np.uint8)
    _read(body, table, np.empty((LABEL_CHARACTERS_MAX, 4), dtype=np.int64), labels)
    return Exemplars(body, table, labels)


def divide(
    exemplars: Exemplars,
    label_data: NDArray[np.uint8],
    series: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    valid: NDArray[np.int64],
    shards: int,
) -> Iterator[tuple[int, Frame]]:
    """Yield (shard, frame) for every shard that has some of the `valid` exemplars. `label_data` contains the label
    bytes of the series."""
    rows = exemplars.table[valid]
    sources = rows[:, ROW]
    is_new = np.ones(len(rows), dtype=np.int64)
    is_new[1:] = sources[1:] != sources[:-1]
    series_bytes = is_new * (series[sources, LABELS_END] - series[sources, LABELS])
    shard_of = (hashes[sources] % np.uint64(shards)).astype(np.int64)
    order = valid[np.argsort(shard_of, kind="stable")]
    totals = np.zeros((shards, 4), dtype=np.int64)
    weights = (is_new, np.ones_like(is_new), series_bytes, rows[:, LABELS_AT_END] - rows[:, LABELS_AT])
    np.add.at(totals, shard_of, np.stack(weights, axis=1))
    sizes = [frame_words(*total) if total[1] else 0 for total in totals.tolist()]
    words = np.zeros(sum(sizes), dtype=np.int64)
    octets = words.view(np.uint8)
    _fill_frames(label_data, series, hashes, exemplars.table, exemplars.labels, order, totals, MARK, words, octets)
    view = memoryview(octets.data)
    at = 0
    for shard, size in enumerate(sizes):
        if size:
            yield shard, view[8 * at : 8 * (at + size)]
            at += size

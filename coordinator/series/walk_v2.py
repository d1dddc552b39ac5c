"""Kernels that walk a remote-write 2.0 body (protobuf) without building an object for anything in it.

The body contains each text once, in its symbol table, and the labels of a series are references to symbols. The kernels
here check the references of each series, and measure the bytes that its labels take in canonical form
(`shared.labels.encode`); the kernels of `coordinator.series.expansion` write the labels. As in version 1.0, a series is
`ODD` if it is not what well-behaved senders write.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.series.known_labels import KNOWN_AT, KNOWN_BYTES, KNOWN_METRIC, KNOWN_SET
from coordinator.series.symbols import AS_NAME, AS_VALUE, BEGIN, SYMBOL_END, is_metric_name, reference
from coordinator.series.walk import (
    CREATED,
    END,
    EXEMPLARS,
    FIELDS,
    HISTOGRAM_BYTES,
    HISTOGRAMS,
    LABELS,
    LABELS_END,
    METADATA,
    ODD,
    PLAIN,
    SAMPLES,
    STARTS,
    STATUS,
    ascends,
    is_utf8,
    sample,
)
from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import DELIMITED, LENGTH_BYTES_MAX, integer, past_field
from shared.xxh64 import Bytes

# Columns of the references table: where the references, the exemplars and the histograms of a series begin and end in
# the body. Other fields may be between exemplars or between histograms. Zeros if the series has none.
REFERENCES, REFERENCES_END, EXEMPLARS_BEGIN, EXEMPLARS_END, HISTOGRAMS_BEGIN, HISTOGRAMS_END = range(6)
REFERENCE_COLUMNS = 6

# Columns of the metadata table: the symbol of the metric's name, the number of the type, the symbols of help and unit.
METRIC, TYPE, HELP, UNIT = range(4)
METADATA_COLUMNS = 4

SHAPE_MAX = 64
"""The most label names of a series that are remembered for comparison with the next series."""

_SYMBOLS_TAG, _SERIES_TAG = 4 << 3 | DELIMITED, 5 << 3 | DELIMITED
_TAG_BITS = 32

_PAIR = types.UniTuple(types.int64, 2)
_TRIPLE = types.UniTuple(types.int64, 3)
_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_PLACES = types.Array(types.int32, 1, "C")
_SPANS = types.Array(types.int32, 2, "C")


@kernel(_TRIPLE(Bytes, types.int64, types.int64), first=True, allocates=False)
def any_field(body: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """As `next_field`, for a field of any form."""
    tag, content = integer(body, at, min(end, at + LENGTH_BYTES_MAX))
    if content < 0 or tag < 8 or tag >> _TAG_BITS:
        return -1, at, at
    if tag & 7 == DELIMITED:
        length, content = integer(body, content, min(end, content + LENGTH_BYTES_MAX))
        if content < 0 or length > end - content:
            return -1, at, at
        return tag, content, content + length
    following = past_field(body, content, end, tag & 7)
    return (-1, at, at) if following < 0 else (tag, content, following)


@inlined(allocates=False)
def next_field(body: np.ndarray, at: int, end: int) -> tuple[int, int, int]:
    """Read the field at `at` < `end`: (its tag, where its content begins, where the next field begins). The tag is -1
    if the field is truncated."""
    if (
        at + 1 < end
        and body[at] & 0x87 == DELIMITED < body[at]
        and body[at + 1] < 0x80
        and at + 2 + body[at + 1] <= end
    ):
        return np.int64(body[at]), at + 2, at + 2 + np.int64(body[at + 1])
    return any_field(body, at, end)


@kernel(_TRIPLE(Bytes), first=True, allocates=False)
def count(body: np.ndarray) -> tuple[int, int, int]:
    """(number of symbols, number of series, -1), or (0, 0, where the first truncated field is)."""
    at, end, symbols, series = 0, len(body), 0, 0
    while at < end:
        tag, _, following = next_field(body, at, end)
        if tag < 0:
            return 0, 0, at
        symbols += np.int64(tag == _SYMBOLS_TAG)
        series += np.int64(tag == _SERIES_TAG)
        at = following
    return symbols, series, -1


@inlined(allocates=False)
def _length_bytes(length: int) -> int:
    """The bytes of a length as a varint."""
    return 1 + (length >= 1 << 7) + (length >= 1 << 14) + (length >= 1 << 21) + (length >= 1 << 28)


@kernel(types.void(Bytes, _TABLE, _TABLE, _INTS), first=True, allocates=False)
def index(body: np.ndarray, symbols: np.ndarray, table: np.ndarray, limits: np.ndarray) -> None:
    """Fill in `symbols` (int64[symbols, SYMBOL_COLUMNS]), and in `table` (int64[series, COLUMNS]) where each series
    begins and ends (LABELS and END). The numbers of symbols and series are the results of `count`. `limits`: as for
    `walk`."""
    at, end, i, j = 0, len(body), 0, 0
    while at < end:
        head = at
        tag, content, at = next_field(body, at, end)
        if tag == _SYMBOLS_TAG:
            size, field = at - content, at - head - 1
            # `expand` copies the length as it is in the body.
            is_plain = size > 0 and field == _length_bytes(size) + size and is_utf8(body, content, at)
            symbols[i, BEGIN], symbols[i, SYMBOL_END] = content, at
            symbols[i, AS_NAME] = field if is_plain and size <= limits[1] else 0
            symbols[i, AS_VALUE] = field if is_plain and size <= limits[2] else 0
            i += 1
        elif tag == _SERIES_TAG:
            table[j, LABELS], table[j, END] = content, at
            j += 1


@inlined(allocates=False)
def _follows(body: np.ndarray, symbols: np.ndarray, previous: int, name: int) -> bool:
    """Whether a label with the symbol `name` may follow one with the symbol `previous`, which is -1 for none."""
    return previous < 0 or ascends(
        body, symbols[previous, BEGIN], symbols[previous, SYMBOL_END], symbols[name, BEGIN], symbols[name, SYMBOL_END]
    )


@inlined(allocates=False)
def _labels_size(
    body: np.ndarray, at: int, end: int, symbols: np.ndarray, shape: np.ndarray, labels_max: int
) -> tuple[int, int]:
    """Check the packed references body[at:end]: (the bytes of the labels in canonical form, the symbol of the metric's
    name). If they are not a plain label set, the symbol is -1, and the bytes are those of the labels read so far.

    `shape`: the label names of the previous series, which are known to be sorted, followed by -1. They are overwritten
    with the names of this series as far as these are sorted.
    """
    size, labels, metric, previous = 0, 0, np.int64(-1), np.int64(-1)
    has_same_names = True
    while at < end:
        name, at = reference(body, at, end)
        if at == end or not 0 <= name < len(symbols) or symbols[name, AS_NAME] == 0 or labels == labels_max:
            break
        value, at = reference(body, at, end)
        if not 0 <= value < len(symbols) or symbols[value, AS_VALUE] == 0:
            break
        label = 2 + symbols[name, AS_NAME] + symbols[value, AS_VALUE]
        size += 1 + _length_bytes(label) + label
        has_same_names = has_same_names and labels < SHAPE_MAX and shape[labels] == name
        if not has_same_names:
            if not _follows(body, symbols, previous, name):
                break
            if labels < SHAPE_MAX:
                shape[labels] = name
                shape[labels + 1] = -1
        if metric < 0 and is_metric_name(body, symbols, name):
            metric = value
        previous = name
        labels += 1
    else:
        return size, metric
    return size, np.int64(-1)


@inlined(allocates=False)
def _metadata(body: np.ndarray, at: int, end: int, metadata_table: np.ndarray, i: int) -> bool:
    """Read a Metadata message into TYPE, HELP and UNIT of metadata_table[i] (zeros before). False if it has other
    fields."""
    while at < end:
        tag = body[at]
        value, at = integer(body, at + 1, end)
        if at < 0:
            return False
        if tag == 0x08:
            metadata_table[i, TYPE] = value
        elif tag == 0x18:
            metadata_table[i, HELP] = value
        elif tag == 0x20:
            metadata_table[i, UNIT] = value
        else:
            return False
    return True


@inlined(allocates=False)
def _series(
    body: np.ndarray,
    table: np.ndarray,
    references: np.ndarray,
    i: int,
    metadata_table: np.ndarray,
    symbols: np.ndarray,
    shape: np.ndarray,
    counts: np.ndarray,
    labels_max: int,
    known: np.ndarray,
) -> int:
    """Check the TimeSeries between LABELS and END of table[i], and fill in the rest of the row if it is PLAIN. Returns
    the bytes of its labels in canonical form, as far as they were read. Its metadata goes to the first unused row of
    `metadata_table`."""
    table[i, STATUS] = ODD
    at, end, metadata_row = table[i, LABELS], table[i, END], counts[METADATA]
    samples_begin, samples_end, references_end = at, at, np.int64(-1)
    samples, starts, exemplars, histograms, histogram_bytes = 0, 0, 0, 0, 0
    created = np.int64(0)
    metadata_table[metadata_row, TYPE], metadata_table[metadata_row, HELP], metadata_table[metadata_row, UNIT] = 0, 0, 0
    references[i, EXEMPLARS_BEGIN], references[i, EXEMPLARS_END] = 0, 0
    references[i, HISTOGRAMS_BEGIN], references[i, HISTOGRAMS_END] = 0, 0
    while at < end:
        tag, content, following = next_field(body, at, end)
        if tag == 0x0A and references_end < 0:
            references[i, REFERENCES], references_end = content, following
        elif tag == 0x12:
            ok, _, _, start = sample(body, content, following)
            if ok == 0 or (samples > 0 and at != samples_end):
                return 0
            if samples == 0:
                samples_begin = at
            samples_end = following
            samples += 1
            starts += np.int64(start != 0)
        elif tag == 0x1A:
            if histograms == 0:
                references[i, HISTOGRAMS_BEGIN] = at
            references[i, HISTOGRAMS_END] = following
            histograms += 1
            histogram_bytes += following - content
        elif tag == 0x22:
            if exemplars == 0:
                references[i, EXEMPLARS_BEGIN] = at
            references[i, EXEMPLARS_END] = following
            exemplars += 1
        elif tag == 0x2A:  # protobuf merges several Metadata messages
            if not _metadata(body, content, following, metadata_table, metadata_row):
                return 0
        elif tag == 0x30:  # created_timestamp, from earlier drafts of the protocol
            created, _ = integer(body, content, following)
            if not TIME_MS_MIN <= created <= TIME_MS_MAX:
                return 0
        else:
            return 0
        at = following
    if references_end < 0:
        return 0
    references[i, REFERENCES_END] = references_end
    if known[i, KNOWN_SET] >= 0 and known[i, KNOWN_AT] == references[i, REFERENCES]:
        size, metric = np.int64(known[i, KNOWN_BYTES]), np.int64(known[i, KNOWN_METRIC])
    else:
        size, metric = _labels_size(
            body, np.int64(references[i, REFERENCES]), references_end, symbols, shape, labels_max
        )
    if metric >= 0:
        metadata_table[metadata_row, METRIC] = metric
        table[i, FIELDS], table[i, END] = samples_begin, samples_end
        table[i, SAMPLES], table[i, STATUS], table[i, CREATED] = samples, PLAIN, created
        counts[EXEMPLARS] += exemplars
        counts[HISTOGRAMS] += histograms
        counts[HISTOGRAM_BYTES] += histogram_bytes
        counts[STARTS] += starts if created == 0 else samples
    return size


@inlined(allocates=False)
def _keep_metadata(metadata_table: np.ndarray, counts: np.ndarray, latest: np.ndarray) -> None:
    """Count the metadata of a series, which is in the first unused row of `metadata_table`, unless it is empty or
    equals the latest metadata of its metric. latest[symbol]: the row of a metric's latest metadata, or -1."""
    row = counts[METADATA]
    if metadata_table[row, TYPE] == 0 and metadata_table[row, HELP] == 0 and metadata_table[row, UNIT] == 0:
        return
    latest_row = latest[metadata_table[row, METRIC]]
    if (
        latest_row < 0
        or metadata_table[latest_row, TYPE] != metadata_table[row, TYPE]
        or metadata_table[latest_row, HELP] != metadata_table[row, HELP]
        or metadata_table[latest_row, UNIT] != metadata_table[row, UNIT]
    ):
        latest[metadata_table[row, METRIC]] = np.int32(row)
        counts[METADATA] = min(row + 1, len(metadata_table) - 1)


@kernel(
    types.int64(Bytes, _TABLE, _TABLE, _SPANS, _TABLE, _INTS, types.int64, types.int64, _INTS, _PLACES, _SPANS),
    first=True,
    allocates=False,
)
def measure(
    body: np.ndarray,
    symbols: np.ndarray,
    table: np.ndarray,
    references: np.ndarray,
    metadata_table: np.ndarray,
    counts: np.ndarray,
    labels_max: int,
    label_bytes_max: int,
    shape: np.ndarray,
    latest: np.ndarray,
    known: np.ndarray,
) -> int:
    """Check all series that `index` found. Returns how many bytes `expand` will write, or -1 if the labels of all
    series have more than `label_bytes_max` bytes in canonical form.

    Fills in all columns of the PLAIN rows of `table`. LABELS and LABELS_END are where `expand` will write the labels; a
    series with nothing to store gets no labels. `references`: int32[series, REFERENCE_COLUMNS]. `metadata_table`
    (int64[at least 2, METADATA_COLUMNS]) gets the metadata of PLAIN series, only once for consecutive series of one
    metric. The number of its rows is added to `counts`, up to one less than there is room for. `known` is filled in by
    `known_labels.recognise`.
    """
    total, read = 0, 0
    for i in range(len(table)):
        size = _series(body, table, references, i, metadata_table, symbols, shape, counts, labels_max, known)
        read += size
        if read > label_bytes_max:
            return -1
        if table[i, STATUS] == PLAIN:
            table[i, LABELS] = total
            if table[i, SAMPLES] > 0 or references[i, EXEMPLARS_END] > 0 or references[i, HISTOGRAMS_END] > 0:
                total += size
            table[i, LABELS_END] = total
            _keep_metadata(metadata_table, counts, latest)
    return total


@kernel(types.void(Bytes, _INTS, _INTS, _TABLE), first=True, allocates=False)
def count_fields(body: np.ndarray, begins: np.ndarray, ends: np.ndarray, counts: np.ndarray) -> None:
    """Fill in `counts` (int64[n, 2], zeros before): the numbers of label references, packed or not, and of fields of
    each TimeSeries body[begins[i]:ends[i]], up to a truncated field."""
    for i in range(len(counts)):
        at, end = begins[i], ends[i]
        while at < end:
            tag, content, following = next_field(body, at, end)
            if tag < 0:
                break
            if tag == 0x0A:
                for place in range(content, following):
                    counts[i, 0] += np.int64(body[place] < 0x80)
            else:
                counts[i, 0] += np.int64(tag == 0x08)
            counts[i, 1] += 1
            at = following

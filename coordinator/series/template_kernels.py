"""Kernels that compare a remote-write 2.0 body with a template (`coordinator.series.request_templates`): a request that
was sent before, of which everything but the samples is the same."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coordinator.series import series_references
from coordinator.series.known_samples import read_sample
from coordinator.series.series_references import used
from coordinator.series.walk import END, FIELDS, HISTOGRAM_BYTES, HISTOGRAMS, NUMBERED, SAMPLES, STARTS, sample
from coordinator.series.walk_v2 import HISTOGRAMS_BEGIN, HISTOGRAMS_END
from shared import kernel_types as types
from shared import reference_frames
from shared.kernels import inlined, kernel
from shared.protobuf_fields import field_length
from shared.xxh64 import Bytes, copy_bytes, equal_bytes, load64

# Columns of `probes`: the bytes of a table of symbols, 0 where there is no template; and of some of its words, in
# pairs, where each begins, and the word.
TABLE_BYTES, FIRST_PROBE = range(2)
PROBES = 4
PROBE_COLUMNS = FIRST_PROBE + 2 * PROBES
WORD_BYTES = 8
SPARE_BYTES = WORD_BYTES
"""Which are read, whatever they are."""

# Columns of `bounds`: where the references and the metadata of a series end in `fixed`.
HEAD_END, TAIL_END = range(2)

_SERIES_TAG, _SAMPLE_TAG, _HISTOGRAM_TAG, _METADATA_TAG = 0x2A, 0x12, 0x1A, 0x2A
_BLOCK_BYTES = 256
_NUMBER = reference_frames.NUMBER
_ONE_SAMPLE = 1 << reference_frames.COUNT_SHIFT

_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")
_TABLE = types.Array(types.int64, 2, "C")
_SPANS = types.Array(types.int32, 2, "C")


class Template(NamedTuple):
    """`table` uint8[]: the table of symbols as it stands in the body. Of each of n series: `fixed` uint8[] with its
    field of references and its fields of metadata, up to `bounds` int32[n, 2], and behind all of them SPARE_BYTES; its
    row in the tables of `series_references`, `rows` int64[n]; its hash, `hashes` uint64[n]; its shard, `shard_of`
    int64[n]; and the word of its run in a frame if it has one sample, `runs` int64[n] (`shared.reference_frames`).
    `totals` int64[shards, 2]: the series of each shard, and its samples if each has one."""

    table: np.ndarray
    fixed: np.ndarray
    bounds: np.ndarray
    rows: np.ndarray
    hashes: np.ndarray
    shard_of: np.ndarray
    runs: np.ndarray
    totals: np.ndarray


TEMPLATE = types.NamedTuple((_OUT, _OUT, _SPANS, _INTS, _HASHES, _INTS, _INTS, _TABLE), Template)


@inlined(allocates=False)
def _has_words(body: np.ndarray, row: np.ndarray) -> bool:
    for column in range(FIRST_PROBE, PROBE_COLUMNS, 2):
        if np.int64(load64(body, row[column])) != row[column + 1]:
            return False
    return True


@kernel(types.int64(Bytes, _TABLE, _INTS), first=True, allocates=False)
def find(body: np.ndarray, probes: np.ndarray, found: np.ndarray) -> int:
    """Which templates a body may be an instance of, by some words of their tables of symbols: their rows in `probes`
    (int64[templates, PROBE_COLUMNS]) go to `found` until that is full. Returns how many there are."""
    count = 0
    for i in range(len(probes)):
        if count < len(found) and 0 < probes[i, TABLE_BYTES] < len(body) and _has_words(body, probes[i]):
            found[count] = i
            count += 1
    return count


@kernel(types.boolean(Bytes, Bytes), first=True, allocates=False)
def begins_with(body: np.ndarray, table: np.ndarray) -> bool:
    """Whether a body begins with this table of symbols."""
    size, at = len(table), 0
    if size >= len(body):
        return False
    while at + _BLOCK_BYTES <= size:
        differs = np.uint64(0)
        for i in range(at, at + _BLOCK_BYTES, WORD_BYTES):
            differs |= load64(body, i) ^ load64(table, i)
        if differs != np.uint64(0):
            return False
        at += _BLOCK_BYTES
    return equal_bytes(body, at, table, at, size - at)


@inlined(allocates=False)
def _is_fixed(body: np.ndarray, at: int, template: Template, place: int, size: int) -> bool:
    """Whether body[at:at + size] is what a template has from fixed[place] on."""
    if at + size + WORD_BYTES > len(body):
        return equal_bytes(body, at, template.fixed, place, size)
    while size > WORD_BYTES:
        if load64(body, at) != load64(template.fixed, place):
            return False
        at, place, size = at + WORD_BYTES, place + WORD_BYTES, size - WORD_BYTES
    differs = load64(body, at) ^ load64(template.fixed, place)
    return size == 0 or differs << np.uint64(8 * (WORD_BYTES - size)) == np.uint64(0)


@inlined(allocates=False)
def _length(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """As `field_length`, without a call for a short one."""
    if at < end and body[at] < 0x80:
        return np.int64(body[at]), at + 1
    return field_length(body, at, end)


@inlined(allocates=False)
def _next_series(body: np.ndarray, at: int) -> tuple[int, int]:
    """(where the TimeSeries at `at` begins, where it ends), or (-1, -1) if there is another field."""
    if at < len(body) and body[at] == _SERIES_TAG:
        size, begin = _length(body, at + 1, len(body))
        if 0 <= size <= len(body) - begin:
            return begin, begin + size
    return np.int64(-1), np.int64(-1)


@inlined(allocates=False)
def _samples_of(body: np.ndarray, begin: int, end: int, template: Template, i: int) -> tuple[int, int]:
    """Where the fields begin and end that stand between the references and the metadata of series i of a template in
    the TimeSeries body[begin:end]; (-1, -1) if these are not the same."""
    head = np.int64(template.bounds[i - 1, TAIL_END]) if i > 0 else np.int64(0)
    tail = np.int64(template.bounds[i, HEAD_END])
    first, last = begin + tail - head, end - (np.int64(template.bounds[i, TAIL_END]) - tail)
    if (
        first > last
        or not _is_fixed(body, begin, template, head, tail - head)
        or not _is_fixed(body, last, template, tail, end - last)
    ):
        return np.int64(-1), np.int64(-1)
    return first, last


@kernel(types.boolean(Bytes, TEMPLATE, _INTS, _INTS), first=True, allocates=False)
def read_samples(body: np.ndarray, template: Template, times: np.ndarray, bits: np.ndarray) -> bool:
    """Write the time and the value (its bits) of each series of a body that begins with the table of symbols of a
    template; False if anything in the body is different, or a series has not one sample and nothing else."""
    at = len(template.table)
    for i in range(len(template.rows)):
        begin, end = _next_series(body, at)
        if begin < 0:
            return False
        first, last = _samples_of(body, begin, end, template, i)
        if first < 0 or first == last or body[first] != _SAMPLE_TAG:
            return False
        size, content = _length(body, first + 1, last)
        if size < 0 or content + size != last or not read_sample(body, content, last, times, bits, i):
            return False
        at = end
    return at == len(body)


@inlined(allocates=False)
def _read_fields(
    body: np.ndarray, at: int, end: int, table: np.ndarray, spans: np.ndarray, counts: np.ndarray, i: int
) -> bool:
    """Fill in row i of `table` and `spans` from the fields body[at:end]: samples, and then histograms; False for others
    and for none."""
    samples, histograms = 0, 0
    table[i, FIELDS], spans[i, HISTOGRAMS_BEGIN] = at, at
    table[i, END], spans[i, HISTOGRAMS_END] = at, 0
    while at < end:
        tag = body[at]
        size, content = field_length(body, at + 1, end)
        if size < 0 or size > end - content:
            return False
        at = content + size
        if tag == _SAMPLE_TAG and histograms == 0:
            ok, _, _, start = sample(body, content, at)
            if ok == 0:
                return False
            samples += 1
            counts[STARTS] += np.int64(start != 0)
            table[i, END], spans[i, HISTOGRAMS_BEGIN] = at, at
        elif tag == _HISTOGRAM_TAG:
            histograms += 1
            counts[HISTOGRAM_BYTES] += size
            spans[i, HISTOGRAMS_END] = at
        else:
            return False
    table[i, SAMPLES] = samples
    counts[HISTOGRAMS] += histograms
    return samples + histograms > 0


@kernel(types.boolean(Bytes, TEMPLATE, _TABLE, _SPANS, _INTS), first=True, allocates=False)
def read_rows(body: np.ndarray, template: Template, table: np.ndarray, spans: np.ndarray, counts: np.ndarray) -> bool:
    """As `walk_v2.measure`, for a body that begins with the table of symbols of a template: fill in `table`
    (int64[series, COLUMNS], zeros before), `counts` (int64[COUNTS], zeros before), and of `spans` (int32[series,
    REFERENCE_COLUMNS]) where the histograms are. False if anything in the body is different but its samples and
    histograms. The numbers of the series are filled in, too."""
    at = len(template.table)
    for i in range(len(template.rows)):
        begin, end = _next_series(body, at)
        if begin < 0:
            return False
        first, last = _samples_of(body, begin, end, template, i)
        if first < 0 or not _read_fields(body, first, last, table, spans, counts, i):
            return False
        table[i, NUMBERED] = (template.runs[i] & _NUMBER) + 1
        at = end
    return at == len(body)


@kernel(types.boolean(_INTS, series_references.TABLES, _INTS), first=True, allocates=False)
def renew(rows: np.ndarray, tables: series_references.Tables, runs: np.ndarray) -> bool:
    """Fill in the `runs` of a template with the numbers that its series have now; False where one of them has none.
    Their `rows` count as used."""
    for i in range(len(rows)):
        number = used(tables, rows[i])
        if number == 0:
            return False
        runs[i] = number - 1 | _ONE_SAMPLE
    return True


@kernel(types.int64(Bytes, types.int64, types.int64), first=True, allocates=False)
def fixed_bytes(body: np.ndarray, at: int, series: int) -> int:
    """How many bytes `fill` writes to `fixed`: of the references and the metadata of so many series, which are all
    fields from body[at] on; -1 if there are others, or a series has fields that a template cannot have."""
    total = np.int64(0)
    for _ in range(series):
        begin, end = _next_series(body, at)
        if begin < 0:
            return np.int64(-1)
        first, last = _split(body, begin, end)
        if first < 0:
            return np.int64(-1)
        total += first - begin + end - last
        at = end
    return total if at == len(body) else np.int64(-1)


@inlined(allocates=False)
def _split(body: np.ndarray, begin: int, end: int) -> tuple[int, int]:
    """Where the samples and histograms of the TimeSeries body[begin:end] begin and end, between its references and its
    metadata; (-1, -1) if it has other fields, or in another order."""
    first, last = np.int64(-1), np.int64(-1)
    at = begin
    while at < end:
        head, tag = at, body[at]
        size, content = field_length(body, at + 1, end)
        if size < 0 or size > end - content:
            return np.int64(-1), np.int64(-1)
        at = content + size
        if first < 0:
            if tag != 0x0A:
                return np.int64(-1), np.int64(-1)
            first = at
        elif tag == _METADATA_TAG:
            last = head if last < 0 else last
        elif (tag != _SAMPLE_TAG and tag != _HISTOGRAM_TAG) or last >= 0:
            return np.int64(-1), np.int64(-1)
    return first, end if last < 0 else last


@kernel(types.void(Bytes, TEMPLATE), first=True, allocates=False)
def fill(body: np.ndarray, template: Template) -> None:
    """Fill in the table of symbols, `fixed` and `bounds` of the template of a body."""
    copy_bytes(template.table, 0, body, 0, len(template.table))
    at, place = len(template.table), np.int64(0)
    for i in range(len(template.rows)):
        begin, end = _next_series(body, at)
        first, last = _split(body, begin, end)
        copy_bytes(template.fixed, place, body, begin, first - begin)
        place += first - begin
        template.bounds[i, HEAD_END] = np.int32(place)
        copy_bytes(template.fixed, place, body, last, end - last)
        place += end - last
        template.bounds[i, TAIL_END] = np.int32(place)
        at = end

"""Kernels that compare a remote-write 2.0 body with a template (`coordinator.series.request_templates`).

A template is an earlier request of which everything but the samples is expected to be repeated.
"""

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
from shared.frames import references as reference_frames
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import field_length
from shared.xxh64 import Bytes, copy_bytes, equal_bytes, load64

# Columns of `probes`: the size of a symbol table, or 0 if the row has no template. Then, for some words of the table,
# in pairs: the position of the word, and the word.
TABLE_BYTES, FIRST_PROBE = range(2)
PROBES = 4
PROBE_COLUMNS = FIRST_PROBE + 2 * PROBES
WORD_BYTES = 8
SPARE_BYTES = WORD_BYTES
"""Spare bytes at the end of `fixed`, since whole words are read."""

# Columns of `bounds`: where the references of a series end in `fixed`, and where its metadata ends.
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
    """What an instance of the template must have, and what is known about its n series.

    `table`: uint8[], the symbol table as it is in the body. `fixed`: uint8[], for each series the bytes of its
    references field and of its metadata fields, and SPARE_BYTES at the end. `bounds`: int32[n, 2], where each of them
    ends. `rows`: int64[n], the rows in the tables of `series_references`. `hashes`: uint64[n]. `shard_of`: int64[n].
    `runs`: int64[n], the word of each series' run in a frame if it has one sample (`shared.frames.references`).
    `totals`: int64[shards, 2], the series of each shard, and their samples if each has one.
    """

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
def find(body: np.ndarray, probes: np.ndarray, candidates: np.ndarray) -> int:
    """Find the templates that a body may be an instance of, by some words of their symbol tables. Their rows in
    `probes` (int64[templates, PROBE_COLUMNS]) go to `candidates` until it is full. Returns how many there are."""
    count = 0
    for i in range(len(probes)):
        if count < len(candidates) and 0 < probes[i, TABLE_BYTES] < len(body) and _has_words(body, probes[i]):
            candidates[count] = i
            count += 1
    return count


@kernel(types.boolean(Bytes, Bytes), first=True, allocates=False)
def begins_with(body: np.ndarray, table: np.ndarray) -> bool:
    """Whether a body begins with this symbol table."""
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
    """Whether body[at:at + size] equals the bytes of the template from fixed[place] on."""
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
    """As `field_length`, but without a function call if the length has one byte."""
    if at < end and body[at] < 0x80:
        return np.int64(body[at]), at + 1
    return field_length(body, at, end)


@inlined(allocates=False)
def _next_series(body: np.ndarray, at: int) -> tuple[int, int]:
    """Where the TimeSeries of the field at `at` begins and ends, or (-1, -1) if it is another field."""
    if at < len(body) and body[at] == _SERIES_TAG:
        size, begin = _length(body, at + 1, len(body))
        if 0 <= size <= len(body) - begin:
            return begin, begin + size
    return np.int64(-1), np.int64(-1)


@inlined(allocates=False)
def _samples_of(body: np.ndarray, begin: int, end: int, template: Template, i: int) -> tuple[int, int]:
    """Compare the references and the metadata of the TimeSeries body[begin:end] with those of series i of a template.
    Returns where the fields between them begin and end, or (-1, -1) if they differ."""
    head = np.int64(template.bounds[i - 1, TAIL_END]) if i > 0 else np.int64(0)
    tail = np.int64(template.bounds[i, HEAD_END])
    samples_begin, samples_end = begin + tail - head, end - (np.int64(template.bounds[i, TAIL_END]) - tail)
    if (
        samples_begin > samples_end
        or not _is_fixed(body, begin, template, head, tail - head)
        or not _is_fixed(body, samples_end, template, tail, end - samples_end)
    ):
        return np.int64(-1), np.int64(-1)
    return samples_begin, samples_end


@kernel(types.boolean(Bytes, TEMPLATE, _INTS, _INTS), first=True, allocates=False)
def read_samples(body: np.ndarray, template: Template, times: np.ndarray, bits: np.ndarray) -> bool:
    """Read a body that begins with the symbol table of a template: the time and the bits of the value of each series.
    Returns False if the body is not an instance of the template, or if a series has anything but exactly one sample."""
    at = len(template.table)
    for i in range(len(template.rows)):
        begin, end = _next_series(body, at)
        if begin < 0:
            return False
        samples_begin, samples_end = _samples_of(body, begin, end, template, i)
        if samples_begin < 0 or samples_begin == samples_end or body[samples_begin] != _SAMPLE_TAG:
            return False
        size, content = _length(body, samples_begin + 1, samples_end)
        if size < 0 or content + size != samples_end or not read_sample(body, content, samples_end, times, bits, i):
            return False
        at = end
    return at == len(body)


@inlined(allocates=False)
def _read_fields(
    body: np.ndarray, at: int, end: int, table: np.ndarray, spans: np.ndarray, counts: np.ndarray, i: int
) -> bool:
    """Fill in row i of `table` and `spans` from the fields body[at:end], which must be samples followed by histograms.
    Returns False if there are other fields or none."""
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
    """As `walk_v2.measure`, for a body that begins with the symbol table of a template. Fills in `table` (int64[series,
    COLUMNS], zeros before) including the numbers of the series, `counts` (int64[COUNTS], zeros before), and in `spans`
    (int32[series, REFERENCE_COLUMNS]) where the histograms are. Returns False if anything but samples and histograms
    differs from the template."""
    at = len(template.table)
    for i in range(len(template.rows)):
        begin, end = _next_series(body, at)
        if begin < 0:
            return False
        samples_begin, samples_end = _samples_of(body, begin, end, template, i)
        if samples_begin < 0 or not _read_fields(body, samples_begin, samples_end, table, spans, counts, i):
            return False
        table[i, NUMBERED] = (template.runs[i] & _NUMBER) + 1
        at = end
    return at == len(body)


@kernel(types.boolean(_INTS, series_references.TABLES, _INTS), first=True, allocates=False)
def renew(rows: np.ndarray, tables: series_references.Tables, runs: np.ndarray) -> bool:
    """Fill in the `runs` of a template with the current numbers of its series. Returns False if one of them has none.
    The `rows` count as used."""
    for i in range(len(rows)):
        number = used(tables, rows[i])
        if number == 0:
            return False
        runs[i] = number - 1 | _ONE_SAMPLE
    return True


@kernel(types.int64(Bytes, types.int64, types.int64), first=True, allocates=False)
def fixed_bytes(body: np.ndarray, at: int, series: int) -> int:
    """How many bytes `fill` writes to `fixed` for the references and metadata of this many series. -1 if body[at:] has
    other fields than these series, or if one of them has fields that a template cannot have."""
    total = np.int64(0)
    for _ in range(series):
        begin, end = _next_series(body, at)
        if begin < 0:
            return np.int64(-1)
        samples_begin, samples_end = _split(body, begin, end)
        if samples_begin < 0:
            return np.int64(-1)
        total += samples_begin - begin + end - samples_end
        at = end
    return total if at == len(body) else np.int64(-1)


@inlined(allocates=False)
def _split(body: np.ndarray, begin: int, end: int) -> tuple[int, int]:
    """Where the samples and histograms of the TimeSeries body[begin:end] begin and end. They must be between its
    references and its metadata; (-1, -1) if it has other fields or another order."""
    samples_begin, samples_end = np.int64(-1), np.int64(-1)
    at = begin
    while at < end:
        head, tag = at, body[at]
        size, content = field_length(body, at + 1, end)
        if size < 0 or size > end - content:
            return np.int64(-1), np.int64(-1)
        at = content + size
        if samples_begin < 0:
            if tag != 0x0A:
                return np.int64(-1), np.int64(-1)
            samples_begin = at
        elif tag == _METADATA_TAG:
            samples_end = head if samples_end < 0 else samples_end
        elif (tag != _SAMPLE_TAG and tag != _HISTOGRAM_TAG) or samples_end >= 0:
            return np.int64(-1), np.int64(-1)
    return samples_begin, end if samples_end < 0 else samples_end


@kernel(types.void(Bytes, TEMPLATE), first=True, allocates=False)
def fill(body: np.ndarray, template: Template) -> None:
    """Fill in `table`, `fixed` and `bounds` of the template of a body."""
    copy_bytes(template.table, 0, body, 0, len(template.table))
    at, place = len(template.table), np.int64(0)
    for i in range(len(template.rows)):
        begin, end = _next_series(body, at)
        samples_begin, samples_end = _split(body, begin, end)
        copy_bytes(template.fixed, place, body, begin, samples_begin - begin)
        place += samples_begin - begin
        template.bounds[i, HEAD_END] = np.int32(place)
        copy_bytes(template.fixed, place, body, samples_end, end - samples_end)
        place += end - samples_end
        template.bounds[i, TAIL_END] = np.int32(place)
        at = end

"""Kernels that resolve the references of the series of a remote-write 2.0 body (`coordinator.series.walk_v2`).

They write the labels in the canonical form that version 1.0 sends, and hash the labels and the metadata.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from coordinator.series import series_references
from coordinator.series.known_labels import (
    KNOWN_AT,
    KNOWN_BYTES,
    KNOWN_SET,
    SET_HASH,
    SET_LABELS,
    SET_ROW,
    TABLES,
    Tables,
    add,
)
from coordinator.series.series_references import VERSION, find_near, used
from coordinator.series.symbols import AS_NAME, AS_VALUE, BEGIN, SYMBOL_END, reference
from coordinator.series.walk import LABELS, LABELS_END, NUMBERED, PLAIN, STATUS
from coordinator.series.walk_v2 import (
    EXEMPLARS_END,
    HELP,
    HISTOGRAMS_END,
    METRIC,
    REFERENCES,
    REFERENCES_END,
    TYPE,
    UNIT,
)
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import put_length
from shared.xxh64 import Bytes, copy_16, copy_bytes, xxh64

SPARE_BYTES = 16
"""Spare bytes after the labels in the output of `expand`, since texts are copied 16 bytes at a time."""

_PRIME = np.uint64(0x9E3779B97F4A7C15)

_VERSION_SHIFT, _ROW_MASK = 32, np.int64(0xFFFFFFFF)
"""SET_ROW of a known set: the row of the series in the lower half, and the version of the tables that this row is valid
for in the upper half."""

_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")
_NUMBERS = types.Array(types.int32, 1, "C")
_SPANS = types.Array(types.int32, 2, "C")


@inlined(allocates=False)
def _put_text(body: np.ndarray, begin: int, size: int, out: np.ndarray, place: int) -> None:
    """Copy body[begin:begin + size] to out[place:]. May overwrite up to SPARE_BYTES of `out` after it."""
    if size <= 16 and begin + 16 <= len(body):
        copy_16(out, place, body, begin)
    else:
        copy_bytes(out, place, body, begin, size)


@inlined(allocates=False)
def _expand_one(body: np.ndarray, at: int, end: int, symbols: np.ndarray, out: np.ndarray, place: int) -> int:
    """Write the labels of a PLAIN series, whose references are body[at:end], from out[place] on. Returns where they
    end."""
    while at < end:
        name, at = reference(body, at, end)
        value, at = reference(body, at, end)
        name_bytes, value_bytes = symbols[name, AS_NAME], symbols[value, AS_VALUE]
        out[place] = 0x0A
        place = put_length(out, place + 1, 2 + name_bytes + value_bytes)
        out[place] = 0x0A
        _put_text(body, symbols[name, SYMBOL_END] - name_bytes, name_bytes, out, place + 1)
        place += 1 + name_bytes
        out[place] = 0x12
        _put_text(body, symbols[value, SYMBOL_END] - value_bytes, value_bytes, out, place + 1)
        place += 1 + value_bytes
    return place


@kernel(
    types.boolean(
        Bytes, _TABLE, _TABLE, _SPANS, _OUT, _HASHES, _SPANS, _NUMBERS, TABLES, series_references.TABLES, _INTS
    ),
    first=True,
    allocates=False,
)
def expand(
    body: np.ndarray,
    symbols: np.ndarray,
    table: np.ndarray,
    references: np.ndarray,
    out: np.ndarray,
    hashes: np.ndarray,
    known: np.ndarray,
    numbers: np.ndarray,
    tables: Tables,
    numbered: series_references.Tables,
    rows: np.ndarray,
) -> bool:
    """Write the canonical labels of all PLAIN series that have something to store to `out` (uint8[result of `measure` +
    SPARE_BYTES]), and their hashes to `hashes` (uint64[series]).

    The label sets of the `known` series are copied from `tables`. Other sets are written, and added to `tables`;
    `numbers` is the result of `recognise`. A series that is in `numbered` gets its number in `table`, and its row there
    in `rows` (int64[series], -1 for other series); its labels are only written if a frame needs them. Returns whether
    each label set took as many bytes as were measured.
    """
    next_row = np.int64(0)
    for i in range(len(table)):
        rows[i] = -1
        begin, end = table[i, LABELS], table[i, LABELS_END]
        if table[i, STATUS] != PLAIN or end == begin:
            continue
        known_set = known[i, KNOWN_SET]
        if known_set >= 0 and known[i, KNOWN_AT] == references[i, REFERENCES]:
            if known[i, KNOWN_BYTES] != end - begin:
                return False
            labels = tables.sets[known_set, SET_LABELS]
            hashes[i] = np.uint64(tables.sets[known_set, SET_HASH])
            version, set_row = numbered.used[VERSION], tables.sets[known_set, SET_ROW]
            if set_row >> _VERSION_SHIFT == version > 0:
                row = set_row & _ROW_MASK
            else:
                row = find_near(tables.labels, labels, labels + end - begin, hashes[i], numbered, next_row)
                if row >= 0:
                    tables.sets[known_set, SET_ROW] = version << _VERSION_SHIFT | row
            if row >= 0:
                table[i, NUMBERED] = used(numbered, row)
                rows[i] = row
                next_row = row + 1
            has_more = references[i, EXEMPLARS_END] > 0 or references[i, HISTOGRAMS_END] > 0
            if table[i, NUMBERED] == 0 or has_more:
                copy_bytes(out, begin, tables.labels, labels, end - begin)
            continue
        first, last = np.int64(references[i, REFERENCES]), np.int64(references[i, REFERENCES_END])
        if _expand_one(body, first, last, symbols, out, begin) != end:
            return False
        hashes[i] = xxh64(out, begin, end)
        row = find_near(out, begin, end, hashes[i], numbered, next_row)
        if row >= 0:
            table[i, NUMBERED] = used(numbered, row)
            rows[i] = row
            next_row = row + 1
        if len(tables.sets) > 0:
            add(body, first, last, symbols, numbers, out, begin, end, hashes[i], tables)
    return True


@kernel(types.void(Bytes, _TABLE, _TABLE, _HASHES), first=True, allocates=False)
def hash_metadata(body: np.ndarray, symbols: np.ndarray, metadata_table: np.ndarray, keys: np.ndarray) -> None:
    """Fill in `keys` (uint64[n]): a hash of each row of metadata, including the texts that it refers to; 0 if a
    reference is beyond the symbol table."""
    for i in range(len(keys)):
        key = np.uint64(metadata_table[i, TYPE])
        for column in (METRIC, HELP, UNIT):
            symbol = metadata_table[i, column]
            if not 0 <= symbol < len(symbols):
                key = np.uint64(0)
                break
            key = key * _PRIME + xxh64(body, symbols[symbol, BEGIN], symbols[symbol, SYMBOL_END])
        keys[i] = key

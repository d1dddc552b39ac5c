"""Label sets that senders have sent before by remote write 2.0, with their canonical bytes and hashes.

Senders repeat the same series in nearly the same order. Each symbol of a request is looked up once (`recognise`). A
series is known if its symbols are, one by one, those of a label set in the tables; its labels are then not checked,
written and hashed again. The first candidate is always the text or set that follows the previous match. Only if it is
another one is it looked up in a hash table. Every candidate is compared in full, so that a hash alone never decides
which series a sample belongs to.

`add` keeps the label sets of plain series, which are valid. Deleting series changes nothing here.
"""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value, call-overload"

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np

from coordinator.series.symbols import AS_NAME, AS_VALUE, BEGIN, SYMBOL_END, is_metric_name, reference
from coordinator.series.tagged_slots import entry, is_tagged, number_in, place_of
from coordinator.series.walk import END, LABELS
from shared.kernels import inlined, kernel, types
from shared.protobuf_fields import DELIMITED, field_length
from shared.xxh64 import Bytes, copy_bytes, load64, xxh64

# Columns of the kept texts: where each begins and ends in `texts`. Columns of the kept sets: where each begins and ends
# in `members`, the index in `members` of the value of __name__, where its labels begin and end in `labels`, their hash,
# and the row of the series in `series_references` (written by `expansion`).
TEXT, TEXT_END = range(2)
MEMBERS, MEMBERS_END, METRIC_AT, SET_LABELS, SET_LABELS_END, SET_HASH, SET_ROW = range(7)
SET_COLUMNS = 7

# Columns of the table of known series: the set (-1 for a series that is not known), where its references begin in the
# body, the symbol of the metric's name, and the bytes of the labels.
KNOWN_SET, KNOWN_AT, KNOWN_METRIC, KNOWN_BYTES = range(4)
KNOWN_COLUMNS = 4

# Items of `used`: how much of each array is in use, and how many sets found no room.
TEXTS, SYMBOLS, MEMBERS_USED, SETS, LABELS_USED, LEFT_OUT = range(6)
USES = 6

REFERENCES_MAX = 128
"""The most references (names and values) of a set that is kept."""
PROBES_MAX = 8
"""The most slots that a look-up of a text or set reads, whatever texts a sender chooses."""
LABEL_BYTES_MAX = 4096
"""The most label bytes of a set that is kept: a few long sets would take the room of many."""

LEFT_OUT_MAX = 4
"""Keeping a set takes as long as reading a series. With this limit, at most a fifth of the series are kept of a sender
whose series are always new."""

_REFERENCES_TAG = 1 << 3 | DELIMITED

_PAIR = types.UniTuple(types.int64, 2)
_TABLE = types.Array(types.int64, 2, "C")
_INTS = types.Array(types.int64, 1, "C")
_NUMBERS = types.Array(types.int32, 1, "C")
_SPANS = types.Array(types.int32, 2, "C")
_HASHES = types.Array(types.uint64, 1, "C")
_OUT = types.Array(types.uint8, 1, "C")


class Tables(NamedTuple):
    """The kept texts and sets.

    `texts`: uint8[], the bytes of the `symbols`, int64[n, 2]. `members`: int32[], the symbols of the `sets`, int64[n,
    SET_COLUMNS]. `labels`: uint8[], the canonical bytes of the sets. `symbol_slots`, `set_slots`: int64[a power of two]
    (`coordinator.series.tagged_slots`). `factors`: uint64[REFERENCES_MAX], random. `used`: int64[USES].
    """

    texts: np.ndarray
    symbols: np.ndarray
    symbol_slots: np.ndarray
    members: np.ndarray
    sets: np.ndarray
    set_slots: np.ndarray
    labels: np.ndarray
    factors: np.ndarray
    used: np.ndarray


TABLES = types.NamedTuple((_OUT, _TABLE, _INTS, _NUMBERS, _TABLE, _INTS, _OUT, _HASHES, _INTS), Tables)


@inlined(allocates=False)
def _are_equal(a: np.ndarray, i: int, b: np.ndarray, j: int, size: int) -> bool:
    """Whether a[i:i + size] and b[j:j + size] are equal. `size` must be at least 1."""
    if size >= 8:
        for at in range(0, size - 8, 8):
            if load64(a, i + at) != load64(b, j + at):
                return False
        return load64(a, i + size - 8) == load64(b, j + size - 8)
    if i + 8 <= len(a) and j + 8 <= len(b):
        return (load64(a, i) ^ load64(b, j)) << np.uint64(64 - 8 * size) == np.uint64(0)
    at = 0
    while at < size and a[i + at] == b[j + at]:
        at += 1
    return at == size


@inlined(allocates=False)
def _is_text(tables: Tables, symbol: int, body: np.ndarray, begin: int, size: int) -> bool:
    text = tables.symbols[symbol, TEXT]
    return tables.symbols[symbol, TEXT_END] - text == size and _are_equal(body, begin, tables.texts, text, size)


@kernel(_PAIR(Bytes, types.int64, types.int64, TABLES, types.uint64), first=True, allocates=False)
def _find_symbol(body: np.ndarray, begin: int, end: int, tables: Tables, key: np.uint64) -> tuple[int, int]:
    """(number of the text body[begin:end] or -1, free slot at which the search ended or -1)."""
    for probe in range(PROBES_MAX):
        place = place_of(tables.symbol_slots, key, probe)
        slot = tables.symbol_slots[place]
        if slot == 0:
            return -1, place
        number = number_in(slot)
        if is_tagged(slot, key) and _is_text(tables, number, body, begin, end - begin):
            return number, -1
    return -1, -1


@inlined(allocates=False)
def _identify(body: np.ndarray, symbols: np.ndarray, tables: Tables, numbers: np.ndarray) -> None:
    next_number = 0
    for i in range(len(symbols)):
        numbers[i] = -1
        begin, end = symbols[i, BEGIN], symbols[i, SYMBOL_END]
        if (symbols[i, AS_NAME] == 0 and symbols[i, AS_VALUE] == 0) or end - begin > LABEL_BYTES_MAX:
            continue
        number = np.int64(next_number)
        if next_number >= tables.used[SYMBOLS] or not _is_text(tables, next_number, body, begin, end - begin):
            number, _ = _find_symbol(body, begin, end, tables, xxh64(body, begin, end))
        if number >= 0:
            numbers[i] = number
            next_number = number + 1


@inlined(allocates=False)
def _metric_of(body: np.ndarray, at: int, end: int, numbers: np.ndarray, tables: Tables, known: int) -> int:
    """The symbol of the metric's name if the references body[at:end] are those of the set `known`; -1 if not."""
    member, last = tables.sets[known, MEMBERS], tables.sets[known, MEMBERS_END]
    metric_at = tables.sets[known, METRIC_AT]
    metric = np.int64(-1)
    while at < end:
        symbol, at = reference(body, at, end)
        if not 0 <= symbol < len(numbers) or member == last or numbers[symbol] != tables.members[member]:
            return -1
        if member == metric_at:
            metric = symbol
        member += 1
    return metric if member == last else np.int64(-1)


@inlined(allocates=False)
def _key(body: np.ndarray, at: int, end: int, numbers: np.ndarray, tables: Tables) -> tuple[bool, np.uint64]:
    """(whether all symbols that body[at:end] refers to are known and there are at most REFERENCES_MAX, their hash). The
    factors are random, so that a sender cannot construct sets with equal hashes (Dietzfelbinger et al. 1997)."""
    key, i = np.uint64(0), 0
    while at < end:
        symbol, at = reference(body, at, end)
        if not 0 <= symbol < len(numbers) or numbers[symbol] < 0 or i == REFERENCES_MAX:
            return False, key
        key += np.uint64(numbers[symbol] + 1) * tables.factors[i]
        i += 1
    return True, key ^ key >> np.uint64(32)


@kernel(_PAIR(Bytes, types.int64, types.int64, _NUMBERS, TABLES), first=True, allocates=False)
def _find_set(body: np.ndarray, at: int, end: int, numbers: np.ndarray, tables: Tables) -> tuple[int, int]:
    are_known, key = _key(body, at, end, numbers, tables)
    if are_known:
        for probe in range(PROBES_MAX):
            slot = tables.set_slots[place_of(tables.set_slots, key, probe)]
            if slot == 0:
                break
            if is_tagged(slot, key):
                known = number_in(slot)
                metric = _metric_of(body, at, end, numbers, tables, known)
                if metric >= 0:
                    return known, metric
    return -1, -1


@inlined(allocates=False)
def _references(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Where the references of the TimeSeries body[at:end] begin and end; (-1, -1) if they are not its first field."""
    if at == end or body[at] != _REFERENCES_TAG:
        return -1, -1
    size, at = field_length(body, at + 1, end)
    return (at, at + size) if 0 <= size <= end - at else (-1, -1)


@kernel(types.void(Bytes, _TABLE, _TABLE, TABLES, _NUMBERS, _SPANS), first=True, allocates=False)
def recognise(
    body: np.ndarray, symbols: np.ndarray, table: np.ndarray, tables: Tables, numbers: np.ndarray, known: np.ndarray
) -> None:
    """Find the symbols and series of a body that are in the tables.

    Fills in `numbers` (int32[symbols]): the number of the kept text that each symbol equals, or -1, also if the symbol
    can be neither a name nor a value in a plain series. Fills in `known` (int32[series, KNOWN_COLUMNS]) for the series
    that `walk_v2.index` has put into `table`.
    """
    _identify(body, symbols, tables, numbers)
    next_set = np.int64(0)
    for i in range(len(table)):
        known[i, KNOWN_SET] = -1
        begin, end = _references(body, table[i, LABELS], table[i, END])
        if begin < 0:
            continue
        number, metric = next_set, np.int64(-1)
        if next_set < tables.used[SETS]:
            metric = _metric_of(body, begin, end, numbers, tables, next_set)
        if metric < 0:
            number, metric = _find_set(body, begin, end, numbers, tables)
        if metric >= 0:
            known[i, KNOWN_SET], known[i, KNOWN_AT], known[i, KNOWN_METRIC] = number, begin, metric
            known[i, KNOWN_BYTES] = tables.sets[number, SET_LABELS_END] - tables.sets[number, SET_LABELS]
            next_set = number + 1


@inlined(allocates=False)
def _add_symbol(body: np.ndarray, begin: int, end: int, tables: Tables) -> int:
    """The number of a text, which is added if it is not kept yet; -1 if there is no room."""
    key = xxh64(body, begin, end)
    number, place = _find_symbol(body, begin, end, tables, key)
    if number >= 0:
        return number
    number, at = tables.used[SYMBOLS], tables.used[TEXTS]
    if place < 0 or number == len(tables.symbols) or end - begin > len(tables.texts) - at:
        return np.int64(-1)
    copy_bytes(tables.texts, at, body, begin, end - begin)
    tables.symbols[number, TEXT], tables.symbols[number, TEXT_END] = at, at + end - begin
    tables.symbol_slots[place] = entry(key, number)
    tables.used[SYMBOLS] += 1
    tables.used[TEXTS] += end - begin
    return number


@inlined(allocates=False)
def _add_members(body: np.ndarray, at: int, end: int, symbols: np.ndarray, numbers: np.ndarray, tables: Tables) -> int:
    """Write the symbols that body[at:end] refers to after the members in use, and keep their texts. Returns where they
    end, or -1 if there is no room."""
    member = tables.used[MEMBERS_USED]
    while at < end:
        symbol, at = reference(body, at, end)
        if numbers[symbol] < 0:
            numbers[symbol] = _add_symbol(body, symbols[symbol, BEGIN], symbols[symbol, SYMBOL_END], tables)
        if numbers[symbol] < 0 or member == len(tables.members):
            return np.int64(-1)
        tables.members[member] = numbers[symbol]
        member += 1
    return member


@inlined(allocates=False)
def _metric_at(body: np.ndarray, at: int, end: int, symbols: np.ndarray, member: int) -> int:
    """The index in `members` of the value of __name__, if the set's first member has the index `member`; -1 if it has
    no __name__."""
    while at < end:
        name, at = reference(body, at, end)
        _, at = reference(body, at, end)
        if is_metric_name(body, symbols, name):
            return member + 1
        member += 2
    return np.int64(-1)


@kernel(
    types.void(Bytes, types.int64, types.int64, _TABLE, _NUMBERS, _OUT, types.int64, types.int64, types.uint64, TABLES),
    first=True,
    allocates=False,
)
def add(
    body: np.ndarray,
    at: int,
    end: int,
    symbols: np.ndarray,
    numbers: np.ndarray,
    labels: np.ndarray,
    begin: int,
    labels_end: int,
    label_hash: np.uint64,
    tables: Tables,
) -> None:
    """Keep the label set of a PLAIN series, whose references are body[at:end] and whose canonical bytes are
    labels[begin:labels_end], unless it is kept already or there is no room. Updates `numbers`, which `recognise` has
    filled in."""
    size = labels_end - begin
    if size > LABEL_BYTES_MAX:
        return
    number, first, out = tables.used[SETS], tables.used[MEMBERS_USED], tables.used[LABELS_USED]
    has_room = number < len(tables.sets) and size <= len(tables.labels) - out
    last = _add_members(body, at, end, symbols, numbers, tables) if has_room else np.int64(-1)
    if last < 0:
        tables.used[LEFT_OUT] += 1
        return
    are_known, key = _key(body, at, end, numbers, tables)
    if not are_known:
        return
    for probe in range(PROBES_MAX):
        place = place_of(tables.set_slots, key, probe)
        slot = tables.set_slots[place]
        if slot == 0:
            copy_bytes(tables.labels, out, labels, begin, size)
            row = tables.sets[number]
            row[MEMBERS], row[MEMBERS_END], row[SET_LABELS], row[SET_LABELS_END] = first, last, out, out + size
            row[METRIC_AT], row[SET_HASH] = _metric_at(body, at, end, symbols, first), np.int64(label_hash)
            row[SET_ROW] = 0
            tables.set_slots[place] = entry(key, number)
            tables.used[SETS], tables.used[MEMBERS_USED], tables.used[LABELS_USED] = number + 1, last, out + size
            return
        if is_tagged(slot, key) and _metric_of(body, at, end, numbers, tables, number_in(slot)) >= 0:
            return


class KnownLabels:
    """The kept label sets, in at most `bytes_max` bytes: about 400 for a series of seven labels. All requests must have
    the same limits on labels.

    One request at a time uses the tables. A set that finds no room is left out. When LEFT_OUT_MAX times as many sets
    have been left out as there is room for, the tables are cleared, since they may be full of sets that are no longer
    sent. Until then, a sender with more series than there is room for still gains for the series in the tables.
    """

    def __init__(self, bytes_max: int) -> None:
        self.generation = 0
        """Changes when the tables are cleared: from then on, earlier numbers are meaningless."""
        self._sets_max = bytes_max // _SET_BYTES_MAX
        self._tables = NO_TABLES
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """Memory that the tables have written to. They keep it when they are cleared."""
        tables, used = self._tables, self._tables.used
        if self.generation:
            return sum(array.nbytes for array in tables)
        slots = tables.symbol_slots.nbytes + tables.set_slots.nbytes
        rows = 16 * used[SYMBOLS] + 4 * used[MEMBERS_USED] + 8 * SET_COLUMNS * used[SETS]
        return int(slots + rows + used[TEXTS] + used[LABELS_USED])

    @contextmanager
    def lent(self) -> Iterator[Tables]:
        """The tables, or NO_TABLES while another thread uses them: waiting would take longer than working without."""
        if not self._sets_max or not self._lock.acquire(blocking=False):
            yield NO_TABLES
            return
        try:
            if self._tables is NO_TABLES:
                self._tables = _tables(self._sets_max)
            elif self._tables.used[LEFT_OUT] > LEFT_OUT_MAX * self._sets_max:
                self.generation += 1
                for array in (self._tables.symbol_slots, self._tables.set_slots, self._tables.used):
                    array[:] = 0
            yield self._tables
        finally:
            self._lock.release()


_SYMBOLS_A_SET, _MEMBERS_A_SET, _TEXT_BYTES, _LABEL_BYTES = 2, 16, 20, 176
_SET_BYTES_MAX = _SYMBOLS_A_SET * (_TEXT_BYTES + 16) + 4 * _MEMBERS_A_SET + 8 * SET_COLUMNS + _LABEL_BYTES + 3 * 24
"""The room for one set: two symbols of 20 bytes that no other set has, eight labels, and up to nine slots."""


def _tables(sets: int, slots: int = 0) -> Tables:
    """Empty tables with room for this many sets. Memory that is never written to is not taken from the system."""
    symbols = _SYMBOLS_A_SET * sets
    slots = slots or 1 << (3 * sets // 2).bit_length()  # at most three for each set
    return Tables(
        texts=np.empty(_TEXT_BYTES * symbols, dtype=np.uint8),
        symbols=np.empty((symbols, 2), dtype=np.int64),
        symbol_slots=np.zeros(2 * slots, dtype=np.int64),
        members=np.empty(_MEMBERS_A_SET * sets, dtype=np.int32),
        sets=np.empty((sets, SET_COLUMNS), dtype=np.int64),
        set_slots=np.zeros(slots, dtype=np.int64),
        labels=np.empty(_LABEL_BYTES * sets, dtype=np.uint8),
        factors=np.frombuffer(os.urandom(8 * REFERENCES_MAX), dtype=np.uint64) | np.uint64(1),
        used=np.zeros(USES, dtype=np.int64),
    )


NO_TABLES = _tables(0, 1)
"""Tables that contain nothing and have no room."""

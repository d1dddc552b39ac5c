"""Removes from the store the records that are below the start of their key.

An entry and the runs of its records are changed in one write, so that they always agree. The removal is not durable: a
crash may undo it. It is then done again, since a start is forgotten only by a later write of the same kind, and a crash
never keeps a later one of these writes without the earlier ones (`worker.logs.part`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.messages.log import SEQUENCE_MAX
from worker.logs import entries, rows
from worker.logs.entries import GatheringEntry
from worker.logs.runs import counted, unpacked
from worker.logs.starts import START_BYTES, KeyStarts
from worker.storage.faces import RowBatch, Rows

KEYS_AT_ONCE = 256
"""Keys whose stored records are looked for in one slice."""
ENTRIES_AT_ONCE = 8
"""Entries that are rewritten in one slice. Each has the records of one gathering."""
KEYS_A_WRITE = 4096
"""Keys whose runs of one entry are removed in one write, which blocks the worker's other threads for some ms."""


class CleanPart(Protocol):
    """What the removal needs of a shard's log (worker.logs.part)."""

    store: Rows
    lock: Lock
    trim_lock: Lock
    starts: KeyStarts

    @property
    def gathered(self) -> int: ...
    def stored_segments(self) -> list[int]: ...
    def changing(self) -> AbstractContextManager[bool]: ...
    def write_removal(self, changes: RowBatch, segment: int = -1, records: int = 0, size: int = 0) -> None: ...


@dataclass(slots=True)
class _Removal:
    """What one write removes of a segment. `records`; `size`: bytes of their keys and values."""

    changes: RowBatch
    records: int = 0
    size: int = 0


@dataclass(slots=True)
class _GoneRecords:
    """Where the gone records of some keys are. `entries`: segment → the rows of the entries that name them. `stray`:
    runs (segment, key, first number) that no entry names, which only damaged stores have. `clean`: keys with no records
    below their start, with the start."""

    entries: dict[int, set[bytes]] = field(default_factory=dict)
    stray: list[tuple[int, bytes, int]] = field(default_factory=list)
    clean: dict[bytes, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return sum(map(len, self.entries.values())) >= ENTRIES_AT_ONCE or len(self.stray) >= KEYS_A_WRITE


def clean(part: CleanPart) -> bool:
    """Remove some gone records, or forget the starts that hide nothing any more. Returns whether there is more to
    remove now. Raises Unavailable, StoreDamaged; the caller tries again later."""
    with part.lock:
        unclean, gathered, gatherings = part.starts.unclean(KEYS_AT_ONCE), part.gathered, part.starts.gatherings
    if not unclean:
        _forget(part)
        return False
    newest = next(entries.newest_first(part.store), None)
    gone = _find(part, unclean, gathered)
    for segment, entry_rows in gone.entries.items():
        for row in sorted(entry_rows):
            assert newest is not None
            while _clean_entry(part, segment, row, newest):
                pass
    for segment, key, number in gone.stray:
        _clean_stray(part, segment, key, number)
    with part.lock:
        part.starts.cleaned(gone.clean, gatherings)
    return True


def _find(part: CleanPart, wanted: Mapping[bytes, int], gathered: int) -> _GoneRecords:
    """Look for the gone records of the keys in `wanted` (key → start) until there are enough for a slice."""
    gone = _GoneRecords()
    index = _EntryIndex(part.store)
    for key, start in wanted.items():
        is_clean = True
        for segment in part.stored_segments():
            for number in _run_numbers(part.store, segment, key, min(start, gathered)):
                is_clean = False
                row = index.naming(segment, number)
                if row is None:
                    gone.stray.append((segment, key, number))
                else:
                    gone.entries.setdefault(segment, set()).add(row)
                if gone.is_full:
                    return gone
        if is_clean:
            gone.clean[key] = start
    return gone


class _EntryIndex:
    """Finds the entry that names a record. It is used for one slice, and remembers what it has read."""

    def __init__(self, store: Rows) -> None:
        self._store = store
        self._rows: dict[int, list[bytes]] = {}
        self._numbers: dict[bytes, NDArray[np.uint64]] = {}

    def naming(self, segment: int, number: int) -> bytes | None:
        """The row of the entry that has this number; None if there is none."""
        if segment not in self._rows:
            head = rows.ENTRY + rows.segment_bytes(segment)
            self._rows[segment] = list(self._store.keys("log", head, rows.after(head)))
        at = bisect_right(self._rows[segment], rows.entry(segment, number)) - 1
        if at < 0:
            return None
        row = self._rows[segment][at]
        if row not in self._numbers:
            value = self._store.get("log", row)
            self._numbers[row] = np.zeros(0, np.uint64) if value is None else entries.unpacked(value).numbers
        numbers = self._numbers[row]
        place = int(np.searchsorted(numbers, np.uint64(number)))
        return row if place < len(numbers) and int(numbers[place]) == number else None


def _run_numbers(store: Rows, segment: int, key: bytes, end: int) -> Iterator[int]:
    """The first number of each run of the key that has one below `end`."""
    head = rows.runs_of(segment, key)
    for row in store.keys("log", head, head + rows.sequence_bytes(end)):
        yield rows.sequence_of(row)


def _clean_entry(part: CleanPart, segment: int, row: bytes, newest: tuple[bytes, GatheringEntry]) -> bool:
    """Remove gone records that the entry names, with one write. Returns whether it names more. `newest`: the last entry
    of the log, a moment ago."""
    with part.changing() as is_open:
        value = part.store.get("log", row) if is_open else None
        if value is None:
            return False
        entry = entries.unpacked(value)
        starts = part.starts.removable(entry.keys)
        is_gone = entry.numbers < entry.starts(starts)
        codes = np.unique(entry.codes[is_gone])
        if not len(codes):
            return False
        if len(codes) > KEYS_A_WRITE:
            is_gone &= entry.codes < codes[KEYS_A_WRITE]
        removal = _Removal(part.store.batch())
        _remove_runs(part, removal, segment, entry, is_gone, starts)
        rest = _rest(entry, is_gone, newest[1].settled, row == newest[0])
        if rest is None:
            removal.changes.delete("log", row)
        else:
            removal.changes.put("log", row, rest.packed())
        part.write_removal(removal.changes, segment, removal.records, removal.size)
        return len(codes) > KEYS_A_WRITE


def _remove_runs(
    part: CleanPart,
    removal: _Removal,
    segment: int,
    entry: GatheringEntry,
    is_gone: NDArray[np.bool_],
    starts: Mapping[bytes, int],
) -> None:
    """Remove the gone records from their runs. The entry says where the runs begin: the runs of a key that were
    gathered with the entry contain the key's records of the entry, one run after another."""
    gone = np.flatnonzero(is_gone)
    gone = gone[np.argsort(entry.codes[gone], kind="stable")]
    codes, firsts, counts = np.unique(entry.codes[gone], return_index=True, return_counts=True)
    numbers = entry.numbers[gone].tolist()
    removal.records += len(numbers)
    unread = []  # (key, position in `numbers` of the next run's first record, where the key's records end)
    for code, first, count in zip(codes.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        removal.size += count * len(entry.keys[code])
        unread.append((entry.keys[code], first, first + count))
    while unread:
        run_rows = [rows.runs_of(segment, key) + rows.sequence_bytes(numbers[first]) for key, first, _ in unread]
        following = []
        for place, run_row, value in zip(unread, run_rows, part.store.get_many("log", run_rows), strict=True):
            key, first, end = place
            removed = end - first if value is None else _remove_run(removal, run_row, value, starts[key])
            if first + removed < end:
                following.append((key, first + removed, end))
        unread = following


def _remove_run(removal: _Removal, row: bytes, value: bytes, start: int) -> int:
    """Remove the records below `start`, of which the first record is one, from the run in this row. Returns how many
    these were."""
    removal.changes.delete("log", row)
    count, last, size = counted(value)
    if last < start:
        removal.size += size
        return count
    run = unpacked(value)
    rest = run.between(start, SEQUENCE_MAX)
    removal.size += size - int(rest.ends[-1])
    head = row[: -len(rows.sequence_bytes(0))]
    removal.changes.put("log", head + rows.sequence_bytes(int(rest.sequences[0])), rest.packed())
    return count - len(rest.sequences)


def _rest(entry: GatheringEntry, is_gone: NDArray[np.bool_], settled: int, is_newest: bool) -> GatheringEntry | None:
    """The entry without the gone records; None if the rest is not needed. A start after a crash does not look at
    settled groups, so a settled group goes with the last of its records. The newest entry keeps all of its groups,
    which show how far the numbers had come."""
    numbers, codes = entry.numbers[~is_gone], entry.codes[~is_gone]
    groups = entry.groups
    if not is_newest:
        firsts = [number for number, _ in groups]
        records = np.diff(np.searchsorted(numbers, np.array([*firsts, SEQUENCE_MAX], np.uint64)))
        groups = [group for group, count in zip(groups, records.tolist(), strict=True) if count or group[0] >= settled]
        if not groups:
            return None
    used = np.unique(codes)
    keys = [entry.keys[code] for code in used.tolist()]
    codes = np.searchsorted(used, codes).astype(np.uint32)
    return GatheringEntry(entry.settled, groups, numbers, codes, keys, entry.tombstones_of(numbers))


def _clean_stray(part: CleanPart, segment: int, key: bytes, number: int) -> None:
    """Remove the gone records of a run that no entry names."""
    with part.changing() as is_open:
        row = rows.runs_of(segment, key) + rows.sequence_bytes(number)
        value = part.store.get("log", row) if is_open else None
        start = part.starts.removable([key]).get(key, 0)
        if value is not None and number < start:
            removal = _Removal(part.store.batch())
            _remove_run(removal, row, value, start)
            part.write_removal(removal.changes)


def _forget(part: CleanPart) -> None:
    """Forget the starts that have nothing left to hide."""
    with part.changing() as is_open, part.trim_lock:
        with part.lock:
            keys = part.starts.done(part.gathered)
        if not is_open or not keys:
            return
        changes = part.store.batch()
        for key in keys:
            changes.delete("log", rows.start(key))
        # The size makes the store flush before the forgotten starts, which are kept until then, take much memory.
        part.write_removal(changes, size=len(keys) * START_BYTES)
        with part.lock:
            part.starts.forget(keys)

"""Data directories of before the write-ahead log: their groups that were not gathered are rows of the store, and totals
and producers' answers lie in another family."""

from __future__ import annotations

import msgspec
import numpy as np

from shared.hashing import hash64
from shared.messages.log import SEQUENCE_MAX
from worker.logs import entries, rows
from worker.logs.gathering import put_runs
from worker.logs.recent import Snapshot
from worker.storage import Store

_VALUES = msgspec.msgpack.Decoder(list[bytes])

Record = tuple[int, bytes, bytes]
"""(sequence number, key, value)."""


def bring_up(store: Store) -> None:
    """Put the values of such groups into runs, their entries stay as they are; put the rest where it belongs. Raises
    Unavailable."""
    segments: dict[int, list[Record]] = {}
    changes = store.batch()
    moved = False
    for prefix in (rows.TOTALS, rows.PRODUCERS):
        for row, value in store.scan("meta", prefix, rows.after(prefix)):
            changes.put("log", row, value)
            changes.delete("meta", row)
            moved = True
    for row, frame in store.scan("log", rows.VALUES, rows.after(rows.VALUES)):
        segment, group = rows.segment_of(row), rows.sequence_of(row)
        entry = store.get("log", rows.entry(segment, group))
        assert entry is not None, "values were written and removed with their entry"
        single = entries.SINGLE_GROUP.decode(entry)
        numbers = np.frombuffer(single.sequences, ">u8").tolist()
        segments.setdefault(segment, []).extend(zip(numbers, single.keys, _VALUES.decode(frame), strict=True))
        changes.delete("log", row)
    for segment, records in segments.items():
        snapshot = _snapshot(sorted(records))
        put_runs(changes, segment, snapshot, snapshot.grouped(snapshot.rows(0, SEQUENCE_MAX)))
    if moved or segments:
        store.write(changes)


def _snapshot(records: list[Record]) -> Snapshot:
    lengths = np.array([(len(key), len(value)) for _, key, value in records], np.int64).reshape(-1, 2)
    ends = np.cumsum(lengths.ravel()).reshape(-1, 2)
    table = np.empty((len(records), 4), np.int64)
    table[:, 0::2], table[:, 1::2] = ends - lengths, lengths
    data = np.frombuffer(b"".join(octets for _, key, value in records for octets in (key, value)), np.uint8)
    numbers = np.array([number for number, _, _ in records], np.uint64)
    hashes = np.array([hash64(key) for _, key, _ in records], np.uint64)
    return Snapshot(data, table, numbers, hashes, True)

"""Checks a shard's part of the log, in its store and in the write-ahead log, without a running shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.data_files import LogFacts
from shared.errors import TriptychError
from worker.logs import entries, messages, rows, runs
from worker.logs.memory import Memory
from worker.storage.rows.damage import DECODING_ERRORS
from worker.storage.rows.reading import StoreReader


@dataclass(slots=True)
class LogRows:
    """What the store holds of the log. `above`: above all numbers in it. Groups below `gathered` are in it or nowhere,
    segments below `dropped` have been dropped. `wrong`: texts about damage."""

    gathered: int = 0
    dropped: int = 0
    above: int = 0
    records: int = 0
    segments: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Segment:
    """The records of one segment according to entries (`named`) and to runs (`stored`): numbers, and for each the code
    of its key in `keys`."""

    keys: dict[bytes, int] = field(default_factory=dict)
    named: list[NDArray[np.uint64]] = field(default_factory=list)
    named_keys: list[NDArray[np.int64]] = field(default_factory=list)
    stored: list[NDArray[np.uint64]] = field(default_factory=list)
    stored_keys: list[NDArray[np.int64]] = field(default_factory=list)

    def key(self, key: bytes) -> int:
        return self.keys.setdefault(key, len(self.keys))

    def contradictions(self, segment: int) -> Iterator[str]:
        named, stored = _sorted(self.named, self.named_keys), _sorted(self.stored, self.stored_keys)
        for one, other, text in (
            (named, stored, "are named by entries and their runs are missing"),
            (stored, named, "are in runs and no entry names them, so that reads of a prefix lack them"),
        ):
            lacking = one[0][~_within(one, other)]
            if len(lacking):
                yield f"{len(lacking)} records of segment {segment}, such as number {lacking[0]}, {text}"


def _sorted(numbers: list[NDArray], keys: list[NDArray]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    if not numbers:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    joined = np.concatenate(numbers)
    order = np.argsort(joined, kind="stable")
    return joined[order], np.concatenate(keys)[order]


def _within(one: tuple[NDArray, NDArray], other: tuple[NDArray, NDArray]) -> NDArray[np.bool_]:
    """bool[n]: which numbers of `one` are in `other` under the same key."""
    if not len(other[0]):
        return np.zeros(len(one[0]), np.bool_)
    at = np.minimum(np.searchsorted(other[0], one[0]), len(other[0]) - 1)
    return (other[0][at] == one[0]) & (other[1][at] == one[1])


def log_rows(reader: StoreReader) -> LogRows:
    """Read and check all rows of the log, one segment at a time. Raises StoreDamaged when a row cannot be read."""
    log = LogRows()
    log.gathered = int.from_bytes(reader.get("log", rows.GATHERED) or b"", "big")
    log.dropped = int.from_bytes(reader.get("log", rows.DROPPED) or b"", "big")
    for segment in _segments(reader):
        if segment >= log.dropped:
            log.segments.add(segment)
            _check_segment(reader, segment, log)
    return log


def _segments(reader: StoreReader) -> Iterator[int]:
    """The segments that have rows: those with entries ascending, then those with runs only."""
    for kind in (rows.ENTRY, rows.RUN):
        start, end = kind, rows.after(kind)
        while (row := next(reader.scan("log", start, end), None)) is not None:
            segment = rows.segment_of(row[0])
            if kind == rows.ENTRY or next(reader.scan("log", *_range(rows.ENTRY, segment)), None) is None:
                yield segment
            start = kind + rows.segment_bytes(segment + 1)


def _range(kind: bytes, segment: int) -> tuple[bytes, bytes]:
    return kind + rows.segment_bytes(segment), kind + rows.segment_bytes(segment + 1)


def _check_segment(reader: StoreReader, number: int, log: LogRows) -> None:
    segment = _Segment()
    for row, value in reader.scan("log", *_range(rows.ENTRY, number)):
        try:
            entry = entries.unpacked(value)
            _check_order(entry.numbers)
        except DECODING_ERRORS as error:
            log.wrong.append(f"the row {row!r} of 'log' is invalid: {error}")
            continue
        log.above = max(log.above, entry.above, int(entry.numbers.max(initial=0)) + 1)
        log.records += len(entry.numbers)
        segment.named.append(entry.numbers)
        codes = np.array([segment.key(key) for key in entry.keys], np.int64)
        segment.named_keys.append(codes[entry.codes] if len(codes) else codes)
    for row, value in reader.scan("log", *_range(rows.RUN, number)):
        try:
            run = runs.unpacked(value)
            _check_order(run.sequences)
            size = int(run.ends[-1]) if len(run.ends) else 0
            if not len(run.ends) or int(run.sequences[0]) != rows.sequence_of(row):
                raise ValueError(f"it has {len(run.ends)} records, and another number than its key")
            if len(run.values) != size:
                raise ValueError(f"it has {len(run.values)} bytes of values, and its lengths say {size}")
        except DECODING_ERRORS as error:
            log.wrong.append(f"the row {row!r} of 'log' is invalid: {error}")
            continue
        segment.stored.append(run.sequences)
        segment.stored_keys.append(np.full(len(run.sequences), segment.key(rows.key_of(row)), np.int64))
    log.wrong += segment.contradictions(number)


def _check_order(numbers: NDArray[np.uint64]) -> None:
    if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
        raise ValueError("its numbers do not ascend")


def check_messages(shard: int, log: LogRows, payloads: Iterable[memoryview]) -> tuple[list[str], LogFacts]:
    """Check the log's records in the write-ahead log that are not in the store yet. Returns (what is wrong with them,
    what the shard holds in the store and the write-ahead log together)."""
    wrong: list[str] = []
    above, records, segments = log.above, log.records, set(log.segments)
    for payload in payloads:
        try:
            record = messages.read(payload)
            if record.group < log.gathered or record.segment < log.dropped:
                continue
            segments.add(record.segment)
            if isinstance(record, messages.Message):
                Memory().stage(record)
                above = max([above, *(batch.start + batch.count for batch in record.batches)])
                records += sum(batch.count for batch in record.batches)
        except (*DECODING_ERRORS, TriptychError) as error:
            wrong.append(f"a record of the log cannot be decoded, and its shard will refuse: {error}")
    return wrong, LogFacts(shard, above, tuple(sorted(segments)), log.dropped, records)

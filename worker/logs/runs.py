"""Runs: many records of one key in one row of the store, as columns.

A row has a count with the bit `TIMED` (uint32), when the first record was appended (uint64, Unix ms), the sequence
numbers (uint64), the lengths of the values (uint32; the highest bit: the value begins with headers,
shared.log.headers), how many ms after the first each record was appended (uint32), all little-endian, and then the
values one after the other. Rows of data format 3 and earlier lack the bit and both times: their records have the time
0, which means unknown. Reading a run executes no Python code for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.log.headers import HEADED, LENGTH_MASK
from shared.messages.log import Span
from shared.messages.log_pages import Records

TIMED = 1 << 31
TIME_SPAN_MS_MAX = (1 << 32) - 1
"""Of the records of one run; a record that was appended later (49 days) begins a new run."""
_HEAD = 4
_TIME = 8
_SEQUENCE = np.dtype("<u8")
_LENGTH = np.dtype("<u4")


class RecordRun(NamedTuple):
    """Records of one key, usually ascending. `ends`: int64[records], where each value ends in `values`. `times`:
    int64[records], when each was appended in Unix ms, or 0 (Batch.time_ms). `headed`: bool[records], whether the value
    begins with headers."""

    sequences: NDArray[np.uint64]
    ends: NDArray[np.int64]
    values: bytes | memoryview
    times: NDArray[np.int64]
    headed: NDArray[np.bool_]

    def value(self, at: int) -> bytes:
        return bytes(self.values[self.ends[at - 1] if at else 0 : self.ends[at]])

    def find(self, sequence: int) -> int | None:
        """The position of a sequence number; None if the run does not have it."""
        at = int(np.searchsorted(self.sequences, np.uint64(sequence)))
        return at if at < len(self.sequences) and int(self.sequences[at]) == sequence else None

    def between(self, start: int, end: int) -> RecordRun:
        """The records with start ≤ number < end."""
        low = int(np.searchsorted(self.sequences, np.uint64(start)))
        return self.cut(low, int(np.searchsorted(self.sequences, np.uint64(end))))

    def cut(self, low: int, high: int) -> RecordRun:
        """The records at positions low ≤ i < high."""
        if low <= 0 and high >= len(self.sequences):
            return self
        if low >= high:
            return EMPTY
        begin = int(self.ends[low - 1]) if low else 0
        ends = self.ends[low:high] - begin
        values = self.values[begin : begin + int(ends[-1])]
        return RecordRun(self.sequences[low:high], ends, values, self.times[low:high], self.headed[low:high])

    def without(self, hidden: Sequence[Span]) -> RecordRun:
        is_shown = np.ones(len(self.sequences), np.bool_)
        for start, end in hidden:
            is_shown &= (self.sequences < np.uint64(start)) | (self.sequences >= np.uint64(end))
        if is_shown.all():
            return self
        at = np.flatnonzero(is_shown).tolist()
        values = [self.value(i) for i in at]
        return run_of(self.sequences[is_shown], values, self.times[is_shown], self.headed[is_shown])

    def reversed(self) -> RecordRun:
        """The same records, newest first."""
        at = range(len(self.sequences) - 1, -1, -1)
        return run_of(self.sequences[::-1], [self.value(i) for i in at], self.times[::-1], self.headed[::-1])

    def fitting(self, records: int, size_bytes: int) -> RecordRun:
        """As many records from the beginning as fit into both limits; the first always fits the limit of bytes."""
        high = min(records, 1 + int(np.searchsorted(self.ends, size_bytes)))
        return self.cut(0, high)

    def packed(self) -> bytes:
        """The row. The numbers ascend, and so do the times, within TIME_SPAN_MS_MAX."""
        assert (self.sequences[1:] > self.sequences[:-1]).all(), "numbers ascend"
        assert len(self.values) == (int(self.ends[-1]) if len(self.ends) else 0), "each byte belongs to a record"
        lengths = np.diff(self.ends, prepend=0).astype(_LENGTH)
        lengths[self.headed] |= np.uint32(HEADED)
        base = int(self.times[0]) if len(self.times) else 0
        delays = self.times - base
        assert not len(delays) or (int(delays.min()) >= 0 and int(delays.max()) <= TIME_SPAN_MS_MAX)
        columns = self.sequences.astype(_SEQUENCE, copy=False), lengths, delays.astype(_LENGTH)
        head = (len(lengths) | TIMED).to_bytes(_HEAD, "little") + base.to_bytes(_TIME, "little")
        return b"".join((head, *(column.tobytes() for column in columns), self.values))


def run_of(
    sequences: NDArray[np.uint64],
    values: Sequence[bytes],
    times: NDArray[np.int64] | None = None,
    headed: NDArray[np.bool_] | None = None,
) -> RecordRun:
    """A run of these records, by default with unknown times and without headers."""
    count = len(sequences)
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, count))
    times = np.zeros(count, np.int64) if times is None else times
    return RecordRun(sequences, ends, b"".join(values), times, np.zeros(count, np.bool_) if headed is None else headed)


def unpacked(row: bytes) -> RecordRun:
    count, is_timed, sequences_at = _head(row)
    lengths_at = sequences_at + count * _SEQUENCE.itemsize
    times_at = lengths_at + count * _LENGTH.itemsize
    sequences = np.frombuffer(row, _SEQUENCE, count, sequences_at)
    lengths = np.frombuffer(row, _LENGTH, count, lengths_at)
    headed, ends = lengths >= HEADED, np.cumsum(lengths & np.uint32(LENGTH_MASK), dtype=np.int64)
    if not is_timed:
        return RecordRun(sequences, ends, memoryview(row)[times_at:], np.zeros(count, np.int64), headed)
    base = int.from_bytes(row[_HEAD:sequences_at], "little")
    times = np.frombuffer(row, _LENGTH, count, times_at) + np.int64(base)
    return RecordRun(sequences, ends, memoryview(row)[times_at + count * _LENGTH.itemsize :], times, headed)


def counted(row: bytes) -> tuple[int, int, int]:
    """(records, the last sequence number, bytes of the values) of a row, without unpacking it."""
    count, is_timed, sequences_at = _head(row)
    end = sequences_at + count * _SEQUENCE.itemsize
    last = int.from_bytes(row[end - _SEQUENCE.itemsize : end], "little")
    return count, last, len(row) - end - (1 + is_timed) * count * _LENGTH.itemsize


def _head(row: bytes) -> tuple[int, bool, int]:
    """(records, whether they have times, where the sequence numbers begin)."""
    head = int.from_bytes(row[:_HEAD], "little")
    is_timed = bool(head & TIMED)
    return head & ~TIMED, is_timed, _HEAD + _TIME * is_timed


def joined(runs: Sequence[RecordRun]) -> Records:
    """The records of all runs, one run after another, without keys."""
    if not runs:
        return Records.of(EMPTY.sequences, ())
    lengths = np.concatenate([np.diff(run.ends, prepend=0) for run in runs]).astype(np.uint32)
    sequences = np.concatenate([run.sequences for run in runs]).astype(np.uint64, copy=False)
    times = np.concatenate([run.times for run in runs])
    headed = np.concatenate([run.headed for run in runs])
    values = b"".join(run.values for run in runs)
    return Records(sequences, lengths, values, np.zeros(0, np.uint32), b"", times, headed)


EMPTY = run_of(np.zeros(0, np.uint64), ())

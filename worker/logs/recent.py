"""Records that are in the store as they came, message by message, and not yet gathered into runs by key.

They are held in memory by key as well, so that they can be read; a bound on their number bounds what a start has to
read back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from shared.messages.log import Span
from worker.logs import rows
from worker.logs.runs import Run, pack_few, run_of

GATHER_BYTES = 4 << 20
GATHER_KEYS = 2000
"""Gathering begins when recent records have this many bytes of values or keys: so long runs come of few keys, and a
write of many keys stays short."""
RUN_RECORDS_MAX = 4096
RUN_BYTES_MAX = 256 << 10
"""A read of one record reads its run: this is small beside the way there, and large enough for long scans."""
FEW_RECORDS = 64
"""So many are packed one by one sooner than as arrays."""
RECORD_BYTES = 100
"""What a record costs in memory beside its value."""


class Column:
    """One key's records, ascending by sequence number. Two lists, so that a record is no object of its own."""

    __slots__ = ("sequences", "values")

    def __init__(self, sequences: list[int] | None = None, values: list[bytes] | None = None) -> None:
        self.sequences: list[int] = [] if sequences is None else sequences
        self.values: list[bytes] = [] if values is None else values

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.values)) + RECORD_BYTES * len(self.values)

    def cut(self, low: int, high: int) -> Column:
        return Column(self.sequences[low:high], self.values[low:high])

    def between(self, start: int, end: int) -> Column:
        """Those with start ≤ number < end."""
        return self.cut(bisect_left(self.sequences, start), bisect_left(self.sequences, end))

    def followed_by(self, other: Column) -> Column:
        return Column(self.sequences + other.sequences, self.values + other.values)

    def sort(self) -> None:
        order = sorted(range(len(self)), key=self.sequences.__getitem__)
        self.values[:] = [self.values[at] for at in order]
        self.sequences.sort()

    def run(self) -> Run:
        return run_of(np.array(self.sequences, np.uint64), self.values)


_NOTHING = Column()


class Recent:
    """Not safe for threads: its owner's lock guards it."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, int]] = []
        self._segments: dict[int, dict[bytes, Column]] = {}
        self._newest = -1
        self._bytes = 0

    def add(self, segment: int, group: int, sequences: Sequence[int], keys: list[bytes], values: list[bytes]) -> None:
        held = self._segments.get(segment)
        if held is None:
            held = self._segments[segment] = defaultdict(Column)
        for key, sequence, value in zip(keys, sequences, values, strict=True):
            column = held[key]
            column.sequences.append(sequence)
            column.values.append(value)
        if group < self._newest:
            for key in set(keys):  # two messages overtook each other
                held[key].sort()
        self._newest = max(self._newest, group)
        self.groups.append((segment, group))
        self._bytes += sum(map(len, values)) + RECORD_BYTES * len(values)

    def is_full(self, times: int = 1) -> bool:
        """Whether gathering is due, or `times` overdue."""
        return self._bytes >= times * GATHER_BYTES or sum(map(len, self._segments.values())) >= times * GATHER_KEYS

    def split(self, closed: int) -> Recent:
        """Take out the records below `closed`, a boundary between groups, and return them."""
        taken, left = Recent(), Recent()
        for segment, held in self._segments.items():
            for key, column in held.items():
                if column.sequences[-1] < closed:
                    taken._put(segment, key, column)
                else:
                    at = bisect_left(column.sequences, closed)
                    taken._put(segment, key, column.cut(0, at))
                    left._put(segment, key, column.cut(at, len(column)))
        taken.groups = [item for item in self.groups if item[1] < closed]
        self.groups = [item for item in self.groups if item[1] >= closed]
        self._segments, self._bytes = left._segments, left._bytes
        return taken

    def take_back(self, taken: Recent) -> None:
        """Undo `split`."""
        for segment, held in taken._segments.items():
            for key, column in held.items():
                self._bytes -= self.column(segment, key).bytes
                self._put(segment, key, column.followed_by(self.column(segment, key)))
        self.groups = [*taken.groups, *self.groups]

    def _put(self, segment: int, key: bytes, column: Column) -> None:
        """All records of one key."""
        if len(column):
            self._segments.setdefault(segment, defaultdict(Column))[key] = column
            self._bytes += column.bytes

    def column(self, segment: int, key: bytes) -> Column:
        """The key's records; not to be changed, nor kept without the lock."""
        return self._segments.get(segment, {}).get(key, _NOTHING)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything as rows of the store; a key's records in several runs if they are many or large."""
        for segment, held in self._segments.items():
            for key, column in held.items():
                head = rows.runs_of(segment, key)
                if len(column) <= FEW_RECORDS and sum(map(len, column.values)) <= RUN_BYTES_MAX:
                    yield head + rows.sequence_bytes(column.sequences[0]), pack_few(column.sequences, column.values)
                    continue
                rest = column.run()
                while len(rest.sequences):
                    piece = rest.fitting(RUN_RECORDS_MAX, RUN_BYTES_MAX)
                    yield head + rows.sequence_bytes(int(piece.sequences[0])), piece.packed()
                    rest = rest.cut(len(piece.sequences), len(rest.sequences))

    def listed(self, segment: int, prefix: bytes) -> list[bytes]:
        """The keys with records here that begin with the prefix."""
        return [key for key in self._segments.get(segment, ()) if key.startswith(prefix)]

    def remove(self, segment: int, key: bytes, sequence: int) -> bytes | None:
        """The value that was removed."""
        column = self.column(segment, key)
        at = bisect_left(column.sequences, sequence)
        if at == len(column) or column.sequences[at] != sequence:
            return None
        value = column.values.pop(at)
        del column.sequences[at]
        if not len(column):
            del self._segments[segment][key]
        self._bytes -= len(value) + RECORD_BYTES
        return value

    def drop(self, first_segment: int) -> None:
        """Forget the segments below."""
        for segment in [segment for segment in self._segments if segment < first_segment]:
            self._bytes -= sum(column.bytes for column in self._segments.pop(segment).values())
        self.groups = [item for item in self.groups if item[0] >= first_segment]


def within(sequence: int, spans: Iterable[Span]) -> bool:
    return any(start <= sequence < end for start, end in spans)

"""Totals of a shard's segments: how many records each has, with how many bytes, and since when.

The totals of the gathered records are rows of the store. Whatever adds such records or removes them writes the new row
in the same batch of changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shared.messages.log import HeldSegment
from worker.logs import rows
from worker.storage.faces import RowBatch, Rows

_TOTALS = msgspec.msgpack.Decoder(tuple[int, ...])


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one segment on this shard. `bytes`: of keys and values. `start`: the lowest group in the segment.
    `time_ms`: when the first known group was appended; 0: unknown, as in data formats up to 3."""

    records: int
    bytes: int
    start: int
    time_ms: int = 0

    def plus(self, added: Totals) -> Totals:
        times = [time for time in (self.time_ms, added.time_ms) if time]
        start, time_ms = min(self.start, added.start), min(times, default=0)
        return Totals(self.records + added.records, self.bytes + added.bytes, start, time_ms)

    def less(self, records: int, size: int) -> Totals:
        """Without so many records, which had so many bytes."""
        return Totals(self.records - records, self.bytes - size, self.start, self.time_ms)


class SegmentTotals:
    """The totals by segment. Not safe for threads: its owner's locks guard it.

    `stored`: of the gathered records, as in the store. `all`: of these and of the records in memory.
    """

    def __init__(self) -> None:
        self.all: dict[int, Totals] = {}
        self.stored: dict[int, Totals] = {}

    def load(self, store: Rows) -> None:
        for row, value in store.scan("log", rows.TOTALS, rows.after(rows.TOTALS)):
            self.stored[int.from_bytes(row[len(rows.TOTALS) :], "big")] = Totals(*_TOTALS.decode(value))
        self.all = dict(self.stored)

    def record_count(self) -> int:
        """The records of all segments. Needs no lock."""
        return sum(totals.records for totals in list(self.all.values()))

    def held_segments(self) -> list[HeldSegment]:
        return [HeldSegment(number, t.records, t.bytes, t.start, t.time_ms) for number, t in sorted(self.all.items())]

    def add(self, segment: int, added: Totals) -> None:
        """Records have arrived in memory."""
        self.all[segment] = _sum(self.all.get(segment), added)

    def remove(self, segment: int, records: int, size: int) -> None:
        """Records in memory are gone."""
        self.all[segment] = self.all[segment].less(records, size)

    def put_gathered(self, changes: RowBatch, segment: int, gathered: Totals) -> Totals:
        """Add to `changes` the row of the segment after so many records have been gathered. Returns what it says."""
        totals = _sum(self.stored.get(segment), gathered)
        _put(changes, segment, totals)
        return totals

    def gathered(self, stored: Mapping[int, Totals]) -> None:
        """A gathering has written these rows."""
        self.stored = {**self.stored, **stored}

    def put_removal(self, changes: RowBatch, segment: int, records: int, size: int) -> None:
        """Add to `changes` the row of the segment after so many gathered records have been removed."""
        _put(changes, segment, self.stored[segment].less(records, size))

    def remove_stored(self, segment: int, records: int, size: int) -> None:
        """What `put_removal` added to changes has been written."""
        self.stored[segment] = self.stored[segment].less(records, size)
        self.remove(segment, records, size)

    def drop(self, first_segment: int) -> None:
        """Forget the segments below `first_segment`."""
        for totals in (self.all, self.stored):
            for segment in [segment for segment in totals if segment < first_segment]:
                del totals[segment]


def _sum(totals: Totals | None, added: Totals) -> Totals:
    return added if totals is None else totals.plus(added)


def _put(changes: RowBatch, segment: int, totals: Totals) -> None:
    value = msgspec.msgpack.encode((totals.records, totals.bytes, totals.start, totals.time_ms))
    changes.put("log", rows.totals(segment), value)

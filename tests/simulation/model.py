"""What the log has promised, as a model of a few dictionaries, and the checks of what was seen against it.

A batch is known by the values of its records, which are unique. Batches come with what clients were told of them, and
readers with what they were given; when everything works again, the whole log is read and has to agree with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.world import Violation

Row = tuple[int, bytes, bytes, int]
"""(sequence number, key, value, when it was appended in ms)."""
Selects = Callable[[bytes], bool]
"""Whether a key is read."""


@dataclass(eq=False)
class Batch:
    """What a client wants to be appended once. `starts`: every answer to it; `unknown`: whether an attempt came to an
    end nobody knows; `attempts`: that were sent; `may_be_lost`: the power was lost before it was said to be on disk;
    `lost_below`: records of it below this number, with which it was answered since, may have gone with the power;
    `may_have_moved`: an attempt that came to the coordinator after that loss, and to an end nobody knows, may have
    appended it anew;
    `may_return`: what was taken back of it may be there again, since the state file was lost that said so."""

    name: str
    records: list[tuple[bytes, bytes]]
    producer: str = ""
    seq: int = 0
    starts: list[int] = field(default_factory=list)
    is_durable: bool = False
    unknown: bool = False
    attempts: int = 0
    may_be_lost: bool = False
    lost_below: int = 0
    may_have_moved: bool = False
    may_return: bool = False

    def __str__(self) -> str:
        return f"batch {self.name}" + (f" ({self.producer}/{self.seq})" if self.producer else "")


@dataclass(eq=False)
class Trim:
    """A client wants the records of `key` below `before` to go. `is_done`: it was told that they have."""

    key: bytes
    before: int
    is_done: bool = False

    def concerns(self, row: Row) -> bool:
        return row[1] == self.key and row[0] < self.before


@dataclass
class Given:
    """What a reader was given: all records of start ≤ number < end whose key it `selects`, at a time. `gone`: the trims
    that had been done when it began."""

    reader: str
    selects: Selects
    start: int
    end: int
    rows: list[Row]
    log_start: int
    gone: list[Trim] = field(default_factory=list)


def _check_times(reader: str, rows: Sequence[Row]) -> None:
    """The times of a key's records never fall, whatever the clock does."""
    last_ms: dict[bytes, int] = {}
    for number, key, _, time_ms in rows:
        if last_ms.get(key, 0) > time_ms:
            raise Violation(f"{reader} got number {number} of {time_ms} ms after a record of {key!r} of {last_ms[key]}")
        last_ms[key] = time_ms


class Model:
    """Everything that clients know."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.trims: list[Trim] = []
        self.given: list[Given] = []
        self.counts: list[tuple[str, Selects, int, int, int, int]] = []
        """(reader, selects, start, end, count, log start)."""
        self.synced_upto = 0
        """Below, acknowledged records were said to be on the disk."""
        self.power_was_lost = False
        self.state_was_lost = False
        self.log_start = 0
        self._by_value: dict[bytes, tuple[Batch, int]] = {}
        self._values: dict[int, bytes] = {}
        self._times: dict[int, int] = {}

    def new_batch(self, keys: Sequence[bytes], producer: str = "", seq: int = 0) -> Batch:
        name = f"b{len(self.batches)}"
        batch = Batch(name, [(key, f"{name}.{at}".encode()) for at, key in enumerate(keys)], producer, seq)
        self.batches.append(batch)
        for at, (_, value) in enumerate(batch.records):
            self._by_value[value] = batch, at
        return batch

    # While it happens

    def acknowledged(self, batch: Batch, start: int, count: int, durable: bool) -> None:
        if count != len(batch.records):
            raise Violation(f"{batch} was answered with {count} records, it has {len(batch.records)}")
        if batch.may_be_lost:
            batch.lost_below = start
        if batch.starts and batch.starts[0] != start and batch.may_be_lost:
            batch.may_be_lost = False
            batch.starts.clear()  # lost with the power, which nobody had excluded, and appended anew
        if batch.starts and batch.starts[0] != start and batch.starts[0] < self.log_start:
            batch.starts.clear()  # dropped with its segment, and with it the answer; appended anew
            batch.is_durable = False
        if batch.starts and batch.starts[0] != start and not batch.may_return:
            raise Violation(f"{batch} was answered with number {batch.starts[0]} and then with {start}")
        batch.starts.append(start)
        batch.may_have_moved = False
        batch.is_durable |= durable
        batch.may_be_lost &= not durable

    def came_to_unknown_end(self, batch: Batch, was_lost_before: bool) -> None:
        """Nobody knows what an attempt has done. `was_lost_before`: the batch may have been lost when the
        coordinator got it."""
        batch.unknown = True
        batch.may_have_moved |= was_lost_before

    @property
    def gone(self) -> list[Trim]:
        return [trim for trim in self.trims if trim.is_done]

    def _may_be_gone(self, row: Row) -> bool:
        return any(trim.concerns(row) for trim in self.trims)

    def lose_power(self) -> None:
        """What was not said to be on the disk by now may be gone."""
        self.power_was_lost = True
        for batch in self.batches:
            batch.may_be_lost |= not (batch.starts and self._is_on_disk(batch))

    def lose_state(self) -> None:
        """What was sent and not acknowledged may be there, if every shard has stored its part."""
        self.state_was_lost = True
        for batch in self.batches:
            if batch.attempts > len(batch.starts):
                batch.unknown = batch.may_return = True

    def saw(self, given: Given) -> None:
        """Check what can be checked at once, and remember it."""
        if given.end < given.start:
            raise Violation(f"{given.reader} read from {given.start} on and is told to go on at {given.end}")
        last = given.start - 1
        _check_times(given.reader, given.rows)
        for number, key, value, time_ms in given.rows:
            if not last < number < given.end:
                raise Violation(f"{given.reader} got number {number} after {last}, in a page up to {given.end}")
            last = number
            self._check_row(given.reader, number, key, value, time_ms)
            if not given.selects(key):
                raise Violation(f"{given.reader} got key {key!r}, which it had not asked for")
            if any(trim.concerns((number, key, value, time_ms)) for trim in given.gone):
                raise Violation(
                    f"{given.reader} got record {number} of {key!r}, which had been deleted before it began"
                )
        self.given.append(given)

    def _check_row(self, reader: str, number: int, key: bytes, value: bytes, time_ms: int) -> None:
        known = self._by_value.get(value)
        if known is None:
            raise Violation(f"{reader} got a record nobody has appended: {number} {key!r} {value!r}")
        batch, at = known
        if batch.records[at][0] != key:
            raise Violation(f"{reader} got record {at} of {batch} under key {key!r}")
        if self._values.setdefault(number, value) != value:
            raise Violation(f"number {number} was given to {self._values[number]!r} and to {value!r}")
        if time_ms <= 0:
            raise Violation(f"{reader} got number {number} with the time {time_ms}")
        if self._times.setdefault(number, time_ms) != time_ms:
            raise Violation(f"number {number} was said to be of {self._times[number]} ms and of {time_ms} ms")

    # In the end

    def check(self, rows: list[Row], log_start: int) -> None:
        """Compare with the whole log, as it is after everything works again."""
        self.log_start = max(self.log_start, log_start)
        rows = [row for row in rows if row[0] >= self.log_start]
        last = -1
        _check_times("the last read", rows)
        for number, key, value, time_ms in rows:
            if number <= last:
                raise Violation(f"the log has number {number} after {last}")
            last = number
            self._check_row("the last read", number, key, value, time_ms)
            if any(trim.concerns((number, key, value, time_ms)) for trim in self.gone):
                raise Violation(f"record {number} of {key!r} is there, which was deleted")
        places: dict[Batch, list[tuple[int, int]]] = {}
        for number, _, value, _ in rows:
            batch, at = self._by_value[value]
            places.setdefault(batch, []).append((at, number))
        for batch in self.batches:
            self._check_batch(batch, places.get(batch, []))
        for given in self.given:
            self._check_given(given, rows)
        for reader, selects, start, end, count, seen_start in self.counts:
            low = max(start, self.log_start)
            if low == max(start, seen_start) and not (self.power_was_lost or self.state_was_lost):
                there = sum(1 for number, key, _, _ in rows if low <= number < end and selects(key))
                may_be_gone = any(selects(trim.key) for trim in self.trims)
                if there > count or (there < count and not may_be_gone):
                    raise Violation(f"{reader} counted {count} records in {start}..{end}, there are {there}")

    def settle(self, rows: list[Row]) -> None:
        """The whole log has been read: from now on the loss of power takes nothing of it."""
        self.given.clear()
        self.counts.clear()
        numbers = {value: number for number, _, value, _ in rows}
        for batch in self.batches:
            batch.is_durable, batch.may_be_lost = True, False
            starts = {numbers[value] - at for at, (_, value) in enumerate(batch.records) if value in numbers}
            if batch.may_have_moved or not starts:
                batch.starts = sorted(starts)
            batch.may_have_moved = False
        self.power_was_lost = False

    def _check_batch(self, batch: Batch, places: list[tuple[int, int]]) -> None:
        size = len(batch.records)
        if batch.starts and batch.starts[0] < self.log_start:
            return  # dropped with its segment
        if not places:
            if batch.starts and not batch.may_be_lost and not self._are_gone(batch, batch.starts[0], range(size)):
                raise Violation(f"{batch} was acknowledged with number {batch.starts[0]} and is not there")
            return
        if len(places) < size and not batch.may_return:
            at, number = places[0]
            missing = set(range(size)) - {at for at, _ in places}
            if self._are_gone(batch, number - at, missing):
                places = sorted([*places, *((at, number - places[0][0] + at) for at in missing)])
        if batch.may_return and any(self._may_be_gone((0, key, b"", 0)) for key, _ in batch.records):
            return  # each time that it was sent, other records of it may have gone
        if batch.may_return:
            # Perhaps each time that it was sent.
            runs = [places[at : at + size] for at in range(0, len(places), size)]
            places = next((run for run in runs if batch.starts and run[0][1] in batch.starts), runs[0])
            if len(runs) > batch.attempts or any([at for at, _ in run] != list(range(size)) for run in runs):
                raise Violation(f"{batch} of {size} records is not whole each time: (record, number) {runs}")
        first = places[0][1]
        if len(places) > size:
            raise Violation(f"{batch} is there {len(places) / size:g} times: numbers {[n for _, n in places]}")
        if places != [(at, first + at) for at in range(size)]:
            raise Violation(f"{batch} of {size} records is not whole: (record, number) {places}")
        if batch.starts and first not in batch.starts and not batch.may_have_moved:
            raise Violation(f"{batch} was acknowledged with number {batch.starts[0]} and is at {first}")
        if not batch.starts and not batch.unknown:
            raise Violation(f"{batch} was refused every time and is there at number {first}")

    def _are_gone(self, batch: Batch, start: int, places: Iterable[int]) -> bool:
        """Whether these records of the batch, which began at `start`, may have been deleted."""
        return all(self._may_be_gone((start + at, *batch.records[at], 0)) for at in places)

    def _is_on_disk(self, batch: Batch) -> bool:
        return batch.is_durable or batch.starts[0] + len(batch.records) <= self.synced_upto

    def _check_given(self, given: Given, rows: list[Row]) -> None:
        start = max(given.start, given.log_start, self.log_start)
        seen = [row for row in given.rows if row[0] >= start]
        now = [row for row in rows if start <= row[0] < given.end and given.selects(row[1])]
        if seen == now:
            return
        before = set(seen)
        came = [row for row in now if row not in before and not self._by_value[row[2]][0].may_return]
        if came:
            raise Violation(f"{given.reader} had read {given.start}..{given.end}, and {came[0]} appeared below")
        after = set(now)
        for row in seen:
            batch, _ = self._by_value[row[2]]
            if row not in after and not batch.may_be_lost and row[0] >= batch.lost_below and not self._may_be_gone(row):
                raise Violation(f"{given.reader} was given {row} of {batch}, which is gone")

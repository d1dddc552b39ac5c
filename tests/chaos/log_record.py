"""The record of the log: batches, what became of them, what readers were given; and the checks of what is read."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.findings import Findings

Row = tuple[int, bytes, bytes]
"""Sequence, key, value."""
OPEN, ACKNOWLEDGED, REFUSED, DOUBT, HIT = "open", "acknowledged", "refused", "in doubt", "hit by damage"


@dataclass(slots=True)
class Batch:
    """`decided_at`: the record's stamp when the outcome was known. `attempts`: what was answered, for the evidence."""

    number: int
    keys: tuple[bytes, ...]
    padding: int
    outcome: str = OPEN
    start: int = -1
    decided_at: int = -1
    attempts: list[str] = field(default_factory=list)

    def value(self, place: int) -> bytes:
        return b"%d/%d/%d:" % (self.number, place, len(self.keys)) + b"x" * self.padding

    def records(self) -> list[tuple[bytes, bytes]]:
        return [(key, self.value(place)) for place, key in enumerate(self.keys)]


class LogRecord:
    """Of one history. Every value names its batch and its place in it."""

    area = "log"

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._lock = threading.RLock()
        self.batches: dict[int, Batch] = {}
        self.given: dict[int, tuple[bytes, bytes]] = {}
        self._starts: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self.stamp = 0

    def forked(self, findings: Findings) -> LogRecord:
        other = LogRecord(findings)
        other.batches, other.given = copy.deepcopy(self.batches), dict(self.given)
        other._starts, other.stamp = dict(self._starts), self.stamp
        other._numbers = itertools.count(max(self.batches, default=0) + 1)
        return other

    def begin(self, keys: Sequence[bytes], padding: int = 0) -> Batch:
        with self._lock:
            batch = Batch(next(self._numbers), tuple(keys), padding)
            self.batches[batch.number] = batch
            return batch

    def acknowledge(self, batch: Batch, start: int) -> None:
        with self._lock:
            if batch.outcome == ACKNOWLEDGED and batch.start != start:
                self._add("twice", f"batch {batch.number} was acknowledged at {batch.start}, its repeat at {start}")
            for number in range(start, start + len(batch.keys)):
                other = self._starts.setdefault(number, batch.number)
                if other != batch.number:
                    self._add("twice", f"number {number} was given to batches {other} and {batch.number}")
                    break
            self._decide(batch, ACKNOWLEDGED)
            batch.start = start

    def refuse(self, batch: Batch) -> None:
        """The answer has promised that nothing was appended."""
        with self._lock:
            if batch.outcome == OPEN:
                self._decide(batch, REFUSED)

    def doubt(self, batch: Batch) -> None:
        with self._lock:
            if batch.outcome in (OPEN, REFUSED):
                self._decide(batch, DOUBT)

    def reopen(self, batch: Batch) -> None:
        """It is sent once more: that it was refused before says nothing now."""
        with self._lock:
            if batch.outcome == REFUSED:
                batch.outcome = OPEN

    def lose(self, starts: Iterable[int]) -> None:
        """Damage has hit records of the batches with these first numbers, and nobody can tell: some of them may be
        missing."""
        with self._lock:
            hit = set(starts)
            for batch in self.batches.values():
                if batch.outcome == ACKNOWLEDGED and batch.start in hit:
                    self._decide(batch, HIT)

    def _decide(self, batch: Batch, outcome: str) -> None:
        self.stamp += 1
        batch.outcome, batch.decided_at = outcome, self.stamp

    def acknowledged(self) -> int:
        with self._lock:
            return sum(len(batch.keys) for batch in self.batches.values() if batch.outcome == ACKNOWLEDGED)

    def check(
        self,
        rows: Sequence[Row],
        concerned: Callable[[bytes], bool],
        span: tuple[int, int],
        stamp: int,
        *,
        complete: bool,
        final: bool,
        what: str,
    ) -> None:
        """Rows of the keys `concerned` with numbers in `span`, asked for at `stamp`; `complete`: the answer says that
        nothing is missing; `final`: nothing is under way and everything is healed."""
        with self._lock:
            before = -1
            places: dict[int, int] = {}
            for sequence, key, value in rows:
                if sequence <= before:
                    self._add("unordered", f"{what}: {sequence} comes after {before}")
                before = sequence
                self._check_row(sequence, key, value, places, what)
            if complete:
                self._check_present({row[0] for row in rows}, concerned, span, stamp, final, what)

    def _check_row(self, sequence: int, key: bytes, value: bytes, places: dict[int, int], what: str) -> None:
        """`places`: batch → the number of its first record, by its rows so far."""
        batch, place = self._sender(key, value)
        text = f"{what}: record {sequence} {key!r} {value[:40]!r}"
        if batch is None:
            self._add("invented", f"{text} was never sent")
            return
        if batch.outcome == REFUSED:
            self._add("invented", f"{text} was refused ('nothing appended'); {batch.attempts}")
        start = places.setdefault(batch.number, sequence - place)
        if start != sequence - place:
            self._add("twice", f"{text}: its batch begins at {start} as well")
        elif batch.outcome == ACKNOWLEDGED and start != batch.start:
            self._add("twice", f"{text}: its batch was acknowledged at {batch.start}; {batch.attempts}")
        if self.given.setdefault(sequence, (key, value)) != (key, value):
            self._add("changed", f"{text}: a reader was given {self.given[sequence][1][:40]!r} under this number")

    def _sender(self, key: bytes, value: bytes) -> tuple[Batch | None, int]:
        try:
            number, place, _ = map(int, value.partition(b":")[0].split(b"/"))
        except ValueError:
            return None, 0
        batch = self.batches.get(number)
        if batch is None or place >= len(batch.keys) or batch.keys[place] != key or batch.value(place) != value:
            return None, 0
        return batch, place

    def _check_present(
        self,
        sequences: set[int],
        concerned: Callable[[bytes], bool],
        span: tuple[int, int],
        stamp: int,
        final: bool,
        what: str,
    ) -> None:
        first, end = span
        for batch in self.batches.values():
            if batch.outcome != ACKNOWLEDGED or batch.decided_at > stamp:
                continue
            missing = [
                batch.start + place
                for place, key in enumerate(batch.keys)
                if concerned(key) and first <= batch.start + place < end and batch.start + place not in sequences
            ]
            if missing:
                text = f"acknowledged batch {batch.number} lacks {missing[:5]} of {len(missing)}; {batch.attempts}"
                self._add("lost" if final else "unlabelled", f"{what}: {text}")
        if final:
            for sequence, (key, value) in self.given.items():
                if concerned(key) and first <= sequence < end and sequence not in sequences:
                    self._add("vanished", f"{what}: {sequence} {key!r} {value[:40]!r} was read before")

    def check_whole(self, rows: Sequence[Row], what: str) -> None:
        """Of everything that can be read, every batch is there whole or not at all."""
        with self._lock:
            counts: dict[int, int] = {}
            for _, key, value in rows:
                batch, _ = self._sender(key, value)
                if batch is not None:
                    counts[batch.number] = counts.get(batch.number, 0) + 1
            for number, count in counts.items():
                batch = self.batches[number]
                if count != len(batch.keys) and batch.outcome != HIT:
                    text = f"{count} of {len(batch.keys)} records of batch {number} are there; {batch.attempts}"
                    self._add("half", f"{what}: {text}")

    def _add(self, kind: str, text: str) -> None:
        self.findings.add(kind, self.area, text)

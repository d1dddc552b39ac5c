"""Remembers what selectors matched until a new series is added.

Finding the few series of a panel costs more than reading and evaluating them, and panels request the same series again
and again. The index of a part only grows, so a selector matches the same series as long as their total number is the
same. A write with a new series changes that number before its reply, so the next query looks the series up again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from shared.derived import Derived
from shared.labels import LabelFrame
from shared.promql.ast import Matcher
from worker.series.index.postings import Ids

ENTRY_BYTES_MAX = 256 << 10
"""A larger selection (more than some 8,000 series with seven labels) is looked up each time, which costs less than the
rest of such a query."""
BYTES_MAX = 16 << 20
ENTRY_BYTES = 1 << 10
"""The approximate memory of a selection besides its arrays and texts."""
DERIVED_SERIES_MAX = 64
DERIVED_BYTES = 1024
"""Memory per series, in a small selection, for what replies derive from the labels, half of it for the labels without
metric names. Deriving this takes longer than reading and evaluating the samples."""


def derived_of(series: int) -> Derived | None:
    """A place to keep what is derived from the labels of a selection with this many series; None if there are many."""
    return Derived(DERIVED_BYTES * series) if series <= DERIVED_SERIES_MAX else None


State = tuple[tuple[int, int], ...]
"""(epoch, number of series) of each part."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The series that a selector matches, whatever their times. `matches`: for each part with matching series, (the
    position of the part, the ascending ids of these series). `labels`: those of all these series in this order, in
    codes of the process's symbol table below `codes_end`."""

    state: State
    matches: tuple[tuple[int, Ids], ...]
    labels: LabelFrame
    codes_end: int

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES + sum(ids.nbytes for _, ids in self.matches) + self.labels.bytes_with_derived()


class Selections:
    """The last selections of a process, of BYTES_MAX at most. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._selections: OrderedDict[tuple[Matcher, ...], Selected] = OrderedDict()
        self._bytes = 0

    def get(self, matchers: Sequence[Matcher], state: State) -> Selected | None:
        """What the matchers matched when the parts were in this state."""
        key = tuple(matchers)
        with self._lock:
            selected = self._selections.get(key)
            if selected is None or selected.state != state:
                return None
            self._selections.move_to_end(key)
            return selected

    def put(self, matchers: Sequence[Matcher], selected: Selected) -> None:
        """Keep a selection. Its arrays are not charged to a query (`shared.process.array_memory.uncounted`)."""
        key = tuple(matchers)
        with self._lock:
            self._drop(key)
            self._selections[key] = selected
            self._bytes += _size_bytes(key, selected)
            while self._bytes > BYTES_MAX:
                self._drop(next(iter(self._selections)))

    def _drop(self, key: tuple[Matcher, ...]) -> None:
        dropped = self._selections.pop(key, None)
        if dropped is not None:
            self._bytes -= _size_bytes(key, dropped)


def _size_bytes(matchers: tuple[Matcher, ...], selected: Selected) -> int:
    return selected.size_bytes + sum(len(matcher.name) + len(matcher.value) for matcher in matchers)

"""What selectors matched, kept while no series come.

To find the few series of a panel costs more than to read and evaluate them, and panels ask for the same series again
and again. The index of a part only ever grows, so what a selector matches, at whatever time, is the same as long as the
number of series is. A write that brings a series changes that number before it is answered: the next query looks again.
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
"""More series with their labels (some 8,000 with seven labels) are looked up each time, which costs less than the rest
of such a query."""
BYTES_MAX = 16 << 20
ENTRY_BYTES = 1 << 10
"""What a selection takes beside its arrays and texts, about."""
DERIVED_SERIES_MAX = 64
DERIVED_BYTES = 1024
"""Of each series of a selection of few: what is made from their labels for an answer, which takes longer than to read
and evaluate their samples, may take so much, half of it for their labels without names."""


def derived_of(series: int) -> Derived | None:
    """Where to keep what is made from the labels of a selection of so many series; None for many."""
    return Derived(DERIVED_BYTES * series) if series <= DERIVED_SERIES_MAX else None


State = tuple[tuple[int, int], ...]
"""By part: its epoch, and the number of its series."""


@dataclass(frozen=True, slots=True)
class Selected:
    """What a selector matches at any time. `matches`: for each part that has series which match, (its place among the
    parts; their ids, ascending). `labels`: of all these series, in this order, in codes of the process's table, which
    are below `codes_end`."""

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
        self._kept: OrderedDict[tuple[Matcher, ...], Selected] = OrderedDict()
        self._bytes = 0

    def get(self, matchers: Sequence[Matcher], state: State) -> Selected | None:
        """What the matchers matched when the parts were in this state."""
        key = tuple(matchers)
        with self._lock:
            selected = self._kept.get(key)
            if selected is None or selected.state != state:
                return None
            self._kept.move_to_end(key)
            return selected

    def put(self, matchers: Sequence[Matcher], selected: Selected) -> None:
        """Keep a selection. Its arrays are in the account of no query (`shared.array_memory.uncounted`)."""
        key = tuple(matchers)
        with self._lock:
            self._drop(key)
            self._kept[key] = selected
            self._bytes += _size_bytes(key, selected)
            while self._bytes > BYTES_MAX:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[Matcher, ...]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._bytes -= _size_bytes(key, dropped)


def _size_bytes(matchers: tuple[Matcher, ...], selected: Selected) -> int:
    return selected.size_bytes + sum(len(matcher.name) + len(matcher.value) for matcher in matchers)

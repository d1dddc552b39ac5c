"""The series of several shards as one source of samples for the query engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shared.array_memory import uncounted
from shared.labels import LabelFrame, Symbols, concat
from shared.messages.exchange import joined_samples
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
from worker.series.index.postings import Ids
from worker.series.part import SeriesPart
from worker.series.selections import ENTRY_BYTES_MAX, Selected

LabelsOf = Callable[[Ids], LabelFrame]


@dataclass(slots=True)
class PartRead:
    """What was read of one shard's part. What had to be read again counts each time."""

    series: int = 0
    samples: int = 0
    seconds: float = 0.0

    def add(self, series: int, samples: Samples, seconds: float) -> None:
        self.series += series
        self.samples += len(samples.values) + samples.buckets
        self.seconds += seconds


class ShardSelection:
    """The series of one selector, shard after shard; implements `model.SeriesSelection`. `reads`: of each part."""

    def __init__(
        self,
        labels: LabelFrame,
        parts: Sequence[SeriesPart],
        ids: Sequence[Ids],
        start_ms: int,
        end_ms: int,
        reads: Sequence[PartRead],
    ) -> None:
        self._labels = labels
        self._parts = parts
        self._reads = reads
        self._ids = ids
        self._firsts = [0, *np.cumsum([len(part_ids) for part_ids in ids]).tolist()]
        self._start_ms = start_ms
        self._end_ms = end_ms

    @property
    def labels(self) -> LabelFrame:
        return self._labels

    def read(self, first: int, last: int) -> Samples:
        pieces = []
        for part, ids, at, own in zip(self._parts, self._ids, self._firsts, self._reads, strict=False):
            wanted = ids[max(first - at, 0) : max(last - at, 0)]
            if len(wanted):
                started = time.perf_counter()
                pieces.append(part.read(wanted, self._start_ms, self._end_ms))
                own.add(len(wanted), pieces[-1], time.perf_counter() - started)
        return pieces[0] if len(pieces) == 1 else joined_samples(pieces)


class ShardSource:
    """The union of some shards of one worker process; implements `model.Source`. `check` is called repeatedly while
    series are selected, and may raise."""

    def __init__(self, parts: Sequence[SeriesPart], check: Callable[[], None] = unchecked) -> None:
        self._parts = parts
        self._check = check
        self._asked: set[tuple[int, int]] = set()
        self._matched: list[bool] = []
        self._reads = [PartRead() for _ in parts]

    def has_matched(self) -> bool:
        """Whether what was selected since the last call has matched series of these shards, with samples in its time
        range or without; also if nothing was selected."""
        matched, self._matched = self._matched, []
        return any(matched) or not matched

    def take_reads(self) -> list[PartRead]:
        """What was read of each part since the last call."""
        taken, self._reads = self._reads, [PartRead() for _ in self._parts]
        return taken

    def damage(self) -> list[list[str]]:
        """By part: what is missing from what was selected and read here, one text a damaged block."""
        asked = sorted(self._asked)
        return [list(dict.fromkeys(text for span in asked for text in part.damage(*span))) for part in self._parts]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> ShardSelection:
        """`symbols` is the process's table, or one that stands on it. Raises BadData for an expression RE2 refuses,
        NotExecutable for one that is too costly, and what `check` raises."""
        self._asked.add((start_ms, end_ms))
        frames, parts, ids, reads = [], [], [], []
        matching = self._matching(tuple(matchers), symbols)
        self._matched.append(bool(matching))
        for place, matching_ids, labels_of in matching:
            part = self._parts[place]
            part_ids = part.may_have(matching_ids, start_ms, end_ms)
            if len(part_ids):
                frames.append(labels_of(part_ids))
                parts.append(part)
                ids.append(part_ids)
                reads.append(self._reads[place])
        labels = LabelFrame(symbols, 0) if not frames else frames[0] if len(frames) == 1 else concat(frames)
        return ShardSelection(labels, parts, ids, start_ms, end_ms, reads)

    def _matching(self, matchers: tuple[Matcher, ...], symbols: Symbols) -> list[tuple[int, Ids, LabelsOf]]:
        """For each part that has series which match at any time: its place, their ids, and a function that gives the
        labels of some of them."""
        if not self._parts:
            return []
        selections = self._parts[0].services.selections
        state = tuple((part.epoch, part.series) for part in self._parts)
        selected = selections.get(matchers, state)
        if selected is None:
            lookups = [part.lookup() for part in self._parts]
            state = tuple((part.epoch, lookup.size) for part, lookup in zip(self._parts, lookups, strict=True))
            ids = [lookup.select(matchers, self._check) for lookup in lookups]
            found = [(place, ids[place], lookup) for place, lookup in enumerate(lookups) if len(ids[place])]
            if sum(ids.nbytes + lookup.frame_bytes(ids) for _, ids, lookup in found) > ENTRY_BYTES_MAX:
                return [(place, ids, partial(lookup.frame, symbols=symbols)) for place, ids, lookup in found]
            with uncounted():
                kept = tuple((place, ids.copy(), lookup.frame(ids, lookup.symbols)) for place, ids, lookup in found)
            columns = (column for _, _, frame in kept for column in frame.columns.values())
            selected = Selected(state, kept, max((int(column.max()) + 1 for column in columns), default=0))
            selections.put(matchers, selected)
        is_late = not symbols.knows(selected.codes_end)
        return [
            (place, ids, partial(_taken, frame, ids, symbols=symbols, is_late=is_late))
            for place, ids, frame in selected.matches
        ]


def _taken(frame: LabelFrame, ids: Ids, wanted: Ids, *, symbols: Symbols, is_late: bool) -> LabelFrame:
    """The rows of those of the series `ids` that are wanted, in codes of `symbols`, which stands on the frame's table.
    `is_late`: the frame may have codes that its table gave after `symbols` was made."""
    if wanted is not ids:
        frame = frame.take(np.searchsorted(ids, wanted))
    columns = frame.columns
    if is_late:
        columns = {name: symbols.adopt(column) for name, column in columns.items()}
    return LabelFrame(symbols, frame.size, columns)

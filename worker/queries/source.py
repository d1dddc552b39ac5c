"""The series of several shards as one source of samples for the query engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from shared.array_memory import uncounted
from shared.labels import LabelFrame, Symbols, concat
from shared.messages.exchange import joined_samples
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
from worker.series.blocks.extracts import Extracts
from worker.series.index.lookup import Lookup
from worker.series.index.postings import Ids
from worker.series.part import SeriesPart
from worker.series.selections import ENTRY_BYTES_MAX, Selected, derived_of

LabelsOf = Callable[[Sequence[Ids]], LabelFrame]
"""Gives the labels of some series: the ids that are wanted, of each part that has any."""


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
        self._firsts = list(accumulate(map(len, ids), initial=0))
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._extracts: tuple[SeriesPart, Extracts] | None = None
        self._lacks_memory = False

    @property
    def labels(self) -> LabelFrame:
        return self._labels

    def read(self, first: int, last: int) -> Samples:
        pieces = []
        for part, ids, at, own in zip(self._parts, self._ids, self._firsts, self._reads, strict=False):
            wanted = ids[max(first - at, 0) : max(last - at, 0)]
            if len(wanted):
                started = time.perf_counter()
                pieces.append(self._read(part, ids, wanted))
                own.add(len(wanted), pieces[-1], time.perf_counter() - started)
        if last >= self._firsts[-1]:
            self._extracts = None  # the query needs the memory for what it computes from the samples
        return pieces[0] if len(pieces) == 1 else joined_samples(pieces)

    def _read(self, part: SeriesPart, ids: Ids, wanted: Ids) -> Samples:
        """The samples of `wanted`, some of the series `ids` of a part. Raises MemoryError."""
        if len(wanted) < len(ids) and not self._lacks_memory:
            if self._extracts is None or self._extracts[0] is not part:  # those of the part before are not needed now
                self._extracts = part, Extracts(ids, part.contents.permanent_of, self._start_ms, self._end_ms)
            with suppress(MemoryError):
                return part.read(wanted, self._start_ms, self._end_ms, self._extracts[1])
            self._lacks_memory, self._extracts = True, None  # their room may be enough for the samples
        return part.read(wanted, self._start_ms, self._end_ms)


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
        return [
            list(dict.fromkeys(text for span in asked for text in part.damage(*span))) if part.is_damaged else []
            for part in self._parts
        ]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> ShardSelection:
        """`symbols` is the process's table, or one that stands on it. Raises BadData for an expression RE2 refuses,
        NotExecutable for one that is too costly, and what `check` raises."""
        self._asked.add((start_ms, end_ms))
        matches, labels_of = self._matching(tuple(matchers), symbols)
        self._matched.append(bool(matches))
        parts = [self._parts[place] for place, _ in matches]
        ids = [part.may_have(own, start_ms, end_ms) for part, (_, own) in zip(parts, matches, strict=True)]
        reads = [self._reads[place] for place, _ in matches]
        return ShardSelection(labels_of(ids), parts, ids, start_ms, end_ms, reads)

    def _matching(self, matchers: tuple[Matcher, ...], symbols: Symbols) -> tuple[Sequence[tuple[int, Ids]], LabelsOf]:
        """(of each part that has series which match at any time: its place, and their ids; a function that gives the
        labels of some of these series)."""
        if not self._parts:
            return (), lambda wanted: LabelFrame(symbols, 0)
        selections = self._parts[0].services.selections
        state = tuple([(part.epoch, part.series) for part in self._parts])
        selected = selections.get(matchers, state)
        if selected is None:
            lookups = [part.lookup() for part in self._parts]
            state = tuple((part.epoch, lookup.size) for part, lookup in zip(self._parts, lookups, strict=True))
            ids = [lookup.select(matchers, self._check) for lookup in lookups]
            matches = [(place, own) for place, own in enumerate(ids) if len(own)]
            having = [lookups[place] for place, _ in matches]
            if sum(own.nbytes + lookup.frame_bytes(own) for lookup, (_, own) in zip(having, matches, strict=True)) > (
                ENTRY_BYTES_MAX
            ):
                return matches, partial(_looked_up, having, symbols)
            with uncounted():
                kept = tuple((place, own.copy()) for place, own in matches)
                frames = [lookup.frame(own, lookup.symbols) for lookup, (_, own) in zip(having, kept, strict=True)]
                labels = _together(frames, self._parts[0].symbols)
            labels = replace(labels, derived=derived_of(labels.size))
            codes_end = max((int(column.max()) + 1 for column in labels.columns.values()), default=0)
            selected = Selected(state, kept, labels, codes_end)
            selections.put(matchers, selected)
        return selected.matches, partial(_taken, selected, symbols)


def _together(frames: Sequence[LabelFrame], symbols: Symbols) -> LabelFrame:
    """The rows of all frames, if any, in codes of `symbols`, as theirs are."""
    return concat(frames) if frames else LabelFrame(symbols, 0)


def _looked_up(lookups: Sequence[Lookup], symbols: Symbols, wanted: Sequence[Ids]) -> LabelFrame:
    """The labels of the wanted series of each index, in codes of `symbols`."""
    frames = [lookup.frame(ids, symbols) for lookup, ids in zip(lookups, wanted, strict=True) if len(ids)]
    return _together(frames, symbols)


def _taken(selected: Selected, symbols: Symbols, wanted: Sequence[Ids]) -> LabelFrame:
    """The labels of those selected series that are wanted, in codes of `symbols`, which stands on the frame's table.
    `wanted`: of each part that has any, either the ids that matched or some of them."""
    frame, derived = selected.labels, selected.labels.derived
    if any(ids is not own for ids, (_, own) in zip(wanted, selected.matches, strict=True)):
        firsts = accumulate((len(own) for _, own in selected.matches), initial=0)
        rows = [
            np.searchsorted(own, ids) + first
            for ids, (_, own), first in zip(wanted, selected.matches, firsts, strict=False)
        ]
        frame, derived = frame.take(np.concatenate(rows)), None
    columns = frame.columns
    if not symbols.knows(selected.codes_end):  # the frame may have codes that its table gave after `symbols` was made
        columns = {name: symbols.adopt(column) for name, column in columns.items()}
    return LabelFrame(symbols, frame.size, columns, derived)

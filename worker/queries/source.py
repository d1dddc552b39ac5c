"""The series of several shards as one source of samples for the query engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from shared.labels import LabelFrame, Symbols, concat
from shared.messages.exchange import joined_samples
from shared.process.array_memory import uncounted
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
from worker.series.blocks.extracts import Extracts
from worker.series.index.lookup import Lookup
from worker.series.index.postings import Ids
from worker.series.part import SeriesPart
from worker.series.selections import ENTRY_BYTES_MAX, Selected, derived_of

LabelsOf = Callable[[Sequence[Ids]], LabelFrame]
"""Returns the labels of series; its argument has the ids for each part with matching series."""


@dataclass(slots=True)
class PartRead:
    """What was read from one shard. Repeated reads count each time."""

    series: int = 0
    samples: int = 0
    seconds: float = 0.0

    def add(self, series: int, samples: Samples, seconds: float) -> None:
        self.series += series
        self.samples += len(samples.values) + samples.buckets
        self.seconds += seconds


class ShardSelection:
    """The series of one selector, shard after shard; implements `model.SeriesSelection`. `reads`: counts, by part."""

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
        for part, ids, first_of_part, part_read in zip(self._parts, self._ids, self._firsts, self._reads, strict=False):
            wanted_ids = ids[max(first - first_of_part, 0) : max(last - first_of_part, 0)]
            if len(wanted_ids):
                started = time.perf_counter()
                pieces.append(self._read(part, ids, wanted_ids))
                part_read.add(len(wanted_ids), pieces[-1], time.perf_counter() - started)
        if last >= self._firsts[-1]:
            self._extracts = None  # the query needs the memory for what it computes from the samples
        return pieces[0] if len(pieces) == 1 else joined_samples(pieces)

    def _read(self, part: SeriesPart, ids: Ids, wanted_ids: Ids) -> Samples:
        """The samples of `wanted_ids`, some of the series `ids` of a part. Raises MemoryError."""
        if len(wanted_ids) < len(ids) and not self._lacks_memory:
            if self._extracts is None or self._extracts[0] is not part:  # those of the previous part are not needed
                self._extracts = part, Extracts(ids, part.contents.permanent_of, self._start_ms, self._end_ms)
            with suppress(MemoryError):
                return part.read(wanted_ids, self._start_ms, self._end_ms, self._extracts[1])
            self._lacks_memory, self._extracts = True, None  # the memory they free may suffice for the samples
        return part.read(wanted_ids, self._start_ms, self._end_ms)


class ShardSource:
    """The union of some shards of one worker process; implements `model.Source`. `check` is called repeatedly while
    series are selected, and may raise."""

    def __init__(self, parts: Sequence[SeriesPart], check: Callable[[], None] = unchecked) -> None:
        self._parts = parts
        self._check = check
        self._time_ranges: set[tuple[int, int]] = set()
        self._matched: list[bool] = []
        self._reads = [PartRead() for _ in parts]

    def has_matched(self) -> bool:
        """Whether the selections since the last call matched series of these shards, with or without samples in the
        time range; True if there were no selections."""
        matched, self._matched = self._matched, []
        return any(matched) or not matched

    def take_reads(self) -> list[PartRead]:
        """What was read from each part since the last call."""
        taken, self._reads = self._reads, [PartRead() for _ in self._parts]
        return taken

    def damage(self) -> list[list[str]]:
        """By part: what is missing from the selected series, one text for each damaged block."""
        time_ranges = sorted(self._time_ranges)
        return [
            list(dict.fromkeys(text for times in time_ranges for text in part.damage(*times)))
            if part.is_damaged
            else []
            for part in self._parts
        ]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> ShardSelection:
        """`symbols` is the process's table, or one based on it. Raises BadData for an expression that RE2 refuses,
        NotExecutable for one that is too costly, and what `check` raises."""
        self._time_ranges.add((start_ms, end_ms))
        matches, labels_of = self._matching(tuple(matchers), symbols)
        self._matched.append(bool(matches))
        parts = [self._parts[index] for index, _ in matches]
        ids = [self._parts[index].may_have(matching_ids, start_ms, end_ms) for index, matching_ids in matches]
        reads = [self._reads[index] for index, _ in matches]
        return ShardSelection(labels_of(ids), parts, ids, start_ms, end_ms, reads)

    def _matching(self, matchers: tuple[Matcher, ...], symbols: Symbols) -> tuple[Sequence[tuple[int, Ids]], LabelsOf]:
        """((index of the part, matching ids) for each part with series that match at any time; a function that returns
        the labels of some of these series)."""
        if not self._parts:
            return (), lambda wanted: LabelFrame(symbols, 0)
        selections = self._parts[0].services.selections
        state = tuple([(part.epoch, part.series) for part in self._parts])
        selected = selections.get(matchers, state)
        if selected is None:
            lookups = [part.lookup() for part in self._parts]
            state = tuple((part.epoch, lookup.size) for part, lookup in zip(self._parts, lookups, strict=True))
            ids_of_parts = [lookup.select(matchers, self._check) for lookup in lookups]
            matches = [(index, ids) for index, ids in enumerate(ids_of_parts) if len(ids)]
            if sum(ids.nbytes + lookups[index].frame_bytes(ids) for index, ids in matches) > ENTRY_BYTES_MAX:
                return matches, partial(_look_up_labels, [lookups[index] for index, _ in matches], symbols)
            with uncounted():
                kept = tuple((index, ids.copy()) for index, ids in matches)
                frames = [lookups[index].frame(ids, lookups[index].symbols) for index, ids in kept]
                labels = _concatenated(frames, self._parts[0].symbols)
            labels = replace(labels, derived=derived_of(labels.size))
            codes_end = max((int(column.max()) + 1 for column in labels.columns.values()), default=0)
            selected = Selected(state, kept, labels, codes_end)
            selections.put(matchers, selected)
        return selected.matches, partial(_take_labels, selected, symbols)


def _concatenated(frames: Sequence[LabelFrame], symbols: Symbols) -> LabelFrame:
    """The rows of all frames, which must have codes of `symbols`; there may be no frame."""
    return concat(frames) if frames else LabelFrame(symbols, 0)


def _look_up_labels(lookups: Sequence[Lookup], symbols: Symbols, wanted: Sequence[Ids]) -> LabelFrame:
    """The labels of each index's wanted series, in codes of `symbols`."""
    frames = [lookup.frame(ids, symbols) for lookup, ids in zip(lookups, wanted, strict=True) if len(ids)]
    return _concatenated(frames, symbols)


def _take_labels(selected: Selected, symbols: Symbols, wanted: Sequence[Ids]) -> LabelFrame:
    """The labels of the wanted ones of the selected series, in codes of `symbols`, which is based on the frame's table.
    `wanted`: for each part with matching series, all matching ids or some of them."""
    frame, derived = selected.labels, selected.labels.derived
    if any(ids is not matching_ids for ids, (_, matching_ids) in zip(wanted, selected.matches, strict=True)):
        firsts = accumulate((len(matching_ids) for _, matching_ids in selected.matches), initial=0)
        rows = [
            np.searchsorted(matching_ids, ids) + first
            for ids, (_, matching_ids), first in zip(wanted, selected.matches, firsts, strict=False)
        ]
        frame, derived = frame.take(np.concatenate(rows)), None
    columns = frame.columns
    if not symbols.knows(selected.codes_end):  # the frame may have codes that are newer than `symbols`
        columns = {name: symbols.adopt(column) for name, column in columns.items()}
    return LabelFrame(symbols, frame.size, columns, derived)

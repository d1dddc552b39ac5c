"""The series of several shards as one source of samples for the query engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shared.labels import LabelFrame, Symbols, concat
from shared.messages.exchange import joined_samples
from shared.promql.ast import Matcher
from shared.promql.model import Samples
from shared.promql.regex import unchecked
from worker.series.index.postings import Ids
from worker.series.part import SeriesPart


class ShardSelection:
    """The series of one selector, shard after shard; implements `model.SeriesSelection`."""

    def __init__(
        self, labels: LabelFrame, parts: Sequence[SeriesPart], ids: Sequence[Ids], start_ms: int, end_ms: int
    ) -> None:
        self._labels = labels
        self._parts = parts
        self._ids = ids
        self._firsts = [0, *np.cumsum([len(part_ids) for part_ids in ids]).tolist()]
        self._start_ms = start_ms
        self._end_ms = end_ms

    @property
    def labels(self) -> LabelFrame:
        return self._labels

    def read(self, first: int, last: int) -> Samples:
        pieces = []
        for part, ids, at in zip(self._parts, self._ids, self._firsts, strict=False):
            wanted = ids[max(first - at, 0) : max(last - at, 0)]
            if len(wanted):
                pieces.append(part.read(wanted, self._start_ms, self._end_ms))
        return pieces[0] if len(pieces) == 1 else joined_samples(pieces)


class ShardSource:
    """The union of some shards of one worker process; implements `model.Source`. `check` is called repeatedly while
    series are selected, and may raise."""

    def __init__(self, parts: Sequence[SeriesPart], check: Callable[[], None] = unchecked) -> None:
        self._parts = parts
        self._check = check
        self._asked: set[tuple[int, int]] = set()

    def damage(self) -> list[list[str]]:
        """By part: what is missing from what was selected and read here, one text a damaged block."""
        return [
            list(dict.fromkeys(text for asked in sorted(self._asked) for text in part.damage(*asked)))
            for part in self._parts
        ]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> ShardSelection:
        """`symbols` is the process's table, or one that stands on it. Raises BadData for an expression RE2 refuses,
        NotExecutable for one that is too costly, and what `check` raises."""
        self._asked.add((start_ms, end_ms))
        frames, parts, ids = [], [], []
        for part in self._parts:
            lookup, part_ids = part.select([matchers], start_ms, end_ms, self._check)
            if len(part_ids):
                frames.append(lookup.frame(part_ids, symbols))
                parts.append(part)
                ids.append(part_ids)
        labels = LabelFrame(symbols, 0) if not frames else frames[0] if len(frames) == 1 else concat(frames)
        return ShardSelection(labels, parts, ids, start_ms, end_ms)

"""Counts the series of some shards of a process by metric, label name and label value, from their indexes.

An index keeps each series until the next start. The counts are therefore of the series that take memory, whether or not
they still get samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.labels import METRIC_NAME, Codes
from shared.messages.cardinality import CardinalityBody, CardinalityReply, LabelName, Ranking
from worker.series.index import label_pairs
from worker.series.index.label_pairs import LabelPairs
from worker.series.index.lookup import Lookup
from worker.series.index.newcomers import KEPT_S
from worker.series.index.postings import Ids
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart

LABEL_NAMES_MAX = 10_000

Hashes = NDArray[np.uint64]


@dataclass(slots=True)
class _Counted:
    """The counts of the shards so far. `new_metrics`, `new_focus`: for each new series with the label in question, the
    code of its value."""

    pairs: list[LabelPairs]
    new_metrics: list[Codes]
    new_focus: list[Codes]
    series: int = 0
    new: int = 0

    def add(self, lookup: Lookup, ids: Ids | None, first_new: int, focus: str, check: Callable[[], None]) -> None:
        """Add the series `ids` of a shard (None: all), of which those from `first_new` on are new."""
        self.pairs += label_pairs.of_all(lookup) if ids is None else label_pairs.of_series(lookup, ids, check)
        new_ids = np.arange(first_new, lookup.size) if ids is None else ids[ids >= first_new]
        self.series += lookup.size if ids is None else len(ids)
        self.new += len(new_ids)
        for name, codes in ((METRIC_NAME, self.new_metrics), (focus, self.new_focus)):
            column = lookup.column(new_ids, name)
            codes.append(column[column != 0])


def cardinality(
    parts: Sequence[SeriesPart], body: CardinalityBody, check: Callable[[], None]
) -> tuple[CardinalityReply, Hashes]:
    """(the reply, its frame). `check` is called every ten milliseconds or so, and before each shard, and may raise.
    Raises NotExecutable for too many different labels, and what selecting the series raises."""
    symbols = parts[0].services.symbols
    assert isinstance(symbols, TextTable)
    counted = _Counted([], [], [])
    is_all = body.selectors == [()] and not body.is_bounded
    for part in parts:
        check()
        lookup, first_new = part.contents.newcomers(KEPT_S)
        ids = None if is_all else _selected(part, body, check)
        if ids is not None:
            ids = ids[ids < lookup.size]  # this lookup lacks series that were added since
        counted.add(lookup, ids, first_new, body.focus, check)
    check()
    pairs = label_pairs.joined(counted.pairs)
    check()
    return _reply(parts, body, symbols, counted, pairs)


def _selected(part: SeriesPart, body: CardinalityBody, check: Callable[[], None]) -> Ids:
    if body.is_bounded:
        return part.having(body.selectors, body.start_ms, body.end_ms, check)[1]
    return part.lookup().select_any(body.selectors, check)


def _reply(
    parts: Sequence[SeriesPart], body: CardinalityBody, symbols: TextTable, counted: _Counted, pairs: LabelPairs
) -> tuple[CardinalityReply, Hashes]:
    metric_codes, metric_series, metric_new = _of_label(symbols, pairs, METRIC_NAME, counted.new_metrics)
    focus_codes, focus_series, focus_new = _of_label(symbols, pairs, body.focus, counted.new_focus)
    growing = np.flatnonzero(metric_new)
    by_pair = _ranking(symbols, pairs.values, pairs.series, None, body, (pairs.keys >> 32).astype(np.int32))
    label_names, hashes, left_out = _label_names(symbols, pairs, body)
    heads = [part.contents.head_chunks() for part in parts]
    reply = CardinalityReply(
        series=counted.series,
        label_pairs=int(pairs.series.sum()),
        grown=counted.new,
        grown_from=max(time.time() - KEPT_S, *(part.contents.opened_at for part in parts)),
        chunks=sum(chunks for chunks, _, _ in heads),
        earliest_ms=min(earliest for _, earliest, _ in heads),
        latest_ms=max(latest for _, _, latest in heads),
        metrics=_ranking(symbols, metric_codes, metric_series, metric_new, body),
        growth=_ranking(symbols, metric_codes[growing], metric_new[growing], None, body),
        pairs=by_pair,
        focus=_ranking(symbols, focus_codes, focus_series, focus_new, body),
        label_names=label_names,
        label_names_left_out=left_out,
    )
    return reply, hashes


def _of_label(
    symbols: TextTable, pairs: LabelPairs, name: str, new: Sequence[Codes]
) -> tuple[Codes, NDArray[np.int64], NDArray[np.int64]]:
    """(codes of the values of a label, number of series with each, number of new series with each). `new`: the codes of
    the new series."""
    code = symbols.find(name) if name else None
    span = slice(0, 0) if code is None else pairs.span(code)
    codes = (pairs.keys[span] & 0xFFFFFFFF).astype(np.int32)
    new_codes, new_counts = np.unique(np.concatenate(new), return_counts=True)
    new_series = np.zeros(len(codes), dtype=np.int64)
    new_series[np.searchsorted(codes, new_codes)] = new_counts
    return codes, pairs.series[span], new_series


def _ranking(
    symbols: TextTable,
    codes: Codes,
    series: NDArray[np.int64],
    grown: NDArray[np.int64] | None,
    body: CardinalityBody,
    label_codes: Codes | None = None,
) -> Ranking:
    """The texts with the most series, as many as `body` allows. `codes` and `series`: the codes and numbers of series
    of all texts. `grown` and `label_codes`, if wanted: the numbers of new series and the codes of the label names."""
    at = _highest(series, body.kept)
    at = at[: _fitting(symbols, codes[at], body)]
    is_left_out = np.ones(len(series), dtype=np.bool_)
    is_left_out[at] = False
    return Ranking(
        names=symbols.texts(codes[at]),
        labels=[] if label_codes is None else symbols.texts(label_codes[at]),
        series=series[at].tolist(),
        grown=[] if grown is None else grown[at].tolist(),
        rest_max=int(series[is_left_out].max(initial=0)),
    )


def _fitting(symbols: TextTable, codes: Codes, body: CardinalityBody) -> int:
    """How many of these texts, from the first on, fit in the number of bytes that is wanted."""
    return int(np.searchsorted(np.cumsum(symbols.sizes(codes)), body.text_bytes_max, side="right"))


def _highest(counts: NDArray[np.int64], count_max: int) -> NDArray[np.int64]:
    """The positions of the highest counts, highest first."""
    at = (
        np.arange(len(counts))
        if len(counts) <= count_max
        else np.argpartition(counts, len(counts) - count_max)[-count_max:]
    )
    return at[np.argsort(-counts[at], kind="stable")]


def _label_names(symbols: TextTable, pairs: LabelPairs, body: CardinalityBody) -> tuple[list[LabelName], Hashes, int]:
    """(the label names, those with the most values first; hashes of their values; the number of names left out)."""
    names, firsts = pairs.names()
    value_counts = np.diff(firsts, append=len(pairs.keys))
    at = _highest(value_counts, LABEL_NAMES_MAX)
    at = at[: _fitting(symbols, names[at], body)]
    if not len(at):
        return [], np.zeros(0, dtype=np.uint64), len(names)
    codes = pairs.values
    series = np.add.reduceat(pairs.series, firsts)[at]
    sizes = np.add.reduceat(pairs.series * symbols.sizes(codes), firsts)[at]
    hash_counts = hashes_each(value_counts[at], body.hashes_max)
    hashes = []
    for first, count, hash_count in zip(
        firsts[at].tolist(), value_counts[at].tolist(), hash_counts.tolist(), strict=True
    ):
        if hash_count:
            hashes.append(np.sort(symbols.hashes(codes[first : first + count]))[:hash_count])
    columns = (
        symbols.texts(names[at]),
        value_counts[at].tolist(),
        hash_counts.tolist(),
        series.tolist(),
        sizes.tolist(),
    )
    label_names = [LabelName(*row) for row in zip(*columns, strict=True)]
    return label_names, np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64), len(names) - len(at)


def hashes_each(value_counts: NDArray[np.int64], hashes_max: int) -> NDArray[np.int64]:
    """int64[n]: how many hashes to send for each of n labels, given their numbers of values. The limit for a label is
    the same for all, so that at most `hashes_max` are sent in total."""
    ascending = np.sort(value_counts)
    # With the limit ascending[i], labels before i send all of their hashes, and the others ascending[i] each.
    totals = np.cumsum(ascending) + ascending * np.arange(len(ascending) - 1, -1, -1)
    unlimited = int(np.searchsorted(totals, hashes_max, side="right"))
    if unlimited == len(ascending):
        return value_counts
    limit = (hashes_max - int(ascending[:unlimited].sum())) // (len(ascending) - unlimited)
    return np.minimum(value_counts, limit)

"""How many series some shards of a process have by metric, label and label value, from their indexes.

The index keeps every series that it ever had until the next start, so what is counted is what takes memory, whether it
still gets samples or not.
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
    """What the shards so far have. `new_metrics`, `new_focus`: the codes of these labels' values, of each new series
    that has the label."""

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
    parts: Sequence[SeriesPart], wanted: CardinalityBody, check: Callable[[], None]
) -> tuple[CardinalityReply, Hashes]:
    """(the reply, its frame). `check` is called before each piece of work of some ten milliseconds, or of a shard, and
    may raise. Raises NotExecutable for too many different labels, and what a selection raises."""
    symbols = parts[0].services.symbols
    assert isinstance(symbols, TextTable)
    counted = _Counted([], [], [])
    is_all = wanted.selectors == [()] and not wanted.is_bounded
    for part in parts:
        check()
        lookup, first_new = part.contents.newcomers(KEPT_S)
        ids = None if is_all else _selected(part, wanted, check)
        if ids is not None:
            ids = ids[ids < lookup.size]  # those that came in between are not in this lookup
        counted.add(lookup, ids, first_new, wanted.focus, check)
    check()
    pairs = label_pairs.joined(counted.pairs)
    check()
    return _reply(parts, wanted, symbols, counted, pairs)


def _selected(part: SeriesPart, wanted: CardinalityBody, check: Callable[[], None]) -> Ids:
    if wanted.is_bounded:
        return part.having(wanted.selectors, wanted.start_ms, wanted.end_ms, check)[1]
    return part.lookup().select_any(wanted.selectors, check)


def _reply(
    parts: Sequence[SeriesPart], wanted: CardinalityBody, symbols: TextTable, counted: _Counted, pairs: LabelPairs
) -> tuple[CardinalityReply, Hashes]:
    metric_codes, metric_series, metric_new = _of_label(symbols, pairs, METRIC_NAME, counted.new_metrics)
    focus_codes, focus_series, focus_new = _of_label(symbols, pairs, wanted.focus, counted.new_focus)
    growing = np.flatnonzero(metric_new)
    by_pair = _ranking(symbols, pairs.values, pairs.series, None, wanted, (pairs.keys >> 32).astype(np.int32))
    label_names, hashes, left_out = _label_names(symbols, pairs, wanted)
    heads = [part.contents.head_chunks() for part in parts]
    reply = CardinalityReply(
        series=counted.series,
        label_pairs=int(pairs.series.sum()),
        grown=counted.new,
        grown_from=max(time.time() - KEPT_S, *(part.contents.opened_at for part in parts)),
        chunks=sum(chunks for chunks, _, _ in heads),
        earliest_ms=min(earliest for _, earliest, _ in heads),
        latest_ms=max(latest for _, _, latest in heads),
        metrics=_ranking(symbols, metric_codes, metric_series, metric_new, wanted),
        growth=_ranking(symbols, metric_codes[growing], metric_new[growing], None, wanted),
        pairs=by_pair,
        focus=_ranking(symbols, focus_codes, focus_series, focus_new, wanted),
        label_names=label_names,
        label_names_left_out=left_out,
    )
    return reply, hashes


def _of_label(
    symbols: TextTable, pairs: LabelPairs, name: str, new: Sequence[Codes]
) -> tuple[Codes, NDArray[np.int64], NDArray[np.int64]]:
    """(codes of the values of a label, how many series have each, how many new ones). `new`: codes of new series."""
    code = symbols.find(name) if name else None
    own = slice(0, 0) if code is None else pairs.span(code)
    codes = (pairs.keys[own] & 0xFFFFFFFF).astype(np.int32)
    new_codes, new_counts = np.unique(np.concatenate(new), return_counts=True)
    grown = np.zeros(len(codes), dtype=np.int64)
    grown[np.searchsorted(codes, new_codes)] = new_counts
    return codes, pairs.series[own], grown


def _ranking(
    symbols: TextTable,
    codes: Codes,
    series: NDArray[np.int64],
    grown: NDArray[np.int64] | None,
    wanted: CardinalityBody,
    label_codes: Codes | None = None,
) -> Ranking:
    """The texts with the most series, as many as are wanted. `codes` and `series` are of all, as are `grown`
    and the codes of their label names, if they are wanted."""
    at = _highest(series, wanted.kept)
    at = at[: _fitting(symbols, codes[at], wanted)]
    is_left_out = np.ones(len(series), dtype=np.bool_)
    is_left_out[at] = False
    return Ranking(
        names=symbols.texts(codes[at]),
        labels=[] if label_codes is None else symbols.texts(label_codes[at]),
        series=series[at].tolist(),
        grown=[] if grown is None else grown[at].tolist(),
        rest_max=int(series[is_left_out].max(initial=0)),
    )


def _fitting(symbols: TextTable, codes: Codes, wanted: CardinalityBody) -> int:
    """How many of these texts, from the first on, are within the bytes that are wanted."""
    return int(np.searchsorted(np.cumsum(symbols.sizes(codes)), wanted.text_bytes_max, side="right"))


def _highest(counts: NDArray[np.int64], kept: int) -> NDArray[np.int64]:
    """The positions of the highest counts, highest first."""
    at = np.arange(len(counts)) if len(counts) <= kept else np.argpartition(counts, len(counts) - kept)[-kept:]
    return at[np.argsort(-counts[at], kind="stable")]


def _label_names(symbols: TextTable, pairs: LabelPairs, wanted: CardinalityBody) -> tuple[list[LabelName], Hashes, int]:
    """(the label names, those with the most values first; the hashes of their values; how many names are left out)."""
    names, firsts = pairs.names()
    values = np.diff(firsts, append=len(pairs.keys))
    at = _highest(values, LABEL_NAMES_MAX)
    at = at[: _fitting(symbols, names[at], wanted)]
    if not len(at):
        return [], np.zeros(0, dtype=np.uint64), len(names)
    codes = pairs.values
    series = np.add.reduceat(pairs.series, firsts)[at]
    sizes = np.add.reduceat(pairs.series * symbols.sizes(codes), firsts)[at]
    lowest = hashes_each(values[at], wanted.hashes_max)
    hashes = []
    for first, count, few in zip(firsts[at].tolist(), values[at].tolist(), lowest.tolist(), strict=True):
        if few:
            hashes.append(np.sort(symbols.hashes(codes[first : first + count]))[:few])
    columns = (symbols.texts(names[at]), values[at].tolist(), lowest.tolist(), series.tolist(), sizes.tolist())
    label_names = [LabelName(*row) for row in zip(*columns, strict=True)]
    return label_names, np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.uint64), len(names) - len(at)


def hashes_each(values: NDArray[np.int64], hashes_max: int) -> NDArray[np.int64]:
    """int64[n]: how many hashes to send of labels that have so many values each: of all the same number at most, so
    that together they are `hashes_max` at most."""
    ascending = np.sort(values)
    # If the limit for each is ascending[i], those before i send all, and the others as many as i.
    together = np.cumsum(ascending) + ascending * np.arange(len(ascending) - 1, -1, -1)
    fitting = int(np.searchsorted(together, hashes_max, side="right"))
    if fitting == len(ascending):
        return values
    each = (hashes_max - int(ascending[:fitting].sum())) // (len(ascending) - fitting)
    return np.minimum(values, each)

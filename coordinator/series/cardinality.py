"""Merges the workers' statistics of how many series have which labels.

Each series is in one shard, so counts of series are added up. A label value can be in many shards, so the workers send
hashes of the values. For a label with very many values they send only the lowest hashes, and the number of distinct
values is estimated from these (Bar-Yossef et al., "Counting distinct elements in a data stream", 2002).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.messages.cardinality import CardinalityBody, CardinalityReply, LabelName, Ranking
from shared.messages.series import Selectors

HASHES_MAX = 1 << 20
"""The most hashes that all workers together send: 8 MB."""
KEPT_MIN, KEPT_MAX = 1000, 100_000
KEPT_PER_ITEM = 4
"""How many entries of a ranking a worker sends for each entry of the response. Series are spread by hash, so an entry
with many series in total has many in each shard. All workers together send at most KEPT_MAX entries, but each may send
KEPT_MIN."""
TEXT_BYTES_MAX = 16 << 20
"""The most bytes of texts in one ranking, from all workers together."""
HOUR_S = 3600
_HASH_VALUES = 2.0**64

Hashes = NDArray[np.uint64]
Entry = dict[str, Any]


def request_body(selectors: Selectors, span: tuple[int, int], focus: str, limit: int, workers: int) -> CardinalityBody:
    """The body of the request to each of the workers, with limits that bound the size of all replies together."""
    return CardinalityBody(
        selectors,
        *span,
        focus,
        kept=max(KEPT_MIN, min(KEPT_PER_ITEM * limit, KEPT_MAX // workers)),
        text_bytes_max=TEXT_BYTES_MAX // workers,
        hashes_max=HASHES_MAX // workers if workers > 1 else 0,  # a single worker counts distinct values itself
    )


@dataclass(slots=True)
class _Label:
    """A label name, with the parts of all workers."""

    parts: list[tuple[LabelName, Hashes]] = field(default_factory=list)

    @property
    def series(self) -> int:
        return sum(part.series for part, _ in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part, _ in self.parts)

    def values(self) -> tuple[int, bool]:
        """(the number of distinct values, whether it is an estimate)."""
        if len(self.parts) == 1:
            return self.parts[0][0].values, False
        least = max(part.values for part, _ in self.parts)
        most = sum(part.values for part, _ in self.parts)
        truncated = [hashes for part, hashes in self.parts if len(hashes) < part.values]
        if any(not len(hashes) for hashes in truncated):
            return least, True
        distinct = _distinct([hashes for _, hashes in self.parts])
        if not truncated:
            return len(distinct), False
        # Up to this hash, every worker has sent the hashes of all its values.
        highest = min(hashes[-1] for hashes in truncated)
        complete = int(np.searchsorted(distinct, highest, side="right"))
        return min(most, max(least, round((complete - 1) / (int(highest) / _HASH_VALUES)))), True


def merged(replies: Sequence[tuple[CardinalityReply, Hashes]], limit: int) -> tuple[Entry, list[str]]:
    """(data of the response with at most `limit` entries in each list, hints). `replies`: each reply with its
    hashes."""
    contents = [reply for reply, _ in replies]
    labels = _labels(replies)
    values = {name: label.values() for name, label in labels.items()}
    grown_from = max(reply.grown_from for reply in contents)
    rankings = {
        "seriesCountByMetricName": ("metric names", _ranked([reply.metrics for reply in contents], limit)),
        "seriesGrowthByMetricName": ("new series", _ranked([reply.growth for reply in contents], limit)),
        "seriesCountByLabelValuePair": ("label pairs", _ranked([reply.pairs for reply in contents], limit)),
        "seriesCountByFocusLabelValue": ("values of the label", _ranked([reply.focus for reply in contents], limit)),
    }
    data = {
        "headStats": {
            "numSeries": sum(reply.series for reply in contents),
            "numLabelPairs": sum(count for count, _ in values.values()),
            "chunkCount": sum(reply.chunks for reply in contents),
            "minTime": min(reply.earliest_ms for reply in contents),
            "maxTime": max(reply.latest_ms for reply in contents),
        },
        "labelValueCountByLabelName": [
            {**entry, "estimated": True} if values[entry["name"]][1] else entry
            for entry in _highest(((name, count) for name, (count, _) in values.items()), limit)
        ],
        "memoryInBytesByLabelName": _highest(((name, label.size_bytes) for name, label in labels.items()), limit),
        "seriesCountByLabelName": _highest(((name, label.series) for name, label in labels.items()), limit),
        **{name: entries for name, (_, (entries, _)) in rankings.items()},
        "totalSeries": sum(reply.series for reply in contents),
        "totalLabelValuePairs": sum(reply.label_pairs for reply in contents),
        "growth": sum(reply.grown for reply in contents),
        "growthSince": round(grown_from, 3),
    }
    hints = [
        f"counts of {what} are up to {missing} too low: there are more than a worker sends"
        for what, (_, missing) in rankings.values()
        if missing
    ]
    return data, hints + _hints(contents, values, grown_from)


def _hints(replies: Sequence[CardinalityReply], values: dict[str, tuple[int, bool]], grown_from: float) -> list[str]:
    hints = []
    if any(is_estimate for _, is_estimate in values.values()):
        hints.append("numbers of label values with estimated=true are estimates: there are more than are compared")
    if left_out := sum(reply.label_names_left_out for reply in replies):
        hints.append(f"{left_out} label names with few values are left out")
    if grown_from > time.time() - HOUR_S + 60:
        hints.append("growth is counted since the last start of a worker, less than an hour ago")
    return hints


def _labels(replies: Sequence[tuple[CardinalityReply, Hashes]]) -> dict[str, _Label]:
    labels: defaultdict[str, _Label] = defaultdict(_Label)
    for reply, hashes in replies:
        at = 0
        for name in reply.label_names:
            labels[name.name].parts.append((name, hashes[at : at + name.hashes]))
            at += name.hashes
        assert at == len(hashes)
    return labels


def _ranked(rankings: Sequence[Ranking], limit: int) -> tuple[list[Entry], int]:
    """(the entries with the most series, by how much their counts may be too low)."""
    series: defaultdict[tuple[str, str], int] = defaultdict(int)
    grown: defaultdict[tuple[str, str], int] = defaultdict(int)
    rest: defaultdict[tuple[str, str], int] = defaultdict(lambda: sum(ranking.rest_max for ranking in rankings))
    for ranking in rankings:
        labels = ranking.labels or [""] * len(ranking.names)
        for row, key in enumerate(zip(labels, ranking.names, strict=True)):
            series[key] += ranking.series[row]
            rest[key] -= ranking.rest_max
            if ranking.grown:
                grown[key] += ranking.grown[row]
    order = sorted(series, key=lambda key: (-series[key], key))[:limit]
    entries = []
    for label, name in order:
        entry: Entry = {"name": f"{label}={name}" if label else name, "value": series[label, name]}
        if label:
            entry |= {"label": label, "labelValue": name}
        if any(ranking.grown for ranking in rankings):
            entry["growth"] = grown[label, name]
        entries.append(entry)
    missing = max((rest[key] for key in order), default=0)
    unseen = sum(ranking.rest_max for ranking in rankings)
    return entries, max(missing, unseen) if unseen > (series[order[-1]] if len(order) == limit else 0) else missing


def _distinct(ascending: Sequence[Hashes]) -> Hashes:
    """The distinct hashes of all arrays, ascending. (np.unique hashes them, which takes several times as long.)"""
    merged = np.sort(np.concatenate(ascending), kind="stable")  # merges the sorted arrays
    return merged[np.concatenate(([True], merged[1:] != merged[:-1]))]


def _highest(counts: Iterable[tuple[str, int]], limit: int) -> list[Entry]:
    ordered = sorted(counts, key=lambda pair: (-pair[1], pair[0]))[:limit]
    return [{"name": name, "value": count} for name, count in ordered]

"""Cardinality: what a worker counts in its indexes, and what the coordinator makes of several workers."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from coordinator.series.cardinality import (
    HASHES_MAX,
    HOUR_S,
    KEPT_MAX,
    KEPT_MIN,
    TEXT_BYTES_MAX,
    merged,
    request_body,
)
from shared.errors import NotExecutable
from shared.hashing import hash64
from shared.labels import Labels, encode
from shared.messages.cardinality import CardinalityBody, CardinalityReply, LabelName, Ranking
from shared.promql.ast import Matcher
from shared.xxh64 import hash_slices
from worker.series.cardinality import cardinality, hashes_each
from worker.series.contents import Contents
from worker.series.index import label_pairs
from worker.series.index.newcomers import KEPT_S, Newcomers
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart

EVERY = [cast(tuple[Matcher, ...], ())]


def part_of(symbols: TextTable, sets: Sequence[Labels], new_from: int = 0) -> SeriesPart:
    """A part with these series, of which those from `new_from` on are new. Only what cardinality needs of one."""
    contents = Contents(symbols)
    raw = [encode(labels) for labels in sets]
    data = np.frombuffer(b"".join(raw), dtype=np.uint8)
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in raw], dtype=np.int64)))
    contents.index.resolve(data, offsets[:-1], offsets[1:], hash_slices(data, offsets))
    contents.index.register()
    if new_from < len(sets):
        contents._newcomers.came(new_from)
    part = SimpleNamespace(contents=contents, services=SimpleNamespace(symbols=symbols))
    part.lookup = contents.index.lookup
    return cast(SeriesPart, part)


def some_sets(seed: int, count: int) -> list[Labels]:
    rng = random.Random(seed)
    sets = set()
    while len(sets) < count:
        labels = {"__name__": f"m{rng.randrange(5)}", "id": f"{seed}-{rng.randrange(10 * count)}"}
        for name in ("job", "zone", "pod=x"):
            if rng.random() < 0.7:
                labels[name] = f"v{rng.randrange(8)}é"
        sets.add(tuple(sorted(labels.items())))
    return sorted(sets, key=lambda _: rng.random())


def pairs_of(sets: Sequence[Labels]) -> Counter[tuple[str, str]]:
    return Counter(pair for labels in sets for pair in labels)


def assert_counts(reply: CardinalityReply, sets: Sequence[Labels], new: Sequence[Labels], focus: str) -> None:
    pairs, new_pairs = pairs_of(sets), pairs_of(new)
    assert (reply.series, reply.grown, reply.label_pairs) == (len(sets), len(new), sum(pairs.values()))
    for ranking, name in ((reply.metrics, "__name__"), (reply.focus, focus)):
        expected = {value: (count, new_pairs[label, value]) for (label, value), count in pairs.items() if label == name}
        rows = zip(ranking.series, ranking.grown, strict=True)
        assert dict(zip(ranking.names, rows, strict=True)) == expected
        assert ranking.series == sorted(ranking.series, reverse=True)
    assert dict(zip(reply.growth.names, reply.growth.series, strict=True)) == {
        value: count for (label, value), count in new_pairs.items() if label == "__name__"
    }
    keys = zip(reply.pairs.labels, reply.pairs.names, strict=True)
    assert dict(zip(keys, reply.pairs.series, strict=True)) == pairs
    assert {(one.name, one.values, one.series, one.size_bytes) for one in reply.label_names} == {
        (
            name,
            sum(label == name for label, _ in pairs),
            sum(count for (label, _), count in pairs.items() if label == name),
            sum(count * len(value.encode()) for (label, value), count in pairs.items() if label == name),
        )
        for name in {label for label, _ in pairs}
    }


@pytest.mark.parametrize("at_once", [5, 1 << 19])
def test_a_worker_counts_what_its_shards_have(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(label_pairs, "LABELS_AT_ONCE", at_once)
    symbols = TextTable()
    first, second = some_sets(1, 90), some_sets(2, 40)
    parts = [part_of(symbols, first, 60), part_of(symbols, second, 40)]
    reply, _ = cardinality(parts, CardinalityBody(EVERY, focus="job"), lambda: None)
    assert_counts(reply, [*first, *second], first[60:], "job")
    zoned = [(Matcher("zone", "!=", ""),), (Matcher("__name__", "=", "m1"),)]
    reply, _ = cardinality(parts, CardinalityBody(zoned, focus="pod=x"), lambda: None)

    def matches(labels: Labels) -> bool:
        return "zone" in dict(labels) or dict(labels)["__name__"] == "m1"

    matching = [labels for labels in (*first, *second) if matches(labels)]
    assert_counts(reply, matching, [labels for labels in first[60:] if matches(labels)], "pod=x")


def test_nothing_is_counted_of_no_series() -> None:
    symbols = TextTable()
    parts = [part_of(symbols, []), part_of(symbols, some_sets(1, 3))]
    reply, hashes = cardinality(parts, CardinalityBody([(Matcher("job", "=", "none"),)], hashes_max=9), lambda: None)
    assert (reply.series, reply.label_names, len(hashes)) == (0, [], 0)
    reply, _ = cardinality(parts[:1], CardinalityBody(EVERY), lambda: None)
    assert reply.series == 0


def test_a_worker_sends_what_has_most_and_says_what_the_rest_has_at_most() -> None:
    sets = [(("__name__", f"m{i}"), ("n", str(j))) for i in range(10) for j in range(i + 1)]
    reply, _ = cardinality([part_of(TextTable(), sets)], CardinalityBody(EVERY, kept=3), lambda: None)
    assert (reply.metrics.names, reply.metrics.series, reply.metrics.rest_max) == (["m9", "m8", "m7"], [10, 9, 8], 7)


def test_long_texts_are_left_out_before_a_reply_gets_large() -> None:
    sets = [(("__name__", "m"), ("l", f"{i:05}" + "x" * 995)) for i in range(50)]
    reply, _ = cardinality([part_of(TextTable(), sets)], CardinalityBody(EVERY, text_bytes_max=10_500), lambda: None)
    assert (len(reply.pairs.names), reply.pairs.rest_max) == (11, 1)  # __name__="m", and ten of the others
    assert [one.values for one in reply.label_names] == [50, 1]


@pytest.mark.parametrize(("limit", "workers"), [(10, 1), (10_000, 2), (10_000, 64), (1, 1024)])
def test_replies_of_all_workers_together_are_bounded(limit: int, workers: int) -> None:
    wanted = request_body(EVERY, (0, 1), "job", limit, workers)
    assert workers * wanted.hashes_max <= HASHES_MAX
    assert workers * wanted.text_bytes_max <= TEXT_BYTES_MAX
    assert workers * wanted.kept <= max(KEPT_MAX, KEPT_MIN * workers)
    assert wanted.kept >= min(limit, KEPT_MAX // workers)


def test_more_different_labels_than_are_counted_at_a_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_pairs, "PAIRS_MAX", 20)
    part = part_of(TextTable(), some_sets(1, 30))
    for selectors in (EVERY, [(Matcher("__name__", "!=", ""),)]):
        with pytest.raises(NotExecutable, match=r"narrow them with match\[\]"):
            cardinality([part], CardinalityBody(selectors), lambda: None)


def test_new_series_are_known_to_the_minute_for_an_hour() -> None:
    now = 1000.0
    newcomers = Newcomers(lambda: now)
    assert newcomers.first(KEPT_S, 7) == 7
    newcomers.came(7)
    now += 59
    newcomers.came(8)
    assert newcomers.first(KEPT_S, 9) == 7
    now += 3000
    newcomers.came(20)
    assert newcomers.first(KEPT_S, 30) == 7
    assert newcomers.first(60, 30) == 20
    now += 601
    assert newcomers.first(KEPT_S, 30) == 20
    now += KEPT_S
    assert newcomers.first(KEPT_S, 30) == 30
    for minute in range(500):
        now += 60
        newcomers.came(100 + minute)
    assert len(newcomers._minutes) <= KEPT_S / 60 + 2


def test_hashes_fit_into_their_room() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        values = rng.integers(1, 50, rng.integers(1, 20))
        room = int(rng.integers(0, 400))
        each = hashes_each(values, room)
        assert each.sum() <= max(room, 0)
        assert (each == np.minimum(values, each.max(initial=0))).all()
        assert each.sum() == values.sum() or each.sum() > room - len(values)


def worker_of(values: Sequence[str], kept: int | None = None, **fields: object) -> tuple[CardinalityReply, np.ndarray]:
    """A worker with series whose label `l` has these values."""
    hashes = np.sort(np.array([hash64(value.encode()) for value in values], dtype=np.uint64))[:kept]
    reply = CardinalityReply(
        series=len(values),
        label_pairs=len(values),
        grown=1,
        grown_from=time.time() - HOUR_S,
        chunks=2,
        earliest_ms=5,
        latest_ms=9,
        metrics=Ranking(["m"], [], [len(values)], [1]),
        growth=Ranking(["m"], [], [1]),
        pairs=Ranking(),
        focus=Ranking(),
        label_names=[LabelName("l", len(values), len(hashes), len(values), 3 * len(values))],
        label_names_left_out=0,
    )
    for name, value in fields.items():
        setattr(reply, name, value)
    return reply, hashes


def test_values_that_several_workers_have_are_counted_once() -> None:
    data, hints = merged([worker_of(["a", "b", "c"]), worker_of(["b", "c", "d", "e"])], 10)
    assert data["labelValueCountByLabelName"] == [{"name": "l", "value": 5}]
    assert data["headStats"] == {"numSeries": 7, "numLabelPairs": 5, "chunkCount": 4, "minTime": 5, "maxTime": 9}
    assert data["seriesCountByMetricName"] == [{"name": "m", "value": 7, "growth": 2}]
    assert data["seriesGrowthByMetricName"] == [{"name": "m", "value": 2}]
    assert data["memoryInBytesByLabelName"] == [{"name": "l", "value": 21}]
    assert (data["totalSeries"], data["totalLabelValuePairs"], data["growth"], hints) == (7, 7, 2, [])


def test_very_many_values_are_estimated() -> None:
    workers = [worker_of([f"v{i}" for i in range(first, first + 60_000)], 4000) for first in (0, 30_000)]
    data, hints = merged(workers, 10)
    entry = data["labelValueCountByLabelName"][0]
    assert entry["estimated"]
    assert 90_000 * 0.93 < entry["value"] < 90_000 * 1.07
    assert any("estimates" in hint for hint in hints)


def test_an_estimate_stays_within_what_is_known() -> None:
    data, _ = merged([worker_of(["a", "b", "c"], 0), worker_of(["d"], 1)], 10)
    assert data["labelValueCountByLabelName"] == [{"name": "l", "value": 3, "estimated": True}]
    data, _ = merged([worker_of(["a", "b", "c"], 1), worker_of(["a", "b"], 1)], 10)
    assert 3 <= data["labelValueCountByLabelName"][0]["value"] <= 5


def test_an_answer_says_how_much_its_counts_may_lack() -> None:
    left = worker_of(["a"], pairs=Ranking(["x", "y"], ["job", "job"], [9, 4], [], 3))
    right = worker_of(["a"], pairs=Ranking(["x", "z"], ["job", "job"], [8, 5], [], 2))
    data, hints = merged([left, right], 3)
    assert [(pair["name"], pair["value"]) for pair in data["seriesCountByLabelValuePair"]] == [
        ("job=x", 17),
        ("job=z", 5),
        ("job=y", 4),
    ]
    pair = data["seriesCountByLabelValuePair"][0]
    assert (pair["label"], pair["labelValue"]) == ("job", "x")
    assert any("label pairs are up to 5 too low" in hint for hint in hints)
    assert merged([left, right], 1)[1] == []


def test_growth_since_a_start_less_than_an_hour_ago_is_told() -> None:
    hints = merged([worker_of(["a"], grown_from=time.time() - 100)], 10)[1]
    assert hints == ["growth is counted since the last start of a worker, less than an hour ago"]


def test_lists_have_the_largest_first_and_the_limit() -> None:
    names = [LabelName(f"n{i}", i, 0, 10 - i, 5) for i in range(5)]
    reply = worker_of([], label_names=names)[0], np.zeros(0, dtype=np.uint64)
    data, _ = merged([reply], 2)
    assert [entry["name"] for entry in data["labelValueCountByLabelName"]] == ["n4", "n3"]
    assert [entry["name"] for entry in data["seriesCountByLabelName"]] == ["n0", "n1"]
    assert [entry["name"] for entry in data["memoryInBytesByLabelName"]] == ["n0", "n1"]

"""What selectors matched is kept while no series come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared.labels import LabelFrame, Symbols
from shared.process.array_memory import Account
from shared.promql.ast import Matcher
from shared.settings import Settings
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, Shard, m
from worker.queries import source
from worker.queries.source import ShardSource
from worker.series import selections
from worker.series.index.lookup import Lookup
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.selections import Selected, Selections
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog

OF_M = (Matcher("__name__", "=", "m"),)


@pytest.fixture
def shard(tmp_path: Path):  # type: ignore[no-untyped-def]
    shard = Shard(tmp_path)
    yield shard
    shard.close()


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was looked up in the index."""
    asked: list[object] = []
    select = Lookup.select

    def counted(self: Lookup, matchers, check=lambda: None):  # type: ignore[no-untyped-def]
        asked.append(matchers)
        return select(self, matchers, check)

    monkeypatch.setattr(Lookup, "select", counted)
    return asked


def names(shard: Shard, *matchers: Matcher, window: tuple[int, int] = EVERYTHING) -> list[str]:
    labels = ShardSource([shard.part]).select(matchers, *window, Symbols(shard.symbols)).labels
    return sorted(dict(labels.labels(row))["i"] for row in range(labels.size))


def test_the_same_selector_is_looked_up_once(shard, lookups):
    shard.write([(m(i="1"), [(1, 1.0)]), (m(i="2"), [(1, 1.0)])])
    assert [names(shard, *OF_M) for _ in range(3)] == [["1", "2"]] * 3
    assert len(lookups) == 1


def test_a_series_that_was_written_is_selected_at_once(shard):
    shard.write([(m(i="1"), [(1, 1.0)])])
    assert names(shard, *OF_M) == ["1"]
    shard.write([(m(i="2"), [(1, 1.0)])])
    assert names(shard, *OF_M) == ["1", "2"]


def test_nothing_selected_is_kept_too_until_a_series_comes(shard, lookups):
    shard.write([({"__name__": "other", "i": "1"}, [(1, 1.0)])])
    assert names(shard, *OF_M) == names(shard, *OF_M) == []
    assert len(lookups) == 1
    shard.write([(m(i="1"), [(1, 1.0)])])
    assert names(shard, *OF_M) == ["1"]


@pytest.mark.parametrize("entry_bytes_max", [selections.ENTRY_BYTES_MAX, 0])
def test_of_several_shards_those_series_are_selected_that_have_samples_then(tmp_path, monkeypatch, entry_bytes_max):
    monkeypatch.setattr(source, "ENTRY_BYTES_MAX", entry_bytes_max)
    services = SeriesServices(Settings(), TextTable())
    log = WriteAheadLog(tmp_path / "wal").open()
    parts = []
    for number, times in enumerate(({"a": 1, "b": 9, "c": 1}, {"d": 9}, {}, {"e": 1})):
        objects = LocalObjects(tmp_path / "blocks")
        part = SeriesPart(Store(tmp_path / str(number)), services, objects, log.stream(number, SERIES))
        part.load()
        for name, time_ms in times.items():
            series = [(m(i=name, **({"more": "x"} if name == "e" else {})), [(time_ms, float(time_ms))])]
            write_to(part, remote_write.split(body(series), 1, UNLIMITED).parts[0], TIMEOUT_S)
        parts.append(part)
    for window, expected in (((1, 1), "ace"), ((9, 9), "bd"), ((1, 9), "abcde"), ((2, 8), "")):
        selection = ShardSource(parts).select(OF_M, *window, Symbols(services.symbols))
        labels, size = selection.labels, selection.labels.size
        assert "".join(dict(labels.labels(row))["i"] for row in range(size)) == expected
        assert [dict(labels.labels(row)).get("more") for row in range(size)] == [
            "x" if i == "e" else None for i in expected
        ]
        assert selection.read(0, size).values.tolist() == [1.0 if i in "ace" else 9.0 for i in expected]
    for part in parts:
        part.close()
        part._store.close()
    log.close()


def test_samples_of_known_series_do_not_end_what_is_kept(shard, lookups):
    for time_ms in (1, 2, 3):
        shard.write([(m(i="1"), [(time_ms, 1.0)])])
        assert names(shard, *OF_M, window=(time_ms, time_ms)) == ["1"]
    assert len(lookups) == 1


def test_a_kept_selection_gives_the_series_of_each_time_range(shard):
    shard.write([(m(i=str(i)), [(10 * i, 1.0)]) for i in range(1, 5)])
    assert names(shard, *OF_M) == ["1", "2", "3", "4"]
    assert names(shard, *OF_M, window=(20, 30)) == ["2", "3"]
    assert names(shard, *OF_M, window=(50, 90)) == []
    assert shard.samples(*OF_M, window=(30, 40)) == {
        (("__name__", "m"), ("i", "3")): [(30, 1.0)],
        (("__name__", "m"), ("i", "4")): [(40, 1.0)],
    }


def test_labels_that_came_after_the_query_began_have_codes_of_its_own_table(shard):
    early = Symbols(shard.symbols)
    shard.write([(m(i="new"), [(1, 1.0)])])
    assert names(shard, *OF_M) == ["new"]
    selection = ShardSource([shard.part]).select(OF_M, *EVERYTHING, early)
    assert selection.labels.labels(0) == (("__name__", "m"), ("i", "new"))
    assert early.code("new") == selection.labels.column("i")[0] < 0


def test_has_matched_says_whether_series_match_at_any_time(shard):
    shard.write([(m(i="1"), [(1, 1.0)])])
    for matchers, window, has_matched in (
        (OF_M, EVERYTHING, True),
        (OF_M, (50, 90), True),
        ((Matcher("__name__", "=", "other"),), EVERYTHING, False),
    ):
        own = ShardSource([shard.part])
        own.select(matchers, *window, Symbols(shard.symbols))
        assert own.has_matched() is has_matched
        assert own.has_matched()  # nothing was selected since


def test_another_opening_of_the_shard_is_looked_up_anew(shard):
    shard.write([(m(i="1"), [(1, 1.0)])])
    assert names(shard, *OF_M) == ["1"]
    kept = shard.part.services.selections
    shard.reopen()
    object.__setattr__(shard.part.services, "selections", kept)
    assert kept.get(OF_M, ((shard.part.epoch, 1),)) is None
    assert names(shard, *OF_M) == ["1"]


def test_a_large_selection_is_not_kept(shard, lookups, monkeypatch):
    monkeypatch.setattr(source, "ENTRY_BYTES_MAX", 100)
    shard.write([(m(i=str(i)), [(1, 1.0)]) for i in range(10)])
    assert len(names(shard, *OF_M)) == len(names(shard, *OF_M)) == 10
    assert len(lookups) == 2
    assert names(shard, Matcher("i", "=", "3")) == names(shard, Matcher("i", "=", "3")) == ["3"]
    assert len(lookups) == 3


def test_the_oldest_selections_make_room(monkeypatch):
    def selected(series: int) -> Selected:
        ids = np.arange(series)
        return Selected(((1, series),), ((0, ids),), LabelFrame(Symbols(), series, {"i": ids.astype(np.int32)}), series)

    def matchers(number: int) -> tuple[Matcher, ...]:
        return (Matcher("i", "=", str(number)),)

    monkeypatch.setattr(selections, "BYTES_MAX", 3 * selected(100).size_bytes + 100)
    kept = Selections()
    for number in range(3):
        kept.put(matchers(number), selected(100))
    kept.get(matchers(0), ((1, 100),))
    kept.put(matchers(3), selected(100))
    present = [number for number in range(4) if kept.get(matchers(number), ((1, 100),)) is not None]
    assert present == [0, 2, 3]
    for _ in range(5):
        kept.put(matchers(3), selected(100))  # takes the room of the one before
    assert kept.get(matchers(0), ((1, 100),)) is not None


def test_what_is_kept_is_in_the_account_of_no_query(shard):
    shard.write([(m(i=str(i)), [(1, 1.0)]) for i in range(1000)])
    names(shard, Matcher("i", "=", "1"))  # sorts what the index has postponed
    account = Account(10 << 20)
    with account.open():
        names(shard, *OF_M)
    assert account.used_bytes < 1000
    assert shard.part.services.selections.get(OF_M, ((shard.part.epoch, 1000),)) is not None

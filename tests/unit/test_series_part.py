"""One shard's series on a real store: what is durable, visible and found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from coordinator.series import remote_write
from loadtest.harness.remote_write_bodies import UNLIMITED, body
from shared.errors import DeadlineExceeded, Internal, Unavailable
from shared.labels import Symbols
from shared.promql.ast import Matcher
from shared.settings import Settings
from tests.unit.series_shard import EVERYTHING, TIMEOUT_S, A, B, Shard, m
from worker.queries.source import ShardSource
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    opened = Shard(tmp_path / "store")
    yield opened
    opened.close()


def test_samples_are_read_back_by_series_and_time(shard: Shard) -> None:
    assert shard.write([(m(job="a"), [(1, 1.0), (2, 2.0)]), (m(job="b"), [(5, 3.0)])]) == 3
    assert shard.samples() == {A: [(1, 1.0), (2, 2.0)], B: [(5, 3.0)]}
    assert shard.samples(Matcher("job", "=", "b")) == {B: [(5, 3.0)]}
    assert shard.samples(window=(2, 3)) == {A: [(2, 2.0)]}
    held = {"series": 2, "samples": 3, "samples_in": 3, "head_samples": 3, "blocks": 0, "block_bytes": 0}
    assert shard.part.counts() == held


def test_late_and_repeated_samples_are_merged_the_last_write_winning(shard: Shard) -> None:
    shard.write([(m(job="a"), [(5, 1.0), (3, 2.0)]), (m(job="a"), [(5, 9.0)])])
    shard.write([(m(job="a"), [(3, 7.0), (1, 8.0), (3, 6.0)])])
    expected = {A: [(1, 8.0), (3, 6.0), (5, 9.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected


def test_everything_is_back_after_opening_again(shard: Shard) -> None:
    for i in range(20):
        shard.write([(m(i=str(j), batch=str(j % 3)), [(i, i * j)]) for j in range(i, i + 50)])
    before, counts = shard.samples(), shard.part.counts()
    shard.reopen()
    assert shard.samples() == before
    for name in ("series", "samples"):
        assert shard.part.counts()[name] == counts[name]
    assert shard.part.counts()["samples_in"] == 0
    shard.write([(m(job="a"), [(1, 1.0)]), (m(i="3", batch="0"), [(99, 1.0)])])
    shard.reopen()
    assert shard.samples(Matcher("job", "=", "a")) == {A: [(1, 1.0)]}
    assert shard.part.counts()["series"] == counts["series"] + 1


def test_deletion_is_durable_and_does_not_touch_what_is_written_later(shard: Shard) -> None:
    shard.write([(m(job="a"), [(1, 1.0), (2, 2.0), (3, 3.0)]), (m(job="b"), [(2, 4.0)])])
    shard.part.delete([[Matcher("job", "=", "a")]], 2, 3, TIMEOUT_S)
    shard.write([(m(job="a"), [(3, 9.0)])])
    expected = {A: [(1, 1.0), (3, 9.0)], B: [(2, 4.0)]}
    assert shard.samples() == expected
    shard.reopen()
    assert shard.samples() == expected
    shard.part.delete([[Matcher("job", "=", "a")], [Matcher("job", "=~", ".+")]], *EVERYTHING, TIMEOUT_S)
    assert shard.samples() == {}
    shard.reopen()
    assert shard.samples() == {}


def failing(monkeypatch: pytest.MonkeyPatch, what: object) -> Callable[[], None]:
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(what, "write", refuse)
    return monkeypatch.undo


@pytest.mark.parametrize("what", ["store", "log"])
def test_a_refused_write_shows_nothing_and_can_be_repeated(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    repair = failing(monkeypatch, getattr(shard, what))
    with pytest.raises(Unavailable, match="full"):
        shard.write([(m(job="a"), [(2, 2.0)]), (m(job="b"), [(2, 2.0)])])
    assert shard.samples() == {A: [(1, 1.0)]}
    repair()
    shard.write([(m(job="b"), [(3, 3.0)])])
    shard.reopen()
    assert shard.samples() == {A: [(1, 1.0)], B: [(3, 3.0)]}


def test_a_write_whose_sync_fails_is_not_visible_and_not_taken_for_another(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise Unavailable("the disk is failing")

    monkeypatch.setattr(shard.log, "sync", refuse)
    with pytest.raises(Unavailable):
        shard.write([(m(job="a"), [(1, 1.0)])])
    assert shard.samples() == {}
    monkeypatch.undo()
    shard.write([(m(job="b"), [(2, 2.0)])])
    assert shard.samples() == {B: [(2, 2.0)]}
    shard.reopen()
    assert shard.samples() == {A: [(1, 1.0)], B: [(2, 2.0)]}


def test_a_write_of_new_series_does_not_wait_for_a_sync_of_the_store(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard.store, "sync", lambda: pytest.fail("the store was synced"))
    shard.write([(m(job="a"), [(1, 1.0)])])
    monkeypatch.undo()
    assert shard.samples() == {A: [(1, 1.0)]}


def test_concurrent_writes_and_reads_lose_and_invent_nothing(shard: Shard) -> None:
    writers, batches, series = 4, 15, 40
    seen: list[int] = []
    done = threading.Event()

    def write(writer: int) -> None:
        for i in range(batches):
            shard.write([(m(i=str(s), w=str(writer)), [(i, float(i))]) for s in range(series)])

    def read() -> None:
        while not done.is_set():
            found = shard.samples(Matcher("__name__", "=", "m"))
            for points in found.values():
                assert points == [(i, float(i)) for i in range(len(points))]
            seen.append(sum(map(len, found.values())))

    reader = threading.Thread(target=read)
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert seen == sorted(seen)
    shard.reopen()
    found = shard.samples()
    assert len(found) == writers * series
    assert all(points == [(i, float(i)) for i in range(batches)] for points in found.values())


def test_a_write_gives_up_when_its_turn_does_not_come(shard: Shard) -> None:
    with shard.part.turn.exclusive(1.0), pytest.raises(DeadlineExceeded, match="busy"):
        write_to(shard.part, remote_write.split(body([(m(job="a"), [(1, 1.0)])]), 1, UNLIMITED).parts[0], 0.01)
    shard.write([(m(job="b"), [(1, 1.0)])])
    assert shard.samples() == {B: [(1, 1.0)]}


def test_a_body_that_is_not_canonical_is_an_internal_error(shard: Shard) -> None:
    with pytest.raises(Internal):
        write_to(shard.part, [body([([("b", "x"), ("__name__", "m")], [(1, 1.0)])])], TIMEOUT_S)


def test_label_bytes_are_kept_until_their_series_are_saved_and_no_longer(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.write([(m(job="a"), [(1, 1.0)])])
    index = shard.part.contents.index
    assert len(index.label_bytes(1)[0]) == 0
    with pytest.raises(AssertionError, match="set 0 were dropped"):
        index.label_bytes(0)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(shard.log, "sync", Mock(side_effect=OSError("full")))
        shard.write([(m(job="b"), [(1, 1.0)])])
    assert len(index.label_bytes(1)[0]) > 0
    shard.write([(m(job="b"), [(1, 2.0)])])
    assert len(index.label_bytes(2)[0]) == 0
    shard.reopen()
    index = shard.part.contents.index
    assert len(index) == 2 and len(index.label_bytes(2)[0]) == 0
    with pytest.raises(AssertionError, match="kept are those from 2"):
        index.label_bytes(1)
    assert shard.samples() == {A: [(1, 1.0)], B: [(1, 2.0)]}


def test_several_shards_are_one_source(tmp_path: Path) -> None:
    services = SeriesServices(Settings(), TextTable())
    parts = []
    log = WriteAheadLog(tmp_path / "wal").open()
    for number in range(3):
        stream = log.stream(number, SERIES)
        part = SeriesPart(Store(tmp_path / str(number)), services, LocalObjects(tmp_path / "blocks"), stream)
        part.load()
        parts.append(part)
    split_request = remote_write.split(
        body([(m(i=str(i)), [(1, float(i)), (2, -1.0)]) for i in range(100)]), 3, UNLIMITED
    )
    for number, bodies in split_request.parts.items():
        write_to(parts[number], bodies, TIMEOUT_S)
    child = Symbols(services.symbols)
    selection = ShardSource(parts).select([Matcher("i", "!=", "7")], 0, 9, child)
    assert selection.labels.size == 99
    whole = selection.read(0, 99)
    assert (whole.values[::2].astype(int) == [int(dict(selection.labels.labels(i))["i"]) for i in range(99)]).all()
    pieces = [selection.read(first, min(first + 7, 99)) for first in range(0, 99, 7)]
    assert (np.concatenate([piece.values for piece in pieces]) == whole.values).all()
    assert selection.read(5, 5).offsets.tolist() == [0]
    assert ShardSource([]).select([], 0, 9, child).labels.size == 0
    for part in parts:
        part._store.close()
    log.close()

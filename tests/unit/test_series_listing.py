"""Lists of series, label names and values with a time range: those that have samples in it, and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from shared.errors import DeadlineExceeded
from shared.messages.series import ListReply, SelectBody, TextsReply
from shared.promql.ast import Matcher
from shared.wire import Request, pack, unpack
from tests.unit.series_shard import TIMEOUT_S, Quiet, m
from worker.methods.series import METHODS
from worker.series.blocks import writer as writer_module
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.shard import Shard
from worker.storage.objects import LocalObjects


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path)
    yield opened
    opened.close()


def nothing() -> None:
    pass


def listed(shard: Quiet, start_ms: int, end_ms: int) -> set[str]:
    lookup, ids = shard.part.having([[Matcher("__name__", "=", "m")]], start_ms, end_ms, nothing)
    frame = lookup.frame(ids, lookup.symbols)
    return {dict(frame.labels(row))["job"] for row in range(frame.size)}


def asked(shard: Quiet, method: str, start_ms: int, end_ms: int, deadline: float | None = None) -> list[str] | int:
    request = Request(
        method=method,
        deadline=time.monotonic() + TIMEOUT_S if deadline is None else deadline,
        shards=(0,),
        body=pack(SelectBody(((Matcher("__name__", "=", "m"),),), start_ms, end_ms, 0, "job")),
    )
    reply = METHODS[method].run({0: cast(Shard, SimpleNamespace(series=shard.part))}, request)
    return unpack(reply.body, ListReply).series if method == "series.list" else unpack(reply.body, TextsReply).texts


@pytest.mark.parametrize("place", ["head", "frozen", "blocks"])
def test_series_with_samples_around_a_range_and_none_within_are_not_listed(shard: Quiet, place: str) -> None:
    shard.write(
        [(m(job="around"), [(0, 1.0), (100, 1.0)]), (m(job="within", x="1"), [(0, 1.0), (50, 1.0), (100, 1.0)])]
    )
    if place == "frozen":
        shard.part.contents.freeze(shard.part.journal.next_sequence)
    elif place == "blocks":
        shard.seal()
    assert asked(shard, "series.list", 40, 60) == 1
    assert asked(shard, "series.values", 40, 60) == ["within"]
    assert asked(shard, "series.labels", 51, 99) == []
    assert asked(shard, "series.labels", 0, 0) == ["__name__", "job", "x"]
    assert asked(shard, "series.values", 100, 200) == ["around", "within"]


def test_a_list_leaves_out_what_was_deleted_from_the_range(shard: Quiet) -> None:
    for seal in (False, True):
        job = str(seal)
        shard.write([(m(job=job), [(0, 1.0), (40, 1.0), (50, 1.0), (60, 1.0), (100, 1.0)])])
        if seal:
            shard.seal()
        assert job in listed(shard, 45, 55)
        shard.part.delete([[Matcher("job", "=", job)]], 42, 58, TIMEOUT_S)
        assert job not in listed(shard, 45, 55)
        assert job in listed(shard, 40, 55)
        assert job in listed(shard, 45, 60)


def test_long_runs_and_many_chunks_are_looked_into_exactly(shard: Quiet) -> None:
    generator = np.random.default_rng(7)
    expected: dict[str, set[int]] = {}
    for i in range(30):
        times = np.unique(generator.integers(0, 900, 300)) if i % 3 else np.arange(0, 900, 3)
        expected[str(i)] = set(times.tolist())
        shard.write([(m(job=str(i)), [(int(t), float(t)) for t in times])])
    for sealed in (False, True):
        if sealed:
            shard.seal()
        for start, end in generator.integers(0, 900, (60, 2)).tolist():
            start, end = min(start, end), min(start, end) + (end % 3)
            assert listed(shard, start, end) == {
                job for job, times in expected.items() if any(start <= t <= end for t in times)
            }


@pytest.mark.parametrize("method", ["series.list", "series.labels", "series.values"])
def test_a_list_whose_time_is_up_is_given_up_also_within_a_shard(
    shard: Quiet, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    shard.write([(m(job="a"), [(0, 1.0), (100, 1.0)])])
    shard.seal()
    now = time.monotonic()
    readings = iter([now, now + 2 * TIMEOUT_S, now + 2 * TIMEOUT_S])
    monkeypatch.setattr("shared.wire.time", SimpleNamespace(monotonic=lambda: next(readings)))
    with pytest.raises(DeadlineExceeded, match="shard 0"):
        asked(shard, method, 40, 60, now + TIMEOUT_S)


@pytest.mark.parametrize("method", ["series.list", "series.labels", "series.values"])
def test_a_list_whose_time_was_up_before_it_began_is_not_begun(shard: Quiet, method: str) -> None:
    shard.write([(m(job="a"), [(0, 1.0)])])
    with pytest.raises(DeadlineExceeded, match="shard 0"):
        asked(shard, method, 0, 1, time.monotonic() - 1)


def test_a_list_looks_at_its_deadline_before_each_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "CHUNK_SAMPLES", 100)
    writer = BlockWriter(LocalObjects(tmp_path), 1)
    for series in range(4):
        writer.add(np.array([series]), np.array([100]), np.arange(100) * 10 + series, np.ones(100))
    block = Block(writer.finish(), LocalObjects(tmp_path), DecodedCache(0))
    looks: list[None] = []
    assert block.having(np.arange(4), 11, 12, lambda: looks.append(None)).tolist() == [False, True, True, False]
    assert len(looks) == 4

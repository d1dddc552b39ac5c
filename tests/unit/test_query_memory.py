"""The bound on a query's memory: in the engine, in a worker, in the coordinator, and beside the cache of blocks."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from coordinator.queries.evaluation import Query, coordinator_account, counted
from coordinator.queries.gate import HEAVY, LIGHT
from loadtest.harness.memory_source import MemorySource
from shared.errors import NotExecutable, TooHeavy
from shared.labels import Symbols
from shared.messages.sub_queries import EvaluateBody, EvaluateReply, SubQuery
from shared.process.array_memory import Account
from shared.process.processor_time import UNBOUNDED, ProcessorTime
from shared.promql.engine.memory import LIGHT_BYTES_MAX, account_of, bounded
from shared.promql.model import Grid
from tests.sharded import evaluate_sharded
from worker.queries.evaluation import answer

MEGABYTE = 1 << 20
STEPS = 10_000
"""Of the grid of the query below, whose value has 80 KB of numbers."""


def query(**options: Any) -> Query:
    defaults = {"limit": 0, "lookback_ms": 300_000, "samples_max": 1000, "timeout_ms": 10_000}
    return Query("m", Grid(0, 0), False, **{**defaults, **options})


# The engine's bound


def test_a_heavy_query_past_its_memory_is_refused_with_its_limit() -> None:
    account = account_of(MEGABYTE, is_light=False)
    refused = pytest.raises(NotExecutable, match=r"more memory than 1048576 bytes.*TRIPTYCH_QUERY_BYTES_MAX")
    with refused, bounded(account, is_light=False):
        np.zeros(2 * MEGABYTE, dtype=np.uint8)


def test_a_light_query_past_its_memory_is_tried_as_a_heavy_one() -> None:
    account = account_of(1 << 30, is_light=True)
    assert account.limit_bytes == LIGHT_BYTES_MAX
    with pytest.raises(TooHeavy), bounded(account, is_light=True):
        np.zeros(LIGHT_BYTES_MAX + 1, dtype=np.uint8)


def test_a_light_query_has_no_more_than_a_heavy_one() -> None:
    assert account_of(MEGABYTE, is_light=True).limit_bytes == MEGABYTE


# In a worker


def evaluated(bytes_max: int, processor: ProcessorTime = UNBOUNDED) -> EvaluateReply:
    source = MemorySource.of({"m": ([0], [1.0])})
    asked = SubQuery("m + 1", "value", 0, STEPS - 1, 1)
    body = EvaluateBody(0, STEPS - 1, 1, 300_000, 1_000_000, (asked,), bytes_max=bytes_max)
    reply, _ = answer(
        body,
        source,
        Symbols(),
        deadline=time.monotonic() + 60,
        cancelled=lambda: False,
        processor=processor,
    )
    return reply


def test_a_worker_keeps_to_the_memory_it_is_given() -> None:
    assert evaluated(0).answers
    assert evaluated(MEGABYTE).answers
    with pytest.raises(NotExecutable, match="more memory than 50000 bytes"):
        evaluated(50_000)
    with pytest.raises(TooHeavy):
        evaluated(50_000, ProcessorTime(60))


def test_a_worker_stops_a_light_query_when_its_processor_time_is_used_up() -> None:
    with pytest.raises(TooHeavy):
        evaluated(MEGABYTE, ProcessorTime(1e-9))


# In the coordinator


def test_workers_share_one_half_of_the_memory_and_the_coordinator_has_the_other() -> None:
    asked = query(bytes_max=12 * MEGABYTE)
    assert asked.terms("arrays", HEAVY, 3).bytes_max == 2 * MEGABYTE
    assert asked.terms("arrays", HEAVY, 0).bytes_max == 6 * MEGABYTE
    assert coordinator_account(asked, HEAVY).limit_bytes == 6 * MEGABYTE


def test_a_light_place_bounds_the_processor_time_of_every_process() -> None:
    assert query().terms("arrays", LIGHT, 1).processor_s == LIGHT.processor_s > 0
    assert query().terms("arrays", HEAVY, 1).processor_s == 0


def test_what_workers_replied_counts_with_the_arrays_that_are_made() -> None:
    asked = query(bytes_max=2 * MEGABYTE)
    half, rest = MEGABYTE // 2, MEGABYTE // 2
    account = coordinator_account(asked, HEAVY)
    assert counted(lambda: np.zeros(rest, np.uint8), account, half, HEAVY)().nbytes == rest
    account = coordinator_account(asked, HEAVY)
    with pytest.raises(NotExecutable):
        counted(lambda: np.zeros(rest + 1, np.uint8), account, half, HEAVY)()
    with pytest.raises(TooHeavy):
        counted(lambda: None, coordinator_account(asked, LIGHT), MEGABYTE + 1, LIGHT)()


def test_merging_stops_when_the_processor_time_of_a_light_query_is_used_up() -> None:
    source = MemorySource.of({"m": ([0], [1.0])})
    grid = Grid(0, 1000, 1000)
    assert evaluate_sharded("vector(1) + 1", [source], grid, processor_s=60.0).value
    with pytest.raises(TooHeavy):
        evaluate_sharded("vector(1) + 1", [source], grid, processor_s=1e-9)


# Beside it


def test_what_the_cache_of_blocks_keeps_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.series.blocks import block as block_module
    from worker.series.blocks.block import Block
    from worker.series.blocks.cache import DecodedCache
    from worker.series.blocks.sections import Chunk

    kept = SimpleNamespace(size_bytes=MEGABYTE)

    def decode(*_: object) -> SimpleNamespace:
        kept.numbers = np.zeros(MEGABYTE, dtype=np.uint8)
        return kept

    monkeypatch.setattr(block_module, "decode_directory", decode)
    monkeypatch.setattr(Block, "_read", lambda self, *_: b"")
    monkeypatch.setattr(Block, "_chunk_bytes", lambda self, *_: b"")
    monkeypatch.setattr(
        block_module.sections, "decode", lambda *_: Chunk(np.zeros(MEGABYTE, dtype=np.int64), np.zeros(MEGABYTE))
    )
    row = SimpleNamespace(name="b", samples=1, directory_at=0, size_bytes=0, directory_hash=0)
    opened = Block(cast(Any, row), cast(Any, None), DecodedCache(64 * MEGABYTE))
    account = Account(1000)
    directory = SimpleNamespace(
        chunk_hashes=[0],
        chunk_runs=np.array([0, 1]),
        counts=np.array([1], dtype=np.uint32),
        earliest=np.array([0], dtype=np.int64),
    )
    with account.open():
        assert opened.directory() is kept  # type: ignore[comparison-overlap]
        assert len(opened.chunk(cast(Any, directory), 0).times_ms) == MEGABYTE
    assert account.used_bytes == 0

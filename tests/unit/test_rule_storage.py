"""How results of rules are stored in several messages, and what becomes of queries that are canceled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.limits.pressure import Level
from coordinator.queries.evaluation import Query
from coordinator.queries.running import RunningQueries, RunningQuery
from coordinator.rules import storage
from coordinator.rules.storage import RuleStorage
from coordinator.series.split_request import SplitRequest
from shared.errors import BadData, Canceled
from shared.settings import Settings
from tests.unit.rule_storage import series

T = 1_700_000_000_000


class Samples:
    """Takes what is written."""

    def __init__(self) -> None:
        self.messages: list[Mapping[int, Sequence[Any]]] = []

    async def write(self, parts: Mapping[int, Sequence[Any]]) -> None:
        self.messages.append(parts)


class Place:
    """A storage of rules on nothing but what a test needs. `splits`: what each message had, and what was refused."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = RunningQueries(shows_texts=True, ended=lambda running: None)
        self.splits: list[tuple[int, int, int]] = []
        nothing = cast(Any, None)
        self.storage = RuleStorage(
            Settings(data=directory, shards=2),
            nothing,
            nothing,
            nothing,
            nothing,
            self.running,
            cast(Any, Samples()),
            cast(Any, SimpleNamespace(memory_level=Level.NONE)),
        )
        split = self.storage._split

        def noted(time_ms: int, samples: Any, ended: Any) -> SplitRequest:
            done = split(time_ms, samples, ended)
            self.splits.append((len(samples), len(ended), done.refused_count))
            return done

        monkeypatch.setattr(self.storage, "_split", noted)


async def test_a_refused_series_keeps_nothing_else_from_being_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "WRITTEN_AT_ONCE", 2)
    place = Place(tmp_path, monkeypatch)
    too_long = "v" * 100_000
    results = [series(1.0, name="r", i=i) for i in ("a", too_long, "c", "d", too_long + "2")]
    gone = [series(name="r", i=i)[0] for i in "xyz"]
    with pytest.raises(BadData, match=r"^2 series of the result were not stored: "):
        await place.storage.write(T, results, gone)
    assert place.splits == [(2, 0, 1), (2, 0, 0), (1, 0, 1), (0, 2, 0), (0, 1, 0)]


async def test_rules_whose_queries_were_canceled_are_not_asked_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, monkeypatch)
    asked = asyncio.Event()
    alone: list[str] = []

    async def together(exprs: Sequence[str], time_ms: int) -> Any:
        async def served(running: Any) -> None:
            asked.set()
            await asyncio.sleep(60)

        storage.REQUEST_ID.set("a-1")
        return await place.running.serve("rule", "; ".join(exprs), storage.CLIENT, served)

    async def query(expr: str, time_ms: int) -> Any:
        alone.append(expr)
        return []

    monkeypatch.setattr(place.storage, "_together", together)
    monkeypatch.setattr(place.storage, "query", query)
    task = asyncio.create_task(place.storage.query_all(["a", "b"], T))
    await asked.wait()
    assert place.running.cancel("a-1") == 1
    answers = await task
    assert [type(answer) for answer in answers] == [Canceled, Canceled] and not alone


@pytest.mark.parametrize(("wanted_ms", "asked_ms"), [(None, 300_000), (3_600_000, 3_600_000)])
async def test_a_query_sees_as_far_back_as_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted_ms: int | None, asked_ms: int
) -> None:
    place = Place(tmp_path, monkeypatch)

    async def served(query: Query, running: RunningQuery) -> Any:
        return query.lookback_ms

    monkeypatch.setattr(place.storage, "_served", served)
    assert cast(Any, await place.storage.query("m", T, wanted_ms)) == asked_ms

"""Consumer groups over shards in this process: what a crash and requests at the same time must not do to them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.log.area import LogArea
from coordinator.log.follow import rows_of
from coordinator.log.groups import area as groups_area
from coordinator.log.groups.state import Stale
from shared.errors import NotFound, Unavailable
from shared.hashing import shard_of
from tests.unit.log_area import EVERYTHING, SHARDS, Log, batch, key_on

GROUP = next(name for i in range(100) if shard_of((name := f"group-{i}").encode(), SHARDS) == 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.links.close()


async def polled(area: LogArea, generation: int) -> tuple[list[bytes], int]:
    """(values that the member is given, where it goes on)."""
    answer = await area.groups.poll(GROUP, "a", generation, 0, 100, 0.0, contextlib.nullcontext)
    return [value for page in answer.page.pages for _, _, value, _ in rows_of(page, EVERYTHING)], answer.page.next


async def test_a_member_that_polls_while_a_shard_has_not_reported_is_not_moved_past_what_is_in_doubt(log: Log) -> None:
    """Numbers are reserved far ahead. Before shards report after a crash, all of them may seem to be readable."""
    async with log.running(crash=True) as area:
        for name in ("a", "b", "c"):
            state, _ = await area.groups.join(GROUP, name, None, None, 60_000)
        generation = state.members[0].generation
        assert [bool(state.find(name) == 0) for name in ("a", "b", "c")] == [True, False, False]
        await area.append(batch((key_on(0), b"first"), durable=True))
        values, following = await polled(area, generation)
        assert values == [b"first"]
        await area.groups.commit(GROUP, "a", generation, following)
        start, _ = await area.append(batch((key_on(0), b"acknowledged"), (key_on(1), b"too"), durable=True))
    log.links.down.add(1)
    async with log.running() as area:
        assert await polled(area, generation) == ([], start)
        log.links.down.clear()
        await area.recovery.complete.wait()
        values, _ = await polled(area, generation)
        assert values == [b"acknowledged"]


async def test_a_member_that_waits_gets_the_slots_of_one_whose_removal_fails_at_first(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_area, "REMOVAL_RETRY_S", 0.1)
    async with log.running() as area:
        await area.groups.join(GROUP, "dead", None, None, 1000)
        state, place = await area.groups.join(GROUP, "a", None, None, 60_000)
        put, refused = area.groups.store.put, []

        async def failing(*change: Any) -> None:
            if len(refused) < 2:
                refused.append(change)
                raise Unavailable("the shard is away")
            await put(*change)

        monkeypatch.setattr(area.groups.store, "put", failing)
        began = time.monotonic()
        with pytest.raises(Stale):
            await area.groups.poll(GROUP, "a", state.members[place].generation, 0, 100, 20.0, contextlib.nullcontext)
        assert len(refused) == 2 and time.monotonic() - began < 10
        _, state = await area.groups.group(GROUP)
        assert [member.name for member in state.members] == ["a"]


async def test_of_two_deletions_at_once_the_second_leaves_a_group_that_was_made_since(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with log.running() as area:
        store = area.groups.store
        delete = store.delete

        async def slow(name: str) -> None:
            await asyncio.sleep(0.01)
            await delete(name)

        monkeypatch.setattr(store, "delete", slow)
        await area.groups.join(GROUP, "a", None, None, 60_000)
        first, second = (asyncio.create_task(area.groups.delete(GROUP)) for _ in range(2))
        await first
        await area.groups.join(GROUP, "b", None, None, 60_000)
        with pytest.raises(NotFound):
            await second
        _, state = await area.groups.group(GROUP)
        assert [member.name for member in state.members] == ["b"]

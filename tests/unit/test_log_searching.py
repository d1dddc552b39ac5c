"""Searches in the values of the log: pages of one shard, of all of them, counts, and readers that follow."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.log.reads import KeySelection
from shared import wire
from shared.errors import DeadlineExceeded
from shared.log_search import condition as conditions
from shared.messages import log as messages
from shared.messages.log import SEQUENCE_MAX, Range, Search
from shared.messages.log_pages import Page, Records, check_progress
from shared.wire import Request
from tests.unit.log_area import Log, batch, key_on, read
from tests.unit.log_shard import OneShard
from worker.logs import examination, reading
from worker.logs import rows as log_rows
from worker.logs.examination import Examination
from worker.methods import log as methods

KEY, OTHER = b"k", b"other"
RARE = Search(grep="rare")
RECORDS = 200
RARE_ONES = [3, 50, 51, 120, 199]


def nothing() -> None:
    """A check that lets everything go on."""


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends by what it has examined, however busy the machine is."""
    monkeypatch.setattr(examination, "EXAMINED_S", 60.0)


@pytest.fixture(params=["recent", "stored", "both"])
def shard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OneShard]:
    """Groups of 10 records of which RARE_ONES have the word; in memory, in the store, or some in each."""
    made = OneShard(tmp_path / "shard")
    for group in range(0, RECORDS, 10):
        numbers = range(group, group + 10)
        made.append(group, [(KEY if n % 2 else OTHER, b"a rare one" if n in RARE_ONES else b"%d" % n) for n in numbers])
        if request.param == "stored" or (request.param == "both" and group < 100):
            made.part._closed = group + 10
            made.part.gather()
    yield made
    made.close()


def pages_of(shard: OneShard, key: bytes | None, reverse: bool = False, limit: int = 1000) -> list[Page]:
    """All pages of a search, which has to come to an end."""
    span = Range(0, 9, 0, RECORDS)
    pages: list[Page] = []
    while not pages or not pages[-1].done:
        assert len(pages) < 2 * RECORDS, "it does not end"
        search = Examination(RARE, nothing)
        if key is None:
            pages.append(reading.merge(shard.part, span, b"", limit, nothing, search))
        else:
            pages.append(reading.search_key(shard.part, span, key, limit, reverse, search))
        check_progress(pages[-1], span.start, span.end, reverse)
        if reverse:
            span.end = pages[-1].next
        else:
            span.start = pages[-1].next
    return pages


def numbers(pages: list[Page]) -> list[int]:
    return [number for page in pages for number in page.records.sequences.tolist()]


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_a_search_returns_what_it_finds_in_order(shard: OneShard, limit: int) -> None:
    own = [n for n in RARE_ONES if n % 2]
    assert numbers(pages_of(shard, KEY, limit=limit)) == own
    assert numbers(pages_of(shard, KEY, reverse=True, limit=limit)) == own[::-1]
    pages = pages_of(shard, None, limit=limit)
    assert numbers(pages) == RARE_ONES
    assert max(len(page.records) for page in pages) <= limit
    assert [key for page in pages for key in page.records.key_list()] == [KEY if n % 2 else OTHER for n in RARE_ONES]
    assert {value for page in pages for value in page.records.value_list()} == {b"a rare one"}


@pytest.mark.parametrize("bound", ["EXAMINED_BYTES_MAX", "EXAMINED_S"])
def test_a_page_ends_after_bounded_work_and_says_how_far_it_has_come(
    shard: OneShard, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, bound, 0)
    monkeypatch.setattr(reading, "RECENT_RUN_RECORDS", 10)
    for key, reverse in ((KEY, False), (KEY, True), (None, False)):
        pages = pages_of(shard, key, reverse)
        assert len(pages) >= 5
        expected = RARE_ONES if key is None else [n for n in RARE_ONES if n % 2]
        assert numbers(pages) == (expected[::-1] if reverse else expected)


def test_counts_are_of_what_is_found(shard: OneShard) -> None:
    span = Range(0, 9, 4, RECORDS)
    assert reading.count_found(shard.part, span, KEY, b"", Examination(RARE, nothing), nothing) == 2
    assert reading.count_found(shard.part, span, None, b"", Examination(RARE, nothing), nothing) == 4
    assert reading.count_found(shard.part, span, None, b"oth", Examination(RARE, nothing), nothing) == 2


def test_pieces_of_the_store_of_any_size_hold_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RECENT_RUN_RECORDS", 4)
    made = OneShard(tmp_path / "shard")
    rows = [(b"key-%d" % (n * n % 7), b"%d rare" % n if n % 3 or n > 70 else b"%d" % n) for n in range(100)]
    made.append(0, rows)
    made.part._closed = 100
    made.part.gather()
    expected = [(n, *row) for n, row in enumerate(rows) if b"rare" in row[1]]
    for start, end in ((0, 100), (5, 77), (99, 100)):
        page = reading.merge(
            made.part, Range(0, 9, start, end, [(20, 30)]), b"", 1000, nothing, Examination(RARE, nothing)
        )
        columns = page.records.sequences.tolist(), page.records.key_list(), page.records.value_list()
        hidden = set(range(20, 30))
        assert list(zip(*columns, strict=True)) == [
            row for row in expected if start <= row[0] < end and row[0] not in hidden
        ]
    made.close()


def test_records_without_a_value_in_the_store_are_reported_and_the_others_searched(tmp_path: Path) -> None:
    made = OneShard(tmp_path / "shard")
    made.append(0, [(b"a", b"rare 0"), (b"b", b"rare 1"), (b"a", b"rare 2"), (b"b", b"3")])
    made.part._closed = 4
    made.part.gather()
    changes = made.store.batch()
    for row in list(made.store.keys("log", *log_rows.prefix_range(0, b"a"))):
        changes.delete("log", row)
    made.store.write(changes)
    page = reading.merge(made.part, Range(0, 9, 0, 4), b"", 1000, nothing, Examination(RARE, nothing))
    assert page.records.value_list() == [b"rare 1"]
    assert made.part.damage.texts("log") == ["2 records from sequence number 0 on have no values in the store"]
    made.close()


def call(shard: OneShard, name: str, body: Any, within_s: float = 10.0) -> Any:
    request = Request(name, (0,), time.monotonic() + within_s, wire.pack(body), (), {})
    shards: Any = {0: SimpleNamespace(logs=shard.part)}
    return methods.METHODS[name].run(shards, request)


def test_the_methods_of_a_worker_search_and_end_at_the_deadline(shard: OneShard) -> None:
    span = Range(0, 9, 0, RECORDS)
    bodies = {
        "log.search": messages.ScanBody(span, 1000, KEY, search=RARE),
        "log.merge": messages.ScanBody(span, 1000, prefix=KEY, search=RARE),
        "log.count": messages.CountBody(span, KEY, b"", RARE),
    }
    for name in ("log.search", "log.merge"):
        records = Records.from_frames(call(shard, name, bodies[name]).frames)
        assert records.sequences.tolist() == [n for n in RARE_ONES if n % 2]
    assert wire.unpack(call(shard, "log.count", bodies["log.count"]).body, messages.CountReply).records == 3
    for name, body in bodies.items():
        with pytest.raises(DeadlineExceeded):
            call(shard, name, body, within_s=-1)


def test_values_that_were_not_examined_are_warned_of(shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "VALUE_BYTES_MAX", 5)
    search = Search(where="exists $")
    span = Range(0, 9, 0, RECORDS)
    for name, body in (
        ("log.search", messages.ScanBody(span, 1000, KEY, search=search)),
        ("log.merge", messages.ScanBody(span, 1000, search=search)),
        ("log.count", messages.CountBody(span, None, b"", search)),
    ):
        assert call(shard, name, body).warnings == ["values above 5 bytes are not examined by 'where'"]


# Through the coordinator


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.links.close()


def event(level: str, n: int) -> bytes:
    return json.dumps({"level": level, "n": n}).encode()


async def test_a_search_goes_to_the_shards_and_comes_back_in_order(log: Log) -> None:
    search = Search(where='$.level = "error" and $.n >= 10')
    async with log.running() as area:
        for n in range(30):
            await area.append(batch((key_on(n % 3), event("error" if n % 5 == 0 else "info", n))))
        found = await read(area, KeySelection(None, b"", search))
        assert [json.loads(value)["n"] for _, _, value in found] == [10, 15, 20, 25]
        found = await read(area, KeySelection(key_on(0), search=search))
        assert [json.loads(value)["n"] for _, _, value in found] == [15]
        for selection in (KeySelection(None, b"", search), KeySelection(key_on(0), search=search)):
            page = await area.reader.page(selection, 0, SEQUENCE_MAX, 100)
            assert len(page.records) and page.records.times.all(), "they keep their times"
        assert await area.reader.count(KeySelection(None, b"", search), 0, SEQUENCE_MAX) == 4
        assert await area.reader.count(KeySelection(key_on(0), search=search), 0, SEQUENCE_MAX) == 1


async def test_a_follower_gets_only_what_its_search_finds_past_and_live(log: Log) -> None:
    selections = [KeySelection(key_on(0), search=RARE), KeySelection(None, b"", RARE)]
    async with log.running() as area:
        for selection in selections:
            start, _ = await area.append(batch((key_on(0), b"rare 1"), (key_on(0), b"2")))
            with area.followers.following(selection, start) as follower:
                reading_on = asyncio.create_task(_values(area, follower, 3))
                await asyncio.sleep(0.05)
                for value in (b"3", b"rare 4", b"5", b"6"):
                    await area.append(batch((key_on(0), value)))
                end = await area.append(batch((key_on(0), b"rare 7")))
                assert await reading_on == [b"rare 1", b"rare 4", b"rare 7"]
                assert follower.position == end[0] + 1


async def test_a_follower_that_searches_moves_on_past_what_it_has_examined(log: Log) -> None:
    async with log.running() as area:
        with area.followers.following(KeySelection(key_on(0), search=RARE), 0) as follower:
            for n in range(20):
                await area.append(batch((key_on(0), b"%d" % n)))
            async with asyncio.timeout(5):
                while follower.position < 20:
                    assert await area.followers.read(follower, 100) == []
            assert not follower.lagging and not follower.wake.is_set()


async def _values(area: Any, follower: Any, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(5):
        while len(values) < count:
            values += [row[2] for row in await area.followers.read(follower, 100)]
    return values

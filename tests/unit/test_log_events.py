"""Records as server-sent events, for a reader that does not take them."""

from __future__ import annotations

import asyncio
import re
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from coordinator.api.log import answers, scan, times
from coordinator.context import CONTEXT
from coordinator.log.follow import Row
from coordinator.log.reads import KeySelection
from shared.errors import NotFound

RECORDS, VALUE_BYTES = 2_000, 100


class Deaf:
    """Takes nothing until it is told to."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.takes = asyncio.Event()

    async def write(self, piece: bytes) -> None:
        self.pieces.append(piece)
        await self.takes.wait()


async def test_a_reader_that_takes_nothing_holds_no_record_beside_its_text_and_no_text_beside_one_piece() -> None:
    values = [b"%0*d" % (VALUE_BYTES, number) for number in range(RECORDS)]
    rows: list[Row] = [(number, b"key", value, 0) for number, value in enumerate(values)]
    reader, held = Deaf(), sys.getrefcount(values[0])
    sending = asyncio.ensure_future(scan._send_events(cast(web.StreamResponse, reader), rows, answers.PLAIN))
    await asyncio.sleep(0)
    assert len(reader.pieces) == 1
    made = reader.pieces[0].count(b"\ndata: ")
    assert [row[0] for row in rows] == list(range(RECORDS - 1, made - 1, -1))
    holds = sys.getrefcount(values[0])
    assert holds == held - 1
    reader.takes.set()
    await sending
    assert rows == []
    assert len(reader.pieces) > 2
    numbers = re.findall(rb"^id: (\d+)$", b"".join(reader.pieces), re.MULTILINE)
    assert list(map(int, numbers)) == list(range(RECORDS))
    assert max(map(len, reader.pieces)) < scan.EVENTS_BYTES + 1_000


@pytest.mark.parametrize(("last", "asked_from"), [({}, 5_000), ({"Last-Event-ID": "2"}, None)])
async def test_a_reader_that_comes_back_continues_after_its_last_event_and_not_at_the_start_time(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, str], asked_from: int | None
) -> None:
    """A start time in the future would skip the records that were appended while it was away."""
    asked: list[times.TimesMs] = []

    async def between(
        reader: object, selection: object, numbers: tuple[int, int], times_ms: times.TimesMs, warnings: object
    ) -> tuple[int, int]:
        asked.append(times_ms)
        raise NotFound("the test ends here")

    monkeypatch.setattr(times, "between", between)
    request: Any = SimpleNamespace(headers=last, app={CONTEXT: SimpleNamespace(log=SimpleNamespace(reader=None))})
    running: Any = SimpleNamespace(enter=lambda name: None)
    with pytest.raises(NotFound):
        await scan.event_stream(request, KeySelection(b"k"), (3, 9), (5_000, 7_000), answers.PLAIN, running)
    assert asked == [(asked_from, 7_000)]

"""Records as server-sent events, for a reader that does not take them."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

from aiohttp import web

from coordinator.api.log import answers, scan
from coordinator.log.follow import Row

RECORDS, VALUE_BYTES = 2_000, 100


class Deaf:
    """Takes nothing until it is told to."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.takes = asyncio.Event()

    async def write(self, piece: bytes) -> None:
        self.pieces.append(piece)
        await self.takes.wait()


async def test_a_reader_that_takes_nothing_holds_no_records_beside_their_text() -> None:
    values = [b"%0*d" % (VALUE_BYTES, number) for number in range(RECORDS)]
    rows: list[Row] = [(number, b"key", value, 0) for number, value in enumerate(values)]
    reader, held = Deaf(), sys.getrefcount(values[0])
    sending = asyncio.ensure_future(scan._send_events(cast(web.StreamResponse, reader), rows, answers.PLAIN))
    await asyncio.sleep(0)
    assert len(reader.pieces) == 1
    assert rows == []
    holds = sys.getrefcount(values[0])
    assert holds == held - 1
    reader.takes.set()
    await sending
    assert len(reader.pieces) > 2
    assert b"".join(reader.pieces).count(b"\ndata: ") == RECORDS
    assert max(map(len, reader.pieces)) < scan.EVENTS_BYTES + 1_000

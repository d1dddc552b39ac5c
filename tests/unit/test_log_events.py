"""Records as server-sent events, for a reader that does not take them."""

from __future__ import annotations

import asyncio
import re
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

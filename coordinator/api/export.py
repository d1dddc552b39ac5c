"""GET /api/v1/export: the stored samples of series, as they are, in a format of files."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeVar

from aiohttp import hdrs, web

from coordinator.api import parameters
from coordinator.api.listed import listed
from coordinator.api.selectors import required_selectors, time_range
from coordinator.context import CONTEXT, Context
from coordinator.fanout.calls import require_whole
from coordinator.headers.negotiation import accepts_gzip, boolean
from coordinator.http.compression import GZIP_LEVEL
from coordinator.http.protocol import client_of
from coordinator.http.streaming import Piece, outlet
from coordinator.queries.evaluation import threads_of
from coordinator.queries.gate import HEAVY, Place
from coordinator.queries.running import RunningQuery
from coordinator.transfer.arrow import ArrowStream, ParquetFile
from coordinator.transfer.csv_rows import CsvRows
from coordinator.transfer.json_lines import JsonLines
from coordinator.transfer.slices import ExportSelection, Slice, SliceReply, slices
from shared.errors import BadData, Overloaded
from shared.messages.series import SelectBody, TextsReply
from shared.wire import pack, unpack

T = TypeVar("T")

FORMATS = ("jsonl", "csv", "arrow", "parquet")
PATIENCE_S = 60.0
"""How long an export waits for a place for its next slice while the service is overloaded. After that it ends with an
error. This is long because a client would have to begin an export anew."""
RETRY_S = 0.5


class Writer(Protocol):
    """Writes slices in one format."""

    content_type: str
    head: bytes

    @property
    def tail(self) -> bytes: ...

    def chunks(self, read: Slice) -> Iterator[Piece]: ...


async def export(request: web.Request) -> web.StreamResponse:
    """Every stored sample of the series that any `match[]` selects, including staleness markers unless
    `staleness_markers` is false.

    The answer is complete, or the connection ends in the middle of it: the last chunk of the chunked encoding is then
    missing. Raises BadData, NotExecutable, Unavailable, Overloaded.
    """
    fields = await parameters.form(request)
    start_ms, end_ms = time_range(fields)
    keeps_stale = boolean(fields, "staleness_markers", True)
    format_ = fields.get("format") or FORMATS[0]
    if format_ not in FORMATS:
        raise BadData(f"parameter 'format' is {format_!r}; it must be one of {', '.join(FORMATS)}")
    selection = ExportSelection(await required_selectors(fields), start_ms, end_ms, keeps_stale)
    text = " ".join(fields.getall("match[]"))
    return await listed(request, "export", text, partial(_served, request, selection, format_))


async def _served(
    request: web.Request, selection: ExportSelection, format_: str, running: RunningQuery
) -> web.StreamResponse:
    context = request.app[CONTEXT]
    writer = await _writer(context, selection, format_)
    turn = partial(_in_turn, context, client_of(request), running)
    async with aclosing(_pieces(slices(context.links, selection, turn), selection, writer, running)) as pieces:
        zipped = accepts_gzip(request) and format_ in ("jsonl", "csv")
        content: AsyncGenerator[Piece, None] = _zipped(pieces) if zipped else pieces
        first: Piece = await anext(content, b"")  # an error before the first piece is answered as an error
        headers = {hdrs.CONTENT_TYPE: writer.content_type, hdrs.VARY: "Accept-Encoding"}
        if zipped:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        running.enter("sending")
        await _send(request, first, content)
        await response.write_eof()
        return response


async def _writer(context: Context, selection: ExportSelection, format_: str) -> Writer:
    if format_ == "csv":
        return CsvRows(await _label_names(context, selection))
    # In a thread, because the first use of a library takes half a second to load it.
    return await _in_thread({"jsonl": JsonLines, "arrow": ArrowStream, "parquet": ParquetFile}[format_])


async def _label_names(context: Context, selection: ExportSelection) -> set[str]:
    """The names of all labels of the series. Raises Unavailable when a shard is missing."""
    body = pack(SelectBody(selection.selectors, selection.start_ms, selection.end_ms))
    replies = await context.links.call("series.labels", body=body, timeout_s=context.settings.query_timeout_ms / 1000)
    require_whole([text for reply in replies for text in reply.message.warnings])
    return {name for reply in replies for name in unpack(reply.message.body, TextsReply).texts}


async def _in_turn(
    context: Context, client: str, running: RunningQuery, ask: Callable[[float], Awaitable[SliceReply]]
) -> SliceReply:
    """What `ask` returns, called in a place of a heavy query. Each slice takes its own place, so that other queries get
    places between two slices, and a client that reads slowly occupies none."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        deadline = time.monotonic() + context.settings.query_timeout_ms / 1000

        async def attempt(place: Place, deadline: float = deadline) -> SliceReply:
            running.is_light = place.is_light
            return await ask(max(0.0, deadline - time.monotonic()))

        try:
            return await context.gate.run(client, "export", deadline, attempt, is_heavy=True)
        except Overloaded:
            if time.monotonic() > give_up or not running.samples_read:
                raise
            await asyncio.sleep(RETRY_S)


async def _pieces(
    replies: AsyncGenerator[SliceReply, None], selection: ExportSelection, writer: Writer, running: RunningQuery
) -> AsyncGenerator[Piece, None]:
    """The answer, piece by piece. The first piece comes after the workers have replied."""
    head: Piece = writer.head
    async with aclosing(replies):
        async for reply in replies:
            read = await _in_thread(partial(reply.decoded, selection))
            running.samples_read += len(read.samples.values)
            if head:
                yield head
                head = b""
            chunks = writer.chunks(read)
            while (piece := await _in_thread(partial(next, chunks, None))) is not None:
                yield piece
    if head:
        yield head
    if tail := await _in_thread(lambda: writer.tail):
        yield tail


async def _in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads_of(HEAVY), call)


async def _zipped(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """The bytes of all pieces as one gzip member."""
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    async for piece in pieces:
        if packed := await _in_thread(partial(deflate.compress, piece)):
            yield packed
    yield deflate.flush()


async def _send(request: web.Request, first: Piece, rest: AsyncGenerator[Piece, None]) -> None:
    """Send the pieces as fast as the client reads them. `slices` limits how many are produced ahead of the client.
    Raises as `outlet`."""
    with outlet(request) as client:
        await client.write_all(first)
        async for piece in rest:
            await client.write_all(piece)
        await client.taken()


ROUTES: list[web.RouteDef] = [web.get("/api/v1/export", export, allow_head=False)]
